"""One run of a job with steps: its finished steps, its current step, its waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from functools import cached_property, partial
from types import CodeType, FunctionType
from typing import Any, Final, Never, Self, TypeVar
from weakref import WeakSet

from taskq.app import context, hooks
from taskq.connection.blocking import refuse_in_loop
from taskq.core import errors, exceptions, model, parsing
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.values import NamedTuple
from taskq.log.decide.steps import NewStep
from taskq.log.format.flows import Stepped
from taskq.log.read.flows import InputEnd, look_at_body, look_at_steps
from taskq.log.requests import Item
from taskq.log.segments.bodystore import QUICK_BYTES_MAX
from taskq.log.store.port import LoopPort

_log: Final = logging.getLogger("taskq")
#: A shorter sleep keeps its slot, and is no step.
IN_PLACE_NS: Final = model.SECOND_NS
#: While a task of a run waits, the others have this long after the last step to request another.
_GRACE_SECONDS: Final = 0.01
#: Least turns of the loop in that time.
_GRACE_TURNS: Final = 10
#: Name of the steps that call jobs; numbered like steps that users name.
CALL: Final = "call"
#: Key of the step that is running.
step_here: Final[ContextVar[str]] = ContextVar("taskq_step")
T = TypeVar("T")
#: True while the steps of an ended run are undone.
undoing_here: Final[ContextVar[bool]] = ContextVar("taskq_undoing", default=False)


class Suspended(BaseException):
    """Ends the run of a waiting job; the job runs again later and comes back to the same line.

    ``finally`` and ``async with`` let it pass. A task that catches it and goes on fails.
    """


class Tries(NamedTuple):
    """Failed tries of a step since it last ran out of them."""

    failed: int
    due_ns: int
    began_ns: int


# -- one run of a job ------------------------------------------------------------------------------


class Attempt:
    """The steps of one attempt at a job. Used by one event loop.

    Attributes:
        suspended: the run is over because it waits; its further actions are ignored.
        broken: misuse of waits, which would fail in every other attempt, too.
        unwinding: end of the job once its steps are undone; None if the job goes on.
    """

    def __init__(self, job: context.JobContext, *, in_thread: bool) -> None:
        self.suspended: bool = False
        self.broken: errors.InvalidStep | None = None
        self._in_thread = in_thread
        self._job = job
        self._connection = job.app.connection
        #: compression of its values
        self._packing = self._connection.config.packing(job.queue)
        #: by name and number: finished steps, and the finished steps not requested yet
        self._done: dict[tuple[str, int], Stepped] = {}
        self._unasked: set[tuple[str, int]] = set()
        #: places of steps whose bodies are read on demand
        self._large: set[int] = set()
        self._tries: dict[tuple[str, int], Tries] = {}
        #: by the number of a call: its failed jobs
        self._failed: dict[int, dict[int, InputEnd]] = {}
        #: waits of earlier runs, and of this one
        self._begun: dict[tuple[str, int], Wait] = {}
        self._waits: dict[tuple[str, int], Wait] = {}
        self._waiters: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}
        #: tasks whose wait ended the run
        self._ended: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: form and number of calls of each name
        self._forms: dict[str, Form] = {}
        self._counts: Counter[str] = Counter()
        self._loading, self._versioning = asyncio.Lock(), asyncio.Lock()
        self._had_steps = False
        #: undos with a record in the log
        self._registered: set[tuple[str, int]] = set()
        self.unwinding: dict[str, Any] | None = None
        self._busy = 0
        #: ids of the tasks that requested steps
        self._tasks: set[int] = set()
        #: number of requests and ends of steps; whether a check for the end is scheduled
        self._active, self._looks = 0, False
        self._is_cut = False
        self._time_ns = self._read_at_ns = 0

    @classmethod
    def here(cls, what: str, *, in_thread: bool | None = None) -> Self:
        """Return the attempt at the job that runs here."""
        job = context.running_job.get(None)
        if job is None:
            raise errors.UsageError(
                f"durable.{what}() is for code that runs inside a task: no job runs here"
            )
        if in_thread:
            try:
                refuse_in_loop(f"durable.{what}_sync()", f"await durable.{what}()")
            except errors.UsageError as error:
                raise errors.InvalidStep(str(error)) from None
        if context.is_remote():
            raise errors.InvalidStep(
                f"durable.{what}() writes to the log, which a child process has not open: take "
                f'runs_in="process" from {job.task}, and call what is heavy as a job of its own by '
                f"durable.call()"
            )
        inside = step_here.get("")
        if inside:
            raise errors.InvalidStep(
                f"durable.{what}() was called within step {inside.rpartition(':')[2]}: steps do "
                f"not nest; call it in the task itself"
            )
        here: Self | None = getattr(job, "durable", None)
        if here is None:
            here = job.durable = cls(job, in_thread=asyncio._get_running_loop() is None)
            # Its worker calls ``problem()`` before it takes the result.
            job.packs = True
            job.children = job.children or []
        return here

    def number(self, name: str, form: Form, fn: object = callable) -> int:
        """Count a call of this name."""
        known = self._forms.get(name)
        if known is None:
            try:
                parsing.check_name(f"the name of {_WHAT[form]}", name)
            except errors.UsageError as error:
                raise errors.InvalidStep(str(error)) from None
            if "#" in name:
                raise errors.InvalidStep(
                    f"the name of {_WHAT[form]} is {name!r}: it may hold no '#', which stands "
                    f"before its number"
                )
            if form in _NAMED:
                self._forms[name] = form
        elif known is not form and form in _NAMED:
            raise errors.InvalidStep(
                f"{name!r} is {_WHAT[known]} of job {self._job.id}, and is {_WHAT[form]} here: "
                f"give one of them another name"
            )
        if not callable(fn):
            raise errors.InvalidStep(
                f"step {name!r} takes a function and its arguments, got {fn!r:.60}"
            )
        self._counts[name] += 1
        return self._counts[name]

    # -- the log ----------------------------------------------------------------------------------

    async def _begin(self, form: Form, name: str, number: int) -> Stepped | None:
        """Return the step if it is done."""
        self._check_running()
        if not self._read_at_ns:
            await self._loaded()
        self._active += 1
        if not self._in_thread:
            self._tasks.add(id(asyncio.current_task()))
        done = self._done.get((name, number))
        if done is None:
            await self._stop_if_unwinding()
            return None
        self._unasked.discard((name, number))
        was = Form.EVENT if done.form == Form.TIMEOUT else done.form
        if was != form:
            raise errors.InvalidStep(
                f"step {done.title} of job {self._job.id} was {_WHAT[was]} before, and is "
                f"{_WHAT[form]} now: give it another name"
            )
        return done

    async def _stop_if_unwinding(self) -> None:
        """End a run that has replayed its steps up to its job's failure or cancellation."""
        if self.unwinding is not None and not undoing_here.get():
            await self._wait()

    def _check_running(self) -> None:
        if undoing_here.get():
            return
        if self.broken is not None:
            raise self.broken
        if self.suspended:
            # Its end may still be in progress: in ``finally``, or in tasks of a cancelled group.
            current = None if self._in_thread else asyncio.current_task()
            if current in self._ended and not _is_handled(sys.exc_info()[1]):
                raise self._break(_SWALLOWED.format(self._job.task))
            raise Suspended

    def _break(self, problem: str) -> errors.InvalidStep:
        self.broken = self.broken or errors.InvalidStep(problem)
        return self.broken

    async def _loaded(self) -> None:
        """Read the steps of earlier attempts, once."""
        async with self._loading:
            if not self._read_at_ns:
                await self._load()

    async def _load(self) -> None:
        place, job = 0, self._job.delivery.job
        while True:
            try:
                port = await self._connection.port()
                page = await port.look(partial(look_at_steps, job=job, place=place))
            except errors.LogError as error:
                raise self._cut_off(error) from None
            self._large |= page.large
            for done in page.steps:
                if done.form == Form.FAILED:
                    called = self._done.get((CALL, done.number))
                    if called is not None:
                        self._failed[done.number] = await self._failures(done, called.first)
                elif done.form == Form.TRIED:
                    self._load_try(done)
                elif done.form == Form.UNDO:
                    self._registered.add((done.name, done.number))
                elif done.form == Form.UNDOING:
                    self.unwinding = self.unwinding or json.loads(done.body)
                else:
                    self._done.setdefault((done.name, done.number), done)
            place = page.next_place
            if not place:
                break
        self._unasked = set(self._done)
        self._had_steps = bool(self._done)
        self._begun = {(wait.name, wait.number): wait for wait in page.waits}
        self._time_ns, self._read_at_ns = page.time_ns, self._steady_ns()

    def _load_try(self, done: Stepped) -> None:
        tried, title = json.loads(done.body), (done.name, done.number)
        if tried["due_ns"]:
            before = self._tries.get(title)
            began_ns = done.began_ns if before is None else before.began_ns
            self._tries[title] = Tries(tried["try"], tried["due_ns"], began_ns)
        else:
            self._tries.pop(title, None)

    async def _failures(self, done: Stepped, first: int) -> dict[int, InputEnd]:
        failed = json.loads(await self._unpacked(done))
        return {
            first + at: InputEnd(first + at, model.State(state), reason.encode())
            for at, state, reason in failed
        }

    def now_ns(self) -> int:
        """Return the log's time, which decides whether a wait is over."""
        return self._time_ns + self._steady_ns() - self._read_at_ns

    def _steady_ns(self) -> int:
        store = self._connection.current
        return self._read_at_ns if store is None else store.steady_ns()

    async def _record(
        self,
        form: Form,
        name: str,
        number: int,
        body: bytes = b"null",
        began_ns: int = 0,
        items: tuple[Item, ...] = (),
        signal: int = 0,
        detach: bool = False,
    ) -> Stepped | None:
        """Write the step; on return it is as durable as the app's settings ask for."""
        self._check_running()
        delivery, packing = self._job.delivery, self._packing
        self._busy += 1
        try:
            patiently, stored, flags = self._connection.patiently, body, 0
            if packing is not None or len(body) > QUICK_BYTES_MAX:
                what = f"step {name}#{number} of job {self._job.id}"
                stored, flags = await patiently(
                    lambda _: self._connection.packer.result(body, packing, what)
                )
            new = NewStep(
                delivery, form, name, number, stored, flags, began_ns, items, signal, detach
            )  # fmt: skip
            done = await patiently(lambda port: port.step(new))
        except (errors.StaleDelivery, errors.LogError) as error:
            raise self._cut_off(error) from None
        except errors.CompressionUnavailable:
            raise
        except errors.UsageError as error:
            raise self._about(name, number, error) from error
        finally:
            self._busy -= 1
            self._look_soon()
        if done is not None:
            if form not in _SIDE_FORMS:
                self._done[name, number] = done
            if self._job.app.hooks.steps:
                self._call_hooks(done, began_ns)
        return done

    async def _ready(self) -> None:
        """Wait until the log has room for the record of a step that is about to run."""
        try:
            await self._connection.ready_for_step()
        except errors.LogError as error:
            raise self._cut_off(error) from None

    def _cut_off(self, error: errors.TaskqError) -> Suspended:
        """Mark the run as over: the log failed, or another worker has claimed the job."""
        if not isinstance(error, errors.StaleDelivery):
            _log.warning("job %s stops where it is: %s", self._job.id, error)
        self._is_cut = True
        self._end()
        return Suspended(str(error))

    def _call_hooks(self, done: Stepped, began_ns: int) -> None:
        job, form = self._job, Form(done.form).name.lower()
        seconds = (self.now_ns() - began_ns) / model.SECOND_NS if began_ns else 0.0
        job.app.hooks.call_step_hooks(
            hooks.StepDone(
                job.id, job.task, job.queue, job.attempt, done.name, done.number, form, seconds
            )
        )

    # -- waiting ----------------------------------------------------------------------------------

    async def _reached(self, wait: Wait) -> Wait:
        """Return the wait as first recorded, since its time counts from that record.

        The record is written at once, so that a crash of this attempt does not restart the time.
        """
        title = wait.name, wait.number
        if title not in self._begun:
            if wait.until_ns:
                delivery, packed = self._job.delivery, pack_waits([wait])
                await self._written(lambda port: port.begin_waits(delivery, packed))
            self._begun[title] = wait
        return self._begun[title]

    async def _written(self, send: Callable[[LoopPort], Awaitable[T]]) -> T:
        self._busy += 1
        try:
            return await self._connection.patiently(send)
        except (errors.StaleDelivery, errors.LogError) as error:
            raise self._cut_off(error) from None
        finally:
            self._busy -= 1
            self._look_soon()

    async def _wait(self, *waits: Wait) -> Never:
        """End the run as soon as none of its steps is running.

        A wait that is cancelled before the end is dropped.
        """
        titles = [(wait.name, wait.number) for wait in waits]
        self._waits.update(zip(titles, waits, strict=True))
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        current = asyncio.current_task()
        self._waiters[waiter] = None if self._in_thread else current
        loop.call_soon(self._check_awaited, waiter)
        self._look_soon()
        try:
            await waiter
        except asyncio.CancelledError:
            if not self.suspended:
                for title in titles:
                    self._waits.pop(title, None)
            raise
        finally:
            self._waiters.pop(waiter, None)
        raise AssertionError("a run that waits does not come back")

    def _check_awaited(self, waiter: asyncio.Future[None]) -> bool:
        """Return whether the run can end here; if not, its waiter gets an error."""
        task = self._waiters.get(waiter)
        if waiter.done() or task is None:
            return True
        misuse = misuse_of(task, self._function)
        if misuse is None:
            return True
        error = self._break(f"{self._job.task}: {misuse.problem}")
        callers = [it for it in misuse.futures if it is not None and not it.done()]
        for future in callers or (waiter,):
            future.set_exception(error)
        waiter.cancel()  # its error would never be retrieved
        return False

    @cached_property
    def _function(self) -> CodeType | None:
        task = self._job.app.tasks.get(self._job.task)
        return getattr(inspect.unwrap(task.fn), "__code__", None) if task is not None else None

    def _look_soon(self) -> None:
        self._active += 1
        if self._waiters and not self._busy and not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._look, self._active, 0)

    def _look(self, active: int, turns: int) -> None:
        self._looks = False
        if self._busy or not self._waiters:
            return
        if active != self._active:
            turns = 0
        if len(self._tasks) > 1 and turns < _GRACE_TURNS:  # a finished step may lead to another
            # After a stall the loop runs its other callbacks first.
            self._looks = True
            seconds = _GRACE_SECONDS / _GRACE_TURNS
            asyncio.get_running_loop().call_later(seconds, self._look, self._active, turns + 1)
            return
        if not all(map(self._check_awaited, list(self._waiters))):
            return
        self._end()
        for waiter, task in self._waiters.items():
            if not waiter.done():
                waiter.set_exception(Suspended())
                if task is not None:
                    self._ended.add(task)

    def _end(self) -> None:
        self.suspended = True

    # -- questions of its worker ------------------------------------------------------------------

    def waits_after(self, error: BaseException) -> bytes | None:
        """Return the packed waits of the job if its run ended by waiting; else None."""
        return pack_waits(self._waits.values()) if self.suspended and _is_suspended(error) else None

    def problem(self) -> errors.InvalidStep | None:
        """Return the misuse in a run that returned; None if it ended properly."""
        if self.suspended and self.broken is None:
            return self._break(_SWALLOWED.format(self._job.task))
        if self.broken is not None:
            return self.broken
        if self._unasked and self._job.task not in warned:
            name = min(self._unasked)
            warned.add(self._job.task)
            _log.warning(
                "%s: job %s did not ask for step %s#%d%s: was its code changed meanwhile?",
                self._job.task, self._job.id, *name,
                f" and {len(self._unasked) - 1} more that were done" * (len(self._unasked) > 1)
                or ", which was done",
            )  # fmt: skip
        return None

    # -- values -----------------------------------------------------------------------------------

    def _about(self, name: str, number: int, problem: object) -> errors.InvalidStep:
        return errors.InvalidStep(f"step {name}#{number} of job {self._job.id}: {problem}")

    async def _unpacked(self, done: Stepped) -> bytes:
        body = done.body
        if done.place in self._large:
            look = partial(look_at_body, job=self._job.delivery.job, place=done.place)
            port = await self._connection.port()
            body = await port.look(look)
        if not done.flags:
            return body
        what = f"step {done.title} of job {self._job.id}"
        return await self._connection.packer.unpacked(body, done.flags, what)


