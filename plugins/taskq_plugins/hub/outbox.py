"""Jobs for devices: the hub has a log for each device, its outbox.

A device asks for the records of its outbox after its position there, and ingests the jobs: its own
log holds them and the position together. A job's end is a record of the device's log, and
the hub reads it from its copy. A job of the outbox is open until the copies hold its end; then it
is expired there, which frees its key.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import logging
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from anyio import CancelScope

from taskq import State
from taskq.engine import (
    Border,
    Disk,
    EnqueueSpec,
    Extras,
    Flag,
    Gap,
    Item,
    LogConfig,
    LogReader,
    LogView,
    PatientDisk,
    Record,
    Replica,
    Tag,
    checked_move,
    fork,
)
from taskq.errors import JobNotFound, LogDamaged, TaskqError
from taskq.hooks import Connection, off_loop
from taskq.views import LIVE_STATES, JobView
from taskq_plugins.hub.copies import IDENTITY, in_order, kept, lineage, segments
from taskq_plugins.hub.models import (
    BYTES_MAX,
    JOB,
    JOBS_MAX,
    NOWHERE,
    Answer,
    Given,
    HubError,
    HubJob,
    Question,
    Refused,
)
from taskq_plugins.hub.registry import OUTBOX, Registry

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from taskq import TaskLog
    from taskq_plugins.hub.line import Line

#: Header of the entry for a job that a device refuses: its words.
REFUSED: Final = "hub-refused"
#: Header of a job in its outbox: the last segment of each copy when the job was enqueued. Earlier
#: segments have nothing of the job. File times do not show this: clocks are set back.
FROM: Final = "hub-from"
#: A call may have none of them, and a job takes no other of them down.
OWN_HEADERS: Final = frozenset({JOB, REFUSED, FROM})
#: Begins the name of a source of a device, before the id of an outbox's log.
SOURCE: Final = "hub-jobs "
#: Jobs that ended are kept: a device that was away must hear of a cancellation.
KEEP_SECONDS: Final = 90 * 86_400.0
_CONFIG: Final = LogConfig(keep_seconds=KEEP_SECONDS)
#: Stands in each record of a device's log that brings a job of the hub, or a position.
_MARK: Final = b"hub-"
#: Most records that one answer is made of, and most jobs that one request ends.
_RECORDS_MAX: Final = 100_000
_ENDED_MAX: Final = 500
_LSN_MAX: Final = 2**63
_SEGMENT: Final = re.compile(r"\b([0-9a-f]{32}):([0-9]{1,19})\b")


def folder(hub: str | Path, device: str) -> Path:
    return Path(hub, OUTBOX, device)


def devices(hub: str | Path) -> list[str]:
    """Return the devices that the hub sends jobs to."""
    return sorted(file.parent.name for file in Path(hub, OUTBOX).glob(f"*/{IDENTITY}"))


def ring(hub: str | Path) -> None:
    """Wake devices that wait for jobs: the server looks at the time of the folder."""
    with contextlib.suppress(OSError):
        os.utime(Path(hub, OUTBOX))


def begins(hub: str | Path, device: str, disk: Disk | None = None) -> str:
    """Return where the copies of a device end now, for the header of a new job."""
    copies = kept(hub, device, disk)
    ends = [(copy.log_id, segments(copy.disk, copy.path)) for copy in copies]
    return " ".join(f"{log_id.hex}:{lsns[-1]}" for log_id, lsns in ends if lsns)


def item_of(job: HubJob) -> Item:
    """Return a job on its way down as its receiver enqueues it: once, since its key is its id."""
    spec = EnqueueSpec(job.queue, job.task, job.priority, job.attempts, job.flags)
    extras = Extras(
        due_ns=job.due_ns, due_is_wall=job.due_is_wall, expires_ns=job.expires_ns,
        key=_key(job.id), headers=job.headers,
    )  # fmt: skip
    return spec, job.payload, extras


# -- what a device's log says ----------------------------------------------------------------------


class There(NamedTuple):
    """A job on its device.

    Attributes:
        path: of the copy of the device's log.
        number: the job's in that log.
        is_over: whether it has ended.
        words: why the device refused it.
    """

    path: str
    number: int
    is_over: bool
    words: str


class CopyReader:
    """Reader of one copy; it restarts if its place is gone.

    Attributes:
        begin: segments before this one are not read.
        jobs: by their ids in the outbox.
        taken: by the tag of an outbox, the last of its records that was taken.
    """

    def __init__(self, disk: Disk, path: str, log_id: UUID, begin: int = 0) -> None:
        self._disk, self.path, self._log_id, self.begin = disk, path, log_id, begin
        self._at = NOWHERE
        self._live: dict[int, str] = {}
        self.jobs: dict[str, There] = {}
        self.taken: dict[str, int] = {}

    def read(self) -> None:
        own = lineage(self._disk, self.path, self._log_id)
        files = Replica(self._disk, self.path, own)
        try:
            if not files.stands(self._at):
                young = (segment for segment in files.lsns if segment >= self.begin)
                self._at = Border(next(young, 0), 0)
                self._live.clear()
            for at, frame in files.frames_behind(self._at):
                if self._live or _MARK in frame.data:
                    for record in Record.tracing(frame, _MARK, self._live):
                        self._take(record)
                self._at = at
        finally:
            files.forget()

    def _take(self, record: Record) -> None:
        if record.moved is not None:
            name, (position, _) = record.moved
            if name.startswith(SOURCE) and position:
                self.taken[name.removeprefix(SOURCE)] = int(position)
            return
        extras = record.extras or Extras()
        headers, job = extras.headers, self._live.pop(record.job, "")
        name = headers.get(JOB, "")
        # Jobs that a handler enqueues may have the headers of its job, but not its key.
        if extras.key == _key(name) or REFUSED in headers:
            job = name
        if not job:
            return
        words, is_over = headers.get(REFUSED, ""), record.end is not None
        if known := self.jobs.get(job):
            words = words or known.words
        self.jobs[job] = There(self.path, record.job, is_over or bool(words), words)
        if not is_over:
            self._live[record.job] = job


class DeviceReader:
    """Reader of all logs of a device, the last of which takes jobs."""

    def __init__(self, hub: str | Path, device: str, disk: Disk | None = None) -> None:
        self._hub, self._device, self._disk = str(hub), device, disk or PatientDisk()
        #: the oldest first
        self._logs: dict[UUID, CopyReader] = {}

    def read(self, headers: Mapping[str, str]) -> None:
        """Read the records about a job of the outbox with these headers, and about later jobs."""
        begins = {UUID(log): int(lsn) for log, lsn in _SEGMENT.findall(headers.get(FROM, ""))}
        for copy in in_order(kept(self._hub, self._device, self._disk)):
            log, begin = self._logs.pop(copy.log_id, None), begins.get(copy.log_id, 0)
            if log is None or begin < log.begin:
                log = CopyReader(self._disk, copy.path, copy.log_id, begin)
            self._logs[copy.log_id] = log
            log.read()

    def find(self, tag: Tag, job: int) -> There | None:
        """Return where a job of an outbox was last.

        An end holds in every log. Otherwise a log that was left counts for nothing: its jobs come
        again, unless the last log has taken more than that.
        """
        name = tag.id(job)
        places = [log.jobs[name] for log in reversed(self._logs.values()) if name in log.jobs]
        ended = [there for there in places if there.is_over]
        is_over = not ended and self.is_taken(tag, job) and name not in self._last.jobs
        return next(iter(() if is_over else ended or places), None)

    @property
    def _last(self) -> CopyReader:
        return next(reversed(self._logs.values()))

    def is_taken(self, tag: Tag, job: int) -> bool:
        """Return whether the device's last log has taken the outbox's records up to a job."""
        return bool(self._logs) and job <= self._last.taken.get(tag.of(job), 0)

    def is_settled(self, tag: Tag, job: int) -> bool:
        """Return whether a job has ended or is lost: its device took it and knows nothing of it."""
        there = self.find(tag, job)
        return there.is_over if there is not None else self.is_taken(tag, job)

    def view(self, there: There) -> JobView | None:
        with LogReader.open(there.path) as reader:
            return reader.job(there.number)


# -- what the hub does -----------------------------------------------------------------------------


def waiting_in(sight: LogView) -> tuple[list[int], Mapping[str, str]]:
    """Return the jobs that wait in an outbox, and the headers of the oldest."""
    table = sight.facets.need_agenda().table
    jobs = [job for job, _, _ in table.rows(0, table.live)]
    view = sight.view(jobs[0]) if jobs else None
    return jobs, view.headers if view is not None else {}


async def settle(connection: Connection, reader: DeviceReader) -> None:
    """Expire the jobs of an outbox whose ends the device's copies name, or that are lost."""
    port = await connection.port()
    await port.withdraw([], expired=True)  # expires late jobs
    jobs, headers = await port.look(waiting_in)
    if not jobs:
        return
    await off_loop(reader.read, headers)
    tag = connection.tag
    over = [job for job in jobs if reader.is_settled(tag, job)]
    for at in range(0, len(over), _ENDED_MAX):
        await port.withdraw(over[at : at + _ENDED_MAX], expired=True)


