"""Jobs for devices: the hub has a log for each device, its outbox.

A device asks for the records of its outbox after its position, and ingests the jobs: one
transaction of its own log has the jobs and the new position. A job's end is a record of the
device's log, which the hub reads from its copy. A job in the outbox is open until a copy has its
end. Then the hub expires the job in the outbox, which frees its key.
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

#: Header of the entry for a refused job, with the device's reason.
REFUSED: Final = "hub-refused"
#: Header of a job in its outbox: the last segment of each copy at the enqueue. Earlier segments
#: have no records of the job. File times do not show this, since clocks may be set back.
FROM: Final = "hub-from"
#: A call may have none of these headers; a job on a device has only the first.
OWN_HEADERS: Final = frozenset({JOB, REFUSED, FROM})
#: Prefix of a device's source, before the id of an outbox's log.
SOURCE: Final = "hub-jobs "
#: How long ended jobs are kept, so that a device hears of a cancellation after an absence.
KEEP_SECONDS: Final = 90 * 86_400.0
_CONFIG: Final = LogConfig(keep_seconds=KEEP_SECONDS)
#: Bytes in each record of a device's log about a job of the hub, or a position.
_MARK: Final = b"hub-"
#: Records read for one answer at most, and jobs that one request expires.
_RECORDS_MAX: Final = 100_000
_ENDED_MAX: Final = 500
_LSN_MAX: Final = 2**63
_SEGMENT: Final = re.compile(r"\b([0-9a-f]{32}):([0-9]{1,19})\b")


def folder(hub: str | Path, device: str) -> Path:
    return Path(hub, OUTBOX, device)


def devices(hub: str | Path) -> list[str]:
    """Return the devices with an outbox."""
    return sorted(file.parent.name for file in Path(hub, OUTBOX).glob(f"*/{IDENTITY}"))


def ring(hub: str | Path) -> None:
    """Wake the devices' long polls: change the folder's time, which the server watches."""
    with contextlib.suppress(OSError):
        os.utime(Path(hub, OUTBOX))


def begins(hub: str | Path, device: str, disk: Disk | None = None) -> str:
    """Return the current ends of a device's copies, for the header of a new job."""
    copies = kept(hub, device, disk)
    ends = [(copy.log_id, segments(copy.disk, copy.path)) for copy in copies]
    return " ".join(f"{log_id.hex}:{lsns[-1]}" for log_id, lsns in ends if lsns)


def item_of(job: HubJob) -> Item:
    """Return a job as the device enqueues it; its key is its id, so it is enqueued once."""
    spec = EnqueueSpec(job.queue, job.task, job.priority, job.attempts, job.flags)
    extras = Extras(
        due_ns=job.due_ns, due_is_wall=job.due_is_wall, expires_ns=job.expires_ns,
        key=_key(job.id), headers=job.headers,
    )  # fmt: skip
    return spec, job.payload, extras


# -- jobs in a device's log ------------------------------------------------------------------------


class DeviceJob(NamedTuple):
    """A job on its device.

    Attributes:
        path: copy of the device's log.
        number: lsn of the job in that log.
        is_over: whether the job has ended.
        words: the device's reason to refuse the job.
    """

    path: str
    number: int
    is_over: bool
    words: str


class CopyReader:
    """Reader of one copy; it starts again if the copy lost the reader's position.

    Attributes:
        begin: segments before this one are not read.
        jobs: jobs by their ids in the outbox.
        taken: by the tag of an outbox, the last record taken from it.
    """

    def __init__(self, disk: Disk, path: str, log_id: UUID, begin: int = 0) -> None:
        self._disk, self.path, self._log_id, self.begin = disk, path, log_id, begin
        self._at = NOWHERE
        self._live: dict[int, str] = {}
        self.jobs: dict[str, DeviceJob] = {}
        self.taken: dict[str, int] = {}

    def read(self) -> None:
        own = lineage(self._disk, self.path, self._log_id)
        files = Replica(self._disk, self.path, own)
        try:
            if not files.has(self._at):
                young = (segment for segment in files.lsns if segment >= self.begin)
                self._at = Border(next(young, 0), 0)
                self._live.clear()
            for at, frame in files.frames_after(self._at):
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
        # A handler's own jobs may have the headers of its job, but not the key.
        if extras.key == _key(name) or REFUSED in headers:
            job = name
        if not job:
            return
        words, is_over = headers.get(REFUSED, ""), record.end is not None
        if known := self.jobs.get(job):
            words = words or known.words
        self.jobs[job] = DeviceJob(self.path, record.job, is_over or bool(words), words)
        if not is_over:
            self._live[record.job] = job


