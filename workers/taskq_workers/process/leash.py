"""What ties a worker process to the guard that started it: a socket pair, one end in each.

The worker says when it is ready. When the guard dies, whatever it dies of, its end is closed by the
system: the worker drains then, and ends in any case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Final

from anyio import sleep

from taskq_workers.runs.guards import signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The hidden options that hand a worker its end, and the number of its place.
LEASH_OPTION: Final = "--leash"
PLACE_OPTION: Final = "--place"
_READY: Final = b"R"
#: Of the error that ended a worker, so much is told.
_ERROR_BYTES_MAX: Final = 16_384
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
        """Say that the worker claims jobs."""
        try:
            self._socket.send(_READY)
        except OSError:  # the guard is gone, which the thread sees as well
            return

    def failed(self, error: str) -> bool:
        """Tell the guard why this worker ends; False if nobody hears it."""
        try:
            self._socket.send(error.encode("utf-8", "replace")[:_ERROR_BYTES_MAX])
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


class WorkerProcess:
    """A started worker process, as its guard sees it.

    Attributes:
        number: of the place that it fills, from 1.
        started: when, in monotonic seconds.
        ready: it said that it claims jobs.
        error: why it ended, as far as it said so.
        stops: how often it was told to stop.
        deadline: when it is killed, in monotonic seconds; None while nobody told it to stop.
    """

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.started = time.monotonic()
        self.ready = False
        self.error = ""
        self.stops = 0
        self.deadline: float | None = None
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        environment = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*command, LEASH_OPTION, str(theirs.fileno()), PLACE_OPTION, str(number)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # The terminal's signals are for the guard alone, which forwards them.
                process_group=0,
                env=environment,
            )
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid

    def hear(self) -> bool:
        """Take what it said; True when it has just become ready."""
        try:
            news = self.socket.recv(_ERROR_BYTES_MAX + 1)
        except OSError:
            return False
        was_ready, self.ready = self.ready, self.ready or news.startswith(_READY)
        if not was_ready:
            news = news.removeprefix(_READY)
        self.error += news.decode("utf-8", "replace")
        return self.ready and not was_ready

    def stop(self, drain_seconds: float) -> None:
        """Tell it to drain; the second time, to cancel what runs."""
        self.stops += 1
        if self.deadline is None:
            self.deadline = time.monotonic() + drain_seconds + END_SECONDS
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def ended(self) -> int | None:
        """Return the exit code, minus the number of the signal it died by; None while it lives."""
        code = self._process.poll()
        if code is not None:
            self.hear()
            self.socket.close()
        return code


def told(code: int) -> str:
    """Return an exit code in words."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"


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
        """Tell that it drains."""
        self._send("STOPPING=1", "STATUS=draining")

    def alive(self) -> None:
        """Give a sign of life."""
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
