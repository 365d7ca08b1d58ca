"""Names of tasks: which functions may be tasks, and the module that another process imports."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
import weakref
from pathlib import Path

from taskq.core.errors import UsageError
from taskq.core.values import NamedTuple

#: Defaults that describe a parameter to another library; Python would pass them as values.
_NO_VALUES: typing.Final = {
    "pydantic.fields.FieldInfo", "pydantic.v1.fields.FieldInfo", "dataclasses.Field",
    "fastapi.params.Depends", "fast_depends.dependencies.model.Dependant",
}  # fmt: skip
#: Types without a form in JSON, and their replacements.
_NO_JSON: typing.Final[dict[typing.Any, str]] = {
    bytearray: "write bytes",
    memoryview: "write bytes",
    range: "write list[int]",
    collections.abc.Callable: "give the name of a function",
    types.FunctionType: "give the name of a function",
    types.CoroutineType: "give what it returns",
    collections.abc.Coroutine: "give what it returns",
    collections.abc.Awaitable: "give what it returns",
    collections.abc.Iterator: "write list",
    collections.abc.Generator: "write list",
    collections.abc.AsyncIterator: "write list",
    collections.abc.AsyncIterable: "write list",
    collections.abc.AsyncGenerator: "write list",
    type: "give the name of a class",
}
_UNPACK: typing.Final = (
    "write the type of each value, such as **options: int, or take one parameter of a TypedDict "
    "from typing_extensions"
)
_TYPED_DICT: typing.Final = (
    "write from typing_extensions import TypedDict, since Python is before 3.12"
)
#: Modules whose classes are not a user's.
_KNOWN: typing.Final = frozenset({"builtins", "typing", "typing_extensions"})
#: Attributes of classes with a JSON form: pydantic, dataclasses, enums and named tuples.
_SCHEMA_MAKERS: typing.Final = (
    "__get_pydantic_core_schema__", "__pydantic_core_schema__", "__get_validators__",
    "__dataclass_fields__", "__members__", "_fields", "__total__",
)  # fmt: skip


def is_async(fn: object) -> bool:
    while isinstance(fn, functools.partial | staticmethod | classmethod):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def may_await(fn: object) -> bool:
    """Return whether a plain function wraps an async one, and may return a coroutine."""
    return not is_async(fn) and is_async(innermost(fn))


def innermost(fn: typing.Any) -> typing.Any:
    """Return the function without its ``partial``s, decorators and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, staticmethod | classmethod) or inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif not inspect.isfunction(fn) and inspect.isfunction(call := type(fn).__call__):
            fn = call
        else:
            return fn


def check_default(task: str, parameter: inspect.Parameter) -> None:
    """Refuse a default that describes the parameter to another library."""
    for kind in type(parameter.default).__mro__:
        if f"{kind.__module__}.{kind.__qualname__}" in _NO_VALUES:
            raise UsageError(
                f"{task}: the default of {parameter.name!r} is {type(parameter.default).__name__}"
                f"(...), which Python would pass as it is: write the value as the default, and "
                f"the rest as in {parameter.name}: Annotated[int, Field(gt=1)] = 3"
            )


def check_hint(task: str, what: str, hint: typing.Any) -> None:
    """Refuse an annotation that certainly has no form in JSON."""
    left = [hint]
    while left:
        part = left.pop()
        remedy = _remedy(part)
        if remedy:
            raise UsageError(
                f"{task}: the annotation {inspect.formatannotation(hint)} of {what} has no form "
                f"in JSON: instead of {inspect.formatannotation(part)} {remedy}"
            )
        # Further parts of an Annotated are no types, and may give the first one a JSON form.
        origin = typing.get_origin(part)
        if origin is not typing.Annotated and origin is not typing.Literal:
            left += typing.get_args(part)


def _remedy(part: typing.Any) -> str:
    """Return the replacement of a type; "" if the type may have a form in JSON."""
    try:
        remedy = _NO_JSON.get(typing.get_origin(part) or part, "")
    except TypeError:  # not hashable
        return ""
    if getattr(typing.get_origin(part), "_name", "") == "Unpack":
        return _UNPACK
    if remedy or not isinstance(part, type) or part.__module__ in _KNOWN:
        return remedy
    meta = type(part)
    if (meta.__module__, meta.__name__) == ("typing", "_TypedDictMeta"):
        return _TYPED_DICT if sys.version_info < (3, 12) else ""
    if any(hasattr(part, name) for name in _SCHEMA_MAKERS) or not all(map(_is_plain, part.__mro__)):
        return ""
    return "write text, a number, a dataclass or a pydantic model"


