"""Dataclasses and named tuples that generate their methods at first use, for a fast start.

``dataclasses.dataclass`` and ``typing.NamedTuple`` take up to a millisecond per class to generate
and compile methods. A start loads more than a hundred classes and uses a few. After its first use a
class equals the standard library's. ``typing`` also compiles each annotation of named tuples and
``TypedDict``: here they stay text.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

__all__ = ["NamedTuple", "TypedDict", "dataclass"]

#: Generated attributes of all dataclasses, of comparable ones, and of frozen ones.
_ALL: Final = (
    "__init__", "__repr__", "__match_args__", "__dataclass_fields__", "__dataclass_params__",
)  # fmt: skip
_COMPARED: Final = ("__eq__", "__hash__")
_FROZEN: Final = ("__setattr__", "__delattr__", "__getstate__", "__setstate__")
#: Generated attributes of a named tuple besides its fields.
_OF_TUPLES: Final = (
    "__new__", "__repr__", "__match_args__", "__getnewargs__",
    "_make", "_replace", "_asdict", "_field_defaults",
)  # fmt: skip


class _Later:
    """An attribute that is generated at first access, with others of its class.

    Args:
        write: gets its name, returns it and the attributes generated with it.
    """

    def __init__(self, write: Callable[[str], Mapping[str, Any]]) -> None:
        self._write = write

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        for name, value in self._write(self._name).items():
            if isinstance(vars(self._owner).get(name), _Later):
                setattr(self._owner, name, value)
        return getattr(owner if instance is None else instance, self._name)


def _all_of(made: type) -> Mapping[str, Any]:
    # A copy: the garbage collector empties the class's own dict once the class is unreachable.
    return dict(vars(made))


if not TYPE_CHECKING:  # type checkers use the standard library's

    def dataclass(
        *, slots: bool, eq: bool = True, frozen: bool = False, **others: bool
    ) -> Callable[[type], type]:
        """Make a dataclass with slots like ``dataclasses.dataclass``, and its methods later."""
        assert slots, "a class without slots would have to be changed in place"
        named = _ALL + _COMPARED * eq + _FROZEN * frozen

        def make(plain: type) -> type:
            kind, bases = type(plain), plain.__bases__
            bare = {k: v for k, v in vars(plain).items() if k not in {"__dict__", "__weakref__"}}
            bare["__qualname__"] = plain.__qualname__

            def write(name: str) -> Mapping[str, Any]:
                import dataclasses  # noqa: PLC0415 - most starts need it later

                # Use a new copy of the class: two threads may be first at the same time.
                own, given = kind(plain.__name__, bases, dict(bare)), {"frozen": frozen, **others}
                if name != "__init__":
                    return _all_of(dataclasses.dataclass(slots=True, eq=eq, **given)(own))
                # Most classes need only ``__init__``, and this is half of the work.
                made = dataclasses.dataclass(eq=False, repr=False, **given)(own)
                return {name: vars(made)[name]}

            hints = plain.__annotations__
            fields = tuple(name for name in hints if not hints[name].startswith("ClassVar"))
            space = {name: bare[name] for name in bare if name not in fields}
            space |= {name: _Later(write) for name in named if name not in bare}
            return kind(plain.__name__, bases, {**space, "__slots__": fields})

        return make

    class _TupleMaker(type):
        """Does for a class statement the work of ``typing.NamedTuple``, later."""

        def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
            assert bases == (NamedTuple,), "a generic one is typing's"
            fields = tuple(space["__annotations__"])
            defaults = [space.pop(field) for field in fields if field in space]

            def write(asked: str) -> Mapping[str, Any]:
                del asked  # all attributes are made together
                module = space["__module__"]
                made = namedtuple(name, fields, defaults=defaults, module=module)  # noqa: PYI024 - typing's compiles each type
                made.__new__.__annotations__ = space["__annotations__"]
                return _all_of(made)

            later = {method: _Later(write) for method in _OF_TUPLES + fields if method not in space}
            return type(name, (tuple,), {**space, **later, "_fields": fields, "__slots__": ()})

    NamedTuple = type.__new__(
        _TupleMaker,
        "NamedTuple",
        (),
        {"__doc__": "``typing.NamedTuple``, whose class is written at first use."},
    )

    class TypedDict(dict[str, Any]):
        """Keeps the keys of a class statement, and their types as written."""

        def __init_subclass__(cls, *, total: bool) -> None:
            del total
            cls.__annotations__ = {**cls.__base__.__annotations__, **cls.__annotations__}
