"""What jobs in a child process tell of their progress, on its way to the worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from taskq_workers.wire import Told, packed

if TYPE_CHECKING:
    import socket

    from taskq_workers.wire import Message

#: Least time between two messages about one job.
PAUSE_SECONDS: Final = 0.1


class Outlet:
    """A child's messages, from whichever of its threads: one whole one after the other.

    Of what a job tells within a pause only the last is sent, when the pause is over.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None
        self._latest: Told | None = None

    def end(self, message: Message) -> None:
        """Send how the job ended; what it told last and was not sent is of no use any more."""
        with self._guard:
            self._latest = None
            self._channel.sendall(packed(message))

    def tell(self, fraction: float, message: str) -> None:
        """Send how far the job is, now or soon."""
        told = Told(fraction, message)
        with self._guard:
            if self._timer is not None:
                self._latest = told
            else:
                self._send(told)

    def _send(self, told: Told) -> None:
        self._timer = threading.Timer(PAUSE_SECONDS, self._on_time)
        self._timer.daemon = True
        self._timer.start()
        self._channel.sendall(packed(told))

    def _on_time(self) -> None:
        with self._guard:
            told, self._latest, self._timer = self._latest, None, None
            if told is not None:
                self._send(told)
