"""Which functions may be tasks, what jobs call them, and where other processes find them."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def check_function(fn: object) -> None:
    """Refuse what cannot be a task.

    Raises:
        UsageError: no function, or a generator.
    """
    if isinstance(fn, str):
        raise UsageError(f"a task must be a function, got {fn!r:.60}: write @app.task(name={fn!r})")
    if isinstance(fn, type) or not callable(fn):
        raise UsageError(f"a task must be a function, got {fn!r:.60}")
    if hasattr(fn, "enqueue") and hasattr(fn, "name"):
        raise UsageError(f"{fn.name} is a task already: decorate the function once")
    given: Any = fn
    owner = given.__self__ if inspect.ismethod(given) else None
    if owner is not None and not isinstance(owner, type):
        raise UsageError(
            f"{type(owner).__qualname__}.{given.__name__} is a method of an object that no "
            f"other process has: write a function that makes the object and calls it"
        )
    _refuse_self(fn)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"{fn!r:.60}: a task returns one value, it cannot be a generator")


def _refuse_self(fn: object) -> None:
    """Refuse a function whose first argument would be an instance: its class's, or the task.

    Raises:
        UsageError: it is one.
    """
    qualified = getattr(fn, "__qualname__", "")
    holder = qualified.rpartition(".")[0]
    if not inspect.isfunction(fn):
        return
    first = fn.__code__.co_varnames[: max(fn.__code__.co_argcount, 0)][:1]
    is_of_class = holder and not holder.endswith("<locals>")
    if first == ("self",) and not is_of_class:
        raise UsageError(
            f"{qualified} takes self, which no worker could give it: leave it out, and call "
            f"current_job() for the job's id, attempt and headers; raise Retry(delay=30) to retry"
        )
    if is_of_class and first in {("self",), ("cls",)}:
        raise UsageError(
            f"{qualified} takes {first[0]}, which no worker could give it: move the function out "
            f"of the class, or leave {first[0]} out and put @staticmethod above @app.task"
        )


def name_of(fn: Callable[..., Any]) -> str:
    """``module.function``, with the module's importable name even for the main script.

    Raises:
        UsageError: the function has no name of its own.
    """
    qualified, module = getattr(fn, "__qualname__", ""), getattr(fn, "__module__", None)
    if not qualified or not module or "<lambda>" in qualified:
        raise UsageError(f"{fn!r:.60} has no name to be found by: give the task name=")
    if module == "__main__":
        module = main_module_name()
    return f"{module}.{qualified.replace('<locals>.', '')}"


def check_importable(fn: Callable[..., Any]) -> None:
    """Refuse a function that a child process could not import: one without a place of its own.

    Raises:
        UsageError: it stands within another function, is a lambda, or was typed at a prompt.
    """
    qualified = getattr(fn, "__qualname__", "")
    module: str = getattr(fn, "__module__", None) or ""
    what = f'runs_in="process": a child process cannot import {qualified or repr(fn)}'
    if not qualified or not module or "<" in qualified:
        raise UsageError(f"{what}, which has no name in a module: move it to a module's top level")
    if module == "__main__" and main_module_name() == "__main__":
        raise UsageError(f"{what}, which stands in no file: put it into a module")


def checked_modules(include: Iterable[str]) -> list[str]:
    """Return the names of modules to be imported later.

    Raises:
        UsageError: a text in place of a list, or a name that no module can have.
    """
    if isinstance(include, str):
        raise UsageError(f"include is one name, {include!r}: write include=[{include!r}]")
    names = list(include)
    for name in names:
        if not _may_be_module(name):
            raise UsageError(
                f"include: {name!r:.60} is no module's name: give it as it is imported, "
                f"such as shop.tasks"
            )
    return names


def _may_be_module(name: object) -> bool:
    return isinstance(name, str) and all(map(str.isidentifier, name.split(".")))


def main_module_name() -> str:
    """Return the name by which another process imports what runs here as ``__main__``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        name: str = spec.name
        return name.removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    # A script on standard input has a name that is no file's.
    return Path(file).stem if file and not file.startswith("<") else "__main__"
