"""Messages between a worker and its child processes: a length, then a pickled tuple.

Both ends run the same user's code, so a pickle gives neither end more rights.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from struct import Struct
from typing import Any, BinaryIO, Final, TypeAlias

from taskq.values import NamedTuple
from taskq_workers.runs.joblogs import Logging
from taskq_workers.slots.shipping import RemoteOutcome, Shipment

_LENGTH: Final = Struct("<Q")
#: No message is longer; a greater length is an error of the other end.
MESSAGE_BYTES_MAX: Final = 1 << 31


class Outfit(NamedTuple):
    """The first message to a child: facts about its worker."""

    #: ``module:app`` to import; "" if the modules of the tasks suffice
    target: str
    #: further modules to import, for their tasks and lifespans
    include: tuple[str, ...]
    data_dir: str
    argv: tuple[str, ...]
    #: whether it reports its resident memory
    reports_memory: bool
    #: configuration of its logging
    logging: Logging = Logging()
    #: whether the main program itself, and not a module that it imports, defines a task
    from_main: bool = False


class Work(NamedTuple):
    """A job for a child."""

    shipment: Shipment
    #: module that defines the task
    module: str
    #: context of the span that the job runs in; see ``taskq.telemetry``
    trace: tuple[tuple[str, str], ...] = ()
    #: directory of the job's log, if it differs from the outfit's
    log: str = ""


class Ready(NamedTuple):
    """A child has imported its modules and takes jobs."""

    pid: int


class ChildProblem(NamedTuple):
    """A child cannot run any job, and ends."""

    reason: str


class JobDone(NamedTuple):
    """A job ended in a child."""

    ended: RemoteOutcome
    #: resident memory; 0 unless requested
    rss_bytes: int


class JobProgress(NamedTuple):
    """A progress report of a running job."""

    fraction: float
    message: str


class Logged(NamedTuple):
    """A log line of a running job that is stored with its outcome."""

    line: str


Message: TypeAlias = Ready | ChildProblem | JobDone | JobProgress | Logged


class LostChild(Exception):
    """Data from the other end is no message."""


def pack(message: Outfit | Work | Message) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class Inlet:
    """Assembles messages from received pieces."""

    def __init__(self) -> None:
        self._pieces = bytearray()

    def feed(self, piece: bytes) -> list[Any]:
        """Return the messages that this piece completes."""
        pieces = self._pieces
        pieces += piece
        messages = []
        while len(pieces) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pieces)
            if length > MESSAGE_BYTES_MAX:
                raise LostChild(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(pieces) < end:
                break
            body = bytes(memoryview(pieces)[_LENGTH.size : end])
            del pieces[:end]
            try:
                messages.append(pickle.loads(body))  # noqa: S301 - see above
            except Exception as error:
                raise LostChild(f"{type(error).__name__}: {error}") from error
        return messages


def receive(channel: BinaryIO) -> Any:
    """Wait for one message; None once the other end is closed."""
    head = channel.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = channel.read(length)
    return None if len(body) < length else pickle.loads(body)  # noqa: S301 - see above


# Progress reports of jobs in a child process.

#: Least time between two reports of one job.
PAUSE_SECONDS: Final = 0.1


class Outlet:
    """Messages of a child; its threads send one whole message after the other.

    During a pause only the latest report of a job is kept; it is sent after the pause.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None
        self._latest: JobProgress | None = None

    def end(self, message: Message) -> None:
        """Send a job's outcome; an unsent report is dropped."""
        with self._guard:
            self._latest = None
            self._channel.sendall(pack(message))

    def report(self, fraction: float, message: str) -> None:
        """Send a progress report, now or soon."""
        progress = JobProgress(fraction, message)
        with self._guard:
            if self._timer is not None:
                self._latest = progress
            else:
                self._send(progress)

    def log(self, line: str) -> None:
        """Send a log line at once: lines matter most for a job that does not end by itself."""
        with self._guard:
            self._channel.sendall(pack(Logged(line)))

    def _send(self, progress: JobProgress) -> None:
        timer = threading.Timer(PAUSE_SECONDS, self._on_time)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # no thread is to be had: without a pause
            timer.start()
            self._timer = timer
        self._channel.sendall(pack(progress))

    def _on_time(self) -> None:
        with self._guard:
            progress, self._latest, self._timer = self._latest, None, None
            if progress is not None:
                self._send(progress)
