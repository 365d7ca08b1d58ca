"""Dataclasses whose methods are written when they are first used: for what a start loads.

To write and compile what ``dataclasses.dataclass`` adds takes up to a millisecond a class, and a
start loads sixty classes to use ten of them. Once written, a class is as if it had made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass

__all__ = ["dataclass"]

#: What is added to every class, to those that are compared, and to those that are frozen.
_ALL: Final = (
    "__init__", "__repr__", "__match_args__", "__dataclass_fields__", "__dataclass_params__",
)  # fmt: skip
_COMPARED: Final = ("__eq__", "__hash__")
_FROZEN: Final = ("__setattr__", "__delattr__", "__getstate__", "__setstate__")


class _Later:
    """An attribute that is written, with all others of its class, when somebody asks for it."""

    def __init__(self, write: Callable[[], type]) -> None:
        self._write = write

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        for name, value in vars(self._write()).items():
            if isinstance(vars(self._owner).get(name), _Later):
                setattr(self._owner, name, value)
        return getattr(owner if instance is None else instance, self._name)


if not TYPE_CHECKING:  # to whom it is the one that it makes up for

    def dataclass(
        *, slots: bool, eq: bool = True, frozen: bool = False, **others: bool
    ) -> Callable[[type], type]:
        """Make a dataclass with slots as ``dataclasses.dataclass`` does, and write it later."""
        assert slots, "a class without slots would have to be changed in place"
        named = _ALL + _COMPARED * eq + _FROZEN * frozen

        def make(plain: type) -> type:
            kind, bases = type(plain), plain.__bases__
            bare = {k: v for k, v in vars(plain).items() if k not in {"__dict__", "__weakref__"}}
            bare["__qualname__"] = plain.__qualname__

            def write() -> type:
                import dataclasses  # noqa: PLC0415 - a millisecond that most starts need not

                # From a copy of its own: two threads may be the first at the same time.
                one = kind(plain.__name__, bases, dict(bare))
                return dataclasses.dataclass(slots=True, eq=eq, frozen=frozen, **others)(one)

            hints = plain.__annotations__
            fields = tuple(name for name in hints if not hints[name].startswith("ClassVar"))
            space = {name: bare[name] for name in bare if name not in fields}
            space |= {name: _Later(write) for name in named if name not in bare}
            return kind(plain.__name__, bases, {**space, "__slots__": fields})

        return make