_WHAT: Final[dict[int, str]] = {
    Form.STEP: "a step", Form.SLEEP: "a sleep", Form.EVENT: "an event", Form.CALL: "a call of jobs",
    Form.FIRST: "the first of several waits", Form.VERSION: "the version of the code",
    Form.UNDO: "a step that undoes",
}  # fmt: skip
#: Forms that users name, one form for each name. Other forms continue the numbers of a name.
_NAMED: Final = frozenset({Form.STEP, Form.EVENT, Form.UNDO})
#: Forms of records besides the step of the same name and number.
_SIDE_FORMS: Final = frozenset({Form.FAILED, Form.TRIED, Form.UNDO, Form.UNDOING})
_SWALLOWED: Final = (
    "{} caught durable.Suspended and went on: the run was over there, and what it did since counts "
    "for nothing. Catch Exception, not BaseException, or raise it again"
)
#: Tasks and signals whose warning was logged; each is logged once.
warned: Final[set[str | tuple[str, int]]] = set()


def _is_handled(error: BaseException | None) -> bool:
    """Return whether an ``except`` or ``finally`` block handles the end of a run now."""
    while error is not None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit) or _is_suspended(error):
            return True
        error = error.__context__
    return False


def _is_suspended(error: BaseException) -> bool:
    """Return whether an error is only the end of a run that waits."""
    return all(exceptions.is_a(item, Suspended) for item in exceptions.failures(error))


