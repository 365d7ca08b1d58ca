"""Executors of a worker's jobs: the event loop, threads, or child processes."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

from taskq import SoftTimeout, Task, errors, hooks, values
from taskq.limits import Alarm
from taskq_workers.runs import guards, joblogs, lifespans, system, timeouts

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Calling: TypeAlias = Callable[..., Awaitable[Any]]


#: No Python process that has imported taskq is smaller.
RSS_BYTES_MIN: Final = 16 * 2**20


@values.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """The checked limits of one worker; None for no limit.

    Attributes:
        threads: sync jobs at a time.
        processes: jobs in child processes at a time.
        jobs_per_child: jobs until a child is replaced.
        rss_bytes: memory after a job over which a child is replaced.
        target: ``module:app`` that children import; "" for the modules of the tasks.
    """

    threads: int
    processes: int
    jobs_per_child: int | None = None
    rss_bytes: int | None = None
    target: str = ""


def make_limits(
    concurrency: int,
    *,
    thread_limit: int | None = None,
    process_limit: int | None = None,
    max_jobs_per_child: int | None = None,
    max_rss_per_child: int | str | None = None,
    target: str = "",
) -> ExecutorLimits:
    """Return the limits from a worker's options; ``concurrency`` is the default of both counts."""
    guards.refuse_while_importing()
    threads = concurrency if thread_limit is None else thread_limit
    processes = concurrency if process_limit is None else process_limit
    counts = {
        "concurrency": concurrency,
        "thread_limit": threads,
        "process_limit": processes,
        "max_jobs_per_child": max_jobs_per_child,
    }
    for name, count in counts.items():
        if count is not None and values.whole(count, name) < 1:
            raise errors.UsageError(f"{name} is {count}, it must be at least 1")
    return ExecutorLimits(
        threads=threads,
        processes=processes,
        jobs_per_child=max_jobs_per_child,
        rss_bytes=rss_bytes(max_rss_per_child, "max_rss_per_child"),
        target=target,
    )


def drain_seconds(value: values.Duration) -> float:
    """Return what jobs get to finish at a stop; infinity for as long as they take."""
    return inf if value == inf else values.seconds(value, "drain_timeout")


def rss_bytes(value: int | str | None, name: str) -> int | None:
    """Return the memory that a child process may take, None for any."""
    if value is None:
        return None
    from pydantic import ByteSize, TypeAdapter, ValidationError  # noqa: PLC0415 - few give one

    try:
        size = int(TypeAdapter(ByteSize).validate_python(value))
    except ValidationError:
        size = 0
    if size < 1:
        raise errors.UsageError(
            f'{name} is {value!r:.60}: give a number of bytes, or text such as "500MB"'
        )
    if size < RSS_BYTES_MIN:
        raise errors.UsageError(
            f"{name} is {value!r:.60}, which is {size:,} bytes: a child process takes more before "
            f'its first job, so each would be replaced after one; give text such as "500MB"'
        )
    return size


_log: Final = logging.getLogger("taskq.worker")

#: Interval at which the interpreter switches threads. The default of 5 ms lets one CPU-bound
#: function keep the event loop and the storage thread waiting that long at each step. Next to such
#: a function a busy worker wrote 390 batches a second with 0.5 ms, and 500 with 0.2 ms.
SWITCH_INTERVAL_SECONDS: Final = 0.0002
_raise_in_thread: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class ThreadResult(values.NamedTuple):
    """Result of a function. A future's own exception could not be a StopIteration."""

    value: Any
    error: BaseException | None


class NoThread(Exception):
    """The system has no thread for a job that needs one."""


class _Call:
    """A call, handed to whichever thread is free."""

    __slots__ = ("args", "began", "context", "function", "future", "given_up", "kwargs")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: asyncio.Future[ThreadResult],
    ) -> None:
        self.context: Context = copy_context()
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.future = future
        self.began = False
        self.given_up = False


