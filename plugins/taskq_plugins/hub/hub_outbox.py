"""The hub's side of the outbox: jobs for devices, and their ends.

A job for a device is in a log of the hub's own, in queue ``to:<device>``, which is paused: no
worker takes it. It stays *ready* until its end is reported, and is claimed and ended then in one
frame. A device asks for new jobs (``lines``) and publishes them into its inbox, which adopts
exactly once. The end is a record of the device's log and is read from the copy.

Three locks keep a job from being enqueued twice in a history that survives: the name of the upload,
the job's key on the device until it ends, and that no job is handed over before all the device's
records are read. An open job that the device reports as taken is searched in everything the hub
ever had of the device. If it is nowhere, it is handed over again, or buried as lost if a gap may
have held its end.

All state is in the log of the outbox and in the copies; memory is rebuilt from them. A hint in the
registry holds the last number a device took, and where its copies begin to report. A job's identity
is its id and a random word (``hub-nonce``): a hub that is set back may reuse an id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from anyio import CancelScope

from taskq import State
from taskq.engine import (
    Border,
    Cause,
    Ended,
    Flag,
    Gap,
    Identity,
    LogConfig,
    PatientDisk,
    Record,
    Replica,
    SystemClock,
    kinds,
)
from taskq.errors import JobNotFound, LogError, TaskqError
from taskq.hooks import Connection
from taskq_plugins.hub.copyfiles import IDENTITY, CopyFiles, kept
from taskq_plugins.hub.models import (
    BYTES_MAX,
    JOB,
    JOBS_MAX,
    NOWHERE,
    Answer,
    Given,
    HubJob,
    Question,
)
from taskq_plugins.hub.registry import OUTBOX, Hint, Registry

if TYPE_CHECKING:
    from taskq.engine import Clock, Cursor, Disk, LogView

#: Header of a job on a device: the number that it was handed over with.
NUMBER: Final = "hub-number"
_KEY: Final = re.compile(r"hub:([0-9a-f]{8})-([1-9][0-9]{0,18}):([0-9a-f]{12})\Z")
#: Stands in each record that brings such a job.
_MARK: Final = NUMBER.encode()


class Identified(NamedTuple):
    """An outbox's job, from its key on the device."""

    tag: str
    job: int
    nonce: str

    @property
    def key(self) -> str:
        return f"hub:{self.tag}-{self.job}:{self.nonce}"

    @classmethod
    def of(cls, key: bytes | None) -> Identified | None:
        match = _KEY.match((key or b"").decode("ascii", "replace"))
        return None if match is None else cls(match[1], int(match[2]), match[3])


class There(NamedTuple):
    """A job on a device: which one of the outbox it is, and what it was handed over with."""

    identified: Identified
    number: int

    @classmethod
    def of(cls, record: Record) -> There | None:
        extras = record.extras
        if extras is None:
            return None
        identified, number = Identified.of(extras.key), extras.headers.get(NUMBER, "")
        return cls(identified, int(number)) if identified and number.isdecimal() else None


class CopyReader:
    """Reader of one copy; it restarts if its place is gone.

    Attributes:
        at: after the last frame read.
        live: open jobs there, by the jobs of that log.
        ends: new ends, with the job of that log.
    """

    def __init__(self, disk: Disk, path: str, log_id: UUID, at: Border = NOWHERE) -> None:
        self._disk, self.path, self._log_id, self.at = disk, path, log_id, at
        self.live: dict[int, There] = {}
        self.ends: dict[There, Ended] = {}

    def read(self) -> None:
        files = Replica(self._disk, self.path, Identity(self._log_id, 0))
        try:
            if not files.stands(self.at):
                self.at = NOWHERE
                self.live.clear()
            for at, frame in files.frames_behind(self.at):
                if self.live or _MARK in frame.data:
                    for record in Record.tracing(frame, _MARK, self.live):
                        self._take(record)
                self.at = at
        finally:
            files.forget()

    def _take(self, record: Record) -> None:
        carried, state = record.carried, record.end
        there = self.live.pop(record.job, None) or There.of(record)
        if there is None:
            return
        if state is None:
            self.live[record.job] = There.of(record) or there
            return
        body, flags = record.body, record.body_flags
        if carried is not None:
            body, flags = carried.body, carried.flags
        cause = Cause[record.cause.upper() or "CALLER"]
        end = Ended(record.job, state, record.attempt, body, cause, flags)
        if carried is None:
            self.ends[there] = end
        else:  # its own end may be known
            self.ends.setdefault(there, end)


