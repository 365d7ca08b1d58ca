"""The options of many records, and their headers, walked in step: the first of each, then ..."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from taskq.arrow import arrays
from taskq.arrow.layout import Bytes, Ints, Mask, numbers_at
from taskq.arrow.schema import DETAILS
from taskq.core.errors import FormatError
from taskq.engine import Option
from taskq.log.format.options import decode_extras

#: Tag and length; ``taskq.log.format.options`` has it as a struct.
_OPTION: Final = struct.Struct("<BH")
_I64: Final = struct.Struct("<q")


class Step(NamedTuple):
    """Of one option each of some rows: row, tag, place and length of the value."""

    row: Ints
    tag: Bytes
    at: Ints
    size: Ints


class Options:
    """Options of rows.

    Args:
        data: what holds them.
        row: numbers of the rows that may have options.
        at, end: where the options of each of these rows stand.
    """

    def __init__(self, data: Bytes, row: Ints, at: Ints, end: Ints) -> None:
        self._data = data
        self._steps: list[Step] = []
        some = at + _OPTION.size <= end
        row, at, end = row[some], at[some], end[some]
        while len(row):
            tag = data[at]
            size = numbers_at(data, at + 1, "<u2").astype(np.int64)
            at = at + _OPTION.size
            # A value that is cut short is read as far as it goes.
            self._steps.append(Step(row, tag, at, np.minimum(size, end - at)))
            at = at + size
            more = at + _OPTION.size <= end
            row, at, end = row[more], at[more], end[more]

    def __bool__(self) -> bool:
        return bool(self._steps)

    def each(self, *options: Option) -> Iterator[Step]:
        """Yield the rows that have any of the options; those with several come again, in order."""
        for step in self._steps:
            chosen = step.tag == options[0]
            for other in options[1:]:
                chosen |= step.tag == other
            if chosen.any():
                yield Step(step.row[chosen], step.tag[chosen], step.at[chosen], step.size[chosen])

    def numbers(self, option: Option, out: Ints, had: Mask | None = None) -> None:
        """Write the option's numbers to ``out``, the last of each row; ``had`` says which have one.

        Raises:
            FormatError: one has another size.
        """
        for step in self.each(option):
            self._check_sizes(step)
            out[step.row] = numbers_at(self._data, step.at, "<i8")
            if had is not None:
                had[step.row] = True

    def find_numbers(self, option: Option, out: Ints, *, strict: bool = False) -> None:
        """Write the option's numbers to ``out``, the first of each row that has the right size.

        Raises:
            FormatError: one has another size, and ``strict`` is asked for.
        """
        for step in reversed(list(self.each(option))):
            if strict:
                self._check_sizes(step)
            fits = step.size == _I64.size
            out[step.row[fits]] = numbers_at(self._data, step.at[fits], "<i8")

    def bytes_of(self, option: Option, start: Ints, end: Ints, had: Mask) -> None:
        for step in self.each(option):
            start[step.row] = step.at
            end[step.row] = step.at + step.size
            had[step.row] = True

    def check_sizes(self, *options: Option) -> None:
        """Let no number pass that has another size than it is known with.

        Raises:
            FormatError: there is one.
        """
        for option in options:
            for step in self.each(option):
                self._check_sizes(step)

    def _check_sizes(self, step: Step) -> None:
        wrong = step.size != _I64.size
        if wrong.any():
            index = int(np.argmax(wrong))
            raise FormatError(
                f"option {step.tag[index]} has {step.size[index]} bytes, this taskq knows it with "
                f"{_I64.size}: use a newer one"
            )


_TYPE: Final = DETAILS.field("headers").type
#: Length of a text, in front of it.
_SIZE_SIZE: Final = 2


def headers_of(data: Bytes, options: Options, count: int) -> pa.Array:
    """Return the headers among the options of so many rows, null where there are none."""
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
        # Of a last name without a value nothing is told.
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
    entries = pa.StructArray.from_arrays(
        [names, values], fields=[_TYPE.key_field, _TYPE.item_field]
    )
    buffers = [arrays.validity(sizes != 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_TYPE, count, buffers, children=[entries])


def _texts(data: Bytes, row: Ints, at: Ints, end: Ints) -> list[tuple[Ints, Ints, Ints]]:
    texts: list[tuple[Ints, Ints, Ints]] = []
    while True:
        more = at + _SIZE_SIZE <= end
        row, at, end = row[more], at[more], end[more]
        if not len(row):
            return texts
        size = numbers_at(data, at, "<u2").astype(np.int64)
        at = at + _SIZE_SIZE
        texts.append((row, at, np.minimum(at + size, end)))
        at = at + size


def _has_doubles(row: Ints, names: pa.Array) -> bool:
    code = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    return len(np.unique(row * len(names) + code)) < len(names)


def _one_by_one(data: Bytes, start: Ints, end: Ints, count: int) -> pa.Array:
    headers: list[list[tuple[str, str]] | None] = [None] * count
    for row in np.flatnonzero(end).tolist():
        value = data[start[row] : end[row]].tobytes()
        option = bytes([Option.HEADERS]) + len(value).to_bytes(2, "little") + value
        headers[row] = list(decode_extras(option, 0, len(option)).headers.items()) or None
    return pa.array(headers, _TYPE)
