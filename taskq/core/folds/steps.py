"""Steps, signals and waits of jobs that resume their runs, as a part of the agenda."""

from __future__ import annotations

import enum
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from taskq.core.values import NamedTuple


class Form(enum.IntEnum):
    """Form of a step or of a wait: the byte of a step's record."""

    #: a function ran
    STEP = 0
    #: a duration passed
    SLEEP = 1
    #: a signal came
    EVENT = 2
    #: no signal came in time
    TIMEOUT = 3
    #: other jobs were enqueued
    CALL = 4
    #: the failed jobs of the ``CALL`` with the same name and number; its value lists them
    FAILED = 5
    #: a failed try of the ``STEP`` with the same name and number
    TRIED = 6
    #: the first of several waits ended; its value names the wait
    FIRST = 7
    #: the job asked for the version of its code
    VERSION = 8
    #: the ``STEP`` of this name is to run if the job fails for good or is cancelled
    UNDO = 9
    #: the job failed for good or was cancelled, and runs its ``UNDO`` steps; its value is why
    UNDOING = 10


#: Forms of steps that ran code; other forms only waited.
DONE: Final = frozenset({Form.STEP, Form.FAILED, Form.TRIED})


class Wait(NamedTuple):
    """A wait of a job.

    ``until_ns`` is its latest end, 0 for never. ``first`` and ``jobs`` are the first job of a
    ``CALL`` and the number of its jobs. ``first`` of an ``EVENT`` is the last signal of its name
    that did not fit.
    """

    form: int
    name: str
    number: int
    until_ns: int = 0
    first: int = 0
    jobs: int = 0


class Signal(NamedTuple):
    """A signal that no step has taken, and the location of its record."""

    #: lsn of its first record
    number: int
    name: bytes
    once: bytes
    location: int


#: Form, number, latest end, first job, number of jobs, length of the name; the name follows.
_WAIT: Final = struct.Struct("<BIqQIB")
#: Prefix of packed waits: whether the job waits now; if so, size and bytes of its present waits.
_SIZE: Final = struct.Struct("<H")
_NOW: Final = b"\1"
_BEFORE: Final = b"\0"


def pack_waits(waits: Iterable[Wait]) -> bytes:
    parts: list[bytes] = []
    for form, name, number, until_ns, first, jobs in waits:
        data = name.encode("utf-8", "surrogatepass")
        parts.append(_WAIT.pack(form, number, until_ns, first, jobs, len(data)) + data)
    return b"".join(parts)


def unpack_waits(packed: bytes, shift_ns: int = 0) -> list[Wait]:
    """Return the waits, each moment later by ``shift_ns``; a truncated wait is left out."""
    waits: list[Wait] = []
    at = 0
    while at + _WAIT.size <= len(packed):
        form, number, until_ns, first, jobs, size = _WAIT.unpack_from(packed, at)
        at += _WAIT.size
        name = packed[at : at + size].decode("utf-8", "replace")
        until_ns += shift_ns if until_ns else 0
        waits.append(Wait(form, name, number, until_ns, first, jobs))
        at += size
    return waits


def merged(before: bytes, packed: bytes) -> bytes:
    if not before:
        return packed
    waits = unpack_waits(before)
    known = {wait[1:3] for wait in waits}
    return pack_waits([*waits, *(wait for wait in unpack_waits(packed) if wait[1:3] not in known)])


def without(packed: bytes, titles: set[tuple[str, int]]) -> bytes:
    return pack_waits(
        wait for wait in unpack_waits(packed) if (wait.name, wait.number) not in titles
    )


def shifted(packed: bytes, shift_ns: int) -> bytes:
    return pack_waits(unpack_waits(packed, shift_ns)) if shift_ns else packed