class CopyReaders:
    """Readers of one device's copies.

    Args:
        disk: of this machine.
        hub: its directory.
        device: its name.
        begin: where a reading may begin, by log id.

    Attributes:
        logs: reader of each log, by its id, the oldest first.
        is_whole: whether they began at the beginning of every log.
    """

    def __init__(self, disk: Disk, hub: str, device: str, begin: dict[str, Border]) -> None:
        self._disk, self._hub, self._device, self._begin = disk, hub, device, begin
        self.logs: dict[str, CopyReader] = {}
        self.is_whole = False

    def read(self) -> None:
        before, self.logs = self.logs, {}
        for copy in self._copies():
            name = str(copy.log_id)
            at = self._begin.get(name, NOWHERE)
            reading = before.get(name) or CopyReader(copy.disk, copy.path, copy.log_id, at)
            self.logs[name] = reading
            reading.read()

    def read_whole(self) -> None:
        self._begin, self.logs, self.is_whole = {}, {}, True
        self.read()
        for copy in self._copies():
            reading = self.logs[str(copy.log_id)]
            for number in copy.disk.names(f"{copy.path}/old"):
                left = CopyReader(copy.disk, f"{copy.path}/old/{number}", copy.log_id)
                left.read()
                reading.ends = left.ends | reading.ends

    def _copies(self) -> list[CopyFiles]:
        copies = kept(self._hub, self._disk, self._device)
        times = [(self._disk.modified_ns(f"{copy.path}/{IDENTITY}"), copy) for copy in copies]
        dated = [(when, str(copy.log_id), copy) for when, copy in times if when is not None]
        return [copy for _, _, copy in sorted(dated)]

    @property
    def latest(self) -> str:
        return next(reversed(self.logs), "")

    def has_gap(self, name: str) -> bool:
        copy = CopyFiles(self._disk, self._hub, self._device, UUID(name))
        return any(line.get("kind") == "gap" for line in copy.breaks)

    def there(self, log: CopyReader) -> set[Identified]:
        ended = (there for reading in self.logs.values() for there in reading.ends)
        return {there.identified for there in (*log.live.values(), *ended)}


#: Begins the name of the queue of a device.
TO: Final = "to:"
#: Headers of a job in the outbox: a random word, the queue on the device, when it expires.
NONCE, QUEUE, EXPIRES = "hub-nonce", "hub-queue", "hub-expires"
_GIVEN: Final = "given"
#: Parts of which answer and time are remembered.
_PARTS_MAX: Final = 32
_ENDS_BYTES_MAX: Final = 1024 * 1024
_OWN: Final = frozenset({NONCE, QUEUE, EXPIRES})
_KEPT_FLAGS: Final = int(Flag.DROP_RESULT | Flag.DURABLE_CLAIM)
_TO: Final = TO.encode()


class OutboxJob(NamedTuple):
    """An open job of the outbox.

    Attributes:
        number: of the record that enqueued or requeued it.
        since: of the requeue, 0 for none: earlier ends belong to another life.
        expires_ns: of wall time, 0 for never.
    """

    number: int
    since: int
    expires_ns: int
    identified: Identified


class Note(NamedTuple):
    """Hints about a device.

    Attributes:
        parts: (number, time) up to which it had taken its jobs, the latest last.
        begin: by log id, a place before all of its jobs.
    """

    parts: list[tuple[int, int]]
    begin: dict[str, Border]

    @property
    def after(self) -> int:
        return self.parts[-1][0] if self.parts else 0


