"""The app's middleware: async context managers around each attempt, wherever its task runs.

A worker of an app without any calls its tasks directly, and no job pays for what is not used.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from taskq.app.context import _current
from taskq.core.records import Kind
from taskq_workers.slots.shipping import Ended, error_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from taskq.app.around import Around
    from taskq.calls.signature import Resources

_FAILED: Final = frozenset({int(Kind.RETRIED), int(Kind.DEAD)})


class Surrounded:
    """Puts middleware around calls.

    Args:
        middleware: the first is the outermost.
        entered: what it may take of the lifespans.

    Raises:
        UsageError: it takes what no lifespan yields.
    """

    def __init__(self, middleware: Sequence[Around], entered: Resources) -> None:
        self._all = [(one, one.resources(entered)) for one in middleware]

    def wrap(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same call, all of them entered before it and left after it."""

        async def surrounded(*args: Any, **kwargs: Any) -> Any:
            job = _current.get()
            value: Any = None
            afar: BaseException | None = None
            try:
                async with AsyncExitStack() as stack:
                    for one, resources in self._all:
                        await stack.enter_async_context(one.enter(job, resources))
                    value = await call(*args, **kwargs)
                    afar = _error_afar(value)
                    return _unless(afar, value)
            except BaseException as error:
                if error is afar:
                    return value  # it tells already what comes of the error
                raise

        return surrounded


def _error_afar(value: Any) -> BaseException | None:
    """What the job raised in another process, if it failed there."""
    return error_of(value) if type(value) is Ended and value.kind in _FAILED else None


def _unless(error: BaseException | None, value: Any) -> Any:
    if error is not None:
        raise error
    return value
