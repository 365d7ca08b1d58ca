"""Fields and options of records, gathered at first use."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taskq.arrow import arrays, frames, schema
from taskq.core import errors, model, records
from taskq.engine import Flag, Option, kinds
from taskq.log.format.options import decode_extras

#: Tag and length of an option; the same layout as in ``taskq.log.format.options``.
_OPTION: Final = struct.Struct("<BH")
_I64: Final = struct.Struct("<q")


class OptionColumn(NamedTuple):
    """Option of each of some rows: row, tag, place and length of the value."""

    row: arrays.Ints
    tag: arrays.Bytes
    at: arrays.Ints
    size: arrays.Ints


class RecordOptions:
    """The options of rows.

    Args:
        data: buffer of the rows.
        row: numbers of the rows with possible options.
        at, end: places of the options of each of these rows.
    """

    def __init__(
        self, data: arrays.Bytes, row: arrays.Ints, at: arrays.Ints, end: arrays.Ints
    ) -> None:
        self._data = data
        self._steps: list[OptionColumn] = []
        some = at + _OPTION.size <= end
        row, at, end = row[some], at[some], end[some]
        while len(row):
            tag = data[at]
            size = arrays.numbers_at(data, at + 1, "<u2").astype(np.int64)
            at = at + _OPTION.size
            # A truncated value is read up to its end.
            self._steps.append(OptionColumn(row, tag, at, np.minimum(size, end - at)))
            at = at + size
            more = at + _OPTION.size <= end
            row, at, end = row[more], at[more], end[more]

    def __bool__(self) -> bool:
        return bool(self._steps)

    def each(self, *options: Option) -> Iterator[OptionColumn]:
        """Yield the rows with any of the options; a row with several is yielded again, in order."""
        for step in self._steps:
            chosen = step.tag == options[0]
            for other in options[1:]:
                chosen |= step.tag == other
            if chosen.any():
                yield OptionColumn(
                    step.row[chosen], step.tag[chosen], step.at[chosen], step.size[chosen]
                )

    def numbers(self, option: Option, out: arrays.Ints, had: arrays.Mask | None = None) -> None:
        """Write each row's last number of the option to ``out``, and mark the row in ``had``."""
        for step in self.each(option):
            self._check_sizes(step)
            out[step.row] = arrays.numbers_at(self._data, step.at, "<i8")
            if had is not None:
                had[step.row] = True

    def find_numbers(
        self, option: Option, out: arrays.Ints, strict: arrays.Mask | None = None
    ) -> None:
        """Write the option's numbers to ``out``: the first of each row with the right size.

        In ``strict`` rows another size is an error, as in the fold.
        """
        unread = np.ones(len(out), np.bool_)
        for step in self.each(option):
            if strict is not None:
                self._check_sizes(step, strict[step.row] & unread[step.row])
            fits = (step.size == _I64.size) & unread[step.row]
            out[step.row[fits]] = arrays.numbers_at(self._data, step.at[fits], "<i8")
            unread[step.row[fits]] = False

    def bytes_of(
        self, option: Option, start: arrays.Ints, end: arrays.Ints, had: arrays.Mask
    ) -> None:
        for step in self.each(option):
            start[step.row] = step.at
            end[step.row] = step.at + step.size
            had[step.row] = True

    def check_sizes(self, *options: Option) -> None:
        """Refuse numbers of an unexpected size."""
        for option in options:
            for step in self.each(option):
                self._check_sizes(step)

    def _check_sizes(self, step: OptionColumn, strict: arrays.Mask | bool = True) -> None:
        wrong = (step.size != _I64.size) & strict
        if wrong.any():
            index = int(np.argmax(wrong))
            raise errors.FormatError(
                f"option {step.tag[index]} has {step.size[index]} bytes, this taskq knows it with "
                f"{_I64.size}: use a newer one"
            )


_TYPE: Final = schema.DETAILS.field("headers").type
#: Bytes of the length before a text.
_SIZE_SIZE: Final = 2


