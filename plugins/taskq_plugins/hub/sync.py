"""A device's session over HTTP: ``taskq sync``."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from taskq.connection.connection import Connection
from taskq.core.errors import UsageError
from taskq.log.config import LogConfig
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.read.readers import NamedReader
from taskq_plugins.hub.device import DeviceLog
from taskq_plugins.hub.messages import Append, Skip
from taskq_plugins.hub.push import push
from taskq_plugins.hub.wire import HubError, carried, understood

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from taskq_plugins.hub.compare import Verdict
    from taskq_plugins.hub.messages import Answer, Request
    from taskq_plugins.hub.positions import Position

#: A part is smaller on a slow line, and grows while the line is fast: between these.
_PART_BYTES_MIN: Final = 64 * 1024
_PART_BYTES_FIRST: Final = 512 * 1024
_PART_BYTES_MAX: Final = 4 * 1024 * 1024
_FAST_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 10.0
_PIECE_BYTES: Final = 256 * 1024
_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
#: Whoever sends the log reads it under this name.
_NAME: Final = "hub"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Synced(NamedTuple):
    """What a session came to.

    Attributes:
        verdicts: how the log stood to the hub's copy, in the order in which it was found.
        sent_bytes: of the log.
        end: where log and copy end now.
    """

    verdicts: list[Verdict]
    sent_bytes: int
    end: Position


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


async def sync(
    path: str, url: str, token: str, transport: httpx.AsyncBaseTransport | None = None
) -> Synced:
    """Bring the hub's copy of a log to where the log ends now; ``transport`` as httpx has it.

    Raises:
        HubError: the hub cannot be reached, or refuses; nothing is lost, the next try goes on.
        ReaderBusy: another process sends the log just now.
        LogError: the log cannot be read.
    """
    disk, line = LocalDisk(), _Line(check_url(url), token, transport)
    try:
        log = DeviceLog(disk, SystemClock(), path)
    except BaseException:
        await line.close()
        raise
    hold: NamedReader | None = None
    try:
        # Of two at a time each would end the other's session.
        hold = NamedReader.take(disk, path, log.identity.log_id, _NAME)
        steps, answer = push(log, lambda: line.part_bytes), None
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration as end:
                return Synced(end.value, line.sent_bytes, log.end)
            if isinstance(asked, Skip):
                await _skip(path, asked.lsn)
                answer = None
            else:
                answer = await line.ask(asked)
    finally:
        if hold is not None:
            hold.release()
        await line.close()
        log.close()


class _Line:
    def __init__(self, url: str, token: str, transport: httpx.AsyncBaseTransport | None) -> None:
        self._url = url
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT,
            trust_env=False,
            transport=transport,
        )
        self.sent_bytes = 0
        self.part_bytes = _PART_BYTES_FIRST

    async def ask(self, asked: Request) -> Answer:
        method, path, headers, body = carried(asked)
        headers["Content-Length"] = str(len(body))
        start = monotonic()
        try:
            told = await self._client.request(
                method, self._url + path, headers=headers, content=_pieces(body)
            )
        except httpx.HTTPError as error:
            raise HubError(
                f"{self._url} cannot be reached ({type(error).__name__}: {error}): the log is "
                f"whole, and goes on from where it came to at the next try"
            ) from error
        if isinstance(asked, Append):
            self.sent_bytes += len(body)
            seconds = monotonic() - start
            factor = 2.0 if seconds < _FAST_SECONDS else 0.5 if seconds > _SLOW_SECONDS else 1.0
            wanted = round(self.part_bytes * factor)
            self.part_bytes = min(max(wanted, _PART_BYTES_MIN), _PART_BYTES_MAX)
        return understood(asked, told.status_code, told.content)

    async def close(self) -> None:
        await self._client.aclose()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body bit by bit: each has the line's time-out for itself."""
    for at in range(0, len(body), _PIECE_BYTES):
        yield body[at : at + _PIECE_BYTES]


async def _skip(path: str, lsn: int) -> None:
    connection = Connection(path, LogConfig())
    try:
        port = await connection.port()
        await port.skip(lsn)
    finally:
        await connection.aclose()


def run_sync(path: str, url: str, token: str) -> Synced:
    """Do as ``sync``, from a command."""
    return asyncio.run(sync(path, url, token))