def read_note(registry: Registry, device: str) -> Note:
    values = registry.hinted(device, _GIVEN) or {"parts": [], "begin": {}}
    parts = [(number, when) for number, when in values["parts"]]
    return Note(parts, {name: Border.from_list(at) for name, at in values["begin"].items()})


class HubOutbox:
    """The outbox of a hub; one request of a device at a time.

    Args:
        make_disk: makes the machine's disk.
        path: of the hub's directory.
        clock: of the machine.
        registry: of the devices.
        ask: sends something by a port of the outbox's log, and waits for the answer.
        spend: told which device ends jobs, and how many bytes its words for it have.

    Raises (any method):
        OSError, TaskqError: a copy could not be read, or the outbox not be written.
    """

    def __init__(
        self,
        make_disk: Callable[[], Disk],
        path: str,
        clock: Clock,
        registry: Registry,
        ask: Callable[[Callable[[Any], Any]], Any],
        spend: Callable[[str, int], None] = lambda _device, _size: None,
    ) -> None:
        self._spend = spend
        self._disk = make_disk()
        self._path = path
        self._clock, self._registry = clock, registry
        self._ask = ask
        #: by device and number of the job: what was seen to wait, and may have ended since
        self._waiting: dict[str, dict[int, OutboxJob]] = {}
        self._cursor: Cursor | None = None
        self._readings: dict[str, CopyReaders] = {}
        #: devices with a note of such a place
        self._armed: set[str] = set()
        #: looks are on the thread of the log, requests on many
        self._lock = threading.Lock()

    # -- settling ---------------------------------------------------------------------------------

    def arrived(self, device: str) -> None:
        if self._cursor is None:
            self._look(device)
        if device in self._armed or self._waiting.get(device):
            self.settle(device)

    def settle(self, device: str) -> dict[int, OutboxJob]:
        waiting, readings = self._look(device), self._readings.get(device)
        if readings is None:
            begin = self.note(device).begin
            readings = self._readings[device] = CopyReaders(self._disk, self._path, device, begin)
        readings.read()
        return self._take_up(device, readings, waiting)

    def _take_up(
        self, device: str, readings: CopyReaders, waiting: dict[int, OutboxJob]
    ) -> dict[int, OutboxJob]:
        ended: list[tuple[CopyReader, There, Ended]] = []
        for reading in readings.logs.values():
            for there, end in list(reading.ends.items()):
                known = waiting.get(there.identified.job)
                is_ours = known is not None and known.identified == there.identified
                if known is None or not is_ours or there.number < known.since:
                    del reading.ends[there]  # it ended before, or is none of this outbox
                else:
                    ended.append((reading, there, end._replace(job=known.identified.job)))
        if ended:
            self._end((end for _, _, end in ended), device)
            for reading, there, _ in ended:
                reading.ends.pop(there, None)
            waiting = self._look(device)
        return waiting

    def _end(self, ends: Iterable[Ended], device: str = "") -> None:
        left, at = list(ends), 0
        while at < len(left):
            size, begin = 0, at
            while at < min(len(left), begin + JOBS_MAX) and size < _ENDS_BYTES_MAX:
                size += len(left[at].body or b"")
                at += 1
            if device:
                self._spend(device, size)
            self._ask(methodcaller("settle_for", left[begin:at]))

    def expire(self) -> None:
        self._look("")
        now_ns = self._clock.wall_ns()
        with self._lock:
            late = [
                device
                for device, jobs in self._waiting.items()
                if any(0 < job.expires_ns <= now_ns for job in list(jobs.values()))
            ]
        for device in late:
            after = self.note(device).after
            self._expire(job for job in self._look(device).values() if job.number > after)

    def _expire(self, waiting: Iterable[OutboxJob]) -> set[int]:
        now_ns = self._clock.wall_ns()
        late = [job.identified.job for job in waiting if 0 < job.expires_ns <= now_ns]
        self._end(Ended(job, State.EXPIRED, 0) for job in late)
        return set(late)

    # -- handing over -----------------------------------------------------------------------------

    def give(self, device: str, asked: Question) -> Given:
        tag, next_lsn = self._ask(methodcaller("look", _end_of, needs_agenda=False))
        after, log = asked.after.get(tag, 0), str(asked.log_id)
        if after >= next_lsn:  # the outbox was set back: no number is given twice
            self._ask(methodcaller("skip", after))
        waiting = self.settle(device)
        readings = self._readings[device]
        if readings.latest != log:
            return Given(tag, after, [], [])  # another of its logs came later
        if asked.refused:
            waiting = self._refuse(device, waiting, tag, asked.refused)
        self._note_taken(device, after)
        if not asked.waiting:
            waiting = self._seek(device, log, waiting, after)
        reading = readings.logs[log]
        there = readings.there(reading)
        fresh = (job for job in waiting.values() if job.number > after)
        new = [job for job in fresh if job.identified not in there]
        late = self._expire(new)
        new = sorted(job for job in new if job.identified.job not in late)
        look = partial(self._handed, waiting=new, bytes_max=asked.bytes_max)
        jobs: list[HubJob] = self._ask(methodcaller("look", look)) if new else []
        over = {
            number: there.identified
            for number, there in reading.live.items()
            if there.identified.tag == tag and there.identified.job not in waiting
        }
        gone = partial(_cancelled, jobs=over, device=device)
        cancels: list[tuple[str, int]] = self._ask(methodcaller("look", gone)) if over else []
        if jobs:
            self._arm(device, readings)
        elif not reading.live and not waiting:
            self._armed.discard(device)
        return Given(tag, jobs[-1].number if jobs else after, jobs, cancels)

    def _refuse(
        self,
        device: str,
        waiting: dict[int, OutboxJob],
        tag: str,
        refused: tuple[tuple[str, str], ...],
    ) -> dict[int, OutboxJob]:
        reasons = dict(refused)
        dead = (
            Ended(job, State.DEAD, 0, f"{device} refuses it: {reasons[f'{tag}-{job}']}".encode())
            for job in waiting
            if f"{tag}-{job}" in reasons
        )
        self._end(dead, device)
        return self._look(device)

    def _seek(
        self, device: str, log: str, waiting: dict[int, OutboxJob], after: int
    ) -> dict[int, OutboxJob]:
        readings = self._readings[device]
        missing = _missing(readings, log, waiting, after)
        if missing and not readings.is_whole:
            readings.read_whole()
            waiting = self._take_up(device, readings, waiting)
            missing = _missing(readings, log, waiting, after)
        if not missing:
            return waiting
        reason = f"{device} took it, and its log does not tell what became of it"
        self._end(Ended(job, State.DEAD, 0, reason.encode()) for job in missing)
        if not readings.has_gap(log):  # it never came so far
            letters = self._ask(methodcaller("letters", missing))
            self._ask(methodcaller("requeue", letters))
        return self._look(device)

    def _handed(self, sight: LogView, waiting: list[OutboxJob], bytes_max: int) -> list[HubJob]:
        jobs: list[HubJob] = []
        size = 0
        for due in waiting[:JOBS_MAX]:
            if not sight.waits(due.identified.job):
                continue
            made = self._made(sight, due)
            size += len(made.payload)
            if size > min(bytes_max, BYTES_MAX) and (jobs or bytes_max < BYTES_MAX):
                break
            jobs.append(made)
        return jobs

    def _made(self, sight: LogView, due: OutboxJob) -> HubJob:
        now_ns, job = self._clock.wall_ns(), due.identified.job
        record = sight.brought(job)
        extras = record.extras
        assert extras is not None
        due_ns = extras.due_ns
        if due_ns and not extras.due_is_wall:
            view = sight.view(job)
            due_ns = max(view.due_ns - now_ns, 0) if view is not None else 0
        job_id = f"{due.identified.tag}-{job}"
        headers = {name: value for name, value in extras.headers.items() if name not in _OWN}
        headers |= {JOB: job_id, NUMBER: str(due.number)}
        return HubJob(
            due.number, job_id, due.identified.key, extras.headers.get(QUEUE, "default"),
            record.task, record.priority or 0, record.attempts_max,
            record.flags & _KEPT_FLAGS | record.body_flags, headers, due_ns, extras.due_is_wall,
            max(due.expires_ns - now_ns, 1) if due.expires_ns else 0, record.body or b"",
        )  # fmt: skip

    # -- what waits -------------------------------------------------------------------------------

    def _look(self, device: str) -> dict[int, OutboxJob]:
        seen = partial(self._seen, device=device)
        waiting: dict[int, OutboxJob] = self._ask(methodcaller("look", seen))
        return waiting

    def _seen(self, sight: LogView, device: str) -> dict[int, OutboxJob]:
        with self._lock:
            try:
                self._catch_up(sight)
            except LogError:  # compaction took what comes next: it was written again
                self._cursor = None
                self._catch_up(sight)
            known = self._waiting.get(device, {})
            for job in [job for job in known if not sight.waits(job)]:
                del known[job]
            return dict(known)

    def _catch_up(self, sight: LogView) -> None:
        journal = sight.journal
        if self._cursor is None:
            self._waiting.clear()
            self._cursor = journal.start()
        for _, item in journal.frames(self._cursor):
            if not isinstance(item, Gap) and _TO in item.data:
                for record in Record.tracing(item, _TO):
                    self._add(sight, record)

    def _add(self, sight: LogView, record: Record) -> None:
        if not record.queue.startswith(TO) or record.extras is None:
            return
        job, lsn, headers = record.job, record.lsn, record.extras.headers
        nonce, expires = headers.get(NONCE, ""), headers.get(EXPIRES, "")
        if record.type in kinds.EDITS:  # it may have been another device's
            for others in self._waiting.values():
                others.pop(job, None)
        known = self._waiting.setdefault(record.queue[len(TO) :], {})
        if not nonce or not sight.waits(job):
            return
        number, since = lsn, lsn if record.type in kinds.REVIVALS else 0
        if record.type in kinds.REPEATS and job in known:
            number, since = known[job][:2]
        expires_ns = int(expires) if expires.isdecimal() else 0
        identified = Identified(sight.journal.tag, job, nonce)
        known[job] = OutboxJob(number, since, expires_ns, identified)

    # -- what is noted ----------------------------------------------------------------------------

    def note(self, device: str) -> Note:
        return read_note(self._registry, device)

    def _note_taken(self, device: str, after: int) -> None:
        note = self.note(device)
        if note.after != after:
            parts = [part for part in note.parts if part[0] < after]
            parts = [*parts, (after, self._clock.wall_ns())][-_PARTS_MAX:]
            self._write(device, note._replace(parts=parts))

    def _arm(self, device: str, readings: CopyReaders) -> None:
        if device not in self._armed:
            begin = {name: reading.at for name, reading in readings.logs.items()}
            is_idle = not any(reading.live or reading.ends for reading in readings.logs.values())
            note = self.note(device)
            self._write(device, note._replace(begin=begin if is_idle else note.begin))
            self._armed.add(device)

    def _write(self, device: str, note: Note) -> None:
        begin = {name: at.as_list() for name, at in note.begin.items()}
        Hint(self._registry, device, _GIVEN).write({"parts": note.parts, "begin": begin})