def _is_due(path: str, reader: DeviceReader) -> bool:
    """Return whether ``settle`` has anything to write to an outbox."""
    with LogReader.open(path) as log:
        tag = log.journal.tag
        waiting = list(log.each_job(LIVE_STATES))
    if waiting:
        reader.read(waiting[0].headers)
    now_ns = time.time_ns()
    return any(
        0 < view.expires_ns <= now_ns or reader.is_settled(tag, view.lsn) for view in waiting
    )


class _New(NamedTuple):
    """New records of an outbox for a device.

    Attributes:
        end: the last record that was looked at.
        jobs: that the device has not taken, and that have not ended.
        cancelled: ends of jobs that it has taken.
    """

    end: int
    jobs: dict[int, Record]
    cancelled: list[Record]


def _read(journal: Any, first: int, after: dict[str, int]) -> _New:
    tag, end, count = journal.tag, first - 1, 0
    jobs, cancelled = dict[int, Record](), list[Record]()
    for _, item in journal.frames(journal.cursor_at(first)):
        if isinstance(item, Gap) or item.header.next_lsn <= first:
            continue
        for record in Record.tracing(item, b"", range(_LSN_MAX)):
            job = record.job
            if job <= after.get(tag.of(job), 0):
                is_new = record.lsn > after.get(tag.of(record.lsn), 0)
                cancelled += [record] if is_new and record.end is State.CANCELLED else []
            elif record.end is None:
                jobs[job] = record
            else:
                jobs.pop(job, None)
        end, count = item.header.next_lsn - 1, count + item.header.records
        if count > _RECORDS_MAX and (jobs or cancelled):
            break
    return _New(end, jobs, cancelled)


