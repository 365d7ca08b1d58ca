"""Where something was declared, so that a cell or module that runs again replaces what it made."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from taskq.calls.naming import main_module_name
from taskq.core.values import NamedTuple

_PACKAGE: Final = __name__.partition(".")[0]

T = TypeVar("T")


class Origin(NamedTuple):
    """A place in the source, and the run of it.

    A module that is reloaded, and a cell of a notebook that is run again, are compiled again: their
    code is another object then, even if not a letter of it has changed.

    Attributes:
        module: name of the module, as others import it.
        name: qualified name of the function there, or of the code that declares something.
        file: where it stands.
        line: its line in that file.
        code: what was run when it was declared.
    """

    module: str
    name: str
    file: str
    line: int
    code: weakref.ref[CodeType]

    def is_rerun_of(self, known: Origin) -> bool:
        """Return whether the same function or code of the same module was run anew since.

        Two of one name that one run declares are two: the second one is a mistake.
        """
        is_same = (self.module, self.name) == (known.module, known.name)
        return is_same and self.code() is not known.code()

    def is_line_of(self, known: Origin) -> bool:
        """Return whether both stand in the same line, whatever their module is called by now."""
        return (self.name, self.file, self.line) == (known.name, known.file, known.line)


def origin_of(fn: Callable[..., Any]) -> Origin:
    here = origin_here()
    inner = inspect.unwrap(fn)
    code: CodeType | None = getattr(inner, "__code__", None)
    name: str = getattr(fn, "__qualname__", "")
    if code is None or not name:
        return here._replace(name=repr(fn))
    # Its own module, if that runs: a decorator of the user's may have been called between.
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals is not inner.__globals__:
        frame = frame.f_back
    running = here.code if frame is None else weakref.ref(frame.f_code)
    module = _importable(getattr(fn, "__module__", None) or "")
    return Origin(module, name, code.co_filename, code.co_firstlineno, running)


def origin_here() -> Origin:
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    module, code = _importable(frame.f_globals.get("__name__", "")), frame.f_code
    return Origin(module, code.co_qualname, code.co_filename, frame.f_lineno, weakref.ref(code))


class Declared(list[T]):
    """Keep what an app was given, in order; what is declared anew replaces its old form."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: list[Origin] = []

    def add(self, value: T, origin: Origin) -> None:
        for at, known in enumerate(self._origins):
            if origin.is_rerun_of(known):
                self[at], self._origins[at] = value, origin
                return
        self.append(value)
        self._origins.append(origin)


def _importable(module: str) -> str:
    return main_module_name() if module == "__main__" else module


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == _PACKAGE
