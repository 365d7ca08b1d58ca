"""Values of which no annotation says anything: they come back from JSON as they went in.

JSON knows text, numbers, true, false, null, lists, and objects with text as keys. Another value
would come back as one of these, and nobody would notice: it is refused with what to write.
"""

from __future__ import annotations

from math import isfinite
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from taskq.core.values import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Types whose every value comes back as it is.
KEPT: Final = frozenset({str, int, bool, NoneType})
_TEXT: Final = frozenset({str})
_ANY: Final = {"type": "any"}


class Changed(NamedTuple):
    """A part of a value that would come back as something else, and where it stands in it."""

    path: tuple[object, ...]
    part: object


Look: TypeAlias = "Callable[[Any], Changed | None]"


def is_flat(value: object) -> bool:
    """Tell whether a list or dict holds nothing but text, whole numbers, truth values and None."""
    kind = type(value)
    if kind is dict:
        inner = cast("dict[object, object]", value)
        return KEPT.issuperset(map(type, inner.values())) and _TEXT.issuperset(map(type, inner))
    return kind is list and KEPT.issuperset(map(type, cast("list[object]", value)))


def find_changed(value: object) -> Changed | None:
    """Return a part of the value that JSON does not give back, None if there is none."""
    left: list[tuple[tuple[object, ...], Any]] = [((), value)]
    seen: set[int] = set()
    while left:
        path, holder = left.pop()
        if isinstance(holder, str | int) or holder is None:
            continue
        if isinstance(holder, float) and isfinite(holder):
            continue
        if isinstance(holder, dict):
            if not all(isinstance(key, str) for key in holder):
                return Changed(path, holder)
            inner: Iterable[tuple[object, Any]] = holder.items()
            kinds = set(map(type, holder.values()))
        elif isinstance(holder, list):
            inner, kinds = enumerate(holder), set(map(type, holder))
        else:
            return Changed(path, holder)
        # A list that holds itself is refused by who writes it.
        if not kinds <= KEPT and id(holder) not in seen:
            seen.add(id(holder))
            left += [((*path, name), part) for name, part in inner if type(part) not in KEPT]
    return None


def find_read_once(value: object) -> Changed | None:
    """Return a part of the value that would be used up by being written."""
    left: list[tuple[tuple[object, ...], Any]] = [((), value)]
    seen: set[int] = set()
    while left:
        path, holder = left.pop()
        if hasattr(holder, "__next__"):
            return Changed(path, holder)
        if isinstance(holder, dict | list | tuple) and id(holder) not in seen:
            seen.add(id(holder))
            pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
            left += [((*path, name), part) for name, part in pairs if type(part) not in KEPT]
    return None


def look_for(schema: Any) -> Look | None:
    """Return what finds a changed part where a schema of pydantic lets anything be.

    None where each part has a type. Models and dataclasses are not looked into: they bring a
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
    look = _inner(schema, "values_schema")
    return _look_in(look, is_plain=keys in {"any", "str"}, parts=dict.items)


def _inner(schema: Any, name: str) -> Look | None:
    return look_for(schema.get(name, _ANY))


def _look_in(
    look: Look | None, *, is_plain: bool, parts: Callable[[Any], Iterable[tuple[object, Any]]]
) -> Look | None:
    if look is None or (look is find_changed and is_plain):
        return look  # a list or a dict is looked through as a whole
    return lambda value: _first((name, look(part)) for name, part in parts(value))


def _look_in_tuple(schema: Any) -> Look | None:
    looks = [look_for(item) for item in schema["items_schema"]]
    last = looks[-1] if looks else None
    if not any(looks):
        return None

    def look(value: Any) -> Changed | None:
        # Of one that may be of any length the last schema is that of all the rest.
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


#: By the kind of a schema.
_LOOKS: Final[dict[str, Callable[[Any], Look | None]]] = {
    "any": lambda _: find_changed,
    **dict.fromkeys(("nullable", "default", "definitions"), _look_around),
    **dict.fromkeys(("list", "set", "frozenset"), _look_in_list),
    "tuple": _look_in_tuple,
    "dict": _look_in_dict,
    "typed-dict": _look_in_fields,
}


def explain(
    changed: Changed, whole: object, can_be_read: Callable[[type], bool]
) -> tuple[str, str]:
    """Return what is wrong with a part of a value, and the annotation for the value, if it is easy.

    Args:
        changed: the part.
        whole: the value.
        can_be_read: tells whether a type may be an annotation.
    """
    path, part = changed
    at = f" at {''.join(f'[{name!r}]' for name in path)}" if path else ""
    kind = type(part)
    name, problem = kind.__name__, f"{kind.__name__}{at}"
    if isinstance(part, dict):
        key = next(type(key) for key in part if not isinstance(key, str)).__name__
        name, problem = f"dict[{key}, …]", f"{key} as a key{at}"
    elif not can_be_read(kind):
        return f"cannot be written as JSON: {problem}: {_instead_of(part)}", ""
    problem = f"holds {problem}, which would come back as something else"
    if len(path) > 1:
        return f"{problem}: annotate what holds it", ""
    if path:
        name = f"list[{name}]" if isinstance(whole, list) else f"dict[str, {name}]"
    return problem, name


def _instead_of(part: object) -> str:
    if not hasattr(part, "__next__"):
        return "pass a dataclass, a pydantic model or what JSON has"
    return "pass its path, or what is in it" if hasattr(part, "read") else "pass list(…) of it"