class DeviceReader:
    """Reader of all logs of a device; the last log takes jobs."""

    def __init__(self, hub: str | Path, device: str, disk: Disk | None = None) -> None:
        self._hub, self._device, self._disk = str(hub), device, disk or PatientDisk()
        #: oldest first
        self._logs: dict[UUID, CopyReader] = {}

    def read(self, headers: Mapping[str, str]) -> None:
        """Read records about a job of the outbox with these headers, and about later jobs."""
        begins = {UUID(log): int(lsn) for log, lsn in _SEGMENT.findall(headers.get(FROM, ""))}
        for copy in in_order(kept(self._hub, self._device, self._disk)):
            log, begin = self._logs.pop(copy.log_id, None), begins.get(copy.log_id, 0)
            if log is None or begin < log.begin:
                log = CopyReader(self._disk, copy.path, copy.log_id, begin)
            self._logs[copy.log_id] = log
            log.read()

    def find(self, tag: Tag, job: int) -> DeviceJob | None:
        """Return the latest place of a job of an outbox.

        An end counts in every log. If no log has one, the last log decides: once it has taken the
        outbox up to this job without having it, the job is lost.
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
        """Return whether a job has ended or is lost: its device took it but no longer has it."""
        there = self.find(tag, job)
        return there.is_over if there is not None else self.is_taken(tag, job)


# -- the hub's side --------------------------------------------------------------------------------


def waiting_in(sight: LogView) -> tuple[list[int], Mapping[str, str]]:
    """Return the waiting jobs of an outbox, and the headers of the oldest."""
    table = sight.facets.need_agenda().table
    jobs = [job for job, _, _ in table.rows(0, table.live)]
    view = sight.view(jobs[0]) if jobs else None
    return jobs, view.headers if view is not None else {}


async def settle(connection: Connection, reader: DeviceReader) -> None:
    """Expire the jobs of an outbox that are late or lost, or have ended in a device's copy."""
    over, is_any_late = await off_loop(_over, connection.path, reader)
    if over or is_any_late:  # otherwise the outbox need not be opened for writing
        port = await connection.port()
        for at in range(0, max(len(over), 1), _ENDED_MAX):
            await port.withdraw(over[at : at + _ENDED_MAX], expired=True)  # late jobs, too


def _over(path: str, reader: DeviceReader) -> tuple[list[int], bool]:
    with LogReader.open(path) as log:
        tag, waiting = log.journal.tag, list(log.each_job(LIVE_STATES))
    if waiting:
        reader.read(waiting[0].headers)
    over = [view.lsn for view in waiting if reader.is_settled(tag, view.lsn)]
    return over, any(0 < view.expires_ns <= time.time_ns() for view in waiting)


class _New(NamedTuple):
    """New records of an outbox for a device.

    Attributes:
        end: the last record that was read.
        jobs: open jobs that the device has not taken.
        cancelled: ends of jobs that the device has taken.
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
    """Return the jobs of an outbox that a device has not taken, from one log at a time.

    A restored outbox continues as another log with the records of its parents. A device may have
    taken some of these from another child. ``look`` returns a job of the outbox.
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
    """Return the first jobs, up to the limits of an answer, and whether these are all."""
    handed, size = list[HubJob](), 0
    for job in jobs:
        size += len(job.payload)
        is_over = size > min(bytes_max, BYTES_MAX)
        # A line with little volume left gets no larger job; any other line gets at least one job.
        if len(handed) == JOBS_MAX or (is_over and (handed or bytes_max < BYTES_MAX)):
            return tuple(handed), False
        handed.append(job)
    return tuple(handed), True


def hub_job(job_id: str, record: Record, now_ns: int) -> HubJob | None:
    """Return a job for the device; None if the job has expired."""
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
#: How often the folder of outboxes is checked, and how often ended jobs are expired there.
_LOOK_SECONDS: Final = 0.25
_SETTLE_SECONDS: Final = 3_600.0
#: Waiting questions at most; a further question is answered at once.
_ASKING_MAX: Final = 2_000


