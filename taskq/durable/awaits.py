"""How a run awaits its waits: what would swallow the end of the run, or limit it in vain.

A run ends while it waits, so ``asyncio.timeout()`` around a wait never fires, and ``asyncio.wait``
takes the end of the run for a result. Both are seen from the tasks and coroutines that stand
between the run and the wait, while they are suspended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import math
from typing import TYPE_CHECKING, Any, Final

from taskq.core.values import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType

_FIRST: Final = (
    "write await durable.first(...) for the first of several waits, and await asyncio.gather(...) "
    "or a TaskGroup for all of them"
)
_LIMIT: Final = (
    "write durable.event(..., timeout=...), or await durable.first(wait, durable.sleep(...))"
)
#: Functions of asyncio that await others by a callback of their own: what to write instead, and
#: the variable of that callback which their caller waits for.
_CALLBACKS: Final = {
    "_wait.<locals>._on_completion": ("asyncio.wait()", _FIRST, "waiter"),
    "as_completed.<locals>._on_completion": ("asyncio.as_completed()", _FIRST, ""),
    "shield.<locals>._inner_done_callback": (
        "asyncio.shield()",
        "leave it out: a wait goes on where it was, whatever ends the run",
        "outer",
    ),
}
_GATHER: Final = "gather.<locals>._done_callback"
#: Where workers stand, whose own limits end a run as they should.
_WORKERS: Final = "taskq_workers"
_DEPTH_MAX: Final = 100


class Misuse(NamedTuple):
    """A problem, and the futures that bring it to the caller besides the wait itself."""

    problem: str
    futures: tuple[Any, ...] = ()


def misuse_of(task: asyncio.Task[Any], function: CodeType | None) -> Misuse | None:
    """Return what is wrong with how a suspended task awaits, and how it is awaited itself.

    ``function`` is the code of the run's own function: limits outside of it are its worker's.
    """
    future: Any = task
    for _ in range(_DEPTH_MAX):
        if isinstance(future, asyncio.Task):
            limit = _limit_around(future.get_coro(), function)
            if limit:
                return Misuse(
                    f"{limit} around a wait never fires, since the run ends while it waits: "
                    f"{_LIMIT}"
                )
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
    """Return the future that stands above a callback of one below, a Misuse, or None."""
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
        return Misuse(
            f"asyncio.wait_for() of a wait never fires, since the run ends while it waits: {_LIMIT}"
        )
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):  # it awaits the one below
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
        with contextlib.suppress(ValueError):  # it is empty
            values[name] = cell.cell_contents
    return values


def _limit_around(coroutine: Any, function: CodeType | None) -> str:
    """Return what limits a suspended coroutine, or those that it awaits; "" if nothing does."""
    limit = ""
    for _ in range(_DEPTH_MAX):
        code = _attribute(coroutine, "code")
        if code is None:  # an object that awaits in its own way
            below = (it for it in gc.get_referents(coroutine) if inspect.iscoroutine(it))
            coroutine = next(below, None)
        else:
            if code is function:
                limit = ""  # what stands outside is middleware, which limits the run
            if _WORKERS not in code.co_filename:
                limit = limit or _limit_among(gc.get_referents(coroutine))
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
    """Return the limit of time whose ``with`` block a coroutine is in: its exit is held there."""
    for referent in referents:
        if getattr(referent, "__name__", "") in {"__exit__", "__aexit__"}:
            limit = _limit_of(getattr(referent, "__self__", None))
            if limit:
                return limit
    return ""


def _limit_of(manager: Any) -> str:
    """Return what people call a context manager that limits a time, "" for another one."""
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
