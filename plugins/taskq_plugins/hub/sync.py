"""A device's sessions over HTTP: ``taskq sync``, once or for as long as the log grows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from anyio import create_task_group, sleep_forever, to_thread
from anyio.from_thread import start_blocking_portal

from taskq import engine
from taskq.conditions.network import has_route
from taskq.errors import LogError, ReaderBusy, SourceMoved
from taskq.hooks import HubSettings, load_settings
from taskq_plugins.hub import device_outbox, models
from taskq_plugins.hub.line import HubWaits, Line, check_url, line_to, note
from taskq_plugins.hub.push import Push, Verdict, compare, opening

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import TaskLog, TaskQ

_log: Final = logging.getLogger("taskq")
#: Limit of forks in one call: one is what there is to expect.
_FORKS_MAX: Final = 3
#: With less free space everything sent may be removed at once.
_PRESSED_BYTES: Final = 64 * 1024 * 1024
#: After trouble the next try comes after up to this time, doubled each time.
_RETRY_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
#: Sessions that one sync adds to report what it took.
_ROUNDS_MAX: Final = 8
#: Longest time that something is not sent, and that a hub hears nothing, on a metered line.
_METERED_EVERY_SECONDS: Final = 900.0
_METERED_POLL_SECONDS: Final = 6 * 3_600.0


class SyncResult(NamedTuple):
    """Result of a session.

    Attributes:
        verdicts: states of the log relative to the hub's copy, in order.
        sent_bytes: of the log.
        end: of the log, and of the copy unless nothing was sent.
        behind_bytes: bytes that the copy lacks.
        taken: jobs taken.
        question: question for the long poll while the log rests.
    """

    verdicts: list[Verdict]
    sent_bytes: int
    end: engine.Border
    behind_bytes: int = 0
    taken: device_outbox.TakeResult = device_outbox.TakeResult()
    question: models.Question | None = None


async def sync(path: str, line: Line, *, is_dry: bool = False) -> SyncResult:
    """Bring the hub's copy of a log to where the log ends now, then take its jobs.

    A session after that reports the jobs at once. ``is_dry``: only find out how it stands.
    """
    done = await _sync_once(path, line, is_dry=is_dry)
    taken, rounds = done.taken, 0
    while any(done.taken) and rounds < _ROUNDS_MAX:
        try:
            before, done = done, await _sync_once(path, line)
        except models.HubError as error:
            _log.info("sync: the hub hears later of what was taken: %s", error)
            break
        taken = device_outbox.TakeResult(*map(sum, zip(taken, done.taken, strict=True)))
        done = done._replace(
            verdicts=before.verdicts, sent_bytes=before.sent_bytes + done.sent_bytes
        )
        rounds += 1
    return done._replace(taken=taken)


async def _sync_once(path: str, line: Line, *, is_dry: bool = False) -> SyncResult:
    """Run a session; a log that was set back goes on as another, which is sent then."""
    try:
        verdicts = list[Verdict]()
        for _ in range(_FORKS_MAX):
            done, parting = await _synced(path, line, is_dry=is_dry)
            verdicts += done.verdicts
            if not parting.segment or is_dry:
                return done._replace(verdicts=verdicts)
            await to_thread.run_sync(engine.fork, path, parting.next_lsn)
            line.taken.pop(path, None)
            _log.warning("%s: it was set back, so it goes on as another log", path)
    except LogError as error:
        note(path, error=str(error))
        raise
    raise models.HubError(f"{path} was set back again and again while it was sent: try again")


async def _synced(path: str, line: Line, *, is_dry: bool) -> tuple[SyncResult, engine.Border]:
    disk = engine.LocalDisk()
    identity = engine.Identity.read(disk, path)
    if identity is None:
        raise LogError(f"{path} is not a task log")
    # Two at a time would end each other's sessions.
    hold = engine.NamedReader.take(disk, path, identity, engine.NamedReader.HUB)
    try:
        line.allowance.take_up(path)
        await line.allowance.look()
        if line.hub.accept and path not in line.taken:
            line.taken[path] = await to_thread.run_sync(device_outbox.positions, path)
        log = engine.DurableLog(disk, path)
        with contextlib.closing(log):
            session = _Session(disk, path, line, log, hold)
            done = await (session.told() if is_dry else session.run())
            return done, session.parting
    finally:
        hold.release()


class _Session:
    """Run one session of a log, over a line to its hub.

    Attributes:
        parting: where the log is to go on as another; nowhere: it is the hub's.
    """

    def __init__(
        self,
        disk: engine.Disk,
        path: str,
        line: Line,
        log: engine.DurableLog,
        hold: engine.NamedReader,
    ) -> None:
        self._disk, self._path, self._line = disk, path, line
        self._log, self._hold, self._own = log, hold, Own(path, line.config)
        self._number = self._gone = self._whole = 0
        self.parting = models.NOWHERE

    async def told(self) -> SyncResult:
        log, answer = self._log, await self._line.ask(opening(self._log))
        if not isinstance(answer, models.CopyEnd):
            raise models.HubError(f"{self._line.url} does not say where its copy ends: try again")
        return SyncResult([compare(answer, log)], 0, log.end, log.bytes_behind(answer.at))

    async def run(self) -> SyncResult:
        log, line = self._log, self._line
        known, before = self._hold.load(), line.sent_bytes
        log.pin = known.lsn if known else 0
        if known is None and log.segments:
            self._pin(log.segments[0])  # from now on nothing goes unsent
        sizes = line.part_bytes, line.piece_bytes
        push = Push(log, self._ask, *sizes)
        verdicts = await push.run()
        done = SyncResult(verdicts, line.sent_bytes - before, log.end)
        self.parting = push.parting
        if self.parting.segment:
            return done
        if line.hub.accept:  # who takes nothing refuses nothing either
            done = await self._take(done, line.taken[self._path])
        if self._disk.free_bytes(self._path) < _PRESSED_BYTES:
            self._pin(log.end.next_lsn)
        note(self._path, synced_ns=time.time_ns(), lsn=done.end.next_lsn, error="")
        return done

    async def _ask(self, asked: models.Request) -> models.Answer | None:
        log, line, answer = self._log, self._line, await self._line.ask(asked)
        if isinstance(answer, models.CopyEnd):
            self._number = answer.session
            if line.tell is not None:
                self._whole = self._gone + log.bytes_behind(answer.at)
            if answer.at.segment:
                self._pin(min(answer.safe, log.end.next_lsn))
        if (
            isinstance(asked, models.Append)
            and isinstance(answer, models.Stored)
            and line.tell is not None
        ):
            self._gone += len(asked.data)
            line.tell(self._gone, self._whole)
        return answer

    async def _take(self, done: SyncResult, after: dict[str, int]) -> SyncResult:
        line, ids = self._line, (self._number, self._log.identity.log_id)
        taking = device_outbox.DeviceOutbox(line.hub.accept, line.known)
        try:
            taken = await taking.take(*ids, after, line.ask, self._own.opened)
        except SourceMoved:
            del line.taken[self._path]
            raise
        question = models.Question(*ids, dict(after), models.WAIT_SECONDS_MAX)
        nothing = taken.jobs or taken.refused or line.allowance.metered
        return done._replace(taken=taken, question=None if nothing else question)

    def _pin(self, lsn: int) -> None:
        older = (segment for segment in self._log.segments if segment <= lsn)
        self._hold.keep_from(max(older, default=lsn), lsn)


class Own(NamedTuple):
    """Do in a device's own log what the hub asks; it is opened for each, since most have none."""

    path: str
    config: engine.LogConfig

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[TaskLog]:
        from taskq import TaskLog  # noqa: PLC0415 - most devices are never sent a job
        from taskq.hooks import Connection  # noqa: PLC0415 - likewise

        async with TaskLog(Connection(self.path, self.config)) as log:
            yield log