def _is_plain(kind: type) -> bool:
    """Return whether a class is a user's, or a base that pydantic ignores in a class."""
    root = kind.__module__.partition(".")[0]
    return root in {"builtins", "abc", "typing"} or root not in sys.stdlib_module_names


def check_function(fn: object) -> None:
    """Refuse an object that cannot be a task."""
    if isinstance(fn, str):
        raise UsageError(f"a task must be a function, got {fn!r:.60}: write @app.task(name={fn!r})")
    if isinstance(fn, type) or not callable(fn):
        raise UsageError(f"a task must be a function, got {fn!r:.60}")
    if hasattr(fn, "enqueue") and hasattr(fn, "name"):
        raise UsageError(f"{fn.name} is a task already: decorate the function once")
    given: typing.Any = fn
    owner = given.__self__ if inspect.ismethod(given) else None
    if owner is not None and not isinstance(owner, type):
        raise UsageError(
            f"{type(owner).__qualname__}.{given.__name__} is a method of an object that no "
            f"other process has: write a function that makes the object and calls it"
        )
    _refuse_self(fn)
    if hasattr(fn, "cache_info") and is_async(innermost(fn)):
        raise UsageError(
            f"{fn!r:.60} caches coroutines, and each can be awaited once: leave the cache out"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise UsageError(f"{fn!r:.60}: a task returns one value, it cannot be a generator")


def _refuse_self(fn: object) -> None:
    """Refuse a function whose first argument would be an instance of its class, or the task."""
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


def name_of(fn: collections.abc.Callable[..., typing.Any]) -> str:
    """Return ``module.function``, with the module's importable name even for the main script."""
    qualified, module = getattr(fn, "__qualname__", ""), getattr(fn, "__module__", None)
    if not qualified or not module or "<lambda>" in qualified:
        raise UsageError(f"{fn!r:.60} has no name to be found by: give the task name=")
    if module == "__main__":
        module = main_module_name()
    return f"{module}.{qualified.replace('<locals>.', '')}"


def check_importable(fn: collections.abc.Callable[..., typing.Any]) -> None:
    """Refuse a function that a child process could not import, such as a local function."""
    qualified = getattr(fn, "__qualname__", "")
    module: str = getattr(fn, "__module__", None) or ""
    what = f'runs_in="process": a child process cannot import {qualified or repr(fn)}'
    if not qualified or not module or "<" in qualified:
        raise UsageError(f"{what}, which has no name in a module: move it to a module's top level")
    if module == "__main__" and main_module_name() == "__main__":
        raise UsageError(f"{what}, which stands in no file: put it into a module")


def checked_modules(include: collections.abc.Iterable[str]) -> list[str]:
    """Return the names of modules to import later."""
    if isinstance(include, str):
        raise UsageError(f"include is one name, {include!r}: write include=[{include!r}]")
    if not isinstance(include, collections.abc.Iterable):
        raise UsageError(f"include is {include!r:.60}: give a list of modules' names")
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
    """Return the name under which another process imports this process's ``__main__``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        name: str = spec.name
        return name.removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    # The name of a script on standard input is no file.
    return Path(file).stem if file and not file.startswith("<") else "__main__"


_PACKAGE: typing.Final = __name__.partition(".")[0]

T = typing.TypeVar("T")


class Origin(NamedTuple):
    """A place in the source, and one run of its code.

    A reloaded module and a notebook cell that runs again are compiled again: their code object is
    another one, even if the text has not changed.

    Attributes:
        module: importable name of the module.
        name: qualified name of the function, or of the declaring code.
        file: its file.
        line: its line in that file.
        code: the code object that ran.
    """

    module: str
    name: str
    file: str
    line: int
    code: weakref.ref[types.CodeType]

    def is_rerun_of(self, known: Origin) -> bool:
        """Return whether the same code of the same module has run again since ``known``.

        Two declarations of one name in one run are not reruns: the second is a mistake.
        """
        is_same = (self.module, self.name) == (known.module, known.name)
        return is_same and self.code() is not known.code()

    def is_line_of(self, known: Origin) -> bool:
        """Return whether both are defined on the same line, under any module name."""
        return (self.name, self.file, self.line) == (known.name, known.file, known.line)


def origin_of(fn: collections.abc.Callable[..., typing.Any]) -> Origin:
    here = origin_here()
    inner = inspect.unwrap(fn)
    code: types.CodeType | None = getattr(inner, "__code__", None)
    name: str = getattr(fn, "__qualname__", "")
    if code is None or not name:
        return here._replace(name=repr(fn))
    # The module's own frame, if it is running: a user's decorator may be in between.
    frame: types.FrameType | None = sys._getframe()
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
    """The declarations of an app, in order; a rerun replaces its earlier declaration."""

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


def _is_ours(frame: types.FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == _PACKAGE