class ThreadRunner:
    """Runs functions in at most ``limit`` threads, started when needed, and wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._returned: deque[tuple[_Call, ThreadResult]] = deque()
        self._notified = False
        self._pid = os.getpid()
        #: calls handed over and not yet returned
        self.busy = 0
        #: the part of them that nobody waits for any more
        self.given_up = 0

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: timeouts.TimeLimits | None = None,
    ) -> Any:
        """Call the function in a thread, within a copy of this context.

        Cancelling gives up the wait, not the function: it goes on to its end. Time limits count
        from the moment when a thread takes the call.
        """
        if not self._limit:
            raise RuntimeError("the worker has ended: no thread is left to run a sync function")
        watched = None if limits is None else _Watched(function, limits)
        future: asyncio.Future[ThreadResult] = self._loop.create_future()
        if self.busy >= len(self._threads) < self._limit:
            self._start_thread()
        self.busy += 1
        call = _Call(watched or function, args, kwargs, future)
        self._calls.put(call)
        if watched is not None:
            watched.start(future)
        try:
            value, error = await future
        except asyncio.CancelledError:
            self._give_up(call)
            raise
        if watched is not None:
            watched.stop()
            if watched.gave_up:
                self._give_up(call)
        if error is not None:
            raise error
        return value

    def resize(self, limit: int) -> None:
        """Start at most ``limit`` threads; running ones stay."""
        if self._limit:
            self._limit = limit

    def close(self) -> None:
        """Let each thread end after the call that it is in; returns at once. Legal twice."""
        for _ in self._threads:
            self._calls.put(None)
        self._threads = []
        self._limit = 0
        system.wish_turn(self, None)

    def _give_up(self, call: _Call) -> None:
        if isinstance(call.function, _Watched):
            call.function.stop()
        if not call.began or call.given_up:
            return
        call.given_up = True
        self.given_up += 1
        job = call.context.get(hooks.running_job)
        what = "a function" if job is None else f"job {job.id}: {job.task}"
        _log.warning(
            "%s was given up, but its thread cannot be stopped and goes on until it returns "
            "(%d of %d threads are held like this)",
            what,
            self.given_up,
            self._limit or len(self._threads),
        )
        if self.given_up >= self._limit > 0:
            _log.error(
                "all %d threads are held by jobs that were given up: sync jobs wait until one "
                'returns. A task that may hang belongs in a process: runs_in="process"',
                self._limit,
            )

    def _start_thread(self) -> None:
        if not self._threads:
            system.wish_turn(self, SWITCH_INTERVAL_SECONDS)
        name = f"taskq-run-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise NoThread(f"no thread can be started: {error}") from None
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            # A call given up while it waited in line was released, and may run elsewhere by now.
            if call.future.cancelled():
                returned = ThreadResult(None, None)
            else:
                call.began = True
                try:
                    value = call.context.run(call.function, *call.args, **call.kwargs)
                    returned = ThreadResult(value, None)
                except BaseException as error:  # noqa: BLE001 - the job's failure, not the thread's
                    returned = ThreadResult(None, error)
                if os.getpid() != self._pid:
                    call.context.run(guards.end_child)
            self._hand_back(call, returned)
            # An idle thread must not keep the last job's arguments alive.
            del call, returned
            value = None

    def _hand_back(self, call: _Call, returned: ThreadResult) -> None:
        self._returned.append((call, returned))
        if self._notified:
            return
        # Two threads may both come here; the second wake-up then finds nothing, which is harmless.
        self._notified = True
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._returned.clear()

    def _resolve(self) -> None:
        # Cleared before the deque is read, so that what is appended from here on wakes us again.
        self._notified = False
        while self._returned:
            call, returned = self._returned.popleft()
            self.busy -= 1
            self.given_up -= call.given_up
            if not call.future.done():
                call.future.set_result(returned)


class _Watched:
    """A call with limits of time: runs in a thread, while timers of the loop watch it.

    The interpreter raises SoftTimeout in the thread some steps after it was asked to, and by then
    the thread may be at its next job. So either the timer sees that the call is over and asks for
    nothing, or the thread sees that the timer is about to ask, waits for that, and takes it back.
    """

    def __init__(self, function: Callable[..., Any], limits: timeouts.TimeLimits) -> None:
        self.gave_up = False
        self._function = function
        self._told, self._soft = limits
        self._hard = timeouts.left_of(limits.hard)
        self._thread = 0
        self._began = 0.0
        self._asks = self._over = False
        self._asked = threading.Event()
        self._timers: dict[str, Alarm] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        timeouts.tell_deadline(self._hard)
        self._thread = threading.get_ident()
        self._began = monotonic()
        if self._soft is None:
            return self._function(*args, **kwargs)
        finished = value = None
        try:
            try:
                value = self._function(*args, **kwargs)
                finished = True
            finally:
                self._end()
        except SoftTimeout:
            # It may have come in the very last step, when the value was there already.
            if not finished:
                raise
        return value

    def start(self, future: asyncio.Future[ThreadResult]) -> None:
        if self._hard is not None:
            self._arm("hard", self._hard, lambda: self._on_hard(future))
        if self._soft is not None:
            self._arm("soft", self._soft, self._on_soft)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(
        self, name: str, seconds: float, ring: Callable[[], None], wait: float | None = None
    ) -> None:
        def look() -> None:
            # Until a thread takes the call its time has not begun.
            left = self._began + seconds - monotonic() if self._began else seconds
            if left > 0:
                self._arm(name, seconds, ring, left)
            else:
                ring()

        self._timers[name] = Alarm(seconds if wait is None else wait, look)

    def _on_hard(self, future: asyncio.Future[ThreadResult]) -> None:
        if not future.done() and self._told is not None:
            self.gave_up = True
            error = timeouts.too_long(
                self._told, ": it goes on in its thread, which nothing can stop"
            )
            future.set_result(ThreadResult(None, error))

    def _on_soft(self) -> None:
        self._asks = True
        if not self._over:
            _raise_in_thread(ctypes.c_ulong(self._thread), ctypes.py_object(SoftTimeout))
        self._asked.set()

    def _end(self) -> None:
        self._over = True
        if self._asks:
            self._asked.wait()
            _take_back(self._thread)


class _TakenBack(BaseException):
    pass


def _take_back(thread: int) -> None:
    """Let this thread raise nothing that it was asked to raise and has not raised yet.

    Asked for None it would raise nothing either, but the interpreter would go on looking for what
    to raise in all threads, at each call; in Python 3.11 no call under a debugger would ever end.
    """
    try:
        _raise_in_thread(ctypes.c_ulong(thread), ctypes.py_object(_TakenBack))
        for _ in range(1_000):  # it is raised some steps later
            pass
    except _TakenBack:
        pass


class RunPlan(values.NamedTuple):
    """Way in which jobs of a task are run; a slot unpacks it once for each job."""

    decode: Callable[[bytes], Arguments]
    #: takes what ``decode`` gave; its awaitable has the task's value, or an ``RemoteOutcome``
    call: Callable[..., Awaitable[Any]]
    #: a None is a good result, and is written as no bytes at all
    none_is_kept: bool
    #: its results may be compressed, or go to files, or came from another process
    packs: bool
    task: Task[..., Any]


class Children(Protocol):
    """Runner of jobs in child processes: a ``ProcessRunner``, made by the worker when needed."""

    def caller(self, task: Task[..., Any]) -> Callable[[bytes], Awaitable[Any]]: ...
    def resize(self, limits: ExecutorLimits) -> None: ...
    async def leave(self) -> None:
        """Let idle children end by themselves, and kill the others."""

    def close(self) -> None:
        """Kill every child and wait for that, for when the loop turns no more."""


class Executors:
    """The executors of one worker; each starts its threads or processes when they are needed.

    The task chooses: async functions run on the loop and sync ones in threads, unless ``runs_in``
    says otherwise. Cancelling a job's slot ends the call: an async function is cancelled, a child
    process killed, and a thread, which nothing can stop, given up.
    """

    def __init__(
        self,
        limits: ExecutorLimits,
        resources: hooks.Resources,
        make_children: Callable[[], Children],
    ) -> None:
        self.threads = ThreadRunner(asyncio.get_running_loop(), limits.threads)
        self._make_children = make_children
        self._processes: Children | None = None
        self._resources = resources

    @property
    def processes(self) -> Children:
        """Return what runs jobs in child processes; made when first asked for."""
        if self._processes is None:
            self._processes = self._make_children()
        return self._processes

    def plan(self, task: Task[..., Any]) -> RunPlan:
        """Plan how jobs of the task are run."""
        if task.runs_in == "process":
            call = self.processes.caller(task)
            return make_plan(task, call, decode=_undecoded, is_remote=True)
        function, limits = lifespans.bind_resources(task, self._resources), timeouts.limits_of(task)
        if task.is_async and limits is not None:
            function, limits = timeouts.with_limits(function, limits), None
        if not task.runs_in:
            return make_plan(task, function)
        if task.is_async:
            # On a loop of its own it can be cancelled, so that its thread is free again.
            function = _on_own_loop(function)
        run = self.threads.run

        def call_in_thread(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return run(function, args, kwargs, limits)

        call = _awaiting(call_in_thread, limits) if task.may_await else call_in_thread
        return make_plan(task, call)

    def resize(self, limits: ExecutorLimits) -> None:
        self.threads.resize(limits.threads)
        if self._processes is not None:
            self._processes.resize(limits)

    @property
    def lingering(self) -> int:
        return self.threads.busy

    async def leave(self) -> None:
        """Let threads end after their calls, and child processes at once; legal twice."""
        self.threads.close()
        if self._processes is not None:
            await self._processes.leave()

    def close(self) -> None:
        """Do as ``leave``, killing the child processes, for when the loop turns no more."""
        self.threads.close()
        if self._processes is not None:
            self._processes.close()


def make_plan(
    task: Task[..., Any],
    call: Callable[..., Awaitable[Any]],
    *,
    decode: Callable[[bytes], Arguments] | None = None,
    is_remote: bool = False,
) -> RunPlan:
    """Plan the jobs of a task; remote ones run in a process which uses the task's codecs."""
    packs = task.packs_results or is_remote
    return RunPlan(decode or task.decode, call, _keeps_none(task), packs, task)