# -- again and again -------------------------------------------------------------------------------


async def follow(path: str, line: Line, *, at_once: bool = False, once: bool = False) -> SyncResult:
    """Sync whenever the log has grown, until cancelled; errors of the line never end it.

    Args:
        path: the log's directory.
        line: to the hub.
        at_once: also between the ``every`` of the settings.
        once: return when everything is sent.
    """
    holding = device_outbox.LongPoll(line)
    following = partial(_follow, path, line, holding, at_once=at_once, once=once)
    if once:
        return await following()
    async with create_task_group() as tasks:
        tasks.start_soon(holding.run)
        done = await following()
    return done  # noqa: RET504 - a group may swallow what ends it


async def _follow(
    path: str, line: Line, holding: device_outbox.LongPoll, *, at_once: bool, once: bool
) -> SyncResult:
    hub, failures, complaint = line.hub, 0, ""
    while True:
        seen, began = _extent(path), monotonic()
        holding.begin()
        try:
            done = await sync(path, line)
        except (LogError, OSError) as error:
            failures += 1
            stops = isinstance(error, models.HubStops | ReaderBusy)
            if once and stops:
                raise
            if str(error) != complaint:  # a week without a line is reported once
                complaint = str(error)
                _log.warning("sync: %s", error)
            asked = error.seconds if isinstance(error, models.HubError) else 0.0
            if isinstance(error, HubWaits):
                await asyncio.sleep(asked)
            else:
                wait = (
                    hub.poll if stops else asked + device_outbox.backoff(_RETRY_SECONDS, failures)
                )
                await _pause(wait, line.url)
            continue
        failures, complaint = 0, ""
        if once:
            return done
        holding.ask(done.question)
        # After jobs more may be waiting, and the hub waits for their report.
        if not (done.taken.jobs or done.taken.refused):
            await _rest(path, line, holding, seen, began, 0.0 if at_once else hub.every)


