"""Compare a value with its copy read back from JSON."""

from __future__ import annotations

import dataclasses
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from pathlib import PurePath
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from taskq.core.values import NamedTuple

_Triple: TypeAlias = tuple[object, Any, Any]
_Parts: TypeAlias = Callable[[Any, Any], Iterable[_Triple] | None]


#: Types compared by ``==``, if both values have exactly this type.
_EXACT: Final = frozenset(
    {str, int, float, bool, type(None), bytes, datetime, date, timedelta, UUID}
)
#: An annotation of these types converts a value of a subclass to the type itself.
_SCALARS: Final = (str, float, bytes, datetime, date, time, timedelta, Decimal, UUID, PurePath)
_TEXT: Final = frozenset({str})
_MISSING: Final = object()
_KINDS_KEPT: Final = 256

#: Parts of both values that are still to be compared, with their path.
_Pairs: TypeAlias = "list[tuple[tuple[object, ...], Any, Any]]"
_Named: TypeAlias = "Iterable[_Triple]"


class Difference(NamedTuple):
    """A part that was read back as another value, and its path in the whole value."""

    path: tuple[object, ...]
    written: Any
    read: Any


def find_difference(written: object, read: object) -> Difference | None:
    """Return a part of a written value that was not read back; None if all parts were.

    Both values are walked together. JSON bounds the depth of the copy, and so the walk.

    Python's ``==`` is too lenient (1 == True, a derived model's field may be gone) and too strict
    (nan != nan), and a class may define its own ``__eq__``. So models and dataclasses are compared
    by type and fields, containers by type and parts.
    """
    left: _Pairs = [((), written, read)]
    seen: set[tuple[int, int]] = set()  # the value of a private attribute may contain itself
    while left:
        path, written, read = left.pop()
        kind: Any = type(written)
        pairs: _Named | None
        if written is read or (kind in _EXACT and kind is type(read) and written == read):
            continue
        if kind is not type(read) or kind in _EXACT:
            pairs = () if _is_same_scalar(written, read) else None
        elif (id(written), id(read)) in seen:
            continue
        else:
            if kind is not dict and kind is not list:  # values read from JSON cannot be cyclic
                seen.add((id(written), id(read)))
            try:
                pairs = _parts_of(cast("Any", kind))(written, read)
            except Exception:  # noqa: BLE001 - the values' own code may raise anything
                pairs = None
        if pairs is None:
            return Difference(path, written, read)
        left += [
            ((*path, name), a, b)
            for name, a, b in pairs
            if a is not b and (type(a) not in _EXACT or type(a) is not type(b) or a != b)
        ]
    return None


def find_lost(given: object, checked: object) -> Difference | None:
    """Return a part of given arguments that lost something in the conversion to its type.

    Such a part is a whole number that no float can hold, or an entry of a dict whose converted key
    equals the key of another entry.
    """
    left: _Pairs = [((), given, checked)]
    while left:
        path, before, after = left.pop()
        kind = type(after)
        pairs: _Named = ()
        if kind is float and isinstance(before, int) and before != after:
            return Difference(path, before, after)
        if kind is dict and isinstance(before, dict):
            if len(before) > len(after):
                return Difference(path, before, after)
            pairs = _entries(before, after)
        elif (
            kind in {list, tuple} and isinstance(before, list | tuple) and len(before) == len(after)
        ):
            pairs = zip(range(len(before)), before, after, strict=True)
        left += [((*path, name), a, b) for name, a, b in pairs if a is not b]
    return None


def keeps_parts(given: dict[str, Any], checked: dict[str, Any]) -> bool:
    """Return whether each argument and its parts are the objects that the caller passed.

    This is true for most calls, and cheaper to check than ``find_lost``.
    """
    for name, after in checked.items():
        before = given.get(name)
        if before is after:
            continue
        pairs: tuple[Any, Any]
        if isinstance(before, dict) and isinstance(after, dict):
            pairs = before.values(), after.values()
        elif isinstance(before, list) and isinstance(after, list):
            pairs = before, after
        else:
            return False
        if len(before) != len(after) or not all(map(operator.is_, *pairs)):
            return False
    return True


@lru_cache(_KINDS_KEPT)
def _parts_of(kind: Any) -> _Parts:
    """Return a function for the parts of two values of a type; it returns None if they differ."""
    if dataclasses.is_dataclass(kind):
        fields = [field for field in dataclasses.fields(kind) if field.init or field.compare]
        return partial(_of_fields, tuple(field.name for field in fields))
    if hasattr(kind, "__pydantic_fields__"):
        return partial(_of_models, tuple(kind.__pydantic_fields__))
    of_kind = next((parts for base, parts in _PARTS if issubclass(kind, base)), None)
    if of_kind is None:
        of_kind = _of_objects if _has_no_equality(kind) else _of_equals
    return of_kind


def _of_dicts(written: dict[Any, Any], read: dict[Any, Any]) -> _Named | None:
    same = len(written) == len(read) and _rest_of(written) == _rest_of(read)
    return _entries(written, read) if same else None


def _of_lists(written: Any, read: Any) -> _Named | None:
    if len(written) != len(read) or _rest_of(written) != _rest_of(read):
        return None
    return () if _are_exact(written, read) else zip(range(len(written)), written, read, strict=True)