def given(
    journal: Any, look: Callable[[int], JobView | None], asked: Question, now_ns: int
) -> Given:
    """Return the jobs of an outbox that a device has not taken, as far as one log wrote them.

    An outbox that was restored goes on as another log, and has its parents' records: a device may
    have taken some of them from another child. ``look`` returns a job of the outbox.
    """
    tag = journal.tag
    logs = (*tag.parents, (str(tag), _LSN_MAX))
    begins = (1, *(next_lsn for _, next_lsn in tag.parents))
    firsts = [max(asked.after.get(log[0], 0) + 1, at) for log, at in zip(logs, begins, strict=True)]
    first = next(at for at, (_, next_lsn) in zip(firsts, logs, strict=True) if at < next_lsn)
    new = _read(journal, first, asked.after)
    answer = Given(str(tag), asked.after.get(tag, 0), new.end, (), ())
    for name, next_lsn in logs:
        births = sorted(birth for birth in new.jobs.items() if tag.of(birth[0]) == name)
        mine = (hub_job(tag.id(job), birth, now_ns) for job, birth in births)
        handed, is_all = _handed(filter(None, mine), asked.bytes_max)
        cancelled = (look(record.job) for record in new.cancelled if tag.of(record.lsn) == name)
        cancels = tuple((view.job_id, view.queue) for view in cancelled if view is not None)
        before = asked.after.get(name, 0)
        known = handed[-1].number if handed else before
        last = min(new.end, next_lsn - 1) if is_all else known
        answer = Given(name, before, last, handed, cancels)
        if not (answer.is_empty and is_all):
            return answer
    return answer


