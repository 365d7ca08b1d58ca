"""What records say, gathered when it is first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from taskq.arrow import layout
from taskq.arrow.layout import CHECKED, CRC_SIZE, Bytes, Ints, Mask, heads
from taskq.arrow.options import Options
from taskq.arrow.schema import Piece
from taskq.core.errors import FormatError
from taskq.core.model import State
from taskq.core.records import PACKED
from taskq.engine import Flag, Option, kinds

if TYPE_CHECKING:
    from taskq.arrow.frames import Found

_BORN_SIZE: Final = kinds.ROWS[kinds.BIRTH].layout.struct.size
_STATES: Final = np.isin(np.arange(256), [int(state) for state in State])
_CLAIM_SIZE: Final = 16
#: Numbers among the options of a record that brings a job.
_BIRTH_NUMBERS: Final = (
    Option.DUE, Option.DUE_WALL, Option.EXPIRES, Option.EXPIRES_RELATIVE, Option.WINDOW,
    Option.KEEP,
)  # fmt: skip


class Slices(NamedTuple):
    """Bytes from ``start`` to ``end`` of the data, of the rows that are ``valid``."""

    start: Ints
    end: Ints
    valid: Mask


class Rows:
    """Some records of one stretch of bytes.

    Raises:
        FormatError: a record's type is unknown and may not be skipped.
    """

    def __init__(self, piece: Piece, stretch: Found, first: int, last: int) -> None:
        self.piece = piece
        self.data: Bytes = stretch.data
        self.base = stretch.base
        self.at = stretch.at[first:last]
        self.length = stretch.length[first:last]
        self.lsn = stretch.lsn[first:last]
        self.epoch = stretch.epoch[first:last]
        self.time_ns = stretch.time_ns[first:last]
        self._heads = heads(self.data, self.at)
        self.of_job = self._heads.view(layout.OF_JOB)
        self.kind: Bytes = np.ascontiguousarray(self.of_job["kind"])
        #: how many there are of each kind
        self.counts = np.bincount(self.kind, minlength=layout.KINDS)
        if self.counts[: layout.SKIPPABLE][~layout.IS_KNOWN[: layout.SKIPPABLE]].any():
            strange = ~layout.IS_KNOWN[self.kind] & (self.kind < layout.SKIPPABLE)
            index = int(np.argmax(strange))
            raise FormatError(
                f"record type {self.kind[index]} at lsn {self.lsn[index]} is unknown: a newer "
                f"taskq wrote it"
            )

    def __len__(self) -> int:
        return len(self.at)

    def has(self, among: frozenset[int]) -> bool:
        return any(self.counts[kind] for kind in among)

    def is_among(self, among: frozenset[int]) -> Mask:
        return layout.table(among)[self.kind]

    def field(self, name: str) -> Ints:
        numbers = np.zeros(len(self), np.int64)
        for has_it, head in layout.with_field(name):
            if self.counts[has_it].any():
                values = self._heads.view(head)[name]
                np.copyto(numbers, values.astype(np.int64), where=has_it[self.kind])
        return numbers

    # -- what every record has --------------------------------------------------------------------

    @cached_property
    def flags(self) -> Ints:
        return self.of_job["flags"].astype(np.int64)

    @cached_property
    def end(self) -> Ints:
        return self.at + self.length - np.where(self.flags & CHECKED, CRC_SIZE, 0)

    @cached_property
    def is_of_job(self) -> Mask:
        """Return which records concern a job that an earlier one brought into being."""
        return layout.IS_OF_JOB[self.kind]

    @cached_property
    def job(self) -> npt.NDArray[np.uint64]:
        numbers: npt.NDArray[np.uint64] = np.where(self.is_of_job, self.of_job["job"], 0)
        np.copyto(numbers, self.lsn.view(np.uint64), where=self.is_among(kinds.BIRTHS))
        return numbers

    @cached_property
    def is_carrying(self) -> Mask:
        return layout.IS_CARRYING[self.kind]

    @cached_property
    def carries(self) -> bool:
        return bool(self.counts[layout.IS_CARRYING].any())

    # -- the ENQUEUED record, be it inside another ------------------------------------------------

    @cached_property
    def is_birth(self) -> Mask:
        return layout.IS_BIRTH[self.kind]

    @cached_property
    def _births(self) -> tuple[npt.NDArray[np.void], Ints, Ints]:
        """Return (head, place, end) of the ENQUEUED records; anything in other rows."""
        whole_end = self.at + self.length
        if not self.carries:
            return self._heads.view(layout.OF_BIRTH), self.at, whole_end
        carrying, options_size = self.is_carrying, self.of_job["options_size"]
        at = np.where(carrying, self.at + layout.HEAD_SIZE + options_size, self.at)
        end = whole_end - np.where(carrying, CRC_SIZE, 0)
        self._check_carried(carrying & (at + _BORN_SIZE > end))
        at = np.where(carrying & (at + _BORN_SIZE > end), self.at, at)
        births = heads(self.data, at).view(layout.OF_BIRTH)
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

    def _check_carried(self, wrong: Mask) -> None:
        if wrong.any():
            raise FormatError(
                f"the record at lsn {self.lsn[int(np.argmax(wrong))]} carries none that fits"
            )

    @property
    def birth(self) -> npt.NDArray[np.void]:
        return self._births[0]

    @cached_property
    def birth_flags(self) -> Ints:
        flags: Ints = self.birth["flags"].astype(np.int64)
        return flags

    @cached_property
    def route(self) -> tuple[Ints, Ints, Ints]:
        """Return (start of the queue's name, of the task's, of the options) in ENQUEUED records."""
        birth, at, end = self._births
        queue = at + _BORN_SIZE
        task = np.minimum(queue + birth["queue_size"], end)
        options = np.minimum(task + birth["task_size"], end)
        return queue, task, options

    @cached_property
    def birth_options(self) -> Options:
        chosen = np.flatnonzero(self.is_birth & (self.birth["options_size"] != 0))
        start = self.route[2][chosen]
        end = np.minimum(start + self.birth["options_size"][chosen], self._births[2][chosen])
        options = Options(self.data, chosen, start, end)
        options.check_sizes(*_BIRTH_NUMBERS)
        return options

    @cached_property
    def plain_options(self) -> Options:
        return self._options(self.is_of_job & ~self.is_carrying)

    @cached_property
    def carried_options(self) -> Options:
        return self._options(self.is_carrying)

    def _options(self, chosen: Mask) -> Options:
        sizes = self.of_job["options_size"]
        row = np.flatnonzero(chosen & (sizes != 0))
        start = self.at[row] + layout.FIXED_SIZES[self.kind[row]]
        end = np.minimum(start + sizes[row], self.at[row] + self.length[row])
        return Options(self.data, row, start, end)

    # -- bodies -----------------------------------------------------------------------------------

    @cached_property
    def payload(self) -> Slices:
        birth, _, whole_end = self._births
        end = whole_end - np.where(self.birth_flags & CHECKED, CRC_SIZE, 0)
        start = self.route[2] + birth["options_size"]
        return Slices(np.minimum(start, end), end, self.is_birth)

    @cached_property
    def has_body(self) -> Mask:
        """Other records that hold something: a result, a reason, the description of an owner."""
        of_job: Mask = self.is_of_job & ((self.flags & CHECKED) != 0)
        if self.carries:
            of_job &= ~self.is_carrying
        others = kinds.INTRODUCTIONS
        return of_job | self.is_among(others) if self.has(others) else of_job

    @cached_property
    def body(self) -> Slices:
        sizes = np.where(self.is_of_job, self.of_job["options_size"], 0)
        start = self.at + layout.FIXED_SIZES[self.kind] + sizes
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
    def value_packing(self) -> Ints:
        return np.where(self.is_birth | self.is_of_job, self.birth_flags & PACKED, 0)

    @cached_property
    def result(self) -> Slices:
        end = self.at + self.length - CRC_SIZE
        start = np.minimum(self._births[2], end)
        has_one = self.is_carrying & ((self.flags & Flag.DROP_RESULT) == 0)
        return Slices(start, end, has_one)

    @cached_property
    def result_packing(self) -> Ints:
        return np.where(self.result.valid, self.flags & PACKED, 0)

    # -- claims -----------------------------------------------------------------------------------

    @cached_property
    def owner(self) -> Ints:
        """Return who claimed the job, or is told of; 0 for none."""
        owner = self.field("owner")
        if self.carries:
            for step in self.carried_options.each(Option.CLAIM):
                if (step.size != _CLAIM_SIZE).any():
                    raise FormatError(f"a claim is told in {step.size[0]} bytes: use a newer taskq")
                owner[step.row] = layout.numbers_at(self.data, step.at + 8, "<i8")
        return owner