async def _rest(
    path: str,
    line: Line,
    holding: device_outbox.LongPoll,
    seen: tuple[str, int],
    began: float,
    every: float,
) -> None:
    """Wait until a session is due: something was written or is there, or the hub is to hear."""
    poll = line.hub.poll
    if line.allowance.metered:
        every, poll = max(every, _METERED_EVERY_SECONDS), max(poll, _METERED_POLL_SECONDS)
    while (passed := monotonic() - began) < poll and not holding.is_answered:
        if passed >= every and _extent(path) != seen:
            break
        await holding.wait(_LOOK_SECONDS)


async def _pause(seconds: float, url: str) -> None:
    host, until = urlsplit(url).hostname or "", monotonic() + seconds
    had_route = has_route(host)
    while (left := until - monotonic()) > 0:
        await asyncio.sleep(min(_LOOK_SECONDS, left))
        if not had_route and has_route(host):
            break


def _extent(path: str) -> tuple[str, int]:
    try:
        last = max(Path(path, "log").glob("*.log"))
        return last.name, last.stat().st_size
    except (OSError, ValueError):
        return "", 0


class Syncing:
    """Sync of a worker with ``sync=True``, on a loop and thread of its own."""

    def __init__(self, app: TaskQ) -> None:
        self._app, settings = app, app.settings
        if settings.data_dir.absolute() != app.data_dir:  # its log was moved there since
            settings = load_settings(None, data_dir=app.data_dir)
        hub = settings.hub or HubSettings()
        url, token = line_to(hub, hub.url, None)
        self._line = partial(Line, check_url(url), token, None, hub)

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        with start_blocking_portal() as portal:
            future = portal.start_task_soon(self._follow, store.path, store.config)
            future.add_done_callback(_complain)
            try:
                task_status.started()
                await sleep_forever()
            finally:
                future.cancel()

    async def _follow(self, path: str, config: engine.LogConfig) -> None:
        line = self._line()
        # As the worker has the log open: this process has it open once.
        line.config, line.known = config, self._app.tasks
        try:
            await follow(path, line)
        finally:
            await line.close()


def _complain(future: Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.error("sync: it ended, and the worker goes on without", exc_info=error)
