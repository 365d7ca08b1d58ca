"""One child process, as its worker sees it: started, given a job at a time, and seen to its end."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Final

from taskq import ChildDied
from taskq_workers.children.programs import is_frozen, start_child
from taskq_workers.children.wire import (
    Done,
    Inlet,
    Logged,
    LostChild,
    Outfit,
    Problem,
    Ready,
    Told,
    Work,
    packed,
)
from taskq_workers.runs.guards import ADVICE, signal_name

_READ_BYTES: Final = 1 << 18
_BLOCKED: Final = (signal.SIGINT, signal.SIGTERM)
#: How long a child that was told to leave may take, before it is killed; lifespans come on top.
LEAVE_SECONDS: Final = 0.5
#: How long a frozen child may take to be ready; a copy of the program never would be.
FROZEN_START_SECONDS: Final = 60.0


class Phase(enum.Enum):
    """Phases of a child's life."""

    #: it imports what it needs
    STARTING = enum.auto()
    IDLE = enum.auto()
    BUSY = enum.auto()
    #: it takes no more jobs
    LEAVING = enum.auto()
    GONE = enum.auto()


class Child:
    """A process that runs jobs one by one.

    Attributes:
        phase: where it is in its life.
        jobs: how many it was given.
        rss_bytes: its resident memory after the last job, 0 if not asked for.
        problem: why it cannot run any job, "" if it can.
        is_ready: whether it ever was ready for jobs.
        gone: set once the process has ended.

    Args:
        loop: on which everything here happens.
        outfit: what it needs to know.
        on_change: called when it became idle, and when it is gone.
        close_seconds: what it gets to close what the app's lifespans opened there.

    Raises:
        OSError: the system starts no process.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outfit: Outfit,
        on_change: Callable[[Child], None],
        close_seconds: float = 0.0,
    ) -> None:
        self.phase = Phase.STARTING
        self.jobs = 0
        self.rss_bytes = 0
        self.problem = ""
        self.is_ready = False
        self.gone = asyncio.Event()
        self._loop = loop
        self._on_change = on_change
        self._leave_seconds = LEAVE_SECONDS + close_seconds
        self._inlet = Inlet()
        self._outgoing = bytearray()
        self._job: asyncio.Future[Done] | None = None
        #: told what the job that runs there tells and logs
        self.on_told: Callable[[Told | Logged], None] | None = None
        self._reason: BaseException | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._channel, theirs = socket.socketpair()
        life_read, self._life = os.pipe()
        try:
            self._process = _start(theirs.fileno(), life_read, from_main=outfit.from_main)
        except BaseException:
            self._channel.close()
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life_read)
        self._channel.setblocking(False)
        loop.add_reader(self._channel, self._on_readable)
        self._watch_exit()
        if is_frozen():
            self._killer = loop.call_later(FROZEN_START_SECONDS, self._give_up)
        self._send(packed(outfit))

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, work: Work) -> asyncio.Future[Done]:
        """Give an idle child a job; the future has its end, or ``ChildDied``."""
        assert self.phase is Phase.IDLE
        self.phase = Phase.BUSY
        self.jobs += 1
        self._reason = None
        self._job = self._loop.create_future()
        self._send(packed(work))
        return self._job

    def leave(self) -> None:
        """Let it end by itself, now that it runs nothing; it is killed if that takes long."""
        if self.phase is Phase.STARTING:
            self.kill()
        elif self.phase is Phase.IDLE:
            self.phase = Phase.LEAVING
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
            self._killer = self._loop.call_later(self._leave_seconds, self.kill)

    def kill(self, reason: BaseException | None = None) -> None:
        """End it on the spot; its job fails with ``reason`` once the process is gone."""
        if self.phase is not Phase.GONE:
            self.phase = Phase.LEAVING
            self._reason = self._reason or reason
            self._process.kill()

    def kill_and_reap(self) -> None:
        """End it and wait for that, which takes a moment: for when the loop turns no more."""
        if self.phase is not Phase.GONE:
            self._process.kill()
            self._process.wait()
            self._end()

    def _give_up(self) -> None:
        if self.phase is Phase.STARTING:
            self.kill()

    # What comes from the child.

    def _on_readable(self) -> None:
        try:
            piece = self._channel.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        if not piece:
            # How the process ended is known a moment later.
            self._loop.remove_reader(self._channel)
            return
        try:
            for message in self._inlet.feed(piece):
                self._take(message)
        except LostChild as error:
            self._loop.remove_reader(self._channel)
            self.kill(ChildDied(f"its child process sent what is no message: {error}"))

    def _take(self, message: object) -> None:
        if isinstance(message, Done):
            job, self._job = self._job, None
            self.rss_bytes = message.rss_bytes
            if job is not None and not job.done():
                job.set_result(message)
            self._become_idle(Phase.BUSY)
        elif isinstance(message, Told | Logged):
            if self.on_told is not None:
                self.on_told(message)
        elif isinstance(message, Ready):
            self.is_ready = True
            self._become_idle(Phase.STARTING)
        elif isinstance(message, Problem):
            self.problem = message.reason

    def _become_idle(self, before: Phase) -> None:
        if self.phase is before:
            self.phase = Phase.IDLE
            self._on_change(self)

    # What goes to it.

    def _send(self, message: bytes) -> None:
        if self._outgoing:
            self._outgoing += message
            return
        sent = self._send_some(message)
        if sent < len(message):
            self._outgoing += memoryview(message)[sent:]
            self._loop.add_writer(self._channel, self._on_writable)

    def _on_writable(self) -> None:
        sent = self._send_some(self._outgoing)
        del self._outgoing[:sent]
        if not self._outgoing:
            self._loop.remove_writer(self._channel)

    def _send_some(self, message: bytes | bytearray) -> int:
        try:
            return self._channel.send(message)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # It is dying: its end is told soon, and with it its job's.
            return len(message)

    # Its end.

    def _watch_exit(self) -> None:
        # Not the end of the channel: a process that a task forked may hold that open.
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self.pid)
                self._loop.add_reader(self._pidfd, self._on_exit)
                return
        self._pidfd = -1
        threading.Thread(target=self._wait, name="taskq-wait", daemon=True).start()

    def _wait(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_exit)

    def _on_exit(self) -> None:
        if self.phase is Phase.GONE:
            return
        self._process.wait()
        self._read_what_is_left()
        self._end()

    def _read_what_is_left(self) -> None:
        """Read what is left: a job may have ended just before its process did."""
        with contextlib.suppress(OSError, LostChild):
            while piece := self._channel.recv(_READ_BYTES):
                for message in self._inlet.feed(piece):
                    if isinstance(message, Ready | Done):
                        self.phase = Phase.LEAVING
                    self._take(message)

    def _end(self) -> None:
        if is_frozen() and not self.is_ready:
            self.problem = self.problem or f"a child process does not start: {ADVICE}"
        self.phase = Phase.GONE
        if self._killer is not None:
            self._killer.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        os.close(self._life)
        job, self._job = self._job, None
        if job is not None and not job.done():
            job.set_exception(self._reason or self._death())
        self.gone.set()
        self._on_change(self)

    def _death(self) -> ChildDied:
        return ChildDied(f"its child process {self.pid} {self.how_it_ended()} while it ran")

    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exited with {code}"
        memory = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
        return f"was ended by {signal_name(-code)}{memory}"


def _start(work: int, life: int, *, from_main: bool) -> subprocess.Popen[bytes]:
    # Until it has handlers for them, signals to the whole group of processes must not end it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        return start_child(work, life, from_main=from_main)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
