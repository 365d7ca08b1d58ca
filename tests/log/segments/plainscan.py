"""Random logs of every kind of record, and what a plain walk over all of them finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from taskq.core.kinds import OF_JOBS
from taskq.core.model import Extras, State
from taskq.core.records import Cause, Kind
from taskq.core.sources import SourceRecord, SourceState
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried, encode_compacted
from taskq.log.format.frames import Gap
from taskq.log.format.notes import encode_moved
from taskq.log.format.options import encode_extras
from taskq.log.format.record import Record, places
from taskq.log.journal.journal import Journal
from tests.log.world import Process

_DONE_KINDS: Final = (
    Kind.CLAIMED, Kind.SUCCEEDED, Kind.DEAD, Kind.CANCELLED, Kind.EXPIRED, Kind.PURGED,
    Kind.EXTENDED, Kind.CANCEL_ASKED,
)  # fmt: skip


@dataclass(slots=True)
class Scan:
    """Results of a walk over the whole log.

    Attributes:
        records: by lsn.
        about: records of each job other than its own, in their order.
        births: jobs that an ENQUEUED record brought into being.
        steps: (lsn, step) of the clock.
        times: (first lsn, time) of each frame.
    """

    records: dict[int, bytes] = field(default_factory=dict)
    about: dict[int, list[int]] = field(default_factory=dict)
    births: set[int] = field(default_factory=set)
    steps: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, journal: Journal) -> Scan:
        scan = cls()
        for _, item in journal.frames(journal.start()):
            assert not isinstance(item, Gap)
            scan.times.append((item.header.first_lsn, item.header.time_ns))
            for lsn, at, length in places(item):
                scan._add(lsn, item.data[at : at + length])
        return scan

    def _add(self, lsn: int, data: bytes) -> None:
        record = Record(data, lsn, 0, 0)
        self.records[lsn] = data
        if record.type == Kind.ENQUEUED:
            self.births.add(lsn)
        elif record.type in OF_JOBS:
            self.about.setdefault(record.job, []).append(lsn)
        elif record.type == Kind.CLOCK:
            self.steps.append((lsn, record.step_ns))


class Writer:
    """Appends frames of random records, in runs and alone, through one process."""

    def __init__(self, process: Process, seed: int) -> None:
        self._process = process
        self._chance = random.Random(seed)
        #: draws what is in one record; the same draws make one of the same kind and length
        self._draw = self._chance
        self._records: list[bytes] = []

    @property
    def _lsn(self) -> int:
        return self._process.journal.next_lsn + len(self._records)

    def write(self, frames: int) -> None:
        chance, clock = self._chance, self._process.world.clock
        for _ in range(frames):
            journal = self._process.journal
            journal.lock()
            if journal.offset >= journal.segment_bytes:
                journal.rotate()
            journal.writer.release()
            for _ in range(chance.choice((1, 1, 1, 3))):
                self._add(chance.choice(_MAKERS))
            self._process.append(b"".join(self._records), len(self._records))
            self._records.clear()
            clock.advance(chance.random())
            if chance.random() < 0.1:
                clock.step(chance.choice((-20, -3, 20)))

    def _add(self, make: Callable[[Writer], bytes]) -> None:
        seed = self._chance.random()
        for _ in range(self._chance.choice((1, 1, 2, 40, 300))):
            is_alike = self._chance.random() < 0.97
            self._draw = random.Random(seed if is_alike else self._chance.random())
            self._records.append(make(self))
            if sum(map(len, self._records)) > SEGMENT_BYTES_MIN // 2:
                return

    def _job(self) -> int:
        lsn = self._lsn
        return self._draw.choice((self._draw.randrange(1, lsn + 2), lsn // 2 + 1, 2**40 + lsn % 9))

    def _body(self) -> bytes:
        return self._draw.choice((b"", b"x", b"y" * self._draw.randrange(200)))

    def _enqueued(self, extras: Extras, lsn: int) -> bytes:
        body = self._body()
        options = encode_extras(extras, 10**18)
        tail = codec.enqueue_tail(5, 1, 3, 4, 2, b"mailto", options)
        return codec.encode_checked(tail, body, lsn)

    def _plain(self) -> bytes:
        return self._enqueued(Extras(), self._lsn)

    def _extras(self) -> bytes:
        key = b"key %d" % self._draw.randrange(50) if self._draw.random() < 0.6 else None
        return self._enqueued(Extras(key=key, headers={"a": "b"}), self._lsn)

    def _done(self) -> bytes:
        kind = self._draw.choice(_DONE_KINDS)
        body = self._draw.choice((None, None, self._body()))
        return codec.encode_job(kind, 0, 1, self._job(), 7, body, self._lsn)

    def _back(self) -> bytes:
        kind = self._draw.choice((Kind.RETRIED, Kind.RELEASED))
        return codec.encode_back(kind, Cause.DRAIN, 1, self._job(), 7, 0, self._body(), self._lsn)

    def _carried(self) -> bytes:
        job, chance = self._job(), self._draw
        born = self._enqueued(Extras(key=b"carried %d" % chance.randrange(9)), job)
        body = chance.choice((None, b"result"))
        state = chance.choice((State.READY, State.SUCCEEDED, State.DEAD))
        carried = Carried(job, state, born, 10**18, body=body)
        return encode_carried(
            chance.choice((Kind.CARRIED, Kind.REQUEUED, Kind.EDITED)), carried, self._lsn
        )

    def _clock(self) -> bytes:
        return codec.encode_clock(self._draw.choice((-(10**12), 10**12)), self._lsn)

    def _other(self) -> bytes:
        kind = self._draw.randrange(4)
        if kind == 0:
            return codec.encode_owner(9, b"{}", self._lsn)
        if kind == 1:
            return encode_compacted(1, self._lsn)
        if kind == 2:
            return encode_moved(SourceRecord("s", SourceState(b"7", 9)), self._lsn)
        return codec.PREFIX.pack(20, 200, 0, 0, 0) + bytes(8)


_MAKERS: Final[list[Callable[[Writer], bytes]]] = [
    Writer._plain, Writer._plain, Writer._extras, Writer._done, Writer._done, Writer._done,
    Writer._back, Writer._carried, Writer._clock, Writer._other,
]  # fmt: skip
