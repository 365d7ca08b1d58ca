"""Shared resources that a task takes by annotation, and how each finds its own.

::

    @app.task
    async def store(row: int, db: Inject[Database] = injected()) -> None: ...

Such a parameter is no part of the call: enqueuing, payloads, keys and validation leave it out, and
the worker fills it in from what the app's lifespans yield. Who calls the function himself gives it.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")


class _Mark:
    """Stands in the annotation of an injected parameter."""

    def __repr__(self) -> str:
        return "injected"


class _NotGiven:
    """The default of an injected parameter: any use of it says what is missing."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            f"{name!r} was asked of an injected parameter, which only workers fill in: "
            f"give it where you call the function yourself"
        )

    def __repr__(self) -> str:
        return "injected()"


_MARK: Final = _Mark()
_NOT_GIVEN: Final = _NotGiven()
#: ``db: Inject[Database]``: the worker gives what a lifespan yields of this type.
Inject: TypeAlias = Annotated[T, _MARK]


def injected() -> Any:
    """The default of an injected parameter, so that type checkers let calls leave it out."""
    return _NOT_GIVEN


def injected_type(hint: Any) -> Any:
    """What a resolved annotation asks to be injected; None if it is an argument like any other."""
    if typing.get_origin(hint) is Annotated and _MARK in hint.__metadata__:
        return hint.__origin__
    return None


class Resources:
    """What the lifespans of one worker yielded, found by type.

    A plain tuple is several resources, anything else is one; None is none.
    """

    def __init__(self, values: Iterable[object] = ()) -> None:
        self._values: list[object] = []
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: object) -> None:
        """Keep what one lifespan yielded."""
        if type(value) is tuple:
            self._values += value
        elif value is not None:
            self._values.append(value)

    def arguments(self, task: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The resource of each parameter.

        Args:
            task: whose parameters they are, for errors.
            wanted: type by parameter name, as ``Signature.injected``.

        Raises:
            UsageError: no resource is of the type, or more than one is.
        """
        return {name: self._find(task, name, kind) for name, kind in wanted.items()}

    def _find(self, task: str, name: str, wanted: Any) -> Any:
        kinds = _members(wanted)
        # The very type goes before its subclasses.
        found = [one for one in self._values if type(one) in kinds]
        found = found or [one for one in self._values if _fits(one, kinds, task, name)]
        if len(found) == 1:
            return found[0]
        what = f"{task}: parameter {name!r} takes {inspect.formatannotation(wanted)}"
        if found:
            raise UsageError(
                f"{what}, and the app's lifespans yield {len(found)} of it ({_listed(found)}): "
                f"give each a type of its own"
            )
        if types.NoneType in kinds:
            return None
        held = f"yield {_listed(self._values)}" if self._values else "yield nothing"
        raise UsageError(f"{what}, but the app's lifespans {held}: yield one in an @app.lifespan")


def _members(wanted: Any) -> tuple[Any, ...]:
    """The classes that will do, of a class, a generic one or a union."""
    origin = typing.get_origin(wanted)
    if origin in {typing.Union, types.UnionType}:
        return tuple(kind for member in typing.get_args(wanted) for kind in _members(member))
    return (origin or wanted,)


def _fits(value: object, kinds: tuple[Any, ...], task: str, name: str) -> bool:
    try:
        return isinstance(value, kinds)
    except TypeError as error:
        raise UsageError(
            f"{task}: parameter {name!r}: resources cannot be told by "
            f"{inspect.formatannotation(kinds[0])} ({error}): "
            f"take a class, or a Protocol that is @runtime_checkable"
        ) from error


def _listed(values: Iterable[object]) -> str:
    return ", ".join(type(value).__qualname__ for value in values)
