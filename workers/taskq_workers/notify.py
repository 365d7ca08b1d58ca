"""Telling a service manager where a worker is in its life (sd_notify), if one asked to be told.

The protocol is one datagram of ``NAME=value`` lines to the unix socket that ``NOTIFY_SOCKET``
names; a leading @ means the abstract namespace. systemd.service(5), sd_notify(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Final

from anyio import sleep

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_MICROSECONDS: Final = "WATCHDOG_USEC"
_WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
#: Signs of life that are sent in one period of the watchdog.
_SIGNS: Final = 2


class Notifier:
    """Sends states to the service manager; without one, every call does nothing.

    Attributes:
        watchdog_seconds: how often ``alive`` is to be called; 0 for never.
    """

    def __init__(self) -> None:
        self._address = os.environ.get(_SOCKET, "")
        self.watchdog_seconds = _watchdog_seconds() if self._address else 0.0

    def ready(self, status: str) -> None:
        """It claims jobs, or claims them again after ``reloading``."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """It is being replaced by newer code, and serves meanwhile."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self._send("RELOADING=1", f"MONOTONIC_USEC={microseconds}", "STATUS=reloading")

    def stopping(self) -> None:
        """It drains."""
        self._send("STOPPING=1", "STATUS=draining")

    def alive(self) -> None:
        """A sign of life."""
        self._send("WATCHDOG=1")

    async def keep_alive(self) -> None:
        """Send signs of life for as long as the loop turns; a loop that hangs sends none."""
        while self.watchdog_seconds:
            self.alive()
            await sleep(self.watchdog_seconds)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = f"\0{address[1:]}"
        # A manager that went away is no reason for jobs to fail; nor may a full socket block.
        with contextlib.suppress(OSError), _datagram_socket() as one:
            one.sendto("\n".join(lines).encode(), address)


def _datagram_socket() -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.setblocking(False)
    return one


def _watchdog_seconds() -> float:
    """Time between two signs of life; 0 if none are asked for, or not of this process."""
    asked = os.environ.get(_WATCHDOG_MICROSECONDS, "")
    process = os.environ.get(_WATCHDOG_PROCESS, "")
    if not asked.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return int(asked) / 1e6 / _SIGNS