def _handed(jobs: Iterable[HubJob], bytes_max: int) -> tuple[tuple[HubJob, ...], bool]:
    """Return what of these jobs goes into an answer, and whether that is all."""
    handed, size = list[HubJob](), 0
    for job in jobs:
        size += len(job.payload)
        is_over = size > min(bytes_max, BYTES_MAX)
        # A line with little left takes no job that is larger; another takes one at least.
        if len(handed) == JOBS_MAX or (is_over and (handed or bytes_max < BYTES_MAX)):
            return tuple(handed), False
        handed.append(job)
    return tuple(handed), True


def hub_job(job_id: str, record: Record, now_ns: int) -> HubJob | None:
    """Return a job on its way down; None if it is too late for it."""
    extras, carried = record.extras, record.carried
    assert extras is not None
    due_ns, is_wall, expires_ns = extras.due_ns, extras.due_is_wall, extras.expires_ns
    if carried is not None:
        due_ns, is_wall = carried.due_ns * (carried.state is State.SCHEDULED), carried.due_is_wall
        expires_ns = carried.expires_ns or expires_ns
    if 0 < expires_ns <= now_ns:
        return None
    flags = record.body_flags | (0 if record.stores_result else Flag.DROP_RESULT)
    others = {key: text for key, text in extras.headers.items() if key not in OWN_HEADERS}
    headers = {JOB: job_id} | others
    return HubJob(
        record.job, job_id, record.queue, record.task, record.priority or 0,
        record.attempts_max, int(flags), headers,
        due_ns if is_wall or not due_ns else max(due_ns - now_ns, 0), is_wall,
        expires_ns and expires_ns - now_ns, record.body or b"",
    )  # fmt: skip


_log: Final = logging.getLogger("taskq")
#: How often the folder of outboxes is looked at, and how often jobs that ended are expired there.
_LOOK_SECONDS: Final = 0.25
_SETTLE_SECONDS: Final = 3_600.0
#: Questions that wait for their answer at a time; one more is answered at once.
_ASKING_MAX: Final = 2_000


