"""What an app opens when a worker starts and closes when it ends: ``@app.lifespan``."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from taskq.core.errors import UsageError
from taskq.signature import Signature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from taskq.injection import Resources

    #: An async generator function that yields once, or a function that gives a context manager.
    LifespanFunction: TypeAlias = Callable[
        ..., AsyncIterator[Any] | AbstractAsyncContextManager[Any]
    ]


class Lifespan:
    """One function of an app that opens resources.

    Attributes:
        name: for errors.
        takes_app: whether it wants the app as its argument.
    """

    def __init__(self, function: LifespanFunction) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._signature = Signature(f"the lifespan {self.name}", function)
        self._function: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            self._function = contextlib.asynccontextmanager(function)
        elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"the lifespan {self.name} must be an async generator function: "
                f"async def {self.name}(app): ... yield what tasks share"
            )
        if len(self._signature.names) > 1:
            raise UsageError(
                f"the lifespan {self.name} takes {', '.join(self._signature.names)}: it may take "
                f"the app, and what earlier lifespans yield by Inject[...]"
            )
        self.takes_app = bool(self._signature.names)

    def enter(self, app: object, earlier: Resources) -> AbstractAsyncContextManager[Any]:
        """The context manager, not entered yet.

        Args:
            app: whose lifespan it is.
            earlier: what lifespans before this one yielded; it may take of it by annotation.

        Raises:
            UsageError: what it takes is not there, or it gives no async context manager.
        """
        taken = earlier.arguments(self._signature.task, self._signature.injected)
        manager = self._function(*((app,) if self.takes_app else ()), **taken)
        if not hasattr(manager, "__aenter__"):
            raise UsageError(
                f"the lifespan {self.name} gives {manager!r:.60}, and no async context manager: "
                f"write it as an async generator function that yields once"
            )
        found: AbstractAsyncContextManager[Any] = manager
        return found
