"""Remember what a process saw of files that it has looked at."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
#: Files that are remembered at once.
ENTRIES_MAX: Final = 200_000


class Memory(Generic[K, V]):
    """Map keys to values, and forget what was put in longest ago."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._entries_max = entries_max

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
