"""A device's sessions over HTTP: ``taskq sync``, once or for as long as the log grows."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from anyio import create_task_group, sleep_forever
from anyio.from_thread import start_blocking_portal

from taskq.conditions.network import has_route
from taskq.engine import DurableLog, Identity, LocalDisk, NamedReader
from taskq.errors import LogError, ReaderBusy
from taskq.hooks import HubSettings, load_settings
from taskq_plugins.hub.device.allowance import HubWaits, last_note, note
from taskq_plugins.hub.device.compare import Verdict, compare
from taskq_plugins.hub.device.line import Line, check_url, line_to
from taskq_plugins.hub.device.push import push
from taskq_plugins.hub.messages import Append, Skip, Stored
from taskq_plugins.hub.messages import Synced as Told
from taskq_plugins.hub.outbox.holding import Holding
from taskq_plugins.hub.outbox.taking import Taken, look, take
from taskq_plugins.hub.wire import HubError, HubStops

if TYPE_CHECKING:
    from concurrent.futures import Future

    from anyio.abc import TaskStatus

    from taskq import TaskQ
    from taskq.engine import Border, Disk, LogConfig, Store
    from taskq_plugins.hub.messages import Question

_log: Final = logging.getLogger("taskq")
#: With less room on the disk all that was sent may go at once.
_PRESSED_BYTES: Final = 64 * 1024 * 1024
#: After trouble the next try comes after up to so long, twice as long each time.
_RETRY_SECONDS: Final = 2.0
_RETRY_SECONDS_MAX: Final = 600.0
_LOOK_SECONDS: Final = 0.5
_CHANCE: Final = random.SystemRandom()
#: Longest time that something is not sent, and that a hub hears nothing, on a metered line.
_METERED_EVERY_SECONDS: Final = 900.0
_METERED_POLL_SECONDS: Final = 6 * 3_600.0


class Synced(NamedTuple):
    """What a session came to.

    Attributes:
        verdicts: how the log stood to the hub's copy, in the order in which it was found.
        sent_bytes: of the log.
        end: where the log ends, and the copy unless nothing was sent.
        behind_bytes: what the copy lacks.
        taken: what came down.
        question: what is to be asked while the log rests.
    """

    verdicts: list[Verdict]
    sent_bytes: int
    end: Border
    behind_bytes: int = 0
    taken: Taken = Taken()
    question: Question | None = None


async def sync(path: str, line: Line, *, is_dry: bool = False) -> Synced:
    """Bring the hub's copy of a log to where the log ends now, then take what is there for it.

    ``is_dry``: only find out how it stands.

    Raises:
        HubError: the hub cannot be reached, or refuses; nothing is lost, the next try goes on.
        ReaderBusy: another process sends the log just now.
        LogError: the log cannot be read, or its inbox not be written.
    """
    disk = LocalDisk()
    identity = Identity.read(disk, path)
    if identity is None:
        raise LogError(f"{path} is not a task log")
    # Of two at a time each would end the other's session.
    hold = NamedReader.take(disk, path, identity.log_id, NamedReader.HUB)
    try:
        return await _synced(disk, path, line, hold, is_dry=is_dry)
    except LogError as error:
        note(path, error=str(error))
        raise
    finally:
        hold.release()


async def _synced(disk: Disk, path: str, line: Line, hold: NamedReader, *, is_dry: bool) -> Synced:
    allowance, counts = line.allowance, line.pins and not is_dry
    allowance.take_up(path)
    await allowance.look()
    known = hold.load()
    # Before the log: what is adopted by then is sent before anything else is taken.
    held = look(disk, path) if line.hub.accept else None
    log = DurableLog(disk, path)
    try:
        log.pin, log.owes_bodies = known.lsn if known else 0, allowance.owes_bodies
        log.sends_bodies = line.hub.spill and not allowance.metered
        if counts:
            log.synced_lsn = last_note(path).get("lsn", 0)
            if not log.sends_bodies:  # before any record goes: the line may drop at any time
                allowance.owe_bodies(True)
            if known is None and log.segments:
                _pin(hold, log, log.segments[0])  # from now on nothing goes unsent
        done, session = await _session(path, log, line, hold, is_dry=is_dry)
        if not counts:
            return done
        if held is not None:  # who takes nothing refuses nothing either
            taken, question = await take(disk, path, log, line, session, held)
            done = done._replace(taken=taken, question=question)
        if allowance.owes_bodies is log.sends_bodies:
            allowance.owe_bodies(not log.sends_bodies)
        if disk.free_bytes(path) < _PRESSED_BYTES:
            _pin(hold, log, log.end.next_lsn)
        note(path, synced_ns=time.time_ns(), lsn=done.end.next_lsn, error="")
        return done
    finally:
        log.close()


async def _session(
    path: str, log: DurableLog, line: Line, hold: NamedReader, *, is_dry: bool
) -> tuple[Synced, int]:
    before, answer, session, gone, whole = line.sent_bytes, None, 0, 0, 0
    steps = push(log, line.part_bytes)
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            return Synced(end.value, line.sent_bytes - before, log.end), session
        if isinstance(asked, Skip):
            await _skip(path, asked.lsn, line.config)
            answer = None
            continue
        answer = await line.ask(asked)
        if isinstance(asked, Append) and isinstance(answer, Stored) and line.tell is not None:
            gone += len(asked.data)
            line.tell(gone, whole)
        if isinstance(answer, Told):
            session, behind = answer.session, 0
            if is_dry or line.tell is not None:
                behind = log.bytes_behind(answer.at)
                whole = gone + behind
            if is_dry:
                return Synced([compare(answer, log)], 0, log.end, behind), session
            if answer.at.segment and line.pins:
                _pin(hold, log, min(answer.safe, log.end.next_lsn))


def _pin(hold: NamedReader, log: DurableLog, lsn: int) -> None:
    """Let all below that lsn go, and nothing else."""
    hold.keep_from(max((segment for segment in log.segments if segment <= lsn), default=lsn), lsn)


async def _skip(path: str, lsn: int, config: LogConfig) -> None:
    from taskq.hooks import Connection  # noqa: PLC0415 - it is rarely set back

    connection = Connection(path, config)
    try:
        port = await connection.port()
        await port.skip(lsn)
    finally:
        await connection.aclose()


async def follow(path: str, line: Line, *, at_once: bool = False, once: bool = False) -> Synced:
    """Sync whenever the log has grown, until cancelled; nothing that the line does ends it.

    Args:
        path: the log's directory.
        line: to the hub.
        at_once: not only ``every`` so often.
        once: return when all is there.

    Raises:
        HubStops: with ``once``, since waiting does not help.
    """
    holding = Holding(line)
    if once:
        return await _follow(path, line, holding, at_once=at_once, once=True)
    async with create_task_group() as tasks:
        tasks.start_soon(holding.run)
        done = await _follow(path, line, holding, at_once=at_once, once=False)
    return done  # noqa: RET504 - a group may swallow what ends it


async def _follow(path: str, line: Line, holding: Holding, *, at_once: bool, once: bool) -> Synced:
    hub, failures, complaint = line.hub, 0, ""
    while True:
        seen, began = _extent(path), monotonic()
        holding.begin()
        try:
            done = await sync(path, line)
        except (LogError, OSError) as error:
            failures += 1
            stops = isinstance(error, HubStops | ReaderBusy)
            if once and stops:
                raise
            if str(error) != complaint:  # a week without a line is told of once
                complaint = str(error)
                _log.warning("sync: %s", error)
            if isinstance(error, HubWaits):
                await asyncio.sleep(error.seconds)
                continue
            longest = min(_RETRY_SECONDS * 2.0 ** min(failures, 20), _RETRY_SECONDS_MAX)
            asked = error.seconds if isinstance(error, HubError) else 0.0
            wait = hub.poll if stops else asked + _CHANCE.uniform(1.0, longest)
            await _pause(wait, line.url)
            continue
        failures, complaint = 0, ""
        if once:
            return done
        holding.ask(done.question)
        # Behind jobs that came more may be there, and the hub waits to hear of these.
        if not (done.taken.jobs or done.taken.refused):
            await _rest(path, line, holding, seen, began, 0.0 if at_once else hub.every)


async def _rest(
    path: str, line: Line, holding: Holding, seen: tuple[str, int], began: float, every: float
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
    """Wait; where there was no way to the hub, no longer than that."""
    host, until = urlsplit(url).hostname or "", monotonic() + seconds
    had_route = has_route(host)
    while (left := until - monotonic()) > 0:
        await asyncio.sleep(min(_LOOK_SECONDS, left))
        if not had_route and has_route(host):
            break


def _complain(future: Future[None]) -> None:
    """Tell of what nobody foresaw: the worker goes on without."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.error("sync: it ended, and the worker goes on without", exc_info=error)


