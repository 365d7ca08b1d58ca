"""A device's sessions over HTTP: ``taskq sync``, once or for as long as the log grows."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import time
import zlib
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
from anyio import sleep_forever
from anyio.from_thread import start_blocking_portal

from taskq.connection.connection import Connection
from taskq.connection.settings import HubSettings, load_settings
from taskq.core.errors import LogError, ReaderBusy, UsageError
from taskq.log.config import LogConfig
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.read.readers import HUB_READER, NamedReader
from taskq.log.read.readers import Position as ReadPosition
from taskq.log.segments.identity import read_identity
from taskq_plugins.hub.compare import Verdict, compare
from taskq_plugins.hub.device import DeviceLog
from taskq_plugins.hub.messages import Append, Skip, SpillPart, Sync
from taskq_plugins.hub.messages import Synced as Told
from taskq_plugins.hub.outbox.asking import take
from taskq_plugins.hub.outbox.taking import Taken, look
from taskq_plugins.hub.push import push
from taskq_plugins.hub.wire import JSON, PACKED, HubError, HubStops, carried, understood

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from concurrent.futures import Future

    from anyio.abc import TaskStatus

    from taskq.app.app import TaskQ
    from taskq.log.store.store import Store
    from taskq_plugins.hub.messages import Answer, Request
    from taskq_plugins.hub.positions import Position

_log: Final = logging.getLogger("taskq")
#: A part is smaller on a slow line, and grows while the line is fast: between these.
_PART_BYTES_MIN: Final = 64 * 1024
_PART_BYTES_FIRST: Final = 512 * 1024
_PART_BYTES_MAX: Final = 4 * 1024 * 1024
_FAST_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 10.0
_PIECE_BYTES: Final = 256 * 1024
#: Smaller bodies are sent as they are, and those that would not become this much smaller.
_PACKED_BYTES_MIN: Final = 1_024
_PACKED_RATIO: Final = 0.95
_CREATED: Final = 201
_TOKEN_BYTES_MAX: Final = 4_096
_ENROL_FIRST: Final = (
    "the hub asks for a token: run 'taskq hub enrol HUB NAME' there, keep what it prints in a "
    "file, and give --token-file FILE; or run it with --code there, and give --code CODE here"
)
_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: With less room on the disk all that was sent may go at once.
_PRESSED_BYTES: Final = 64 * 1024 * 1024
#: After trouble the next try comes after up to so long, twice as long each time.
_RETRY_SECONDS: Final = 2.0
_RETRY_SECONDS_MAX: Final = 600.0
_LOOK_SECONDS: Final = 0.5
_CHANCE: Final = random.SystemRandom()
_CONTAINER: Final = ("/.dockerenv", "/run/.containerenv")
#: How it went last, for ``taskq sync status``.
NOTE: Final = "readers/hub.json"


class Synced(NamedTuple):
    """What a session came to.

    Attributes:
        verdicts: how the log stood to the hub's copy, in the order in which it was found.
        sent_bytes: of the log.
        end: where the log ends, and the copy unless nothing was sent.
        behind_bytes: what the copy lacks.
        taken: what came down.
    """

    verdicts: list[Verdict]
    sent_bytes: int
    end: Position
    behind_bytes: int = 0
    taken: Taken = Taken()


def check_url(url: str) -> str:
    """The address of a hub, without a slash at its end.

    Raises:
        UsageError: it is none, or a token would go over the line for all to read.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r:.100} is no address of a hub, such as https://hub.example")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise UsageError(f"{url!r:.100}: a token goes over https, or to this machine itself")
    return url.rstrip("/")


def machine_of(device: str, given: str | None) -> str:
    """Which machine this is, told to nobody in clear; "" where there is no telling."""
    if given is None:
        if any(map(os.path.exists, _CONTAINER)):
            return ""
        with contextlib.suppress(OSError, ValueError):
            given = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{given} {device}".encode()).hexdigest() if given else ""


def line_to(hub: HubSettings, url: str | None, file: Path | None) -> tuple[str, str]:
    """Address and token of the hub: as given, else as the settings have it.

    Raises:
        UsageError: one of them is nowhere.
    """
    url = url or hub.url
    if not url:
        raise UsageError("which hub? Give --url https://…, or url in [hub] of taskq.toml")
    token = hub.token.get_secret_value() if hub.token and file is None else ""
    file = file or hub.token_file or token_file(url)
    if not token and file.exists():
        with file.open(encoding="utf-8") as opened:
            token = opened.read(_TOKEN_BYTES_MAX)
    if not token.strip():
        raise UsageError(_ENROL_FIRST)
    return url, token.strip()


