"""Contents of an exception: members of groups, causes, names of classes, text.

Exceptions are users' objects. ``__str__`` may raise anything, even SystemExit; a property may
replace ``__class__``; causes may form a circle. These functions call only ``str()``, catch its
errors, and bound every walk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeGuard, TypeVar

T = TypeVar("T")

#: Members of a group that count, however deeply nested; and exceptions visited to find them.
MEMBERS_MAX: Final = 1_000
_VISITS_MAX: Final = 10_000
#: Links of a chain of causes that count.
CAUSES_MAX: Final = 10
#: Text of an exception whose ``__str__`` raises.
NO_TEXT: Final = "(its message cannot be printed)"

# The interpreter's own descriptors: a subclass may replace the attributes.
_EXCEPTIONS: Final[Any] = vars(BaseExceptionGroup)["exceptions"]
_CAUSE: Final[Any] = vars(BaseException)["__cause__"]
_MODULE: Final[Any] = vars(type)["__module__"]
_QUALNAME: Final[Any] = vars(type)["__qualname__"]


def is_a(error: object, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return whether ``except kinds`` would catch the object. Calls none of the object's code."""
    try:
        return issubclass(type(error), kinds)
    except BaseException:  # noqa: BLE001 - a metaclass of the user's
        return False


def members(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group and its nested groups in order; else the exception alone."""
    if not issubclass(type(error), BaseExceptionGroup):
        return (error,)
    leaves: list[BaseException] = []
    stack, visits = [error], 0
    while stack and len(leaves) < MEMBERS_MAX and visits < _VISITS_MAX:
        visits += 1
        item = stack.pop()
        if issubclass(type(item), BaseExceptionGroup):
            stack += reversed(_EXCEPTIONS.__get__(item))
        else:
            leaves.append(item)
    return tuple(leaves) or (error,)


def failures(error: BaseException) -> tuple[BaseException, ...]:
    """Return the members that caused the failure.

    An ``Exception`` outranks exceptions that end programs, and these outrank cancellations: a group
    cancels its other members when one fails.
    """
    leaves = members(error)
    if len(leaves) == 1:
        return leaves
    own = tuple(item for item in leaves if is_a(item, Exception))
    return own or tuple(item for item in leaves if not is_cancellation(item)) or leaves


def is_cancellation(error: BaseException) -> bool:
    """Return whether the exception only ends its coroutine."""
    module = sys.modules.get("asyncio.exceptions")  # not imported: no such error was raised
    return is_a(error, GeneratorExit if module is None else (GeneratorExit, module.CancelledError))


def generations(error: BaseException) -> Iterator[tuple[BaseException, ...]]:
    """Yield the failures of an error, then the failures of its explicit causes, and so on.

    The exception handled meanwhile (``__context__``) does not count as a cause.
    """
    seen: set[int] = set()
    latest = [error]
    for _ in range(CAUSES_MAX + 1):
        latest = [item for item in latest if id(item) not in seen]
        if not latest:
            return
        seen.update(map(id, latest))
        leaves = [item for part in latest for item in failures(part)][:MEMBERS_MAX]
        yield tuple(leaves)
        causes = map(_CAUSE.__get__, (*latest, *leaves))
        latest = list({id(cause): cause for cause in causes if cause is not None}.values())


def find_error(error: BaseException, *kinds: type[T]) -> T | None:
    """Return the nearest failure of one of these kinds, also in groups and causes.

    Among equally near failures the first kind in ``kinds`` counts.
    """
    if not issubclass(type(error), BaseExceptionGroup):  # the common case, without a list
        for kind in kinds:
            if is_a(error, kind):
                return error
        if _CAUSE.__get__(error) is None:
            return None
    for generation in generations(error):
        for kind in kinds:
            for item in generation:
                if is_a(item, kind):
                    return item
    return None


def causes_in(error: BaseException) -> list[tuple[BaseException, BaseException]]:
    """Return (failure, cause) for each explicit cause: pickle drops causes."""
    pairs = [
        (item, _CAUSE.__get__(item)) for generation in generations(error) for item in generation
    ]
    return [(item, cause) for item, cause in pairs if cause is not None]


def set_causes(pairs: Iterable[tuple[BaseException, BaseException]]) -> None:
    """Set the causes of exceptions again, after unpickling."""
    for item, cause in pairs:
        _CAUSE.__set__(item, cause)


def names_of(kind: type) -> tuple[str, str]:
    """Return (module, qualified name) of a class; module is "" if it is not text."""
    try:
        module = _MODULE.__get__(kind)
        home = str.__str__(module) if is_a(module, str) else ""
    except AttributeError:
        home = ""
    return home, " ".join(str.__str__(_QUALNAME.__get__(kind)).split())


def text_of(error: BaseException) -> str:
    """Return the exception's message; ``NO_TEXT`` if ``__str__`` raises."""
    try:
        return str.__str__(str(error))
    except BaseException:  # noqa: BLE001 - it may have been built to break its reader
        return NO_TEXT
