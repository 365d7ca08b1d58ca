"""What the functions of steps take and give: how they are called, how their values are kept."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from taskq.calls.serialization import ResultCodec
from taskq.calls.signature import Signature
from taskq.core.errors import TaskqError
from taskq.log.machine.threads import on_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTIONS_KEPT: Final = 512


async def called(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call an async function in this loop, any other in a thread."""
    if is_async_function(fn):
        return await fn(*args, **kwargs)
    value = await on_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


is_async_function: Final = lru_cache(_FUNCTIONS_KEPT)(inspect.iscoroutinefunction)


@lru_cache(_FUNCTIONS_KEPT)
def parameters_of(fn: Callable[..., Any]) -> frozenset[str]:
    """Return the names of what a function takes; empty if that cannot be known."""
    try:
        return frozenset(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return frozenset()


@lru_cache(_FUNCTIONS_KEPT)
def codec_of(fn: Callable[..., Any]) -> ResultCodec:
    """Return what keeps the values that a function returns, and reads them again."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    try:
        signature = Signature(name, fn)
    except (TypeError, ValueError) as error:
        if isinstance(error, TaskqError):
            raise
        signature = Signature(name, _untyped)
    return ResultCodec(signature)


def _untyped() -> Any:
    """Stand for functions that tell nothing of what they return."""
