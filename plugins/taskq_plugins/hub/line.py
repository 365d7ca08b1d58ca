"""Connection to one hub: its address, the device's token, and a persistent HTTP connection."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import select
import socket
import ssl
import sys
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from taskq.conditions import on_power, online, unmetered
from taskq.conditions.base import aside
from taskq.conditions.network import metered_line
from taskq.engine import LogConfig, read_private
from taskq.errors import UsageError
from taskq.hooks import HubSettings
from taskq.limits import Deadline
from taskq_plugins.hub import models

if TYPE_CHECKING:
    from taskq.conditions import Condition

#: A probe starts a process, so probes are at least this far apart.
LOOK_SECONDS: Final = 60.0
#: Time limit of a probe.
_PROBE_SECONDS: Final = 10.0
_DAY_SECONDS: Final = 86_400.0
_MIB: Final = 2**20
#: Outcome of the last session, for ``taskq sync --status``, and volume used on a metered line.
_NOTE: Final = "readers/hub.json"


class HubWaits(models.HubError):
    """Nothing is sent for now; no person needs to act."""

    def __init__(self, why: str, seconds: float = LOOK_SECONDS) -> None:
        super().__init__(why)
        self.seconds = seconds


class Allowance:
    """Volume that a log may send over one line; a metered day begins with its first byte.

    Args:
        hub: the settings.
        url: address of the hub.
        now: clock, in seconds since the epoch.

    Attributes:
        metered: why the network counts as metered, with a daily volume; "" if it does not.
        part_bytes: largest body that the hub, or a proxy before it, accepts.
    """

    def __init__(self, hub: HubSettings, url: str, now: Callable[[], float] = time.time) -> None:
        self._hub, self._url = hub, url
        self._now = now
        self.part_bytes = sys.maxsize
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        made: dict[str, Callable[[], Condition]] = {
            "on_power": on_power,
            "unmetered": unmetered,
            "online": partial(online, f"{host}:{port}"),
        }
        self._requires = [made[name]() for name in hub.requires]
        self._looked = -LOOK_SECONDS
        self._path = ""
        self._since = self._used = 0.0
        self.metered = ""

    async def look(self) -> None:
        if monotonic() - self._looked < LOOK_SECONDS:
            return
        for required in self._requires:
            if problem := await _probed(
                required.name, required.problem(), required.timeout_seconds
            ):
                raise HubWaits(f"nothing is sent while {required.name} does not hold: {problem}")
        # With metered = "all" nothing is probed, so no failure of a probe is reported.
        metered = "" if self._hub.metered == "all" else await _probed("metered", metered_line())
        if metered and self._hub.metered == "never":
            raise HubWaits(f"nothing is sent, as metered = 'never' has it: {metered}")
        self.metered, self._looked = metered, monotonic()

    def take_up(self, path: str) -> None:
        self._path, known = path, last_note(path)
        self._since, self._used = known.get("since", 0.0), known.get("used", 0.0)
        self.part_bytes = known.get("part_bytes", {}).get(self._url, sys.maxsize)

    def check(self, need: int) -> None:
        left, most = self.left(), self._hub.metered_bytes_per_day
        if left is None or need <= left:
            return
        if need > most:
            raise HubWaits(
                f"{self.metered}: what comes next takes {need / _MIB:.1f} MiB, more than "
                f"metered_bytes_per_day ({most / _MIB:.3g} MiB), so it waits for another line"
            )
        again = self._since + _DAY_SECONDS
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(again))
        wait = min(again - self._now(), LOOK_SECONDS)
        raise HubWaits(
            f"{self.metered}: {most / _MIB:.3g} MiB a day used up; goes on at {at}", max(wait, 1.0)
        )

    def left(self) -> int | None:
        if not self.metered:
            return None
        if not 0 <= self._now() - self._since < _DAY_SECONDS:
            self._since, self._used = self._now(), 0.0
        return max(int(self._hub.metered_bytes_per_day - self._used), 0)

    def spend(self, size: int) -> None:
        if self.metered and self._path:
            self._used += size
            note(self._path, since=self._since, used=self._used)

    def limit_parts(self, size: int) -> None:
        """Note the largest body that the hub, or a proxy before it, accepts."""
        self.part_bytes = size
        if self._path:
            note(self._path, part_bytes={self._url: size})


def note(path: str, **values: Any) -> None:
    noted = last_note(path)
    if noted != noted | values:
        with contextlib.suppress(OSError):
            temporary = Path(path, f"{_NOTE}.tmp")
            temporary.write_text(json.dumps(noted | values), encoding="utf-8")
            temporary.replace(Path(path, _NOTE))


def last_note(path: str) -> dict[str, Any]:
    """Return the notes about a log: ``synced_ns``, ``lsn``, ``error``, …; {} without notes."""
    try:
        return dict(json.loads(Path(path, _NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


async def _probed(
    name: str, probed: Awaitable[str], timeout_seconds: float = _PROBE_SECONDS
) -> str:
    try:
        async with Deadline(timeout_seconds):
            return await probed
    except Exception as error:  # noqa: BLE001 - any failure of a probe
        return f"{name} cannot be known ({type(error).__name__}: {error})"


#: Least size of a part. A slow line makes parts smaller, a fast one larger again.
_PART_BYTES_MIN: Final = 64 * 1024
_FAST_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 10.0
#: Bytes of a body per send or receive; the timeout applies to each.
_PIECE_BYTES: Final = 256 * 1024
#: Limit of an answer; the largest answers are parts of segments.
_ANSWER_BYTES_MAX: Final = 64 * 2**20
_CONNECT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 60.0
#: Upper bound for heads and TLS of a request and its answer.
_HEADS_BYTES: Final = 2 * 1024
_HANDSHAKE_BYTES: Final = 8 * 1024
_RECORD_BYTES: Final = 64
#: Smaller bodies, and bodies that would not shrink to this ratio, are sent uncompressed.
_PACKED_BYTES_MIN: Final = 1_024
_PACKED_RATIO: Final = 0.95
_CREATED: Final = 201
_TOO_LARGE: Final = 413
_TOKEN_BYTES_MAX: Final = 4_096
_ENROLL_FIRST: Final = (
    "the hub asks for a token: run 'taskq hub enroll HUB NAME' there, keep what it prints in a "
    "file, and give --token-file FILE; or run it with --code there, and give --code CODE here"
)
#: Value of ``Retry-After``: less than three hours.
_SECONDS: Final = re.compile(r"[0-9]{1,4}\Z")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CONTAINER: Final = ("/.dockerenv", "/run/.containerenv")


def check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r:.100} is no address of a hub, such as https://hub.example")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise UsageError(f"{url!r:.100}: a token goes over https, or to this machine itself")
    return url.rstrip("/")


def machine_of(device: str, given: str | None) -> str:
    if given is None:
        if any(map(os.path.exists, _CONTAINER)):
            return ""
        with contextlib.suppress(OSError, ValueError):
            given = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{given} {device}".encode()).hexdigest() if given else ""


def line_to(hub: HubSettings, url: str | None, file: Path | None) -> tuple[str, str]:
    url = url or hub.url
    if not url:
        raise UsageError(
            "which hub? Give --url https://…, or url in [hub] of taskq.toml in the log's directory"
        )
    token = hub.token.get_secret_value() if hub.token and file is None else ""
    file = file or hub.token_file or token_file(url)
    if not token and file.exists():
        token = read_private(file, _TOKEN_BYTES_MAX)
    if not token.strip():
        raise UsageError(_ENROLL_FIRST)
    if len(token.split()) > 1 or not token.isascii():  # not shown: the text may be another secret
        raise UsageError(
            f"{file} holds no token: it is the one word that 'taskq hub enroll' prints"
        )
    return url, token.strip()


def device_of(token: str) -> str:
    return token.split(".")[1] if token.count(".") else ""


def token_file(url: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return Path(state, "taskq", f"{name}.token")


class HubReply(NamedTuple):
    """Status and body of an answer, and its requested wait."""

    status: int
    content: bytes
    wait_seconds: int = 0


class Http:
    """One connection to a hub; requests run on threads, so a cancelled one blocks no other.

    Args:
        url: address of the hub.
        ca: trusted certificates of authorities; None: the machine's.
        rate: limit of body bytes a second; None: unlimited.

    Attributes:
        used_bytes: bytes sent and received so far, with an upper bound for TLS.
    """

    def __init__(self, url: str, ca: Path | None = None, rate: int | None = None) -> None:
        parts = urlsplit(url)
        connect = http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca)
            connect = partial(http.client.HTTPSConnection, context=context)  # type: ignore[assignment]
        self._proxy = _proxy_for(parts)
        self._place = parts.hostname or "", parts.port
        host, port = self._proxy[:2] if self._proxy else self._place
        self._connect = partial(connect, host, port, timeout=_CONNECT_SECONDS)
        self._is_secret, self._prefix = parts.scheme == "https", parts.path
        self._rate = rate
        #: time until which the rate limit is used up
        self._busy_until = 0.0
        self._connection: http.client.HTTPConnection | None = None
        self._turn = threading.BoundedSemaphore(1)
        self.used_bytes = 0

    async def __call__(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> HubReply:
        turn, asked = self._turn, (method, self._prefix + path, headers, body)
        try:
            return await aside(partial(self._exchanged, turn, asked), turn)
        except BaseException:
            # After a cancellation, closing ends the thread's wait.
            self.close()
            self._turn = threading.BoundedSemaphore(1)
            raise

    def _exchanged(self, turn: threading.BoundedSemaphore, asked: models.Carried) -> HubReply:
        connection, (method, path, headers, body) = self._connected(turn), asked
        own = {"Content-Length": str(len(body))} if body or method != "GET" else {}
        head = len(path) + sum(len(name) + len(value) + 4 for name, value in headers.items())
        self.used_bytes += head + _HEADS_BYTES // 4
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the answer says why
            # An empty iterator would be sent as a chunked body, in a second packet.
            connection.request(method, path, self._pieces(body) if body else None, headers | own)
        with connection.getresponse() as answer:
            content = answer.read(_ANSWER_BYTES_MAX + 1)
            if len(content) > _ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"an answer of over {_ANSWER_BYTES_MAX} bytes")
        self.used_bytes += len(str(answer.headers)) + len(content) + _RECORD_BYTES
        if answer.will_close:
            self.close()
        wait = answer.headers.get("Retry-After", "")
        return HubReply(answer.status, content, int(wait) if _SECONDS.match(wait) else 0)

    def _connected(self, turn: threading.BoundedSemaphore) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is not None and _is_over(connection.sock):
            self.close()
            connection = None
        if connection is None:
            connection = self._connection = self._connect()
            connection.auto_open = 0  # a closed connection stays closed
            if self._proxy is not None:
                connection.set_tunnel(*self._place, headers=self._proxy[2])
            connection.connect()
            if self._connection is not connection or self._turn is not turn:
                connection.close()  # it was closed before it was connected
                raise ConnectionAbortedError("cancelled while it connected")
            connection.sock.settimeout(_ANSWER_SECONDS)
            self.used_bytes += _HANDSHAKE_BYTES if self._is_secret else 0
        return connection

    def _pieces(self, body: bytes) -> Iterator[memoryview]:
        size = min(_PIECE_BYTES, self._rate or _PIECE_BYTES)
        for at in range(0, len(body), size):
            piece = memoryview(body)[at : at + size]
            if self._rate is not None:
                time.sleep(max(self._busy_until - monotonic(), 0))
                self._busy_until = max(self._busy_until, monotonic()) + len(piece) / self._rate
            self.used_bytes += len(piece) + (len(piece) // 256 if self._is_secret else 0)
            yield piece

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()


def _is_over(sock: socket.socket | None) -> bool:
    if sock is None:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _proxy_for(parts: SplitResult) -> tuple[str, int, dict[str, str]] | None:
    if parts.scheme != "https" or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - proxies are rare

    given = getproxies().get("https")
    if not given or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise UsageError(f"https_proxy={given!r:.80}: give a proxy as http://host:port")
    headers = {}
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    return proxy.hostname, proxy.port or http.client.HTTP_PORT, headers


class Line:
    """Connection of a device to one hub, for successive sessions.

    Args:
        url: address of the hub.
        token: token of the device; "" before enrolment.
        carrier: replaces the network, for tests.
        hub: the settings.

    Raises (any method):
        HubWaits: the settings forbid sending now.
        HubError: the hub does not answer, or its answer is of no use.
    """

    spoken = ", ".join(map(str, models.VERSIONS))

    def __init__(
        self,
        url: str,
        token: str,
        carrier: Http | None = None,
        hub: HubSettings | None = None,
    ) -> None:
        self.url = check_url(url)
        self.hub = hub or HubSettings()
        self.device = device_of(token)
        self.machine = machine_of(self.device, self.hub.machine)
        self.sent_bytes = 0
        #: options of this process's log; names of the tasks that run here, None if unknown
        self.config = LogConfig()
        self.known: Collection[str] | None = None
        #: by path of a log: its positions in the outboxes, see ``outbox.positions``
        self.taken: dict[str, dict[str, int]] = {}
        self.allowance = Allowance(self.hub, self.url)
        self._part_bytes = models.PART_BYTES_MAX
        self._packs = self.hub.compress == "zlib" and urlsplit(url).hostname not in _LOOPBACK
        self._own = {models.SPOKEN: self.spoken}
        self._own |= {"Authorization": f"Bearer {token}"} if token else {}
        self._carrier = carrier or Http(self.url, self.hub.ca, self.hub.rate)
        #: a second connection, since a long poll would block other requests
        self._holder = carrier or Http(self.url, self.hub.ca)

    def piece_bytes(self) -> int:
        return min(self._part_bytes, self.allowance.part_bytes)

    def part_bytes(self) -> int:
        left, size = self.allowance.left(), self.piece_bytes()
        room = size if left is None else left - _HEADS_BYTES - _HANDSHAKE_BYTES
        return max(min(size, room), 1)

    async def ask(self, asked: models.Request) -> models.Answer | None:
        left = self.allowance.left()
        if isinstance(asked, models.Question) and left is not None:
            asked = replace(asked, bytes_max=min(asked.bytes_max, left * 2 // 3))
        if isinstance(asked, models.Sync):
            grace = round(self.hub.grace)
            asked = replace(
                asked, grace_seconds=grace, machine=self.machine, clock_ns=time.time_ns()
            )
        method, path, headers, body = models.carried(asked)
        size = len(asked.data) if isinstance(asked, models.Append) else 0
        is_part, most = bool(size), self.part_bytes()
        if is_part and self._packs and len(body) >= _PACKED_BYTES_MIN:
            packed = zlib.compress(body, 1)
            if len(packed) < _PACKED_RATIO * len(body):
                headers["Content-Type"], body = models.PACKED, packed
        start = monotonic()
        reply = await self.request(method, path, headers, body)
        if is_part:
            self.sent_bytes += len(body)
            seconds = monotonic() - start
            factor = 2.0 if seconds < _FAST_SECONDS else 0.5 if seconds > _SLOW_SECONDS else 1.0
            wanted = round(self._part_bytes * factor)
            self._part_bytes = min(max(wanted, _PART_BYTES_MIN), models.PART_BYTES_MAX)
            if reply.status == _TOO_LARGE and _PART_BYTES_MIN < size <= most:
                self.allowance.limit_parts(max(size // 2, _PART_BYTES_MIN))
                return models.Refused(models.Trouble.LARGE, models.NOWHERE)
        return models.understood(asked, *reply)

    async def hold(self, asked: models.Question) -> models.Answer | None:
        await self.allowance.look()
        if self.allowance.metered:
            raise HubWaits(f"{self.allowance.metered}: no question waits at the hub")
        return models.understood(asked, *await self.request(*models.carried(asked), self._holder))

    async def request(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes = b"",
        carrier: Http | None = None,
    ) -> HubReply:
        carrier = carrier or self._carrier
        await self.allowance.look()
        handshake = _HANDSHAKE_BYTES if self.url.startswith("https") else 0
        self.allowance.check(len(body) + len(body) // 256 + _HEADS_BYTES + handshake)
        used = carrier.used_bytes
        try:
            return await carrier(method, path, self._own | headers, body)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._part_bytes = max(self._part_bytes // 2, _PART_BYTES_MIN)
            raise models.HubError(
                f"{self.url} cannot be reached ({type(error).__name__}: {error}): {_remedy(error)}"
                f"the log is whole, and goes on from where it came to at the next try"
            ) from error
        finally:
            self.allowance.spend(carrier.used_bytes - used)

    async def redeem(self, code: str) -> str:
        machine = machine_of(code.partition(".")[0], self.hub.machine)
        reply = await self.request(*models.carried(models.Enroll(code, machine)))
        if reply.status != _CREATED:
            raise models.HubError(
                f"the hub answers {reply.status}: the code does not hold, or was used, or is over "
                f"a day old: ask for another with 'taskq hub enroll HUB NAME --code' there"
            )
        return str(json.loads(reply.content)["token"])

    async def close(self) -> None:
        self._carrier.close()
        self._holder.close()


def _remedy(error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return ""
    return (
        "name the file of the authority that signed its certificate as ca in [hub] of the settings "
        "(TASKQ_HUB_CA); "
    )
