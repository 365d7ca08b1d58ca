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


#: Any Python process that has imported taskq is larger.
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
    """Return the time for jobs to finish at a stop; infinity for no limit."""
    return inf if value == inf else values.seconds(value, "drain_timeout")


def rss_bytes(value: int | str | None, name: str) -> int | None:
    """Return the most memory of a child process, None for no limit."""
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

#: Interval at which the interpreter switches threads. With the default of 5 ms one CPU-bound
#: function makes the event loop and the storage thread wait that long at each step. Next to such
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
    """A call for any free thread."""

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
        #: calls that have begun or wait, and have not returned
        self.busy = 0
        #: abandoned calls that have not returned
        self.given_up = 0

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limits: timeouts.TimeLimits | None = None,
    ) -> Any:
        """Call the function in a thread, within a copy of this context.

        Cancellation abandons the wait; the function runs to its end. Time limits count from the
        moment when a thread begins the call.
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
        """Start at most ``limit`` threads; running threads are kept."""
        if self._limit:
            self._limit = limit

    def close(self) -> None:
        """Let each thread end after its current call; return immediately. Legal twice."""
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
            # A call abandoned while it waited in line was released, and may run elsewhere by now.
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
        # Two threads may both get here; the second wake-up then finds nothing, which is harmless.
        self._notified = True
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed: no task is waiting
            self._returned.clear()

    def _resolve(self) -> None:
        # Cleared before the deque is read, so that later results wake the loop again.
        self._notified = False
        while self._returned:
            call, returned = self._returned.popleft()
            self.busy -= 1
            self.given_up -= call.given_up
            if not call.future.done():
                call.future.set_result(returned)


class _Watched:
    """A call with time limits: it runs in a thread, while timers of the loop watch it.

    The interpreter raises SoftTimeout in the thread some steps after the request, when the
    thread may have begun its next job. So either the timer sees that the call is over and requests
    nothing, or the thread sees the coming request, waits for it, and withdraws it.
    """

    def __init__(self, function: Callable[..., Any], limits: timeouts.TimeLimits) -> None:
        self.gave_up = False
        self._function = function
        self._timeout, self._soft = limits
        self._hard = timeouts.left_of(limits.hard)
        self._thread = 0
        self._began = 0.0
        self._asks = self._over = False
        self._asked = threading.Event()
        self._timers: dict[str, Alarm] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        timeouts.set_deadline(self._hard)
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
            # Raised in the very last step, when the value already existed.
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
            # The time begins when a thread begins the call.
            left = self._began + seconds - monotonic() if self._began else seconds
            if left > 0:
                self._arm(name, seconds, ring, left)
            else:
                ring()

        self._timers[name] = Alarm(seconds if wait is None else wait, look)

    def _on_hard(self, future: asyncio.Future[ThreadResult]) -> None:
        if not future.done() and self._timeout is not None:
            self.gave_up = True
            error = timeouts.too_long(
                self._timeout, ": it goes on in its thread, which nothing can stop"
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
    """Withdraw an exception that was requested for this thread and not raised yet.

    A request for None would also raise nothing, but the interpreter would then check for exceptions
    in all threads at each call; in Python 3.11 a call under a debugger would never end.
    """
    try:
        _raise_in_thread(ctypes.c_ulong(thread), ctypes.py_object(_TakenBack))
        for _ in range(1_000):  # it is raised some steps later
            pass
    except _TakenBack:
        pass


class RunPlan(values.NamedTuple):
    """Functions that run jobs of a task; a slot unpacks it once for each job."""

    decode: Callable[[bytes], Arguments]
    #: takes the result of ``decode``; its awaitable returns the task's value, or a
    #: ``RemoteOutcome``
    call: Callable[..., Awaitable[Any]]
    #: whether None is a valid result, stored as no bytes at all
    none_is_kept: bool
    #: whether results may be compressed, written to files, or come from another process
    packs: bool
    task: Task[..., Any]


class Children(Protocol):
    """Runs jobs in child processes: a ``ProcessRunner``, which the worker makes when needed."""

    def caller(self, task: Task[..., Any]) -> Callable[[bytes], Awaitable[Any]]: ...
    def resize(self, limits: ExecutorLimits) -> None: ...
    async def leave(self) -> None:
        """Let idle children end by themselves, and kill the others."""

    def close(self) -> None:
        """Kill every child and wait for its end; for use after the loop has stopped."""


class Executors:
    """The executors of one worker; each starts its threads or processes at first use.

    The task chooses: async functions run on the loop and sync ones in threads, unless ``runs_in``
    is set. Cancelling a job's slot ends the call: an async function is cancelled, a child
    process killed, and a thread, which cannot be stopped, abandoned.
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
        """Return the runner of child processes, made at first use."""
        if self._processes is None:
            self._processes = self._make_children()
        return self._processes

    def plan(self, task: Task[..., Any]) -> RunPlan:
        """Return how jobs of the task are run."""
        if task.runs_in == "process":
            call = self.processes.caller(task)
            return make_plan(task, call, decode=_undecoded, is_remote=True)
        function, limits = lifespans.bind_resources(task, self._resources), timeouts.limits_of(task)
        if task.is_async and limits is not None:
            function, limits = timeouts.with_limits(function, limits), None
        if not task.runs_in:
            return make_plan(task, function)
        if task.is_async:
            # On its own loop it can be cancelled, so that its thread is free again.
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
        """Do as ``leave``, but kill the child processes; for use after the loop has stopped."""
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
    """Plan the jobs of a task; remote jobs run in a process with the task's codecs."""
    packs = task.packs_results or is_remote
    return RunPlan(decode or task.decode, call, _keeps_none(task), packs, task)