def _missing(
    readings: CopyReaders, log: str, waiting: dict[int, OutboxJob], after: int
) -> list[int]:
    there = readings.there(readings.logs[log])
    taken = (job for job, known in waiting.items() if known.number <= after)
    return [job for job in taken if waiting[job].identified not in there]


def _end_of(sight: LogView) -> tuple[str, int]:
    return sight.journal.tag, sight.journal.next_lsn


def _cancelled(sight: LogView, jobs: dict[int, Identified], device: str) -> list[tuple[str, int]]:
    cancelled: list[tuple[str, int]] = []
    for number, identified in jobs.items():
        with contextlib.suppress(JobNotFound):
            view = sight.view(identified.job)
            if view is None or view.headers.get(NONCE) != identified.nonce:
                continue
            if view.state is State.CANCELLED or view.queue != f"{TO}{device}":
                cancelled.append((f"{sight.journal.tag}-{identified.job}", number))
    return cancelled


_log: Final = logging.getLogger("taskq")
_EXPIRE_SECONDS: Final = 30.0
#: Waiting requests look this long after the outbox grew: many at a time.
_GATHER_SECONDS: Final = 0.25
#: How often they look whether there is an outbox at all.
_THERE_SECONDS: Final = 1.0
#: Questions that wait for their answer at a time; one more is answered at once.
_ASKING_MAX: Final = 2_000


