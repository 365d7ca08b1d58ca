"""A device's sessions over HTTP: ``taskq sync``, once or continuously."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from anyio import create_task_group, sleep_forever, to_thread
from anyio.from_thread import start_blocking_portal

from taskq import engine
from taskq.conditions.network import has_route
from taskq.errors import LogDamaged, LogError, ReaderBusy, SourceMoved
from taskq.hooks import HubSettings, load_settings
from taskq_plugins.hub import models, outbox
from taskq_plugins.hub.line import HubWaits, Line, check_url, line_to, note

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import TaskLog, TaskQ

#: Rounds of one session at most; a healthy one needs a round for each break, and one to send.
_PUSH_ROUNDS_MAX: Final = 12


class Unsettled(LogError):
    """A session did not finish, although each of its requests was answered."""


class Verdict(enum.Enum):
    """State of a log relative to the hub's copy, in the order of the checks."""

    #: the hub has nothing of the log: send the oldest segment first
    NEW = "new"
    #: the log has the hub's last frame, or begins right after it: continue
    BEHIND = "behind"
    #: likewise, but the log has older segments, which the copy lacks since a gap: the log was set
    #: back, or a power loss undid a compaction. It continues as another log from its end
    OLDER = "older"
    #: the log was set back, with no writes since: it continues as another log from its end
    AHEAD = "ahead"
    #: the log no longer has the next frame: declare a gap, continue with the oldest segment
    GAP = "gap"
    #: the log was set back and has new records: it continues as another log after the last common
    #: frame
    DIFFERS = "differs"


def compare(synced: models.CopyEnd, log: engine.DurableLog) -> Verdict:
    """Return the verdict on the end of the copy."""
    at, kin = synced.at, synced.kin
    is_kin = not kin.segment or _continues(log, kin) or log.begins_after(kin)
    if is_kin and not at.segment:
        return Verdict.NEW
    if is_kin and _continues(log, at):
        return Verdict.OLDER if log.begins_before(synced.begins) else Verdict.BEHIND
    if synced.has_end:
        return Verdict.AHEAD
    return Verdict.GAP if is_kin and log.begins_after(at) else Verdict.DIFFERS


def _continues(log: engine.DurableLog, at: engine.Border) -> bool:
    return log.has(at) or log.follows(at) or log.is_moved(at)


def opening(log: engine.DurableLog) -> models.Sync:
    """Return the first request of a session."""
    own = log.identity
    return models.Sync(own.log_id, own.created_ns, own.incompat, log.end, own.parents)


#: Answer for a log that its device has left.
_LEFT: Final = models.Refused(models.Trouble.HELD, models.NOWHERE)