class OutboxServer:
    """The outboxes of a hub, for one event loop.

    Attributes:
        asking: the questions that wait, the latest of each log, and what ends its wait.
    """

    def __init__(self, path: Path, registry: Registry) -> None:
        self._path, self._registry = path, registry
        self.asking: dict[tuple[str, UUID], CancelScope] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = asyncio.Event()
        self._is_over = False
        #: by device, the end of its outbox where nothing was there for it, and what it had taken
        self._quiet: dict[str, tuple[object, ...]] = {}

    def given(self, device: str, asked: Question) -> Given | None:
        """Return the jobs for a device; None for nothing.

        The log that came last takes the jobs of a device with several, or a parent of it, if a
        person lets a device go on that was set back.
        """
        path = folder(self._path, device)
        seen = end_of(path), asked.bytes_max, dict(asked.after)
        if seen[0] is None or self._quiet.get(device) == seen:
            return None
        copies = in_order(kept(self._path, device))
        takes = {copies[-1].log_id, *dict(copies[-1].identity.parents)} if copies else ()
        if copies and asked.log_id not in takes:
            return None
        with LogReader.open(str(path)) as reader:
            journal = reader.journal
            if asked.after.get(journal.tag, 0) >= (at := journal.next_lsn):
                # It was set back in place, and would give numbers of earlier jobs again.
                fork(str(path), at)
                return None
            answer = given(journal, reader.job, asked, time.time_ns())
        before = self._registry.standing(device).get("given", {})
        # Over what it was given, and did not get in time, a device moves without a job.
        if answer.is_empty and before.get(answer.tag, 0) <= answer.after:
            self._quiet[device] = seen
            return None
        self._registry.note(device, given=before | {answer.tag: answer.end})
        return answer

    async def run(self) -> None:
        """Wake waiting devices when jobs come, and free what ended; until cancelled."""
        ring, settled = _changed(self._path), 0.0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if (now := _changed(self._path)) != ring:
                ring, before, self._rung = now, self._rung, asyncio.Event()
                before.set()
            if time.monotonic() - settled >= _SETTLE_SECONDS:
                settled = time.monotonic()
                await self._settle_all()

    async def _settle_all(self) -> None:
        for device in devices(self._path):
            connection = Connection(str(folder(self._path, device)), _CONFIG)
            reader = DeviceReader(self._path, device)
            try:
                if await off_loop(_is_due, connection.path, reader):
                    await settle(connection, reader)
            except (OSError, TaskqError) as error:
                _log.warning("hub: jobs of %s wait a while: %s", device, error)
            finally:
                await connection.aclose()

    # -- questions --------------------------------------------------------------------------------

    async def answer(
        self, device: str, asked: Question, look: Callable[[Question], Awaitable[Any]]
    ) -> Any:
        """Answer a question once ``look`` returns something; None: nothing came.

        An earlier question of the same log ends then.
        """
        key, wait, self._loop = (device, asked.log_id), CancelScope(), asyncio.get_running_loop()
        if before := self.asking.get(key):
            before.cancel()
        may_wait = len(self.asking) < _ASKING_MAX and not self._is_over
        until = self._loop.time() + (asked.wait_seconds if may_wait else 0)
        self.asking[key] = wait
        try:
            with wait:
                while True:
                    rung = self._rung
                    if answer := await look(asked):
                        return answer
                    wait.deadline = until  # not before it was looked once
                    await rung.wait()
        finally:
            if self.asking[key] is wait:
                del self.asking[key]
        return None

    def end(self) -> None:
        self._is_over = True
        for wait in tuple(self.asking.values()):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(wait.cancel)


def _changed(hub: Path) -> int:
    try:
        return (hub / OUTBOX).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def end_of(path: str | Path) -> tuple[str, int, int] | None:
    """Return what changes whenever the log grows, or is another; None without a log."""
    try:
        last = max(Path(path, "log").glob("*.log"))
        status = last.stat()
    except (OSError, ValueError):
        return None
    return last.name, status.st_ino, status.st_size


#: Parts of one session.
_ROUNDS_MAX: Final = 64
#: Queue of entries for refused jobs, which expire at once.
_REFUSED_QUEUE: Final = "hub-refused"
_WORDS_MAX: Final = 500


class TakeResult(NamedTuple):
    """Result of taking jobs."""

    jobs: int = 0
    refused: int = 0
    cancelled: int = 0


def positions(path: str) -> dict[str, int]:
    """Return the last record that was taken of each outbox, by the tag of its log.

    Raises:
        LogError: the log cannot be read.
    """
    with LogReader.open(path) as reader:
        names = ((source.name.partition(SOURCE), source.position) for source in reader.sources())
        return {name[2]: int(position) for name, position in names if name[1]}