# -- awaits that swallow the end of a run, or limit it without effect ------------------------------
#
# A run ends while it waits, so ``asyncio.timeout()`` around a wait never fires, and
# ``asyncio.wait`` takes the end of the run for a result. Both can be found in the suspended tasks
# and coroutines between the run and the wait.

_FIRST: Final = (
    "write await durable.first(...) for the first of several waits, and await asyncio.gather(...) "
    "or a TaskGroup for all of them"
)
_NEVER_FIRES: Final = (
    "{} around a wait never fires, since the run ends while it waits: write durable.event(..., "
    "timeout=...), or await durable.first(wait, durable.sleep(...))"
)
#: Callbacks of asyncio's functions: the function, the advice, and the variable with the future that
#: the function's caller awaits.
_CALLBACKS: Final = {
    "_wait.<locals>._on_completion": ("asyncio.wait()", _FIRST, "waiter"),
    "as_completed.<locals>._on_completion": ("asyncio.as_completed()", _FIRST, ""),
    # since Python 3.13
    "_AsCompletedIterator._handle_completion": ("asyncio.as_completed()", _FIRST, ""),
    "shield.<locals>._inner_done_callback": (
        "asyncio.shield()",
        "leave it out: a wait goes on where it was, however the run ends",
        "outer",
    ),
}
_GATHER: Final = "gather.<locals>._done_callback"
#: Path of the worker's code, whose limits may end a run.
_WORKERS: Final = "taskq_workers"
_DEPTH_MAX: Final = 100


