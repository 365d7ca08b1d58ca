"""Bind a call's arguments to a function's parameters by name, and back."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping

from taskq.calls import call, habits, naming
from taskq.core import errors, parsing

# Shared resources that a task takes by annotation.
#
# ``async def store(row: int, db: Inject[Database] = injected()) -> None``
#
# Such a parameter is no part of the call: enqueues, payloads, keys and validation leave it out, and
# the worker fills it from the values that the app's lifespans yield. A direct call passes it.

T = typing.TypeVar("T")


class _Mark:
    """Mark in the annotation of an injected parameter."""

    def __repr__(self) -> str:
        return "injected"


class _NotGiven:
    """Default of an injected parameter: any use raises an error that names the resource."""

    __slots__ = ()

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise errors.UsageError(
            f"{name!r} was asked of an injected parameter, which only workers fill in: "
            f"give it where you call the function yourself"
        )

    def __repr__(self) -> str:
        return "injected()"


_MARK: typing.Final = _Mark()
_NOT_GIVEN: typing.Final = _NotGiven()
#: ``db: Inject[Database]``: the worker passes the value of this type that a lifespan yielded.
Inject: typing.TypeAlias = typing.Annotated[T, _MARK]


def injected() -> typing.Any:
    """Return the default of an injected parameter; with it type checkers allow its omission."""
    return _NOT_GIVEN


def injected_type(hint: typing.Any) -> typing.Any:
    """Return the type of an injected parameter from its annotation; None for a plain argument."""
    if typing.get_origin(hint) is typing.Annotated and _MARK in hint.__metadata__:
        return hint.__origin__
    return None


class Resources:
    """Finds the values that the lifespans of one worker yielded, by type.

    A plain tuple is several resources, None is no resource, anything else is one.
    """

    def __init__(self, values: Iterable[object] = ()) -> None:
        self._values: list[object] = []
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: object) -> None:
        """Add the value yielded by a lifespan."""
        if type(value) is tuple:
            self._values += value
        elif value is not None:
            self._values.append(value)

    def arguments(self, task: str, wanted: Mapping[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the resource of each parameter.

        Args:
            task: name of the task, for errors.
            wanted: type by parameter name, as ``Signature.injected``.

        Raises:
            UsageError: no resource, or more than one, is of the type.
        """
        return {name: self._find(task, name, kind) for name, kind in wanted.items()}

    def _find(self, task: str, name: str, wanted: typing.Any) -> typing.Any:
        kinds = _members(wanted)
        # A value of exactly this type is preferred to values of subclasses.
        fitting = [value for value in self._values if type(value) in kinds]
        fitting = fitting or [value for value in self._values if _fits(value, kinds, task, name)]
        if len(fitting) == 1:
            return fitting[0]
        what = f"{task}: parameter {name!r} takes {inspect.formatannotation(wanted)}"
        if fitting:
            raise errors.UsageError(
                f"{what}, and the app's lifespans yield {len(fitting)} of it ({_listed(fitting)}): "
                f"give each a type of its own"
            )
        if types.NoneType in kinds:
            return None
        held = f"yield {_listed(self._values)}" if self._values else "yield nothing"
        raise errors.UsageError(
            f"{what}, but the app's lifespans {held}: yield one in an @app.lifespan"
        )


def _members(wanted: typing.Any) -> tuple[typing.Any, ...]:
    origin = typing.get_origin(wanted)
    if origin in {typing.Union, types.UnionType}:
        return tuple(kind for member in typing.get_args(wanted) for kind in _members(member))
    return (origin or wanted,)


def _fits(value: object, kinds: tuple[typing.Any, ...], task: str, name: str) -> bool:
    try:
        return isinstance(value, kinds)
    except TypeError as error:
        raise errors.UsageError(
            f"{task}: parameter {name!r}: resources cannot be recognized by "
            f"{inspect.formatannotation(kinds[0])} ({error}): "
            f"take a class, or a Protocol that is @runtime_checkable"
        ) from error


def _listed(values: Iterable[object]) -> str:
    return ", ".join(type(value).__qualname__ for value in values)


