"""What ties a worker process to the guard that started it: a socket pair, one end in each.

The worker says when it is ready. When the guard dies, whatever it dies of, its end is closed by the
system: the worker drains then, and ends in any case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from typing import Final

from anyio import sleep

#: The hidden options that hand a worker its end, and the number of its place.
LEASH_OPTION: Final = "--leash"
PLACE_OPTION: Final = "--place"
READY: Final = b"R"
#: Bytes of the error that ended a worker which its guard gets.
ERROR_BYTES_MAX: Final = 16_384
#: What a worker gets beyond its drain to end, when it is stopped or its guard is gone.
END_SECONDS: Final = 15.0


class Leash:
    """The worker's end.

    Args:
        descriptor: of the socket, as inherited.
        drain_seconds: what running jobs get to finish once the guard is gone.
    """

    def __init__(self, descriptor: int, drain_seconds: float) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._seconds = drain_seconds + END_SECONDS
        threading.Thread(target=self._watch, name="taskq-leash", daemon=True).start()

    def ready(self) -> None:
        try:
            self._socket.send(READY)
        except OSError:  # the guard is gone, which the thread sees as well
            return

    def failed(self, error: str) -> bool:
        """Tell the guard why this worker ends; False if nobody hears it."""
        try:
            self._socket.send(error.encode("utf-8", "replace")[:ERROR_BYTES_MAX])
        except OSError:
            return False
        return True

    def _watch(self) -> None:
        # A thread, as a job may keep the loop busy.
        try:
            while self._socket.recv(1):
                pass
        except OSError:
            pass  # reset: gone as well
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._seconds)
        os._exit(1)


# Telling a service manager where a worker is in its life (sd_notify), if one asked to be told.
#
# The protocol is one datagram of ``NAME=value`` lines to the unix socket that ``NOTIFY_SOCKET``
# names; a leading @ means the abstract namespace. systemd.service(5), sd_notify(3).

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
        """Tell that it claims jobs, or claims them again after ``reloading``."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Tell that it is being replaced by newer code, and serves meanwhile."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
        self._send("RELOADING=1", f"MONOTONIC_USEC={microseconds}", "STATUS=reloading")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=draining")

    def alive(self) -> None:
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
        with contextlib.suppress(OSError), _datagram_socket() as datagrams:
            datagrams.sendto("\n".join(lines).encode(), address)


def _datagram_socket() -> socket.socket:
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    return datagrams


def _watchdog_seconds() -> float:
    """Return the time between two signs of life; 0 if none are asked of this process."""
    asked = os.environ.get(_WATCHDOG_MICROSECONDS, "")
    process = os.environ.get(_WATCHDOG_PROCESS, "")
    if not asked.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return int(asked) / 1e6 / _SIGNS