class Misuse(NamedTuple):
    """A problem, and the futures that also pass the error to the caller."""

    problem: str
    futures: tuple[Any, ...] = ()


def misuse_of(task: asyncio.Task[Any], function: CodeType | None) -> Misuse | None:
    """Return a misuse in a suspended task, or in the tasks and futures that await it.

    ``function`` is the code of the run's own function: limits outside of it belong to its worker.
    """
    future: Any = task
    for _ in range(_DEPTH_MAX):
        if isinstance(future, asyncio.Task):
            limit = _limit_around(future.get_coro(), function)
            if limit:
                return Misuse(_NEVER_FIRES.format(limit))
        for callback, *_ in getattr(future, "_callbacks", None) or ():
            above = _above(callback)
            if isinstance(above, Misuse):
                return above
            if above is not None:
                future = above
                break
        else:
            return None
    return None


def _above(callback: Callable[..., Any]) -> Any:  # noqa: PLR0911 - a case each
    """Return the future that a callback will complete, a Misuse, or None."""
    name = getattr(callback, "__qualname__", "")
    if name == _GATHER:
        variables = _variables(callback)
        outer = variables.get("outer")
        if variables.get("return_exceptions"):
            return Misuse(
                f"asyncio.gather(..., return_exceptions=True) takes the end of the run for a "
                f"result: leave return_exceptions out, or {_FIRST}",
                (outer,),
            )
        return outer
    if name in _CALLBACKS:
        what, instead, waiter = _CALLBACKS[name]
        futures = (_variables(callback).get(waiter),) if waiter else ()
        return Misuse(f"{what} takes the end of the run for a result: {instead}", futures)
    if getattr(getattr(callback, "func", None), "__name__", "") == "_release_waiter":
        return Misuse(_NEVER_FIRES.format("asyncio.wait_for()"))
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):  # it awaits the future or task below it
        return owner
    if owner is None and name.endswith("task_done"):  # a task group of anyio
        group = _variables(callback).get("self")
        return getattr(getattr(group, "cancel_scope", None), "_host_task", None)
    return getattr(owner, "_parent_task", None)


