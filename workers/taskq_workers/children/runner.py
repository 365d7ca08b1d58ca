"""Where tasks with ``runs_in="process"`` run: child processes, started when needed and kept warm.

Each runs one job at a time. One that dies costs its job an attempt and is replaced; the others go
on. Which child a job gets is decided here; how a single one is spoken to, in ``children``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from anyio import move_on_after

from taskq import telemetry
from taskq.engine import Cause, kinds
from taskq.hooks import main_module_name, running_job
from taskq_workers.children.afar import given_back
from taskq_workers.children.child import Child, Phase
from taskq_workers.children.wire import Done, Logged, Outfit, Told, Work
from taskq_workers.runs.joblogs import chosen_logging, keep_line
from taskq_workers.runs.lifespans import CANCEL_SECONDS, EXIT_SECONDS
from taskq_workers.runs.timeouts import left_of, tell_deadline, too_long
from taskq_workers.slots.pace import Pause
from taskq_workers.slots.shipping import Ended, ship

if TYPE_CHECKING:
    from taskq import JobContext, Task, TaskQ
    from taskq_workers.runs.limits import Limits

_log: Final = logging.getLogger("taskq.worker")

#: How long a killed process may take to be gone, before its job goes back all the same.
KILL_SECONDS: Final = 1.0
_ENDED: Final = "the worker ends, and starts no child process any more"


class NoChild(Exception):
    """No child process can be had; the message says why."""


class ProcessRunner:
    """Up to ``limits.processes`` children; jobs that find none free wait in line.

    Args:
        loop: on which everything here happens.
        app: whose tasks run.
        limits: how many children, and how long each is used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, app: TaskQ, limits: Limits) -> None:
        self._loop = loop
        self._limits = limits
        self._outfit = Outfit(
            limits.target,
            tuple(app.hooks.included),
            str(app.data_dir),
            tuple(sys.argv),
            limits.rss_bytes is not None,
            chosen_logging(),
        )
        # In a child they have as long to close as in a worker.
        self._close_seconds = EXIT_SECONDS + CANCEL_SECONDS if app.hooks.lifespans else 0.0
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        #: those that may have imported a form of a task that was replaced since
        self._outdated: set[Child] = set()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._pause = Pause(loop.time)
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        self._told = ""

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def caller(self, task: Task[..., Any]) -> Callable[[bytes], Awaitable[Ended]]:
        known = self._tasks.get(task.name, task)
        self._tasks[task.name] = task
        if known is not task:
            self._renew()
        module = task.fn.__module__
        if module == "__main__":
            module = main_module_name()
            self._outfit = self._outfit._replace(from_main=True)

        def call(payload: bytes) -> Awaitable[Ended]:
            return self._run(running_job.get(), task, module, payload)

        return call

    async def _run(
        self, job: JobContext, task: Task[..., Any], module: str, payload: bytes
    ) -> Ended:
        delivery = job.delivery
        try:
            child = await self._take()
        except NoChild as error:
            self._warn(task.name, str(error))
            return given_back(0, delivery, str(error))
        # It is another where it was packed, or completed by what ran before.
        given = None if payload == delivery.stored_payload else payload
        child.on_told = lambda message: _hear(job, message)
        log = str(job.app.data_dir)
        log = "" if log == self._outfit.data_dir else log
        done = child.run(Work(ship(delivery, given), module, telemetry.leave(), log))
        limit, left = None, left_of(task.timeout)
        if task.timeout is not None and left is not None:
            tell_deadline(left)
            reason = too_long(task.timeout, ": its child process was killed")
            limit = self._loop.call_later(left, _expire, child, done, reason)
        try:
            ended = (await done).ended
        except asyncio.CancelledError:
            if child.phase is Phase.BUSY:
                await self._end(child)
            raise
        finally:
            child.on_told = None
            if limit is not None:
                limit.cancel()
        if ended.kind == kinds.RELEASE and ended.body and ended.cause == Cause.CALLER:
            # The child cannot import the task; one that snoozes may have a reason, too.
            self._warn(task.name, ended.body.decode("utf-8", "replace"))
        return ended

    def _warn(self, task: str, problem: str) -> None:
        """Log why jobs go back; once for many in a row."""
        if problem != self._told:
            self._told = problem
            _log.error("jobs of %s go back: %s", task, problem)

    def close(self) -> None:
        """Kill every child and wait for that; legal twice. For when the loop turns no more."""
        self._closed = True
        self._refuse_all()
        for child in list(self._children):
            child.kill_and_reap()

    async def leave(self) -> None:
        """Let idle children end by themselves, which takes a moment; kill those that do not."""
        self._closed = True
        self._refuse_all()
        if self._resting is not None:
            self._resting.cancel()
        for child in list(self._children):
            if child.phase is Phase.BUSY:
                child.kill()
            else:
                child.leave()
        try:
            for child in list(self._children):
                await child.gone.wait()
        except asyncio.CancelledError:
            self.close()
            raise

    # Who gets which child.

    async def _take(self) -> Child:
        child = await self._next()
        while child.phase is not Phase.IDLE:
            child = await self._next()  # it died in the turn in which it was handed over
        return child

    async def _next(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.phase is Phase.IDLE:
                return child
        if self._closed:  # no child starts any more that could end the wait
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

    def _start_some(self) -> None:
        if self._closed or self._resting is not None:
            return
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        starting = sum(child.phase is Phase.STARTING for child in self._children)
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
        if child.phase is Phase.GONE:
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
        """Let every child end after its job: the next ones import the modules as they are now."""
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
        if child.phase is not Phase.IDLE:
            self._start_some()
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._idle.append(child)

    def _refuse(self, problem: str) -> None:
        """Give a job back for each child that did not start; the next waits a while."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(NoChild(problem))
                break
        if self._resting is None:
            self._resting = self._loop.call_later(self._pause.next(), self._start_again)

    def _refuse_all(self) -> None:
        """Give back the jobs that wait for a child, for none will come."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(NoChild(_ENDED))

    def _start_again(self) -> None:
        self._resting = None
        self._start_some()

    async def _end(self, child: Child) -> None:
        """Kill it, and return once it runs no more, so that nobody else begins before that."""
        child.kill()
        with move_on_after(KILL_SECONDS):
            await child.gone.wait()
        if not child.gone.is_set():
            _log.warning("child process %d was killed, but is still there", child.pid)


def _hear(job: JobContext, message: Told | Logged) -> None:
    if isinstance(message, Logged):
        keep_line(job, message.line)
    else:
        job.progress(message.fraction, message.message)


def _expire(child: Child, done: asyncio.Future[Done], reason: BaseException) -> None:
    """End a job whose time is over, unless its end came in this very turn and another is there."""
    if not done.done():
        child.kill(reason)