class OutboxServer:
    """The outboxes of a hub, for one event loop.

    Attributes:
        asking: the scope of each waiting question, the latest one of each log.
    """

    def __init__(self, path: Path, registry: Registry) -> None:
        self._path, self._registry = path, registry
        self.asking: dict[tuple[str, UUID], CancelScope] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = asyncio.Event()
        self._is_over = False
        #: by device: end of the outbox and the device's positions at an answer without jobs
        self._quiet: dict[str, tuple[object, ...]] = {}

    def given(self, device: str, asked: Question) -> Given | None:
        """Return the jobs for a device, or None.

        If a device has several logs, the jobs go to the log that arrived last, or to its parent if
        a person lets a device continue that was set back.
        """
        path = folder(self._path, device)
        state = end_of(path), asked.bytes_max, dict(asked.after)
        if state[0] is None or self._quiet.get(device) == state:
            return None
        copies = in_order(kept(self._path, device))
        takes = {copies[-1].log_id, *dict(copies[-1].identity.parents)} if copies else ()
        if copies and asked.log_id not in takes:
            return None
        with LogReader.open(str(path)) as reader:
            journal = reader.journal
            if asked.after.get(journal.tag, 0) >= (at := journal.next_lsn):
                # The outbox was set back in place, and would reuse lsns of earlier jobs.
                fork(str(path), at)
                return None
            answer = given(journal, reader.job, asked, time.time_ns())
        before = self._registry.standing(device).get("given", {})
        # If earlier answers had jobs that have ended since, an empty answer moves the position.
        if answer.is_empty and before.get(answer.tag, 0) <= answer.after:
            self._quiet[device] = state
            return None
        self._registry.note(device, given=before | {answer.tag: answer.end})
        return answer

    async def run(self) -> None:
        """Until cancelled, wake waiting devices when jobs arrive, and expire ended jobs."""
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
                await settle(connection, reader)
            except (OSError, TaskqError) as error:
                _log.warning("hub: jobs of %s wait a while: %s", device, error)
            finally:
                await connection.aclose()

    # -- questions --------------------------------------------------------------------------------

    async def answer(
        self, device: str, asked: Question, look: Callable[[Question], Awaitable[Any]]
    ) -> Any:
        """Answer a question once ``look`` returns something; None after the wait.

        An earlier question of the same log ends at once.
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
                    wait.deadline = until  # set after the first look
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
    """Return a value that changes when the log grows or is replaced; None without a log."""
    try:
        last = max(Path(path, "log").glob("*.log"))
        status = last.stat()
    except (OSError, ValueError):
        return None
    return last.name, status.st_ino, status.st_size


#: Answers with jobs in one session at most.
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
    """Return the last record taken from each outbox, by the tag of its log.

    Raises:
        LogError: the log cannot be read.
    """
    with LogReader.open(path) as reader:
        names = ((source.name.partition(SOURCE), source.position) for source in reader.sources())
        return {name[2]: int(position) for name, position in names if name[1]}


class DeviceOutbox:
    """Takes a device's jobs.

    Args:
        accept: patterns of task names, such as ``photos.*``; if empty, no job is taken.
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
        """Take all jobs that the hub has for the device.

        Args:
            session: session of the preceding sync.
            log_id: id of the log.
            after: result of ``positions``; updated in place.
            ask: asks the hub; any answer but ``Given`` means that no job is waiting.
            opened: opens the device's own log.

        Raises:
            SourceMoved: another process takes jobs for the same log.
        """
        taken = TakeResult()
        for _ in range(_ROUNDS_MAX):
            given = await ask(Question(session, log_id, after))
            if not isinstance(given, Given) or (given.is_empty and given.end == given.after):
                break
            if given.after != after.get(given.tag, 0):  # a stale answer, for example of a proxy
                break
            judged = [self._judged(job) for job in given.jobs]
            source, before = f"{SOURCE}{given.tag}", after.get(given.tag)
            async with opened() as log:
                # Cancel before the position moves; after a kill in between, cancel again.
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
        """Return a job's entry for the log, and whether the job is refused."""
        why = ""
        if not any(fnmatch.fnmatchcase(job.task, pattern) for pattern in self._accept):
            types = ", ".join(self._accept) or "nothing"
            why = f"{job.task!r} is not among what is accepted there ({types})"
        elif self._known is not None and job.task not in self._known:
            why = f"no task {job.task!r} is known there"
        try:
            if not why:
                return item_of(job), False
        except (TaskqError, TypeError, ValueError, OverflowError) as error:
            why = f"it cannot be read there: {error}"
        headers = {JOB: job.id, REFUSED: why[:_WORDS_MAX]}
        # No worker runs the entry of a refused job: it expires at once.
        return (EnqueueSpec(_REFUSED_QUEUE), b"", Extras(expires_ns=1, headers=headers)), True


def _key(job: str) -> bytes:
    return f"hub:{job}".encode()


async def _cancel(log: TaskLog, job: str, queue: str) -> bool:
    try:
        view = await log.find(_key(job), queue)
        return view is not None and await log.cancel(view.job_id)
    except (JobNotFound, LogDamaged) as error:  # later jobs are still taken
        _log.warning("hub: job %s cannot be cancelled here: %s", job, error)
        return False


#: An earlier, empty answer comes from a hub that is too busy to let questions wait.
_SOON_SECONDS: Final = 5.0
#: Longest pause after requests without an answer.
_PAUSE_SECONDS_MAX: Final = 600.0
_CHANCE: Final = random.SystemRandom()


def backoff(seconds: float, failures: int) -> float:
    longest = min(seconds * 2.0 ** min(failures, 20), _PAUSE_SECONDS_MAX)
    return _CHANCE.uniform(1.0, max(longest, 1.0))


class LongPoll:
    """Long poll of one device, on a connection of its own.

    An answer only starts a session, which asks again and takes the jobs. An error of the hub starts
    a session, too, after a pause.
    """

    def __init__(self, line: Line, tasks: TaskGroup) -> None:
        self._line, self._tasks = line, tasks
        self._is_asking, self._answered = False, asyncio.Event()
        self._failures = 0
        self._before: Answer | None = None

    def ask(self, question: Question | None) -> None:
        """Ask after a session, unless an earlier question is still waiting."""
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
                # The same answer as before: the log has not yet reported that it took these jobs.
                is_soon = monotonic() - began < _SOON_SECONDS
                await asyncio.sleep(every if answer is not None or is_soon else 0)
            self._before = answer
        except HubError as error:
            self._failures += 1
            await asyncio.sleep(max(error.seconds, backoff(every, self._failures)))
        self._is_asking = False
        self._answered.set()