def _variables(function: Callable[..., Any]) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    values: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):  # the cell is empty
            values[name] = cell.cell_contents
    return values


def _limit_around(coroutine: Any, function: CodeType | None) -> str:
    """Return the time limit within a suspended coroutine and its awaited ones; "" if none."""
    limit = ""
    for _ in range(_DEPTH_MAX):
        code = _attribute(coroutine, "code")
        if code is None:  # an object with its own ``__await__``
            below = (it for it in gc.get_referents(coroutine) if inspect.iscoroutine(it))
            coroutine = next(below, None)
        else:
            if code is function:
                limit = ""  # limits outside are middleware's, and may end the run
            if _WORKERS not in code.co_filename and not limit:
                limit = _limit_among(gc.get_referents(coroutine))
                if limit and code is asyncio.wait_for.__code__:  # since Python 3.12
                    limit = "asyncio.wait_for()"
            awaited = _attribute(coroutine, "await")
            if awaited is None and inspect.isgenerator(coroutine):
                awaited = coroutine.gi_yieldfrom or next(
                    (it for it in gc.get_referents(coroutine) if inspect.iscoroutine(it)), None
                )
            coroutine = awaited
        if coroutine is None or isinstance(coroutine, asyncio.Future):
            break
    return limit


def _attribute(coroutine: Any, name: str) -> Any:
    for prefix in ("cr_", "gi_", "ag_"):
        value = getattr(coroutine, prefix + name, None)
        if value is not None:
            return value
    return None