def headers_of(data: arrays.Bytes, options: RecordOptions, count: int) -> pa.Array:
    """Return the headers of ``count`` rows, null for rows without headers."""
    if not options:
        return arrays.nothing(_TYPE, count)
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    options.bytes_of(Option.HEADERS, start, end, valid)
    row = np.flatnonzero(valid)
    if not len(row):
        return arrays.nothing(_TYPE, count)
    texts = _texts(data, row, start[row], end[row])
    pairs = [
        # A last name without a value is dropped.
        np.stack((*(column[np.isin(name[0], value[0])] for column in name), *value[1:]))
        for name, value in zip(texts[::2], texts[1::2], strict=False)
    ]
    if not pairs:
        return arrays.nothing(_TYPE, count)
    every = np.concatenate(pairs, axis=1)
    row, name_at, name_end, value_at, value_end = every[:, np.argsort(every[0], kind="stable")]
    names = arrays.slices(data, name_at, name_end, None, is_text=True)
    if len(pairs) > 1 and _has_doubles(row, names):
        return _one_by_one(data, start, end, count)
    values = arrays.slices(data, value_at, value_end, None, is_text=True)
    sizes = np.bincount(row, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    assert not names.null_count  # compute it now: pyarrow before 26 takes "unknown" for some nulls
    entries = pa.StructArray.from_arrays(
        [names, values], fields=[_TYPE.key_field, _TYPE.item_field]
    )
    buffers = [arrays.validity(sizes != 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_TYPE, count, buffers, children=[entries])


def _texts(
    data: arrays.Bytes, row: arrays.Ints, at: arrays.Ints, end: arrays.Ints
) -> list[tuple[arrays.Ints, arrays.Ints, arrays.Ints]]:
    texts: list[tuple[arrays.Ints, arrays.Ints, arrays.Ints]] = []
    while True:
        more = at + _SIZE_SIZE <= end
        row, at, end = row[more], at[more], end[more]
        if not len(row):
            return texts
        size = arrays.numbers_at(data, at, "<u2").astype(np.int64)
        at = at + _SIZE_SIZE
        texts.append((row, at, np.minimum(at + size, end)))
        at = at + size


def _has_doubles(row: arrays.Ints, names: pa.Array) -> bool:
    code = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    return len(np.unique(row * len(names) + code)) < len(names)


def _one_by_one(data: arrays.Bytes, start: arrays.Ints, end: arrays.Ints, count: int) -> pa.Array:
    headers: list[list[tuple[str, str]] | None] = [None] * count
    for row in np.flatnonzero(end).tolist():
        value = data[start[row] : end[row]].tobytes()
        option = bytes([Option.HEADERS]) + len(value).to_bytes(2, "little") + value
        headers[row] = list(decode_extras(option, 0, len(option)).headers.items()) or None
    return pa.array(headers, _TYPE)


_BORN_SIZE: Final = kinds.ROWS[kinds.BIRTH].layout.struct.size
_STATES: Final = np.isin(np.arange(256), [int(state) for state in model.State])
_CLAIM_SIZE: Final = 16
#: Options with a number in a record that creates a job.
_BIRTH_NUMBERS: Final = (
    Option.DUE, Option.DUE_WALL, Option.EXPIRES, Option.EXPIRES_RELATIVE, Option.WINDOW,
    Option.KEEP,
)  # fmt: skip


class Slices(NamedTuple):
    """Bytes from ``start`` to ``end`` of the data, of the rows that are ``valid``."""

    start: arrays.Ints
    end: arrays.Ints
    valid: arrays.Mask


class RecordRows:
    """Some records of one stretch of bytes."""

    def __init__(
        self, piece: schema.Piece, stretch: frames.RecordStretch, first: int, last: int
    ) -> None:
        self.piece = piece
        self.data: arrays.Bytes = stretch.data
        self.base: int | arrays.Ints = stretch.base
        self.at: Final = stretch.at[first:last]
        self.length: Final = stretch.length[first:last]
        self.lsn: Final = stretch.lsn[first:last]
        self.epoch: Final = stretch.epoch[first:last]
        self.time_ns: Final = stretch.time_ns[first:last]
        self._heads = arrays.heads(self.data, self.at)
        self.of_job: Final = self._heads.view(arrays.OF_JOB)
        self.kind: arrays.Bytes = np.ascontiguousarray(self.of_job["kind"])
        #: number of records of each kind
        self.counts: Final = np.bincount(self.kind, minlength=arrays.KINDS)
        if self.counts[: arrays.SKIPPABLE][~arrays.IS_KNOWN[: arrays.SKIPPABLE]].any():
            strange = ~arrays.IS_KNOWN[self.kind] & (self.kind < arrays.SKIPPABLE)
            index = int(np.argmax(strange))
            raise errors.FormatError(
                f"record type {self.kind[index]} at lsn {self.lsn[index]} is unknown: a newer "
                f"taskq wrote it"
            )

    def __len__(self) -> int:
        return len(self.at)

    def has(self, among: frozenset[int]) -> bool:
        return any(self.counts[kind] for kind in among)

    def is_among(self, among: frozenset[int]) -> arrays.Mask:
        return arrays.table(among)[self.kind]

    def field(self, name: str) -> arrays.Ints:
        numbers = np.zeros(len(self), np.int64)
        for has_it, head in arrays.with_field(name):
            if self.counts[has_it].any():
                values = self._heads.view(head)[name]
                np.copyto(numbers, values.astype(np.int64), where=has_it[self.kind])
        return numbers

    # -- fields of every record -------------------------------------------------------------------

    @cached_property
    def flags(self) -> arrays.Ints:
        return self.of_job["flags"].astype(np.int64)

    @cached_property
    def end(self) -> arrays.Ints:
        return self.at + self.length - np.where(self.flags & arrays.CHECKED, arrays.CRC_SIZE, 0)

    @cached_property
    def is_of_job(self) -> arrays.Mask:
        """Return which records concern a job of an earlier record."""
        return arrays.IS_OF_JOB[self.kind]

    @cached_property
    def job(self) -> npt.NDArray[np.uint64]:
        numbers: npt.NDArray[np.uint64] = np.where(self.is_of_job, self.of_job["job"], 0)
        np.copyto(numbers, self.lsn.view(np.uint64), where=self.is_among(kinds.BIRTHS))
        return numbers

    @cached_property
    def is_carrying(self) -> arrays.Mask:
        return arrays.IS_CARRYING[self.kind]

    @cached_property
    def carries(self) -> bool:
        return bool(self.counts[arrays.IS_CARRYING].any())

    # -- the ENQUEUED record, also inside another record ------------------------------------------

    @cached_property
    def is_birth(self) -> arrays.Mask:
        return arrays.IS_BIRTH[self.kind]

    @cached_property
    def _births(self) -> tuple[npt.NDArray[np.void], arrays.Ints, arrays.Ints]:
        """Return (head, place, end) of the ENQUEUED records; undefined in other rows."""
        whole_end = self.at + self.length
        if not self.carries:
            return self._heads.view(arrays.OF_BIRTH), self.at, whole_end
        carrying, options_size = self.is_carrying, self.of_job["options_size"]
        at = np.where(carrying, self.at + arrays.HEAD_SIZE + options_size, self.at)
        end = whole_end - np.where(carrying, arrays.CRC_SIZE, 0)
        self._check_carried(carrying & (at + _BORN_SIZE > end))
        at = np.where(carrying & (at + _BORN_SIZE > end), self.at, at)
        births = arrays.heads(self.data, at).view(arrays.OF_BIRTH)
        born_end = at + births["length"]
        self._check_carried(
            carrying
            & (
                (births["length"] < _BORN_SIZE)
                | (born_end > end)
                | (births["kind"] != kinds.BIRTH)
                | ~_STATES[self.of_job["byte"]]
            )
        )
        return births, at, np.where(carrying, born_end, whole_end)

    def _check_carried(self, wrong: arrays.Mask) -> None:
        if wrong.any():
            raise errors.FormatError(
                f"the record at lsn {self.lsn[int(np.argmax(wrong))]} carries no record that fits"
            )

    @property
    def birth(self) -> npt.NDArray[np.void]:
        return self._births[0]

    @cached_property
    def birth_flags(self) -> arrays.Ints:
        flags: arrays.Ints = self.birth["flags"].astype(np.int64)
        return flags

    @cached_property
    def route(self) -> tuple[arrays.Ints, arrays.Ints, arrays.Ints]:
        """Return (start of queue name, of task name, of options) in ENQUEUED records."""
        birth, at, end = self._births
        queue = at + _BORN_SIZE
        task = np.minimum(queue + birth["queue_size"], end)
        options = np.minimum(task + birth["task_size"], end)
        return queue, task, options

    @cached_property
    def birth_options(self) -> RecordOptions:
        chosen = np.flatnonzero(self.is_birth & (self.birth["options_size"] != 0))
        start = self.route[2][chosen]
        end = np.minimum(start + self.birth["options_size"][chosen], self._births[2][chosen])
        options = RecordOptions(self.data, chosen, start, end)
        options.check_sizes(*_BIRTH_NUMBERS)
        return options

    @cached_property
    def plain_options(self) -> RecordOptions:
        return self._options(self.is_of_job & ~self.is_carrying)

    @cached_property
    def carried_options(self) -> RecordOptions:
        return self._options(self.is_carrying)

    def _options(self, chosen: arrays.Mask) -> RecordOptions:
        sizes = self.of_job["options_size"]
        row = np.flatnonzero(chosen & (sizes != 0))
        start = self.at[row] + arrays.FIXED_SIZES[self.kind[row]]
        end = np.minimum(start + sizes[row], self.at[row] + self.length[row])
        return RecordOptions(self.data, row, start, end)

    # -- bodies -----------------------------------------------------------------------------------

    @cached_property
    def payload(self) -> Slices:
        birth, _, whole_end = self._births
        end = whole_end - np.where(self.birth_flags & arrays.CHECKED, arrays.CRC_SIZE, 0)
        start = self.route[2] + birth["options_size"]
        return Slices(np.minimum(start, end), end, self.is_birth)

    @cached_property
    def has_body(self) -> arrays.Mask:
        """Other records with a body: a result, a reason, the description of an owner."""
        of_job: arrays.Mask = self.is_of_job & ((self.flags & arrays.CHECKED) != 0)
        if self.carries:
            of_job &= ~self.is_carrying
        others = kinds.INTRODUCTIONS
        return of_job | self.is_among(others) if self.has(others) else of_job

    @cached_property
    def body(self) -> Slices:
        sizes = np.where(self.is_of_job, self.of_job["options_size"], 0)
        start = self.at + arrays.FIXED_SIZES[self.kind] + sizes
        return Slices(np.minimum(start, self.end), self.end, self.has_body)

    @cached_property
    def value(self) -> Slices:
        payload = self.payload
        if not self.has_body.any():
            return payload
        body = self.body
        return Slices(
            np.where(self.is_birth, payload.start, body.start),
            np.where(self.is_birth, payload.end, body.end),
            payload.valid | body.valid,
        )

    @cached_property
    def value_packing(self) -> arrays.Ints:
        return np.where(self.is_birth | self.is_of_job, self.birth_flags & records.PACKED, 0)

    @cached_property
    def result(self) -> Slices:
        end = self.at + self.length - arrays.CRC_SIZE
        start = np.minimum(self._births[2], end)
        has_one = self.is_carrying & ((self.flags & Flag.DROP_RESULT) == 0)
        return Slices(start, end, has_one)

    @cached_property
    def result_packing(self) -> arrays.Ints:
        return np.where(self.result.valid, self.flags & records.PACKED, 0)

    # -- claims -----------------------------------------------------------------------------------

    @cached_property
    def owner(self) -> arrays.Ints:
        """Return the owner that claimed the job, or that the record names; 0 for none."""
        owner = self.field("owner")
        if self.carries:
            for step in self.carried_options.each(Option.CLAIM):
                if (step.size != _CLAIM_SIZE).any():
                    raise errors.FormatError(
                        f"a claim is packed in {step.size[0]} bytes: use a newer taskq"
                    )
                owner[step.row] = arrays.numbers_at(self.data, step.at + 8, "<i8")
        return owner