def _extent(path: str) -> tuple[str, int]:
    """Return the last segment and its size."""
    try:
        last = max(Path(path, "log").glob("*.log"))
        return last.name, last.stat().st_size
    except (OSError, ValueError):
        return "", 0


def _hub_of(app: TaskQ) -> HubSettings:
    """Return the hub of the app, or of the directory that its log was moved to since."""
    settings = app.settings
    if settings.data_dir.absolute() != app.data_dir:
        settings = load_settings(None, data_dir=app.data_dir)
    return settings.hub or HubSettings()


class Syncing:
    """What a worker with ``sync=True`` runs beside its jobs, on a loop and thread of its own."""

    def __init__(self, app: TaskQ) -> None:
        self._app = app
        hub = _hub_of(app)
        url, token = line_to(hub, hub.url, None)
        self._line = partial(Line, check_url(url), token, None, hub)

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        """Follow the log until cancelled."""
        with start_blocking_portal() as portal:
            future = portal.start_task_soon(self._follow, store.path, store.config)
            future.add_done_callback(_complain)
            try:
                task_status.started()
                await sleep_forever()
            finally:
                future.cancel()

    async def _follow(self, path: str, config: LogConfig) -> None:
        line = self._line()
        # As the worker has the log open: this process has it open once.
        line.config, line.known = config, self._app.tasks
        try:
            await follow(path, line)
        finally:
            await line.close()
