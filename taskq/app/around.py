"""What an app puts around a worker's life, ``@app.lifespan``, and around each attempt.

Both are functions that give an async context manager: what stands above its ``yield`` comes before,
what stands below it comes after, and an error is raised at the ``yield``.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from taskq.calls.signature import Resources, Signature
from taskq.core.errors import UsageError

if TYPE_CHECKING:
    #: An async generator function that yields once, or a function that gives a context manager.
    AroundFunction: TypeAlias = Callable[..., AsyncIterator[Any] | AbstractAsyncContextManager[Any]]


class Around:
    """A function of an app that stands around something.

    Attributes:
        name: for errors, with what it is: "the lifespan database".

    Args:
        kind: "lifespan" or "middleware".
        subject: what it may take as its first argument, for errors: "app" or "job".
        function: as the app's author wrote it.

    Raises:
        UsageError: the function is none of the kinds above, or takes something unknown.
    """

    def __init__(self, kind: str, subject: str, function: AroundFunction) -> None:
        name = getattr(function, "__qualname__", repr(function))
        self.name = f"the {kind} {name}"
        self._signature = Signature(self.name, function)
        self._function: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            self._function = contextlib.asynccontextmanager(function)
        elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(
                f"{self.name} must be an async generator function that yields once: "
                f"async def {name}({subject}): ... yield ..."
            )
        if len(self._signature.names) > 1:
            raise UsageError(
                f"{self.name} takes {', '.join(self._signature.names)}: it may take the {subject}, "
                f"and what lifespans yield by Inject[...]"
            )
        self._takes_subject = bool(self._signature.names)

    def resources(self, entered: Resources) -> dict[str, Any]:
        """Return what it takes of what lifespans have yielded, by parameter.

        Raises:
            UsageError: that is not there.
        """
        return entered.arguments(self._signature.task, self._signature.injected)

    def enter(self, subject: object, resources: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Make the context manager, not entered yet.

        Raises:
            UsageError: the function gives something else.
        """
        manager = self._function(*((subject,) if self._takes_subject else ()), **resources)
        if not hasattr(manager, "__aenter__"):
            raise UsageError(
                f"{self.name} gives {manager!r:.60}, and no async context manager: "
                f"write it as an async generator function that yields once"
            )
        lifespan: AbstractAsyncContextManager[Any] = manager
        return lifespan