def _keeps_none(task: Task[..., Any]) -> bool:
    try:
        return task.encode_result(None) is None
    except errors.UsageError:
        return False


def _checking(task: Task[..., Any]) -> Callable[[bytes], Arguments]:
    """Return a decoder that refuses a bad payload before it joins a batch, and keeps a good one."""

    def decode(payload: bytes) -> Arguments:
        task.decode(payload)
        return _undecoded(payload)

    return decode


def _undecoded(payload: bytes) -> Arguments:
    return (payload,), {}


def _awaiting(
    call: Callable[..., Awaitable[Any]], limits: timeouts.TimeLimits | None
) -> Callable[..., Awaitable[Any]]:
    """Await the coroutine of a plain function on the worker's loop."""

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
    """Plans by task name, made at a name's first use, and again after its task was replaced.

    ``wraps`` are wrappers around the calls, the innermost first.
    """

    def __init__(
        self,
        tasks: Callable[[], Mapping[str, Task[..., Any]]],
        executors: Executors,
        wraps: Sequence[Callable[[Calling, Task[..., Any]], Calling]] = (),
    ) -> None:
        super().__init__()
        self._wraps = wraps
        #: makes the call that gathers jobs of a task into batches
        self.batcher: Callable[[Task[..., Any], Calling], Calling] | None = None
        self._tasks = tasks
        self._executors = executors

    def __missing__(self, name: str) -> RunPlan:
        while True:
            task = self._tasks()[name]
            plan = self[name] = self._plan(task)
            # A cell on another thread may have replaced it just now, and cleared the plans too
            # early.
            if self._tasks()[name] is task:
                return plan

    def _plan(self, task: Task[..., Any]) -> RunPlan:
        try:
            task.check()  # now, so that decode is the final function
            plan = self._executors.plan(task)
        except errors.UsageError as error:
            # Registered after the worker's start, which would have refused it.
            plan = make_plan(task, _refusing(error))
        if task.batch and self.batcher is not None:
            plan = plan._replace(call=self.batcher(task, plan.call))
            if plan.decode is _undecoded:
                plan = plan._replace(decode=_checking(task))
        for wrap in self._wraps:
            plan = plan._replace(call=wrap(plan.call, task))
        if task.keep_log or joblogs.chosen_logging().prints:
            # Even a None needs its lines, which are only added where results are packed.
            call = joblogs.with_log(plan.call, task.keep_log)
            plan = plan._replace(call=call, none_is_kept=False, packs=True)
        return plan


def _refusing(error: errors.UsageError) -> Callable[..., Awaitable[Any]]:
    async def call(*_args: Any, **_kwargs: Any) -> Any:
        raise error

    return call