def token_file(url: str) -> Path:
    """Where the token for a hub is kept: a copied data directory carries none."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return Path(state, "taskq", f"{name}.token")


class Line:
    """The way to one hub; it may serve many sessions, one after the other."""

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.AsyncBaseTransport | None = None,
        hub: HubSettings | None = None,
    ) -> None:
        self.url = check_url(url)
        self.hub = hub or HubSettings()
        self.device = token.split(".")[1] if token.count(".") else ""
        self.machine = machine_of(self.device, self.hub.machine)
        self.sent_bytes, self.pins = 0, True
        #: how this process has the log open; the tasks that run here, if that is known
        self.config = LogConfig()
        self.known: Collection[str] | None = None
        self.part_bytes = _PART_BYTES_FIRST
        self._packs = self.hub.compress == "zlib" and urlsplit(url).hostname not in _LOOPBACK
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=_TIMEOUT,
            trust_env=False,
            transport=transport,
            verify=str(self.hub.ca) if self.hub.ca else True,
        )

    async def ask(self, asked: Request) -> Answer:
        """Send a request, and read what it is answered.

        Raises:
            HubError: nobody answers, or not so that one can go on.
        """
        if isinstance(asked, Sync):
            grace = round(self.hub.grace)
            asked = asked._replace(
                grace_seconds=grace, machine=self.machine, clock_ns=time.time_ns()
            )
        method, path, headers, body = carried(asked)
        is_part = isinstance(asked, Append | SpillPart)
        if is_part and self._packs and len(body) >= _PACKED_BYTES_MIN:
            packed = zlib.compress(body, 1)
            if len(packed) < _PACKED_RATIO * len(body):
                headers["Content-Type"], body = PACKED, packed
        start = monotonic()
        told = await self.request(method, path, headers, body)
        if is_part:
            self.sent_bytes += len(body)
            seconds = monotonic() - start
            factor = 2.0 if seconds < _FAST_SECONDS else 0.5 if seconds > _SLOW_SECONDS else 1.0
            wanted = round(self.part_bytes * factor)
            self.part_bytes = min(max(wanted, _PART_BYTES_MIN), _PART_BYTES_MAX)
        return understood(asked, told.status_code, told.content)

    async def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> httpx.Response:
        """Send anything.

        Raises:
            HubError: nobody answers.
        """
        if body:
            headers["Content-Length"] = str(len(body))
        try:
            return await self._client.request(
                method, self.url + path, headers=headers, content=_pieces(body) if body else None
            )
        except httpx.HTTPError as error:
            self.part_bytes = max(self.part_bytes // 2, _PART_BYTES_MIN)
            raise HubError(
                f"{self.url} cannot be reached ({type(error).__name__}: {error}): the log is "
                f"whole, and goes on from where it came to at the next try"
            ) from error

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body bit by bit: each has the line's time-out for itself."""
    for at in range(0, len(body), _PIECE_BYTES):
        yield body[at : at + _PIECE_BYTES]


async def sync(path: str, line: Line, *, is_dry: bool = False) -> Synced:
    """Bring the hub's copy of a log to where the log ends now, then take what is there for it.

    ``is_dry``: only find out how it stands.

    Raises:
        HubError: the hub cannot be reached, or refuses; nothing is lost, the next try goes on.
        ReaderBusy: another process sends the log just now.
        LogError: the log cannot be read, or its inbox not be written.
    """
    disk = LocalDisk()
    identity = read_identity(disk, path)
    if identity is None:
        raise LogError(f"{path} is not a task log")
    # Of two at a time each would end the other's session.
    hold = NamedReader.take(disk, path, identity.log_id, HUB_READER)
    log: DeviceLog | None = None
    try:
        known = hold.load()
        # Before the log: what is adopted by then is sent before anything else is taken.
        held = look(disk, path)
        log = DeviceLog(disk, SystemClock(), path)
        log.pin, log.sends_bodies = known.lsn if known else 0, line.hub.spill
        if known is None and log.segments and line.pins and not is_dry:
            _pin(hold, log, log.segments[0])  # from now on nothing goes unsent
        done, session = await _session(path, log, line, hold, is_dry=is_dry)
        if line.pins and not is_dry:
            taken = await take(disk, path, log, line, session, held)
            done = done._replace(taken=taken)
        if line.pins and not is_dry and disk.free_bytes(path) < _PRESSED_BYTES:
            _pin(hold, log, log.end.next_lsn)
    except LogError as error:
        if log is not None:
            _note(path, log.pin, str(error))
        raise
    else:
        if line.pins and not is_dry:
            _note(path, done.end.next_lsn)
        return done
    finally:
        hold.release()
        if log is not None:
            log.close()