class Push:
    """Bring the hub's copy to the end of a log.

    Args:
        log: the log at this moment; later records are sent in the next session.
        ask: sends a request to the hub.
        part_bytes: size of the next request, unless one frame is larger.
        piece_bytes: limit of any request; a larger frame is sent in pieces.

    Attributes:
        parting: position from which the log must continue as another; nowhere if it need not.
    """

    #: the hub's last report about its copy
    _synced: models.CopyEnd

    def __init__(
        self,
        log: engine.DurableLog,
        ask: Callable[[models.Request], Awaitable[models.Answer | None]],
        part_bytes: Callable[[], int],
        piece_bytes: Callable[[], int],
    ) -> None:
        self._log, self._log_id = log, log.identity.log_id
        self._ask, self._part_bytes, self._piece_bytes = ask, part_bytes, piece_bytes
        self.parting = models.NOWHERE

    async def run(self) -> list[Verdict]:
        """Run a session; return its verdicts."""
        log, verdicts = self._log, list[Verdict]()
        for _ in range(_PUSH_ROUNDS_MAX):
            synced = await self._ask(opening(log))
            if not isinstance(synced, models.CopyEnd):
                continue
            self._synced, verdict = synced, compare(synced, log)
            verdicts.append(verdict)
            if verdict is Verdict.GAP:
                cause = "a limit of the device's log took it before it was sent"
                if synced.at.next_lsn < log.pin:
                    cause = "the hub lost what it had"
                if await self._declare(cause) != _LEFT:
                    continue
                # The device was killed between ``Leave`` and its fork, and wrote more records.
                verdict = Verdict.DIFFERS
                verdicts.append(verdict)
            if verdict is not Verdict.NEW and verdict is not Verdict.BEHIND:
                if not log.segments:  # an empty log has no end to leave at
                    return verdicts
                differs = verdict is Verdict.DIFFERS
                self.parting = await self._parting() if differs else log.end
                ids = synced.session, self._log_id
                if await self._ask(models.Leave(*ids, self.parting)) == models.Stored(synced.at):
                    return verdicts
                self.parting = models.NOWHERE
            elif await self._send(verdict):
                return verdicts
        raise Unsettled(
            f"after {_PUSH_ROUNDS_MAX} rounds the hub is still at another position: "
            f"look at the device with 'taskq hub devices HUB NAME' there"
        )

    async def _declare(self, cause: str) -> models.Answer | None:
        synced, log = self._synced, self._log
        ids, at = (synced.session, self._log_id), engine.Border(log.segments[0])
        return await self._ask(models.Declare(*ids, synced.at, at, log.end.next_lsn, cause))

    # -- sending: each method returns False if the copy ends elsewhere ----------------------------

    async def _send(self, verdict: Verdict) -> bool:
        log, synced, at = self._log, self._synced, self._synced.at
        for segment in log.offered(synced.lacks):
            read = partial(log.segment_part, segment)
            if not isinstance(await self._sent(engine.Border(segment), read), models.Stored):
                return False
        after = at
        if verdict is Verdict.NEW or at.segment not in log.segments:
            after = engine.Border(log.segments[0]) if log.segments else models.NOWHERE
        elif not log.has(at):  # a recovery moved it: the copy has more of the segment
            after = log.end_of(at.segment)
        while after.segment:
            if not await self._send_segment(after):
                return False
            after = engine.Border(log.next_segment(after.segment))
        return True

    async def _send_segment(self, after: engine.Border) -> bool:
        log, end = self._log, self._log.end_of(after.segment)
        earlier = [] if after.offset else [lsn for lsn in log.segments if lsn < after.segment]
        before = log.end_of(earlier[-1]) if earlier else models.NOWHERE
        while after.offset < end.offset:
            data, following = log.part(after, self._part_bytes())
            answer = await self._sent(after, partial(_piece, data), before)
            if answer != models.Stored(following):
                if isinstance(answer, models.Refused) and answer.trouble is models.Trouble.DAMAGED:
                    raise LogDamaged(
                        f"{engine.segment_name(after.segment)}: a frame is not as it was written, "
                        f"or a segment before it is missing, so the hub does not take it. See "
                        f"taskq verify, and taskq repair; then the rest goes"
                    )
                return False
            after, before = following, models.NOWHERE
        return True

    async def _sent(
        self,
        after: engine.Border,
        read: Callable[[int, int], bytes],
        before: engine.Border = models.NOWHERE,
    ) -> models.Answer | None:
        """Send the pieces that ``read`` returns for (offset, bytes), until the hub has them all."""
        ids, held, stem = (self._synced.session, self._log_id), 0, before.stem.hex()
        while True:
            piece = read(held, self._piece_bytes())
            answer = await self._ask(models.Append(*ids, after, piece, held, stem))
            if not isinstance(answer, models.Stored) or answer.held <= held:
                return answer
            held = answer.held

    # -- the last common position ------------------------------------------------------------------

    async def _parting(self) -> engine.Border:
        """Return the last position that the hub has, too; at worst the start of the log.

        Ask the hub about ends of segments, newest first, then about frames of the first segment
        with a difference.
        """
        log, most = self._log, models.ASKED_MAX
        parting, differs = engine.Border(log.segments[0]), log.segments[0]
        ends = [log.end_of(segment) for segment in reversed(log.segments)]
        for at in range(0, len(ends), most):
            if shared := await self._shared(ends[at : at + most]):
                parting = shared[0]
                differs = log.next_segment(parting.segment)
                break
        borders = log.borders(differs) if differs else []
        while borders:
            # All frames up to some position are common, and none after it.
            asked = borders[:: max(len(borders) // most, 1)][:most]
            shared = await self._shared(asked)
            parting = shared[-1] if shared else parting
            low = borders.index(parting) + 1 if shared else 0
            after = [place for place in asked if place not in shared]
            borders = borders[low : borders.index(after[0]) if after else None]
        return parting

    async def _shared(self, places: list[engine.Border]) -> list[engine.Border]:
        answer = await self._ask(models.Ask(self._synced.session, self._log_id, tuple(places)))
        has = answer.has if isinstance(answer, models.PlacesKnown) else (False,) * len(places)
        return [place for place, is_there in zip(places, has, strict=True) if is_there]


def _piece(data: bytes, offset: int, bytes_max: int) -> bytes:
    return data[offset : offset + bytes_max]


_log: Final = logging.getLogger("taskq")
#: Limit of forks in one call; normally there is at most one.
_FORKS_MAX: Final = 3
#: With less free space, all sent records may be removed at once.
_PRESSED_BYTES: Final = 64 * 1024 * 1024
#: Upper bound of the delay after the first failure, doubled for each further one.
_RETRY_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.5
#: Further sessions of one sync, which report the jobs it took.
_ROUNDS_MAX: Final = 8
#: On a metered line: wait before new records are sent, and longest time without a session.
_METERED_EVERY_SECONDS: Final = 900.0
_METERED_POLL_SECONDS: Final = 6 * 3_600.0


class SyncResult(NamedTuple):
    """Result of a session.

    Attributes:
        verdicts: states of the log relative to the hub's copy, in order.
        sent_bytes: bytes of the log that were sent.
        end: end of the log, and of the copy unless nothing was sent.
        behind_bytes: bytes that the copy lacks.
        taken: jobs taken.
        question: question for the long poll until the next session.
    """

    verdicts: list[Verdict]
    sent_bytes: int
    end: engine.Border
    behind_bytes: int = 0
    taken: outbox.TakeResult = outbox.TakeResult()
    question: models.Question | None = None


async def sync(path: str, line: Line, *, is_dry: bool = False) -> SyncResult:
    """Bring the hub's copy to the current end of the log, then take jobs.

    Another session reports these jobs at once. ``is_dry``: only compare the copy with the log.
    """
    done = await _sync_once(path, line, is_dry=is_dry)
    taken, rounds = done.taken, 0
    while any(done.taken) and rounds < _ROUNDS_MAX:
        try:
            before, done = done, await _sync_once(path, line)
        except models.HubError as error:
            _log.info("sync: taken jobs are reported to the hub later: %s", error)
            break
        taken = outbox.TakeResult(*map(sum, zip(taken, done.taken, strict=True)))
        done = done._replace(
            verdicts=before.verdicts, sent_bytes=before.sent_bytes + done.sent_bytes
        )
        rounds += 1
    return done._replace(taken=taken)


async def _sync_once(path: str, line: Line, *, is_dry: bool = False) -> SyncResult:
    """Run a session; if the log was set back, fork it and send the new log."""
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
    # Two processes at a time would end each other's sessions.
    hold = engine.NamedReader.take(disk, path, identity, engine.NamedReader.HUB)
    try:
        line.allowance.take_up(path)
        await line.allowance.look()
        if line.hub.accept and path not in line.taken:
            line.taken[path] = await to_thread.run_sync(outbox.positions, path)
        log = engine.DurableLog(disk, path)
        with contextlib.closing(log):
            session = _Session(path, line, log, hold)
            done = await (session.preview() if is_dry else session.run())
            return done, session.parting
    finally:
        hold.release()


@dataclass
class _Session:
    """Run one session of a log, over a line to its hub.

    Attributes:
        parting: as in ``Push``.
    """

    path: str
    line: Line
    log: engine.DurableLog
    hold: engine.NamedReader
    number: int = 0
    parting: engine.Border = models.NOWHERE

    async def preview(self) -> SyncResult:
        log, answer = self.log, await self.line.ask(opening(self.log))
        if not isinstance(answer, models.CopyEnd):
            raise models.HubError(f"{self.line.url} does not name the end of its copy: try again")
        return SyncResult([compare(answer, log)], 0, log.end, log.bytes_after(answer.at))

    async def run(self) -> SyncResult:
        log, line = self.log, self.line
        known, before = self.hold.load(), line.sent_bytes
        log.pin = known.lsn if known else 0
        if known is None and log.segments:
            self._pin(log.segments[0])  # from now on only sent records are removed
        push = Push(log, self._ask, line.part_bytes, line.piece_bytes)
        verdicts = await push.run()
        done = SyncResult(verdicts, line.sent_bytes - before, log.end)
        self.parting = push.parting
        if self.parting.segment:
            return done
        if line.hub.accept:  # without accepted tasks no job is even refused
            done = await self._take(done, line.taken[self.path])
        if engine.LocalDisk().free_bytes(self.path) < _PRESSED_BYTES:
            self._pin(log.end.next_lsn)
        note(self.path, synced_ns=time.time_ns(), lsn=done.end.next_lsn, error="")
        return done

    async def _ask(self, asked: models.Request) -> models.Answer | None:
        answer = await self.line.ask(asked)
        if isinstance(answer, models.CopyEnd):
            self.number = answer.session
            if answer.at.segment:
                self._pin(min(answer.safe, self.log.end.next_lsn))
        return answer

    async def _take(self, done: SyncResult, after: dict[str, int]) -> SyncResult:
        line, ids = self.line, (self.number, self.log.identity.log_id)
        taking = outbox.DeviceOutbox(line.hub.accept, line.known)
        try:
            taken = await taking.take(*ids, after, line.ask, self._opened)
        except SourceMoved:
            del line.taken[self.path]
            raise
        question = models.Question(*ids, dict(after), models.WAIT_SECONDS_MAX)
        nothing = taken.jobs or taken.refused or line.allowance.metered
        return done._replace(taken=taken, question=None if nothing else question)

    def _opened(self) -> TaskLog:
        from taskq import TaskLog  # noqa: PLC0415 - most devices never get a job
        from taskq.hooks import Connection  # noqa: PLC0415 - as above

        return TaskLog(Connection(self.path, self.line.config))

    def _pin(self, lsn: int) -> None:
        older = (segment for segment in self.log.segments if segment <= lsn)
        try:
            self.hold.keep_from(max(older, default=lsn), lsn)
        except OSError as error:  # on a full disk the earlier position keeps more
            _log.warning("sync: %s: its position is not noted: %s", self.path, error)


# -- continuous sync -------------------------------------------------------------------------------


async def follow(path: str, line: Line, *, at_once: bool = False, once: bool = False) -> SyncResult:
    """Sync whenever the log has grown, until cancelled; errors of the line are retried.

    Args:
        path: the log's directory.
        line: connection to the hub.
        at_once: whether to sync without the pause ``every`` of the settings.
        once: whether to return when everything is sent.
    """
    if once:
        return await _follow(path, line, None, at_once=at_once)
    async with create_task_group() as tasks:
        done = await _follow(path, line, outbox.LongPoll(line, tasks), at_once=at_once)
    return done  # noqa: RET504 - a task group may swallow an exception


async def _follow(
    path: str, line: Line, holding: outbox.LongPoll | None, *, at_once: bool
) -> SyncResult:
    hub, failures, complaint = line.hub, 0, ""
    while True:
        end_before, began = outbox.end_of(path), monotonic()
        try:
            done = await sync(path, line)
        except (LogError, OSError) as error:
            failures += 1
            stops = isinstance(error, models.HubStops | ReaderBusy)
            if holding is None and stops:
                raise
            if str(error) != complaint:  # log a week without a network once
                complaint = str(error)
                _log.warning("sync: %s", error)
            asked = error.seconds if isinstance(error, models.HubError) else 0.0
            if isinstance(error, HubWaits):
                await asyncio.sleep(asked)
            else:
                wait = hub.poll if stops else asked + outbox.backoff(_RETRY_SECONDS, failures)
                await _pause(wait, line.url)
            continue
        failures, complaint = 0, ""
        if holding is None:
            return done
        holding.ask(done.question)
        # After jobs sync again at once: more may be waiting, and their report is due.
        if not (done.taken.jobs or done.taken.refused):
            await _rest(path, line, holding, end_before, began, 0.0 if at_once else hub.every)


async def _rest(
    path: str,
    line: Line,
    holding: outbox.LongPoll,
    end_before: object,
    began: float,
    every: float,
) -> None:
    """Wait until a session is due: the log grew, jobs arrived, or ``poll`` is over."""
    poll = line.hub.poll
    if line.allowance.metered:
        every, poll = max(every, _METERED_EVERY_SECONDS), max(poll, _METERED_POLL_SECONDS)
    while (passed := monotonic() - began) < poll and not holding.is_answered:
        if passed >= every and outbox.end_of(path) != end_before:
            break
        await holding.wait(_LOOK_SECONDS)


async def _pause(seconds: float, url: str) -> None:
    host, until = urlsplit(url).hostname or "", monotonic() + seconds
    had_route = has_route(host)
    while (left := until - monotonic()) > 0:
        await asyncio.sleep(min(_LOOK_SECONDS, left))
        if not had_route and has_route(host):
            break


class Syncing:
    """Syncs a worker's log (``sync=True``) on a thread and loop of its own."""

    def __init__(self, app: TaskQ) -> None:
        self._app, settings = app, app.settings
        if settings.data_dir.absolute() != app.data_dir:  # the app's log was moved
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
        # The worker's options, since a process opens a log only once.
        line.config, line.known = config, self._app.tasks
        try:
            await follow(path, line)
        finally:
            await line.close()


def _complain(future: Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.error("sync: it ended, and the worker goes on without", exc_info=error)
