"""What ties a worker process to the guard that started it: a socket pair, one end in each.

The worker says when it is ready. When the guard dies, whatever it dies of, its end is closed by the
system: the worker drains then, and ends in any case.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

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
    """One started worker process, as its guard sees it.

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
        """The exit code, minus the number of the signal it died by; None while it lives."""
        code = self._process.poll()
        if code is not None:
            self.hear()
            self.socket.close()
        return code


def told(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def worker_command(arguments: Sequence[str]) -> list[str]:
    """The command line of one worker process."""
    return [sys.executable, "-m", "taskq", "worker", *arguments]