REST: typing.Final = "*"
KEYWORDS: typing.Final = "**"

_Kind: typing.Final = inspect.Parameter
_FUNCTIONS_KEPT: typing.Final = 256


class Signature:
    """A function's parameters, resolved once.

    Payloads name every argument, so that a task may reorder or add parameters while jobs wait. Two
    keys that no parameter can have hold the rest: ``"*"`` the list of further positional arguments,
    ``"**"`` the further keyword arguments.

    Attributes:
        task: name of the task, for errors.
        names: parameters that take a positional argument, in order.
        plain: every argument can be passed by its name, and there is no ``*args`` or ``**kwargs``.
        defaults: default by name, of parameters with one.
        injected: type by name, of parameters that workers fill in; all other attributes leave
            them out.
    """

    def __init__(self, task: str, function: Callable[..., typing.Any]) -> None:
        self.task = task
        self._function = function
        self._resolved: dict[str, typing.Any] = {}
        self.signature: inspect.Signature
        self.injected: dict[str, typing.Any]
        self.signature, self.injected = self._without_injected(inspect.signature(function))
        parameters = self.signature.parameters.values()
        only = [p.name for p in parameters if p.kind is _Kind.POSITIONAL_ONLY]
        by_keyword = [p.name for p in parameters if p.kind is _Kind.POSITIONAL_OR_KEYWORD]
        self.names: tuple[str, ...] = (*only, *by_keyword)
        self.rest: str = self._variadic(_Kind.VAR_POSITIONAL)
        self.keywords: str = self._variadic(_Kind.VAR_KEYWORD)
        self.plain: bool = not only and not self.rest and not self.keywords
        self.defaults: dict[str, typing.Any] = {
            p.name: p.default for p in parameters if p.default is not p.empty
        }
        self._positional_only = tuple(only)
        self._by_keyword = frozenset(
            (*by_keyword, *(p.name for p in parameters if p.kind is _Kind.KEYWORD_ONLY))
        )

    def bind(
        self, args: tuple[typing.Any, ...], kwargs: dict[str, typing.Any]
    ) -> dict[str, typing.Any]:
        """Return the call's values by name; types and missing values are not checked."""
        values: dict[str, typing.Any] = dict(zip(self.names, args, strict=False))
        further = list(args[len(self.names) :])
        if further:
            if not self.rest:
                raise self._too_many(len(args))
            values[REST] = further
        keywords: dict[str, typing.Any] = {}
        for name, value in kwargs.items():
            if name in self._by_keyword:
                if name in values:
                    raise errors.InvalidCall(self.task, f"parameter {name!r} is given twice")
                values[name] = value
            elif self.keywords:
                keywords[name] = value
            else:
                raise errors.InvalidCall(self.task, self.unknown(name))
        if keywords:
            values[KEYWORDS] = keywords
        return values

    def split(
        self, values: dict[str, typing.Any]
    ) -> tuple[tuple[typing.Any, ...], dict[str, typing.Any]]:
        """Return the arguments of a call from values by name; changes ``values``."""
        further = values.pop(REST, ())
        keywords = values.pop(KEYWORDS, None)
        positional = self.names if further else self._positional_only
        args: list[typing.Any] = []
        for name in positional:
            if name not in values:
                break
            args.append(values.pop(name))
        if len(args) < len(positional) and (further or any(name in values for name in positional)):
            raise errors.InvalidCall(self.task, f"parameter {positional[len(args)]!r} is missing")
        if keywords:
            values.update(keywords)
        return (*args, *further), values

    def arguments_for(
        self, function: Callable[..., typing.Any], values: dict[str, typing.Any]
    ) -> tuple[tuple[typing.Any, ...], dict[str, typing.Any]]:
        """Return the arguments for a function of this function's call, defaults filled in.

        The function gets the parameters that it names; with other names it gets all, in order.
        """
        filled = {**self.defaults, **values}
        asked = _names_asked(function)
        if asked is not None and all(name in filled for name in asked):
            return (), {name: filled[name] for name in asked}
        further, keywords = filled.pop(REST, ()), filled.pop(KEYWORDS, {})
        args = (*(filled.pop(name) for name in self.names), *further)
        return args, {**filled, **keywords}

    def settled(self, raw: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the values by name of a payload whose sender did not know the function."""
        further, keywords = raw.get(REST, []), raw.get(KEYWORDS, {})
        if not isinstance(further, list) or not isinstance(keywords, dict):
            raise errors.InvalidCall(
                self.task, f"{REST!r} must hold a list and {KEYWORDS!r} an object"
            )
        known = {*self._by_keyword, *self._positional_only}
        values = {name: value for name, value in raw.items() if name in known}
        others = {n: v for n, v in raw.items() if n not in known and n not in {REST, KEYWORDS}}
        # If each named parameter has a value, the list holds the arguments after them.
        if any(name not in values for name in self.names):
            for name, value in zip(self.names, further, strict=False):
                if name in values:
                    raise errors.InvalidCall(self.task, f"parameter {name!r} is given twice")
                values[name] = value
            further = further[len(self.names) :]
        if further:
            if not self.rest:
                raise self._too_many(len(self.names) + len(further))
            values[REST] = further
        if keywords or others:
            if not self.keywords:
                raise errors.InvalidCall(
                    self.task, self.unknown(next(iter({**keywords, **others})))
                )
            values[KEYWORDS] = {**keywords, **others}
        return values

    def hints(self) -> dict[str, typing.Any]:
        """Return the resolved annotation of each parameter, ``Any`` without one."""
        for parameter in self.signature.parameters.values():
            if parameter.name not in self._resolved:
                self._resolved[parameter.name] = self._hint(parameter)
        return {name: self._resolved[name] for name in self.signature.parameters}

    def result_hint(self) -> typing.Any:
        """Return the resolved annotation of the result, ``Any`` without one."""
        hint = self.resolve("the result", self.signature.return_annotation)
        return None if hint in {typing.NoReturn, typing.Never} else hint

    def check(self, *, with_result: bool) -> bool:
        """Refuse annotations that no value fits, as far as this is certain without pydantic.

        Returns:
            Whether all annotations can be resolved now.
        """
        for parameter in self.signature.parameters.values():
            naming.check_default(self.task, parameter)
            hint = self._resolved.get(parameter.name)
            if hint is not None:
                naming.check_hint(self.task, f"parameter {parameter.name!r}", hint)
        try:
            result = self.result_hint()
        except errors.UsageError:
            return False
        if with_result:
            naming.check_hint(self.task, "the result", result)
        return all(name in self._resolved for name in self.signature.parameters)

    def resolve(self, what: str, annotation: typing.Any) -> typing.Any:
        """Return the annotation with its names resolved in the function's module and closure."""
        if annotation is inspect.Parameter.empty:
            return typing.Any
        function = naming.innermost(self._function)
        # A closure's cells hold types that the enclosing function defines and this function uses.
        names = getattr(getattr(function, "__code__", None), "co_freevars", ())
        cells = getattr(function, "__closure__", None) or ()
        scope = {n: c.cell_contents for n, c in zip(names, cells, strict=False) if _filled(c)}
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(
                holder, getattr(function, "__globals__", {}), scope, include_extras=True
            )["it"]
        except NameError as error:
            raise errors.UsageError(
                f"{self.task}: the annotation {annotation!r} of {what} cannot be resolved "
                f"({error}). Define or import the type at module level, not in a function or "
                f"under TYPE_CHECKING"
            ) from error
        except (TypeError, SyntaxError) as error:
            raise errors.UsageError(
                f"{self.task}: the annotation {annotation!r} of {what} is no type ({error})"
            ) from error

    def unknown(self, name: str) -> str:
        """Return the error for an unknown keyword, with a similar parameter, if any."""
        if name in self._positional_only:
            return f"parameter {name!r} is positional only: {self.signature}"
        options = call.OptionChanges.__annotations__
        option = name if name in options else habits.same(name, options)
        near = "" if option else parsing.nearest(name, self._by_keyword)
        hint = f" (did you mean {near!r}?)" if near else ""
        problem = f"there is no parameter {name!r}{hint}: {self.signature}"
        if not (option or near):
            option = habits.near_option(name, options)
        if not option:
            return problem
        short = self.task.rpartition(".")[2]
        return f"{problem}. For the option write {short}.options({option}=...).enqueue(...)"

    def _without_injected(
        self, whole: inspect.Signature
    ) -> tuple[inspect.Signature, dict[str, typing.Any]]:
        injected: dict[str, typing.Any] = {}
        parameters = list(whole.parameters.values())
        for parameter in parameters:
            try:
                hint = self._resolved[parameter.name] = self._hint(parameter)
            except errors.UsageError:
                continue  # reported by ``hints``, when the types are needed
            kind = injected_type(hint)
            if kind is not None:
                injected[parameter.name] = kind
        if not injected:
            return whole, injected
        rest = any(parameter.kind is _Kind.VAR_POSITIONAL for parameter in parameters)
        for parameter in parameters:
            if parameter.name in injected and not _by_name_alone(parameter, rest=rest):
                raise errors.UsageError(
                    f"{self.task}: the injected parameter {parameter.name!r} is passed by its "
                    f"name: put it after a *"
                )
        others = [parameter for parameter in parameters if parameter.name not in injected]
        return whole.replace(parameters=others), injected

    def _hint(self, parameter: inspect.Parameter) -> typing.Any:
        return self.resolve(f"parameter {parameter.name!r}", parameter.annotation)

    def _variadic(self, kind: typing.Any) -> str:
        for parameter in self.signature.parameters.values():
            if parameter.kind is kind:
                return parameter.name
        return ""

    def _too_many(self, count: int) -> errors.InvalidCall:
        return errors.InvalidCall(
            self.task,
            f"takes {len(self.names)} positional arguments, {count} were given: {self.signature}",
        )


class NoList(errors.UsageError):
    """A batch function whose parameter or result is no list."""


class BatchSignature(Signature):
    """The parameters of one job of a batch; the function takes a list of such arguments."""

    def __init__(self, task: str, function: Callable[..., typing.Any]) -> None:
        super().__init__(task, function)
        parameters = self.signature.parameters.values()
        if len(self.names) != 1 or len(parameters) != 1 or self.rest or self.keywords:
            raise errors.UsageError(
                f"{task}: a function of batches takes one list, with an item for each job: "
                f"{self.signature}"
            )
        finds: list[Callable[[], typing.Any]] = [self.result_hint]
        finds += [functools.partial(self._hint, parameter) for parameter in parameters]
        for find in finds:
            try:
                find()
            except NoList as error:
                raise errors.UsageError(str(error)) from None
            except errors.UsageError:
                """A name that is defined further down: it is looked up again when needed."""

    def result_hint(self) -> typing.Any:
        """Return the annotation of one job's result."""
        return self._item_of("the result", super().result_hint())

    def _hint(self, parameter: inspect.Parameter) -> typing.Any:
        hint = super()._hint(parameter)
        if injected_type(hint) is not None:
            return hint
        return self._item_of(f"parameter {parameter.name!r}", hint)

    def _item_of(self, what: str, hint: typing.Any) -> typing.Any:
        if hint in {None, types.NoneType, typing.Any}:
            return hint
        if typing.get_origin(hint) in {typing.Union, types.UnionType}:
            kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
            return typing.Optional[self._item_of(what, kinds[0])]  # noqa: UP045 - of a value
        if hint is list:
            return typing.Any
        if typing.get_origin(hint) is not list:
            raise NoList(
                f"{self.task}: {what} of batches is {inspect.formatannotation(hint)}, it must be "
                f"a list, such as list[int]"
            )
        return typing.get_args(hint)[0]


@functools.lru_cache(_FUNCTIONS_KEPT)
def _names_asked(function: Callable[..., typing.Any]) -> tuple[str, ...] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    named = {_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY}
    if any(parameter.kind not in named for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


def _by_name_alone(parameter: inspect.Parameter, *, rest: bool) -> bool:
    if parameter.kind is _Kind.POSITIONAL_OR_KEYWORD:
        return not rest
    return parameter.kind is _Kind.KEYWORD_ONLY


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