def _limit_among(referents: Iterable[Any]) -> str:
    """Return the time limit whose ``with`` block contains a coroutine: its exit is a referent."""
    all_of_them = [*referents]
    for leave in all_of_them:
        if getattr(leave, "__name__", "") in {"__exit__", "__aexit__"}:
            managers = [getattr(leave, "__self__", None)]
            if isinstance(leave, FunctionType):  # since Python 3.14 the manager is beside it
                managers = [it for it in all_of_them if leave in _exits_of(type(it))]
            if limit := next(filter(None, map(_limit_of, managers)), ""):
                return limit
    return ""


def _exits_of(kind: type) -> tuple[Any, Any]:
    return getattr(kind, "__exit__", None), getattr(kind, "__aexit__", None)


def _limit_of(manager: Any) -> str:
    """Return the common name of a context manager that limits time; "" for any other."""
    kind = type(manager)
    if isinstance(manager, asyncio.Timeout):
        return "asyncio.timeout()" if manager.when() is not None else ""
    if kind.__module__.startswith("anyio") and kind.__name__ == "CancelScope":
        is_set = getattr(manager, "deadline", math.inf) != math.inf
        return "anyio.move_on_after() or fail_after()" if is_set else ""
    if kind.__module__.startswith("async_timeout"):
        return "async_timeout.timeout()" if getattr(manager, "deadline", None) else ""
    generator = getattr(manager, "gen", None)  # made by contextlib
    if generator is not None:
        return _limit_among(gc.get_referents(generator))
    stack = getattr(manager, "_exit_callbacks", None)
    return _limit_among(callback for _, callback in stack) if stack else ""