def _of_fields(names: tuple[str, ...], written: Any, read: Any) -> _Named:
    pairs: list[_Triple] = [(name, _field(written, name), _field(read, name)) for name in names]
    mine = getattr(written, "__dict__", {})
    if len(mine) > len(names):
        # Attributes besides the fields; the class has the name of a cached property.
        kind = type(written)
        mine, others = (
            {name: value for name, value in its.items() if not hasattr(kind, name)}
            for its in (mine, read.__dict__)
        )
        kept = kind.__dataclass_fields__
        pairs += [pair for pair in _of_attributes(mine, others) if pair[0] not in kept]
    return pairs


def _of_attributes(mine: dict[str, Any], others: dict[str, Any]) -> Iterator[_Triple]:
    for name in mine.keys() | others.keys():
        value = mine.get(name, _MISSING)
        # A lock or a client has no equality: only its presence is compared.
        if name not in others or not _has_no_equality(type(value)):
            yield name, value, others.get(name, _MISSING)


def _of_models(names: tuple[str, ...], written: Any, read: Any) -> _Named:
    # Reading an attribute may warn that it is deprecated.
    mine, others = written.__dict__, read.__dict__
    pairs: list[_Triple] = [
        (name, mine.get(name, _MISSING), others.get(name, _MISSING)) for name in names
    ]
    mine, others = written.__pydantic_extra__, read.__pydantic_extra__
    if mine or others:
        mine, others = mine or {}, others or {}
        extras = mine.keys() | others.keys()
        pairs += [(n, mine.get(n, _MISSING), others.get(n, _MISSING)) for n in extras]
    mine, others = written.__pydantic_private__, read.__pydantic_private__
    if mine or others:
        pairs += _of_attributes(mine or {}, others or {})
    return pairs


def _of_scalars(written: Any, read: Any) -> _Named | None:
    return () if _is_same_scalar(written, read) else None


def _of_equals(written: Any, read: Any) -> _Named | None:
    # An iterator was used up by the first write.
    return () if not hasattr(written, "__next__") and bool(written == read) else None


def _has_no_equality(kind: Any) -> bool:
    return kind.__eq__ is object.__eq__ and not hasattr(kind, "__next__")


def _of_objects(written: Any, read: Any) -> _Named:
    return [(name, value, _field(read, name)) for name, value in _state(written).items()]


def _are_exact(ones: Any, others: Any) -> bool:
    """Return whether all are of simple types and equal; the common case, checked in C."""
    kinds = list(map(type, ones))
    same = _EXACT.issuperset(kinds) and kinds == list(map(type, others))
    return same and all(map(operator.eq, ones, others))


def _entries(written: dict[Any, Any], read: dict[Any, Any]) -> _Named:
    """Pair entries by their keys; by their order, if the keys need a comparison as well."""
    if _TEXT.issuperset(map(type, written)):
        return [(key, value, read.get(key, _MISSING)) for key, value in written.items()]
    pairs = list(zip(written.items(), read.items(), strict=False))
    keys = [(key, key, read_key) for (key, _), (read_key, _) in pairs]
    return keys + [(key, a, b) for (key, a), (_, b) in pairs]


def _field(value: Any, name: str) -> Any:
    return getattr(value, name, _MISSING)


def _state(value: Any) -> dict[str, Any]:
    state = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"}:
                state[name] = _field(value, name)
    return state


def _rest_of(value: Any) -> object:
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:
        return None
    return getattr(value, "maxlen", None), getattr(value, "default_factory", None)


def _of_sets(ones: AbstractSet[Any], others: AbstractSet[Any]) -> _Named | None:
    """Compare sets: equal members must have one type; nan is only counted."""
    nans = [sum(member != member for member in members) for members in (ones, others)]  # noqa: PLR0124
    if len(ones) != len(others) or nans[0] != nans[1]:
        return None
    equals = {member: member for member in others}
    return [(own, own, equals.get(own, _MISSING)) for own in ones if own == own]  # noqa: PLR0124


_PARTS: Final[tuple[tuple[Any, _Parts], ...]] = (
    (dict, _of_dicts),
    ((list, tuple, deque), _of_lists),
    (AbstractSet, _of_sets),
    (_SCALARS, _of_scalars),
)


def _is_same_scalar(written: Any, read: Any) -> bool:
    """Compare scalars of one type, or of a subclass with the annotated type."""
    kind: Any = type(read)
    if not isinstance(read, _SCALARS) or not isinstance(written, kind) or isinstance(written, Enum):
        return False
    try:
        if isinstance(
            written, float | Decimal
        ):  # as text nan equals nan, and 1.10 differs from 1.1
            return bool(kind.__repr__(written) == kind.__repr__(read))
        if isinstance(written, datetime | time):
            return _bare(written) == _bare(cast("Any", read))
        return bool(written == read)
    except Exception:  # noqa: BLE001 - a subclass may bring anything
        return False


def _bare(value: datetime | time) -> tuple[object, ...]:
    has_zone = value.tzinfo is not None
    return value.replace(tzinfo=None, fold=0), value.utcoffset(), has_zone