class DeviceOutbox:
    """Takes a device's jobs.

    Args:
        accept: patterns of task names, such as ``photos.*``; empty: nothing is taken.
        known: names of the tasks that run here; None if unknown.
    """

    def __init__(self, accept: Sequence[str], known: Collection[str] | None = None) -> None:
        self._accept, self._known = accept, known

    async def take(
        self,
        session: int,
        log_id: UUID,
        after: dict[str, int],
        ask: Callable[[Question], Awaitable[object]],
        opened: Callable[[], contextlib.AbstractAsyncContextManager[TaskLog]],
    ) -> TakeResult:
        """Take what is there.

        Args:
            session: of the sync before it.
            log_id: of the log.
            after: what ``positions`` returned; it moves on.
            ask: asks the hub; any answer but ``Given`` says that nothing is there.
            opened: opens the device's own log.

        Raises:
            SourceMoved: another process takes jobs for the same log.
        """
        taken = TakeResult()
        for _ in range(_ROUNDS_MAX):
            given = await ask(Question(session, log_id, after))
            if not isinstance(given, Given) or (given.is_empty and given.end == given.after):
                break
            if given.after != after.get(given.tag, 0):  # somebody on the way gave an old answer
                break
            judged = [self._judged(job) for job in given.jobs]
            source, before = f"{SOURCE}{given.tag}", after.get(given.tag)
            async with opened() as log:
                # Before the position moves: a process that is killed in between cancels them again.
                cancelled = [await _cancel(log, *wanted) for wanted in given.cancels]
                move = checked_move(source, given.end, before)
                await log.connection.send_many([item for item, _ in judged], move)
                after[given.tag] = given.end
            refused = sum(is_refused for _, is_refused in judged)
            taken = TakeResult(
                taken.jobs + len(judged) - refused, taken.refused + refused,
                taken.cancelled + sum(cancelled),
            )  # fmt: skip
        return taken

    def _judged(self, job: HubJob) -> tuple[Item, bool]:
        """Return a job as it goes into the log, and whether it is refused."""
        why = ""
        if not any(fnmatch.fnmatchcase(job.task, pattern) for pattern in self._accept):
            said = ", ".join(self._accept) or "nothing"
            why = f"{job.task!r} is not among what is accepted there ({said})"
        elif self._known is not None and job.task not in self._known:
            why = f"no task {job.task!r} is known there"
        try:
            if not why:
                return item_of(job), False
        except (TaskqError, TypeError, ValueError, OverflowError) as error:
            why = f"it cannot be read there: {error}"
        headers = {JOB: job.id, REFUSED: why[:_WORDS_MAX]}
        # Nobody runs it: it expires at once.
        return (EnqueueSpec(_REFUSED_QUEUE), b"", Extras(expires_ns=1, headers=headers)), True


def _key(job: str) -> bytes:
    return f"hub:{job}".encode()


async def _cancel(log: TaskLog, job: str, queue: str) -> bool:
    try:
        view = await log.find(_key(job), queue)
        return view is not None and await log.cancel(view.job_id)
    except (JobNotFound, LogDamaged) as error:  # the jobs after it are taken all the same
        _log.warning("hub: job %s cannot be cancelled here: %s", job, error)
        return False


#: An answer that comes sooner, and says nothing, is of a hub that lets nobody wait just now.
_SOON_SECONDS: Final = 5.0
#: Longest pause after requests without an answer.
_PAUSE_SECONDS_MAX: Final = 600.0
_CHANCE: Final = random.SystemRandom()


def backoff(seconds: float, failures: int) -> float:
    longest = min(seconds * 2.0 ** min(failures, 20), _PAUSE_SECONDS_MAX)
    return _CHANCE.uniform(1.0, max(longest, 1.0))


class LongPoll:
    """Long poll of one device, on a connection of its own beside its sessions.

    An answer only starts a session, which asks again and takes the jobs. So does a hub that does
    not answer well, after a pause.
    """

    def __init__(self, line: Line, tasks: TaskGroup) -> None:
        self._line, self._tasks = line, tasks
        self._is_asking, self._answered = False, asyncio.Event()
        self._failures = 0
        self._before: Answer | None = None

    def ask(self, question: Question | None) -> None:
        """Ask after a session, unless an earlier question still waits."""
        self._answered.clear()
        if question is not None and not self._is_asking:
            self._is_asking = True
            self._tasks.start_soon(self._hold, question)

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    async def wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()

    async def _hold(self, asked: Question) -> None:
        every = self._line.hub.every
        try:
            while True:
                began = monotonic()
                answer = await self._line.hold(asked)
                self._failures = 0
                if isinstance(answer, Refused) or answer not in (None, self._before):
                    break
                # The same jobs again: they were taken, and the log has not reported it yet.
                is_soon = monotonic() - began < _SOON_SECONDS
                await asyncio.sleep(every if answer is not None or is_soon else 0)
            self._before = answer
        except HubError as error:
            self._failures += 1
            await asyncio.sleep(max(error.seconds, backoff(every, self._failures)))
        self._is_asking = False
        self._answered.set()
