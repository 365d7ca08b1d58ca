"""Run tasks with ``runs_in="process"`` in child processes, started when needed and then reused."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from anyio import move_on_after

import taskq.telemetry as telemetry
from taskq import ChildDied, JobContext, Task, TaskQ, engine, hooks
from taskq.limits import Alarm
from taskq_workers.children import programs, wire
from taskq_workers.runs import executors, guards, joblogs, lifespans, system, timeouts
from taskq_workers.slots import feed, shipping

_READ_BYTES: Final = 1 << 18
#: Time for a child to end before it is killed, in addition to the time of lifespans.
LEAVE_SECONDS: Final = 0.5
#: Time for a frozen child to be ready; a copy that runs the program instead never is.
FROZEN_START_SECONDS: Final = 60.0


class ChildPhase(enum.Enum):
    """Phases of a child's life."""

    #: imports its modules
    STARTING = enum.auto()
    IDLE = enum.auto()
    BUSY = enum.auto()
    #: it takes no more jobs
    LEAVING = enum.auto()
    GONE = enum.auto()


class Child:
    """A process that runs jobs one by one.

    Attributes:
        jobs: number of jobs that it was given.
        rss_bytes: its resident memory after the last job, 0 without a limit.
        problem: why it cannot run any job, "" if it can.
        is_ready: whether it ever was ready for jobs.

    ``on_change`` is called when it becomes idle, and when it is gone; ``close_seconds`` is the time
    to close the app's lifespans there.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outfit: wire.Outfit,
        on_change: Callable[[Child], None],
        close_seconds: float = 0.0,
    ) -> None:
        self.phase = ChildPhase.STARTING
        self.jobs = 0
        self.rss_bytes = 0
        self.problem = ""
        self.is_ready = False
        self.gone = asyncio.Event()
        self._loop = loop
        self._on_change = on_change
        self._leave_seconds = LEAVE_SECONDS + close_seconds
        self._inlet = wire.Inlet()
        self._outgoing = bytearray()
        self._job: asyncio.Future[wire.JobDone] | None = None
        #: gets the progress and the log lines of the running job
        self.on_report: Callable[[wire.JobProgress | wire.Logged], None] | None = None
        self._reason: BaseException | None = None
        self._killer: Alarm | None = None
        self._channel, theirs = socket.socketpair()
        life_read, self._life = os.pipe()
        try:
            self._process = _start(theirs, life_read, from_main=outfit.from_main)
        except BaseException:
            self._channel.close()
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life_read)
        self._pidfd = -1
        self._reader: threading.Thread | None = None
        self._channel.setblocking(not system.LOOPS_READ)
        if system.LOOPS_READ:
            loop.add_reader(self._channel, self._on_readable)
        else:
            self._reader = engine.start_thread(self._read_to_the_end, "taskq-read")
        self._watch_exit()
        if programs.is_frozen():
            self._killer = Alarm(FROZEN_START_SECONDS, self._give_up)
        self._send(wire.pack(outfit))

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, work: wire.Work) -> asyncio.Future[wire.JobDone]:
        """Give an idle child a job; the future gets the outcome, or ``ChildDied``."""
        assert self.phase is ChildPhase.IDLE
        self.phase = ChildPhase.BUSY
        self.jobs += 1
        self._reason = None
        self._job = self._loop.create_future()
        self._send(wire.pack(work))
        return self._job

    def leave(self) -> None:
        """Let an idle child end by itself; it is killed if it takes too long."""
        if self.phase is ChildPhase.STARTING:
            self.kill()
        elif self.phase is ChildPhase.IDLE:
            self.phase = ChildPhase.LEAVING
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
            self._killer = Alarm(self._leave_seconds, self.kill)

    def kill(self, reason: BaseException | None = None) -> None:
        """Kill the child; its job fails with ``reason`` once the process is gone."""
        if self.phase is not ChildPhase.GONE:
            self.phase = ChildPhase.LEAVING
            self._reason = self._reason or reason
            self._process.kill()

    def kill_and_reap(self) -> None:
        """Kill the child and wait for its end, for a moment: for use after the loop."""
        if self.phase is not ChildPhase.GONE:
            self._process.kill()
            self._process.wait()
            self._end()

    def _give_up(self) -> None:
        if self.phase is ChildPhase.STARTING:
            self.kill()

    # Messages from the child.

    def _on_readable(self) -> None:
        try:
            piece = self._channel.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        if not piece:
            # The exit code is known a moment later.
            self._loop.remove_reader(self._channel)
            return
        self._take_piece(piece)

    def _read_to_the_end(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the loop is closed
            while piece := self._channel.recv(_READ_BYTES):
                self._loop.call_soon_threadsafe(self._take_piece, piece)

    def _take_piece(self, piece: bytes) -> None:
        try:
            for message in self._inlet.feed(piece):
                self._take(message)
        except wire.LostChild as error:
            if self._reader is None:
                self._loop.remove_reader(self._channel)
            self.kill(ChildDied(f"its child process sent what is no message: {error}"))

    def _take(self, message: object) -> None:
        if isinstance(message, wire.JobDone):
            job, self._job = self._job, None
            self.rss_bytes = message.rss_bytes
            if job is not None and not job.done():
                job.set_result(message)
            self._become_idle(ChildPhase.BUSY)
        elif isinstance(message, wire.JobProgress | wire.Logged):
            if self.on_report is not None:
                self.on_report(message)
        elif isinstance(message, wire.Ready):
            self.is_ready = True
            self._become_idle(ChildPhase.STARTING)
        elif isinstance(message, wire.ChildProblem):
            self.problem = message.reason

    def _become_idle(self, before: ChildPhase) -> None:
        if self.phase is before:
            self.phase = ChildPhase.IDLE
            self._on_change(self)

    # Messages to the child.

    def _send(self, message: bytes) -> None:
        if self._reader is not None:  # it is idle and reads
            with contextlib.suppress(OSError):
                self._channel.sendall(message)
            return
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
            # The child is dying: its end, and its job's end, arrive soon.
            return len(message)

    # The end of the child.

    def _watch_exit(self) -> None:
        # A process forked by a task may hold the channel open, so its end says nothing.
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self.pid)
                self._loop.add_reader(self._pidfd, self._on_exit)
                return
        engine.start_thread(self._wait, "taskq-wait")

    def _wait(self) -> None:
        self._process.wait()
        if self._reader is not None:  # messages were sent, or a forked process holds the channel
            self._reader.join(KILL_SECONDS)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_exit)

    def _on_exit(self) -> None:
        if self.phase is ChildPhase.GONE:
            return
        self._process.wait()
        if self._reader is None:
            self._read_what_is_left()
        self._end()

    def _read_what_is_left(self) -> None:
        """Read the remaining messages: a job may have ended just before its process did."""
        with contextlib.suppress(OSError, wire.LostChild):
            while piece := self._channel.recv(_READ_BYTES):
                for message in self._inlet.feed(piece):
                    if isinstance(message, wire.Ready | wire.JobDone):
                        self.phase = ChildPhase.LEAVING
                    self._take(message)

    def _end(self) -> None:
        if programs.is_frozen() and not self.is_ready:
            self.problem = self.problem or f"a child process does not start: {guards.ADVICE}"
        self.phase = ChildPhase.GONE
        if self._killer is not None:
            self._killer.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self._reader is None:
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
        memory = ", perhaps for want of memory" if guards.signal_name(-code) == "SIGKILL" else ""
        return f"was ended by {guards.signal_name(-code)}{memory}"


def _start(work: socket.socket, life: int, *, from_main: bool) -> subprocess.Popen[bytes]:
    # Before the child has handlers, signals to the process group must not end it.
    with system.blocked(system.GROUP_SIGNALS):
        return programs.start_child(work, life, from_main=from_main)


_log: Final = logging.getLogger("taskq.worker")

#: Longest wait for the end of a killed process, before its job is released.
KILL_SECONDS: Final = 1.0
_ENDED: Final = "the worker ends, and starts no child process any more"


class NoChild(Exception):
    """No child process can be started; the message says why."""


class ProcessRunner:
    """Up to ``limits.processes`` children; jobs without a free child wait in line.

    Each child runs one job at a time. A child that dies costs its job an attempt and is replaced;
    the other children go on.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, app: TaskQ, limits: executors.ExecutorLimits
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._outfit = wire.Outfit(
            limits.target,
            tuple(app.hooks.included),
            str(app.data_dir),
            tuple(sys.argv),
            limits.rss_bytes is not None,
            joblogs.chosen_logging(),
        )
        # Lifespans have as long to close in a child as in a worker.
        self._close_seconds = (
            lifespans.EXIT_SECONDS + lifespans.CANCEL_SECONDS if app.hooks.lifespans else 0.0
        )
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        #: children that may have imported a replaced form of a task
        self._outdated: set[Child] = set()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._pause = feed.Pause(loop.time)
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        self._warning = ""

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def caller(self, task: Task[..., Any]) -> Callable[[bytes], Awaitable[shipping.RemoteOutcome]]:
        known = self._tasks.get(task.name, task)
        self._tasks[task.name] = task
        if known is not task:
            self._renew()
        module = task.fn.__module__
        if module == "__main__":
            module = hooks.main_module_name()
            self._outfit = self._outfit._replace(from_main=True)

        def call(payload: bytes) -> Awaitable[shipping.RemoteOutcome]:
            return self._run(hooks.running_job.get(), task, module, payload)

        return call

    async def _run(
        self, job: JobContext, task: Task[..., Any], module: str, payload: bytes
    ) -> shipping.RemoteOutcome:
        delivery = job.delivery
        try:
            child = await self._take()
        except NoChild as error:
            self._warn(task.name, str(error))
            return shipping.remote_release(0, delivery, str(error))
        # The payload differs from the record if it was compressed, or completed by an input.
        given = None if payload == delivery.stored_payload else payload
        child.on_report = lambda message: _hear(job, message)
        log = str(job.app.data_dir)
        log = "" if log == self._outfit.data_dir else log
        done = child.run(wire.Work(shipping.ship(delivery, given), module, telemetry.leave(), log))
        limit, left = None, timeouts.left_of(task.timeout)
        if task.timeout is not None and left is not None:
            timeouts.set_deadline(left)
            reason = timeouts.too_long(task.timeout, ": its child process was killed")
            limit = Alarm(left, lambda: _expire(child, done, reason))
        try:
            ended = (await done).ended
        except asyncio.CancelledError:
            if child.phase is ChildPhase.BUSY:
                await self._end(child)
            raise
        finally:
            child.on_report = None
            if limit is not None:
                limit.cancel()
        if ended.kind == engine.kinds.RELEASE and ended.body and ended.cause == engine.Cause.CALLER:
            # The child cannot import the task. The reason of a snoozed job has another cause.
            self._warn(task.name, ended.body.decode("utf-8", "replace"))
        return ended

    def _warn(self, task: str, problem: str) -> None:
        """Log why jobs are released; once for repeated causes."""
        if problem != self._warning:
            self._warning = problem
            _log.error("jobs of %s go back: %s", task, problem)

    def close(self) -> None:
        """Kill every child and wait for its end; legal twice. For use after the loop."""
        self._closed = True
        self._refuse_all()
        for child in list(self._children):
            child.kill_and_reap()

    async def leave(self) -> None:
        """Let idle children end by themselves; kill busy and late ones."""
        self._closed = True
        self._refuse_all()
        if self._resting is not None:
            self._resting.cancel()
        for child in list(self._children):
            if child.phase is ChildPhase.BUSY:
                child.kill()
            else:
                child.leave()
        try:
            for child in list(self._children):
                await child.gone.wait()
        except asyncio.CancelledError:
            self.close()
            raise

    # Assignment of children to jobs.

    async def _take(self) -> Child:
        child = await self._next()
        while child.phase is not ChildPhase.IDLE:
            child = await self._next()  # it died in the turn of its assignment
        return child

    async def _next(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.phase is ChildPhase.IDLE:
                return child
        if self._closed:  # no new child will end the wait
            raise NoChild(_ENDED)
        waiter: asyncio.Future[Child] = self._loop.create_future()
        self._waiting.append(waiter)
        self._start_some()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise

    def resize(self, limits: executors.ExecutorLimits) -> None:
        """Allow another number of children; living children are kept."""
        self._limits = limits
        self._start_some()

    def _start_some(self) -> None:
        if self._closed or self._resting is not None:
            return
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        starting = sum(child.phase is ChildPhase.STARTING for child in self._children)
        for _ in range(len(self._waiting) - starting):
            if len(self._children) >= self._limits.processes:
                return
            try:
                child = Child(self._loop, self._outfit, self._on_change, self._close_seconds)
                self._children.add(child)
            except OSError as error:
                self._refuse(f"no child process can be started: {error}")
                return

    def _on_change(self, child: Child) -> None:
        if child.phase is ChildPhase.GONE:
            self._children.discard(child)
            self._outdated.discard(child)
            if child in self._idle:
                self._idle.remove(child)
            if not child.is_ready and not self._closed:
                how = child.problem or f"a child process {child.how_it_ended()} as it started"
                self._refuse(how)
            self._start_some()
        elif self._is_used_up(child):
            child.leave()
        else:
            self._offer(child)

    def _renew(self) -> None:
        """Let every child end after its job: new children import the current modules."""
        self._outdated |= self._children
        idle, self._idle = self._idle, []
        for child in idle:
            child.leave()

    def _is_used_up(self, child: Child) -> bool:
        limits = self._limits
        if self._closed or child in self._outdated:
            return True
        if limits.jobs_per_child is not None and child.jobs >= limits.jobs_per_child:
            return True
        return limits.rss_bytes is not None and child.rss_bytes > limits.rss_bytes

    def _offer(self, child: Child) -> None:
        if child.phase is not ChildPhase.IDLE:
            self._start_some()
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._idle.append(child)

    def _refuse(self, problem: str) -> None:
        """Release a job for each child that did not start; the next start waits a while."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(NoChild(problem))
                break
        if self._resting is None:
            self._resting = self._loop.call_later(self._pause.next(), self._start_again)

    def _refuse_all(self) -> None:
        """Release the jobs that wait for a child, since none will start."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(NoChild(_ENDED))

    def _start_again(self) -> None:
        self._resting = None
        self._start_some()

    async def _end(self, child: Child) -> None:
        """Kill it, and return once it has ended, so that no other worker runs the job before."""
        child.kill()
        with move_on_after(KILL_SECONDS):
            await child.gone.wait()
        if not child.gone.is_set():
            _log.warning("child process %d was killed, but is still there", child.pid)


def _hear(job: JobContext, message: wire.JobProgress | wire.Logged) -> None:
    if isinstance(message, wire.Logged):
        joblogs.keep_line(job, message.line)
    else:
        job.progress(message.fraction, message.message)


def _expire(child: Child, done: asyncio.Future[wire.JobDone], reason: BaseException) -> None:
    """End a job whose time is over, unless its outcome arrived in this turn of the loop."""
    if not done.done():
        child.kill(reason)
