"""Conditions of the network: whether a host answers, and whether the line is metered."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import ClassVar, Final

from anyio import create_task_group, run_process, sleep

from taskq.conditions.base import Condition, aside, say_once
from taskq.core.errors import UsageError

#: Interval of new connection attempts while earlier ones go on; the kernel alone would wait
#: 1, 2, 4 … seconds between two.
ATTEMPT_SECONDS: Final = 0.5
ATTEMPTS_MAX: Final = 6
#: Addresses of one host that are tried at the same time.
ADDRESSES_MAX: Final = 4
_PORT_MAX: Final = 65_535
#: Addresses reserved for documentation; no packet is sent to them.
_ANYWHERE: Final = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
_DISCARD_PORT: Final = 9
_ROUTES: Final = Path("/proc/net/route")


@dataclass(frozen=True)
class Online(Condition):
    """A host accepts TCP connections at a port."""

    host: str
    port: int
    timeout_seconds: float = ATTEMPTS_MAX * ATTEMPT_SECONDS + 1.0
    is_network: ClassVar[bool] = True

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"online({host}:{self.port})"

    async def problem(self) -> str:
        """Ask the kernel for a route first, which costs microseconds; then connect."""
        if not has_route(self.host):
            return "this machine has no route to it"
        return await _reach(self.host, self.port)


@dataclass(frozen=True)
class Unmetered(Condition):
    """The network line is not metered, according to NetworkManager."""

    #: each probe starts a process
    interval_seconds: float = 2.0

    @property
    def name(self) -> str:
        return "unmetered()"

    async def problem(self) -> str:
        devices = await _ask_network_manager()
        if devices is None:
            say_once(
                "unmetered() cannot be known here, since it needs NetworkManager (nmcli): "
                "it counts as holding"
            )
            return ""
        return metered_devices(devices)


def online(address: str) -> Condition:
    """Require that a host accepts TCP connections: ``online("api.example.com:443")``.

    Raises:
        UsageError: the text is no host with a port.
    """
    given: object = address
    host, _, port = address.rpartition(":") if isinstance(given, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    fits = host and host.isprintable() and not set(host) & set("/[] @") and port.isascii()
    if not fits or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX or _bad_colons(host):
        raise UsageError(
            f"online({address!r:.80}): give a host and a port, such as "
            f'online("api.example.com:443") or online("[::1]:8080")'
        )
    return Online(host, int(port))


def unmetered() -> Condition:
    """Require that the network is not known to be metered; see ``Unmetered``."""
    return Unmetered()


async def metered_line() -> str:
    return metered_devices(await _ask_network_manager() or "")


def has_route(host: str) -> bool:
    """Return whether the kernel has a route to the host; for a name, to anywhere. Send nothing."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if "." not in host:
            return True  # localhost, and names of the local network
        return any(_is_routed(*place) for place in _ANYWHERE) or _has_routes()
    is_old = isinstance(address, ipaddress.IPv4Address)
    family = socket.AF_INET if is_old else socket.AF_INET6
    return _is_routed(family, str(address))


def is_anywhere_routed() -> bool:
    """Return whether the kernel has a route to the internet."""
    return any(_is_routed(*place) for place in _ANYWHERE)


def metered_devices(devices: str) -> str:
    """Return the metered connected devices from ``nmcli -t device show``; "" for none."""
    device, connected = "", False
    metered: list[str] = []
    for line in devices.splitlines():
        field, _, value = line.partition(":")
        if field == "GENERAL.DEVICE":
            device, connected = value, False
        elif field == "GENERAL.STATE":
            connected = value.startswith("100")
        elif field == "GENERAL.METERED" and connected and value.startswith("yes"):
            metered.append(device)
    return f"the network is metered ({', '.join(metered)})" if metered else ""


def _bad_colons(host: str) -> bool:
    if ":" not in host:
        return False
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return True
    return False


def _is_routed(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _DISCARD_PORT))
    except OSError as error:
        # Other errors of the kernel do not concern routes.
        return error.errno not in {
            errno.ENETUNREACH,
            errno.EHOSTUNREACH,
            errno.ENETDOWN,
            errno.EADDRNOTAVAIL,
            errno.EAFNOSUPPORT,
        }
    return True


def _has_routes() -> bool:
    try:
        with _ROUTES.open(encoding="ascii") as routes:
            next(routes, "")
            return bool(next(routes, ""))
    except (OSError, ValueError):
        return False


async def _reach(host: str, port: int) -> str:
    """Connect; return "" or the error. An attempt without an answer does not delay the next."""
    problem = f"it does not answer within {ATTEMPTS_MAX * ATTEMPT_SECONDS:g} s"

    async def attempt() -> None:
        nonlocal problem
        try:
            await _connect(host, port)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was met
            problem = problem and _message(error)
        else:
            problem = ""
        tries.cancel_scope.cancel()

    async with create_task_group() as tries:
        for _ in range(ATTEMPTS_MAX):
            tries.start_soon(attempt)
            await sleep(ATTEMPT_SECONDS)
        tries.cancel_scope.cancel()
    return problem


async def _connect(host: str, port: int) -> None:
    infos = await aside(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    error: OSError | None = OSError(f"{host} has no address")

    async def attempt(family: int, address: tuple[object, ...]) -> None:
        nonlocal error
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, address)
        except OSError as failure:
            error = error and failure
        else:
            error = None
            tries.cancel_scope.cancel()

    async with create_task_group() as tries:
        for family, _, _, _, address in infos[:ADDRESSES_MAX]:
            tries.start_soon(attempt, family, address)
    if error is not None:
        raise error


def _message(error: BaseException) -> str:
    # The texts of Windows' own error numbers are only in the error itself.
    is_windows = getattr(error, "winerror", None) is not None
    is_named = isinstance(error, socket.gaierror) or is_windows
    if isinstance(error, OSError) and error.errno and not is_named:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


async def _ask_network_manager() -> str | None:
    """Return the devices in nmcli's terse form; None if nmcli fails."""
    program = shutil.which("nmcli")
    if program is None:
        return None
    fields = "GENERAL.DEVICE,GENERAL.STATE,GENERAL.METERED"
    done = await run_process(
        [program, "-t", "-f", fields, "device", "show"],
        stderr=DEVNULL,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