class OutboxServer:
    """The outbox of a hub, for one event loop.

    Args:
        path: of the hub.
        registry: of its devices.
        spend: told which device makes the outbox grow, and by how many bytes.

    Attributes:
        handing: decides what a device is given.
        asking: the questions that wait, the latest of each log, and what ends its wait.
    """

    def __init__(self, path: Path, registry: Registry, spend: Callable[[str, int], None]) -> None:
        self._identity: Path = path / OUTBOX / IDENTITY
        self._connection = Connection(str(path / OUTBOX), LogConfig())
        self.handing = HubOutbox(PatientDisk, str(path), SystemClock(), registry, self._ask, spend)
        self.asking: dict[tuple[str, UUID], CancelScope] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    def _ask(self, what: Callable[[Any], Any]) -> Any:
        return what(self._connection.thread_port()).result()

    async def close(self) -> None:
        await self._connection.aclose()

    @property
    def is_there(self) -> bool:
        return self._identity.is_file()

    def arrived(self, device: str) -> None:
        try:
            if self.is_there:
                self.handing.arrived(device)
        except (OSError, TaskqError) as error:
            _log.warning("hub: jobs of %s wait a while: %s", device, error)

    async def expire(self, on_thread: Callable[..., Awaitable[Any]]) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                if self.is_there:
                    await on_thread(self.handing.expire)
            except (OSError, TaskqError) as error:
                _log.warning("hub: jobs that expired wait a while: %s", error)

    # -- questions --------------------------------------------------------------------------------

    def asked_by(self, device: str) -> int:
        return sum(name == device for name, _ in self.asking)

    async def answer(
        self, device: str, asked: Question, look: Callable[[Question], Awaitable[Answer | None]]
    ) -> Answer | None:
        """Answer a question once ``look`` returns something; None: nothing came.

        An earlier question of the same log ends then.
        """
        key, wait, self._loop = (device, asked.log_id), CancelScope(), asyncio.get_running_loop()
        if before := self.asking.get(key):
            before.cancel()
        if not asked.wait_seconds:
            return await look(asked) if self.is_there else None
        may_wait = len(self.asking) < _ASKING_MAX and not self._is_over
        until = self._loop.time() + (asked.wait_seconds if may_wait else 0)
        self.asking[key] = wait
        try:
            with wait:
                while True:
                    grown = await self._mark()
                    answer = await look(asked) if self.is_there else None
                    if answer and not (isinstance(answer, Given) and answer.is_empty):
                        return answer
                    wait.deadline = until  # not before it was looked once
                    await grown()
                    await asyncio.sleep(_GATHER_SECONDS)
                    asked = replace(asked, refused=())
        finally:
            if self.asking[key] is wait:
                del self.asking[key]
        return None

    async def _mark(self) -> Callable[[], Awaitable[Any]]:
        if not self.is_there:
            return partial(asyncio.sleep, _THERE_SECONDS)
        port = await self._connection.port()
        seen = await port.look(lambda sight: sight.journal.next_lsn, needs_agenda=False)
        return partial(port.extent, seen)

    def end(self) -> None:
        self._is_over = True
        for wait in tuple(self.asking.values()):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(wait.cancel)
