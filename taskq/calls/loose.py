"""Check values without an annotation: does JSON return them unchanged?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from math import isfinite
from types import NoneType
from typing import Any, Final, TypeAlias, cast

from taskq.core.parsing import VALUE_DEPTH_MAX, too_deep
from taskq.core.values import NamedTuple

#: Types whose every value is read back unchanged.
KEPT: Final = frozenset({str, int, bool, NoneType})
_SCALARS: Final = KEPT | {float}
_TEXT: Final = frozenset({str})
_ANY: Final = {"type": "any"}
#: Types whose call makes the same empty value each time.
_CONTAINERS: Final = (list, dict, set, frozenset, tuple)


class Changed(NamedTuple):
    """A part of a value that would be read back as another value, and its path in the value."""

    path: tuple[object, ...]
    part: object


Look: TypeAlias = "Callable[[Any], Changed | None]"


def is_flat(value: object) -> bool:
    """Return whether a list or dict holds only text, whole numbers, truth values and None."""
    kind = type(value)
    if kind is dict:
        inner = cast("dict[object, object]", value)
        return KEPT.issuperset(map(type, inner.values())) and _TEXT.issuperset(map(type, inner))
    return kind is list and KEPT.issuperset(map(type, cast("list[object]", value)))


def find_changed(value: object) -> Changed | None:
    """Return a part of the value that JSON does not return unchanged, None without any.

    JSON has text, numbers, true, false, null, lists, and objects with text as keys. Any other value
    would silently become one of these; it is refused, and the message suggests an annotation.
    """
    for node in _walk(value, KEPT):
        part = node.part
        kind = type(part)
        if kind is dict:
            if not _TEXT.issuperset(map(type, part)):
                return Changed(node.path(), part)
        elif kind is not list and not (kind is float and isfinite(part)) and kind not in KEPT:
            return Changed(node.path(), part)
    return None


class _Node(NamedTuple):
    """A part of a value; its path is only computed when needed."""

    holder: _Node | None
    name: object
    part: Any
    depth: int

    def path(self) -> tuple[object, ...]:
        names, node = [], self
        while node.holder is not None:
            names.append(node.name)
            node = node.holder
        return tuple(reversed(names))


def _walk(value: object, skipped: AbstractSet[object]) -> Iterator[_Node]:
    """Yield the value and its parts at any depth, except parts of the skipped types."""
    left = [_Node(None, None, value, 0)]
    seen: set[int] = set()
    while left:
        node = left.pop()
        yield node
        part, depth = node.part, node.depth + 1
        if isinstance(part, dict):
            kinds = set(map(type, part.values()))
            inner: Iterable[tuple[object, Any]] = part.items()
        elif isinstance(part, list | tuple | AbstractSet):
            kinds, inner = set(map(type, part)), enumerate(part)
        else:
            continue
        if depth > VALUE_DEPTH_MAX:
            raise too_deep(VALUE_DEPTH_MAX)
        # A list that contains itself is refused by its encoder.
        if not kinds <= skipped and id(part) not in seen:
            seen.add(id(part))
            left += [
                _Node(node, n, inside, depth) for n, inside in inner if type(inside) not in skipped
            ]


def find_unreadable(value: object, is_read: Callable[[Any], bool]) -> Changed | None:
    """Return a part of a value without annotation that cannot be read back.

    Args:
        value: a value that is read back by its own type, or as plain JSON.
        is_read: whether a part without a form in JSON is read back by its own type.
    """
    for node in _walk(value, KEPT):
        part = node.part
        if isinstance(part, dict):
            if not _TEXT.issuperset(map(type, part)) and not is_read(dict.fromkeys(part)):
                return Changed(node.path(), part)
        elif isinstance(part, list | tuple | AbstractSet) or type(part) in _SCALARS:
            continue
        elif hasattr(part, "__next__") or not is_read(part):
            return Changed(node.path(), part)
    return None


def find_iterator(value: object) -> Changed | None:
    """Return a part of a value that can be iterated only once, None without any."""
    try:
        for node in _walk(value, KEPT):
            if hasattr(type(node.part), "__next__"):
                return Changed(node.path(), node.part)
    except ValueError:  # too deep: reported later
        pass
    return None


def look_for(schema: Any) -> Look | None:
    """Return a function that finds changed parts in places where a pydantic schema allows any type.

    Return None if each part has a type. Models and dataclasses are skipped: they have a
    configuration of their own.
    """
    make = _LOOKS.get(schema["type"])
    return make and make(schema)


def _look_around(schema: Any) -> Look | None:
    look = look_for(schema["schema"])
    return look and (lambda value: None if value is None else look(value))


def _look_in_list(schema: Any) -> Look | None:
    is_plain = schema["type"] == "list"
    return _look_in(_inner(schema, "items_schema"), is_plain=is_plain, parts=enumerate)


def _look_in_dict(schema: Any) -> Look | None:
    keys = schema.get("keys_schema", _ANY)["type"]
    inner = _inner(schema, "values_schema")
    in_values = _look_in(inner, is_plain=keys in {"any", "str"}, parts=dict.items)
    if keys != "any" or in_values is find_changed:
        return in_values

    def look(value: Any) -> Changed | None:
        if not _TEXT.issuperset(map(type, dict.keys(value))):
            return Changed((), value)
        return in_values and in_values(value)

    return look


def _inner(schema: Any, name: str) -> Look | None:
    return look_for(schema.get(name, _ANY))


def _look_in(
    look: Look | None, *, is_plain: bool, parts: Callable[[Any], Iterable[tuple[object, Any]]]
) -> Look | None:
    if look is None or (look is find_changed and is_plain):
        return look  # a list or dict without item types is searched as a whole
    return lambda value: _first((name, look(part)) for name, part in parts(value))


def _look_in_tuple(schema: Any) -> Look | None:
    looks = [look_for(item) for item in schema["items_schema"]]
    last = looks[-1] if looks else None
    if not any(looks):
        return None

    def look(value: Any) -> Changed | None:
        # In a tuple of any length the last schema applies to all further items.
        of_part = [*looks, *[last] * (len(value) - len(looks))]
        pairs = enumerate(zip(value, of_part, strict=False))
        return _first((name, look_in(part)) for name, (part, look_in) in pairs if look_in)

    return look


def _look_in_fields(schema: Any) -> Look | None:
    looks = {name: look_for(field["schema"]) for name, field in schema["fields"].items()}
    inner = {name: look for name, look in looks.items() if look is not None}
    if not inner:
        return None
    return lambda value: _first((n, look(value[n])) for n, look in inner.items() if n in value)


def _first(looks: Iterable[tuple[object, Changed | None]]) -> Changed | None:
    return next(
        (Changed((name, *changed.path), changed.part) for name, changed in looks if changed), None
    )


#: Functions by the kind of schema.
_LOOKS: Final[dict[str, Callable[[Any], Look | None]]] = {
    "any": lambda _: find_changed,
    **dict.fromkeys(("nullable", "default", "definitions"), _look_around),
    **dict.fromkeys(("list", "set", "frozenset"), _look_in_list),
    "tuple": _look_in_tuple,
    "dict": _look_in_dict,
    "typed-dict": _look_in_fields,
}


# Types that need no comparison, by their schemas in pydantic_core.

#: Keys of a schema that are neither rules nor parts.
_NEUTRAL: Final = frozenset({"type", "metadata"})
_PARTS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(("any", "none", "bool", "int", "float", "str", "bytes"), frozenset()),
    "nullable": frozenset({"schema"}),
    **dict.fromkeys(("list", "set", "frozenset"), frozenset({"items_schema"})),
    "tuple": frozenset({"items_schema", "variadic_item_index"}),
    "dict": frozenset({"keys_schema", "values_schema"}),
}
#: Schemas of JSON's own types.
_OF_JSON: Final = frozenset(
    {"any", "none", "bool", "int", "float", "str", "nullable", "list", "dict"}
)


def is_kept(schema: Any, *, floats: bool, kinds: Iterable[str] = _PARTS) -> bool:
    """Return whether the type alone guarantees that its values are read back unchanged.

    Args:
        schema: pydantic_core's schema of the type.
        floats: whether floats are read back as floats; otherwise whole numbers may replace them.
        kinds: accepted kinds of schemas.
    """
    kind = schema["type"]
    parts = _PARTS.get(kind)
    if parts is None or kind not in kinds or not schema.keys() <= parts | _NEUTRAL:
        return False
    if kind == "float":
        return floats
    if kind == "dict" and schema.get("keys_schema", _ANY)["type"] not in {"str", "any"}:
        return False
    inner = [schema[part] for part in parts if isinstance(schema.get(part), dict)]
    inner += schema["items_schema"] if kind == "tuple" else []
    return all(is_kept(part, floats=floats, kinds=kinds) for part in inner)


def is_json(schema: Any) -> bool:
    return is_kept(schema, floats=True, kinds=_OF_JSON)


def may_lose(schema: Any) -> bool:
    """Return whether conversion to the type may cause a loss that ``find_lost`` reports."""
    left: list[object] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            kind = part.get("type")
            if kind == "float" or (kind == "dict" and "keys_schema" in part):
                return True
            if kind not in {"model", "dataclass"}:  # both copy the value
                left += part.values()
        elif isinstance(part, list | tuple):
            left += part
    return False


def has_factory(schema: Any) -> bool:
    """Return whether a function makes a default of the type, perhaps another one at each call."""
    left: list[object] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if part.get("default_factory", list) not in _CONTAINERS:
                return True
            left += [inner for key, inner in part.items() if key not in {"default", "metadata"}]
        elif isinstance(part, list | tuple):
            left += part
    return False


def explain(
    changed: Changed, whole: object, can_be_read: Callable[[type], bool]
) -> tuple[str, str]:
    """Return the fault of a part of a value, and a simple annotation for the value, if any.

    Args:
        changed: the part.
        whole: the value.
        can_be_read: whether a type may be an annotation.
    """
    path, part = changed
    at = f" at {''.join(f'[{name!r}]' for name in path)}" if path else ""
    kind = type(part)
    name, problem = kind.__name__, f"{kind.__name__}{at}"
    key = (
        next((type(key).__name__ for key in part if type(key) is not str), "")
        if isinstance(part, dict)
        else ""
    )
    if key:
        name, problem = f"dict[{key}, …]", f"{key} as a key{at}"
    elif isinstance(part, str | int | float) and not can_be_read(kind):
        base = next(base.__name__ for base in kind.__mro__ if base in _SCALARS)
        return f"{_holds(problem)}: pass {base}(…) of it", ""
    elif not can_be_read(kind):
        return f"cannot be written as JSON: {problem}: {_instead_of(part)}", ""
    problem = _holds(problem)
    if len(path) > 1:
        return f"{problem}: annotate what holds it", ""
    if path and not isinstance(whole, list | dict):
        return f"{problem}: annotate it", ""
    if path:
        name = f"list[{name}]" if isinstance(whole, list) else f"dict[str, {name}]"
    return problem, name


def _holds(part: str) -> str:
    return f"holds {part}, which would come back as something else"


def _instead_of(part: object) -> str:
    if not hasattr(part, "__next__"):
        return "pass a dataclass, a pydantic model or what JSON has"
    return "pass its path, or what is in it" if hasattr(part, "read") else "pass list(…) of it"