def waited_for(waits: Iterable[Wait]) -> str:
    """Return the waits in words: ``signal 'paid' and 2 jobs``."""
    parts = []
    for wait in waits:
        if wait.form == Form.EVENT:
            unfit = " (what came so far does not fit)" if wait.first else ""
            parts.append(f"signal {wait.name!r}{unfit}")
        elif wait.form == Form.CALL:
            parts.append(f"{wait.jobs} job{'s' if wait.jobs != 1 else ''} that it called")
        elif wait.form == Form.TRIED:
            parts.append(f"the next try of step {wait.name!r}")
        else:
            parts.append("a time")
    return " and ".join(parts)


def until(waits: Iterable[Wait]) -> int:
    """Return the earliest end of these waits; 0 if none has an end."""
    return min((wait.until_ns for wait in waits if wait.until_ns), default=0)


_UNDOS: Final = frozenset({Form.UNDO, Form.UNDOING})


class Steps:
    """Steps, signals and waits by job. Moments are in shifted time; see ``Timetable``.

    Each job that may run again has the locations of its step records, the signals that no step has
    taken, and its waits; other jobs have nothing here. Steps of an unknown job are kept, too: if
    compaction removed the beginning of a log, a later record repeats the job itself.

    Attributes:
        places: job -> locations of its step records, by place; 0: unknown.
        signals: job -> signals that no step has taken, oldest first.
        taken: job -> unique keys (``once``) of signals that its steps took.
        waits: job -> its present waits, packed.
        begun: job -> other waits that have begun and not ended, packed.
        calls: job -> called jobs that are cancelled together with it: first -> count.
        orphans: jobs to cancel, since their caller ended.
        undos: job -> ``UNDO`` if it has steps to undo, ``UNDOING`` while it undoes them.
    """

    __slots__ = ("begun", "calls", "orphans", "places", "signals", "taken", "undos", "waits")

    def __init__(self) -> None:
        self.places: dict[int, array[int]] = {}
        self.signals: dict[int, list[Signal]] = {}
        self.taken: dict[int, set[bytes]] = {}
        self.waits: dict[int, bytes] = {}
        self.begun: dict[int, bytes] = {}
        self.calls: dict[int, dict[int, int]] = {}
        self.orphans: dict[int, None] = {}
        self.undos: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(any(self._all()) or self.orphans)

    def knows(self, job: int) -> bool:
        return any(job in known for known in self._all())

    def _all(self) -> tuple[dict[int, Any], ...]:
        return (
            self.places, self.signals, self.taken, self.waits, self.begun, self.calls, self.undos,
        )  # fmt: skip

    def count(self, job: int) -> int:
        return len(self.places.get(job, ()))

    def apply_step(
        self, job: int, place: int, location: int, taken: int, once: bytes, form: int = Form.STEP
    ) -> None:
        """Set the location of the job's step at ``place``; ``taken`` is its signal, or 0."""
        if form in _UNDOS:
            self.undos[job] = max(form, self.undos.get(job, 0))
        places = self.places.get(job)
        if places is None:
            places = self.places[job] = array("Q")
        if place >= len(places):
            places.extend([0] * (place + 1 - len(places)))
        places[place] = location
        if taken:
            left = [signal for signal in self.signals.get(job, ()) if signal.number != taken]
            if left:
                self.signals[job] = left
            else:
                self.signals.pop(job, None)
        if once:
            self.taken.setdefault(job, set()).add(once)

    def apply_signal(self, job: int, signal: Signal) -> None:
        signals = self.signals.setdefault(job, [])
        for at, known in enumerate(signals):
            if known.number == signal.number:
                signals[at] = signal
                return
            if known.number > signal.number:
                signals.insert(at, signal)
                return
        signals.append(signal)

    def number_at(self, job: int, location: int) -> int | None:
        if location in self.places.get(job, ()):
            return 0
        at = (it.number for it in self.signals.get(job, ()) if it.location == location)
        return next(at, None)

    def find_signal(self, job: int, name: bytes, after: int = 0) -> Signal | None:
        signals = self.signals.get(job, ())
        return next((it for it in signals if it.name == name and it.number > after), None)

    def knows_once(self, job: int, once: bytes) -> bool:
        return once in self.taken.get(job, ()) or any(
            signal.once == once for signal in self.signals.get(job, ())
        )

    def apply_waits(self, job: int, packed: bytes, *, now: bool) -> None:
        before = self.begun.pop(job, b"")
        self.waits.pop(job, None)
        if now:
            self.waits[job] = packed
            titles = {(wait.name, wait.number) for wait in unpack_waits(packed)} if before else None
            before = without(before, titles) if titles else before
        else:
            before = merged(before, packed)
        if before:
            self.begun[job] = before

    def apply_begun(self, job: int, packed: bytes) -> None:
        self.begun[job] = merged(self.begun.get(job, b""), packed)

    def apply_over(self, job: int, name: str, number: int) -> None:
        left = without(self.begun.pop(job, b""), {(name, number)})
        if left:
            self.begun[job] = left

    def apply_called(self, job: int, first: int, jobs: int) -> None:
        self.calls.setdefault(job, {})[first] = jobs

    def apply_carried_waits(self, job: int, awaiting: bytes, shift_ns: int) -> bool:
        is_now, at = awaiting[:1] == _NOW, 1
        if is_now:
            at += _SIZE.size + _SIZE.unpack_from(awaiting, 1)[0]
            self.apply_waits(job, shifted(awaiting[1 + _SIZE.size : at], -shift_ns), now=True)
        if at < len(awaiting):
            self.begun[job] = shifted(awaiting[at:], -shift_ns)
        return is_now

    def awaiting(self, job: int, shift_ns: int) -> bytes:
        """Return the packed waits of a carried job; empty for an unknown job."""
        packed, begun = self.waits.get(job), shifted(self.begun.get(job, b""), shift_ns)
        if packed is not None:
            packed = shifted(packed, shift_ns)
            return _NOW + _SIZE.pack(len(packed)) + packed + begun
        return _BEFORE + begun if self.knows(job) else b""

    def is_waiting(self, job: int) -> bool:
        return job in self.waits

    def awaits(self, job: int, name: str) -> bool:
        packed = self.waits.get(job)
        return packed is not None and any(
            wait.form == Form.EVENT and wait.name == name for wait in unpack_waits(packed)
        )

    def awaited_calls(self, job: int) -> list[range]:
        return [
            range(wait.first, wait.first + wait.jobs)
            for wait in unpack_waits(self.waits.get(job, b""))
            if wait.form == Form.CALL
        ]

    def count_waits(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for packed, count in Counter(self.waits.values()).items():
            waits = unpack_waits(packed)
            if any(wait.form != Form.SLEEP for wait in waits):
                counts[waited_for(waits)] += count
        return counts

    def moment(self, job: int) -> int:
        """Return the latest end of the job's wait; 0 for never, or if it does not wait."""
        packed = self.waits.get(job)
        return 0 if packed is None else until(unpack_waits(packed))

    def wake(self, job: int) -> int | None:
        """End the job's wait; return its latest end, None if the job did not wait."""
        packed = self.waits.pop(job, None)
        if packed is None:
            return None
        self.begun[job] = merged(self.begun.get(job, b""), packed)
        return until(unpack_waits(packed))

    def reached(self, job: int, shift_ns: int) -> list[Wait]:
        packed = self.waits.get(job, b"") + self.begun.get(job, b"")
        return unpack_waits(packed, shift_ns)

    def drop(self, job: int) -> None:
        """Forget a job that never runs again."""
        for known in self._all():
            known.pop(job, None)

    def called_by(self, job: int) -> Iterator[int]:
        for first, jobs in self.calls.get(job, {}).items():
            yield from range(first, first + jobs)

    def within(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield (location, job) of the records between two locations, (0, 0) after each job."""
        for job in list(self.places):
            for location in self.places.get(job, ()):
                if low <= location < high:
                    yield location, job
            yield 0, 0
        for job in list(self.signals):
            for signal in self.signals.get(job, ()):
                if low <= signal.location < high:
                    yield signal.location, job
            yield 0, 0