async def _session(
    path: str, log: DeviceLog, line: Line, hold: NamedReader, *, is_dry: bool
) -> tuple[Synced, int]:
    before, answer, session = line.sent_bytes, None, 0
    steps = push(log, lambda: line.part_bytes)
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
        if isinstance(answer, Told):
            session = answer.session
            if is_dry:
                behind = log.bytes_behind(answer.at)
                return Synced([compare(answer, log)], 0, log.end, behind), session
            if answer.at.segment and line.pins:
                _pin(hold, log, min(answer.safe, log.end.next_lsn))


def _pin(hold: NamedReader, log: DeviceLog, lsn: int) -> None:
    """Let all below that lsn go, and nothing else."""
    segment = max((one for one in log.segments if one <= lsn), default=lsn)
    hold.save(ReadPosition(segment, lsn))
    hold.sync()


def _note(path: str, lsn: int, error: str = "") -> None:
    """Note how it went, for people."""
    known = last_note(path)
    if not error:
        known = {"synced_ns": time.time_ns(), "lsn": lsn}
    known["error"] = error
    with contextlib.suppress(OSError):
        temporary = Path(path, f"{NOTE}.tmp")
        temporary.write_text(json.dumps(known), encoding="utf-8")
        temporary.replace(Path(path, NOTE))


def last_note(path: str) -> dict[str, Any]:
    """How the last session went: ``synced_ns``, ``lsn``, ``error``; empty if there was none."""
    try:
        return dict(json.loads(Path(path, NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


async def _skip(path: str, lsn: int, config: LogConfig) -> None:
    connection = Connection(path, config)
    try:
        port = await connection.port()
        await port.skip(lsn)
    finally:
        await connection.aclose()


async def redeem(line: Line, code: str) -> str:
    """The token of this machine for a code.

    Raises:
        HubError: the code does not hold, or the hub cannot be reached.
    """
    device = code.partition(".")[0]
    values = {"code": code, "machine": machine_of(device, line.hub.machine)}
    body = json.dumps(values).encode()
    told = await line.request("POST", "/v1/enrol", {"Content-Type": JSON}, body)
    if told.status_code != _CREATED:
        raise HubError(
            f"the hub answers {told.status_code}: the code does not hold, or was used, or is over "
            f"a day old: ask for another with 'taskq hub enrol --code' there"
        )
    return str(told.json()["token"])


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
    hub, failures, complaint = line.hub, 0, ""
    while True:
        seen, began = _extent(path), monotonic()
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
            longest = min(_RETRY_SECONDS * 2.0 ** min(failures, 20), _RETRY_SECONDS_MAX)
            await asyncio.sleep(hub.poll if stops else _CHANCE.uniform(1.0, longest))
            continue
        failures, complaint = 0, ""
        if once:
            return done
        while monotonic() - began < hub.poll:
            await asyncio.sleep(_LOOK_SECONDS)
            if _extent(path) != seen and (at_once or monotonic() - began >= hub.every):
                break


def _complain(future: Future[None]) -> None:
    """Tell of what nobody foresaw: the worker goes on without."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.error("sync: it ended, and the worker goes on without", exc_info=error)


def _extent(path: str) -> tuple[str, int]:
    """The last segment and its size."""
    try:
        last = max(Path(path, "log").glob("*.log"))
        return last.name, last.stat().st_size
    except (OSError, ValueError):
        return "", 0


class Syncing:
    """What a worker with ``sync=True`` runs beside its jobs, on a loop and thread of its own."""

    def __init__(self, app: TaskQ) -> None:
        self._app = app
        hub = load_settings(None).hub or HubSettings()
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
        line.config, line.known = config, self._app._tasks
        try:
            await follow(path, line)
        finally:
            await line.close()