def _keeps_none(task: Task[..., Any]) -> bool:
    try:
        return task.encode_result(None) is None
    except errors.UsageError:
        return False


def _checking(task: Task[..., Any]) -> Callable[[bytes], Arguments]:
    """Return what refuses a bad payload before it joins a batch, and leaves a good one as it is."""

    def decode(payload: bytes) -> Arguments:
        task.decode(payload)
        return _undecoded(payload)

    return decode


def _undecoded(payload: bytes) -> Arguments:
    return (payload,), {}


def _awaiting(
    call: Callable[..., Awaitable[Any]], limits: timeouts.TimeLimits | None
) -> Callable[..., Awaitable[Any]]:
    """Await on the worker's loop what a plain function around an async one returned."""

    async def call_and_await(*args: Any, **kwargs: Any) -> Any:
        value = await call(*args, **kwargs)
        if not isinstance(value, Awaitable):
            return value

        async def rest() -> Any:
            return await value

        return await (rest() if limits is None else timeouts.with_limits(rest, limits)())

    return call_and_await


def _on_own_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        async def main() -> Any:
            return await function(*args, **kwargs)

        return asyncio.run(main())

    return call


class Plans(dict[str, RunPlan]):
    """Plans by task name, made when a name is first met, and again once its task was replaced.

    ``wraps`` put wrappers around the calls, the innermost first.
    """

    def __init__(
        self,
        tasks: Callable[[], Mapping[str, Task[..., Any]]],
        executors: Executors,
        wraps: Sequence[Callable[[Calling, Task[..., Any]], Calling]] = (),
    ) -> None:
        super().__init__()
        self._wraps = wraps
        #: makes what gathers jobs of a task into batches
        self.batcher: Callable[[Task[..., Any], Calling], Calling] | None = None
        self._tasks = tasks
        self._executors = executors

    def __missing__(self, name: str) -> RunPlan:
        while True:
            task = self._tasks()[name]
            plan = self[name] = self._plan(task)
            # On another thread a cell may have replaced it just now, and forgotten too early.
            if self._tasks()[name] is task:
                return plan

    def _plan(self, task: Task[..., Any]) -> RunPlan:
        try:
            task.check()  # now, so that decode is the real one
            plan = self._executors.plan(task)
        except errors.UsageError as error:
            # Registered since the worker's start, which would have refused it.
            plan = make_plan(task, _refusing(error))
        if task.batch and self.batcher is not None:
            plan = plan._replace(call=self.batcher(task, plan.call))
            if plan.decode is _undecoded:
                plan = plan._replace(decode=_checking(task))
        for wrap in self._wraps:
            plan = plan._replace(call=wrap(plan.call, task))
        if task.keep_log or joblogs.chosen_logging().prints:
            # Even a None is settled with its lines, which only what packs results waits for.
            call = joblogs.with_log(plan.call, task.keep_log)
            plan = plan._replace(call=call, none_is_kept=False, packs=True)
        return plan


def _refusing(error: errors.UsageError) -> Callable[..., Awaitable[Any]]:
    async def call(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    return call
