"""One file of a simulated machine: what reads give, what is on the platter, what is in between."""

from __future__ import annotations

import random
from typing import Final

SECTOR_BYTES: Final = 512
#: Earlier states of an unsynced sector or size that a crash may bring back.
_VERSIONS_MAX: Final = 4
_EVEN: Final = 0.5
_SELDOM: Final = 0.1
#: How much of a file's unsynced data a crash keeps, on average; one of these for each crash.
_SHARES: Final = (0.0, 0.5, 0.9, 1.0)


class File:
    """Bytes with a past.

    Attributes:
        number: of this file and no other of its machine.
        cache: what reads give.
        platter: what a crash leaves, besides those dirty sectors that it keeps.
        dirty: sector -> the states that it had since the last sync, without the latest.
        sizes: of the file since the last sync, without the latest.
        holder: descriptor that holds the file's lock.
        errors: how many syncs of it failed.
        modified_ns: when it was last written or touched.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.cache = bytearray()
        self.platter = bytearray()
        self.dirty: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.holder: int | None = None
        self.errors = 0
        self.modified_ns = 0
        self._kept_modified_ns = 0

    def sector(self, number: int) -> bytes:
        return bytes(self.cache[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])

    def write(self, data: bytes, offset: int) -> None:
        size = len(self.cache)
        if offset > size:
            self._soil(size, offset)
            self.cache += bytes(offset - size)
        self._soil(offset, offset + len(data))
        self.cache[offset : offset + len(data)] = data
        self._note_size(size)

    def truncate(self, size: int) -> None:
        before = len(self.cache)
        self._soil(min(size, before), max(size, before))
        self.cache[size:] = bytes(max(size - before, 0))
        self._note_size(before)

    def _soil(self, start: int, end: int) -> None:
        for number in range(start // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES):
            states = self.dirty.setdefault(number, [])
            states.append(self.sector(number))
            del states[:-_VERSIONS_MAX]

    def _note_size(self, before: int) -> None:
        self.sizes.append(before)
        del self.sizes[:-_VERSIONS_MAX]

    def settle(self) -> None:
        for number in self.dirty:
            self._put(number, self.sector(number))
        self._resize_platter(len(self.cache))
        self.dirty.clear()
        self.sizes.clear()
        self._kept_modified_ns = self.modified_ns

    def lose(self, chance: random.Random) -> None:
        share = chance.choice(_SHARES)
        sizes = [len(self.platter), *self.sizes, len(self.cache)]
        size = chance.choice(sizes) if chance.random() < _EVEN else len(self.cache)
        for number, states in self.dirty.items():
            if chance.random() < share:
                latest = self.sector(number)
                kept = chance.choice(states) if chance.random() < _SELDOM else latest
                if chance.random() < _SELDOM:
                    torn = chance.randrange(SECTOR_BYTES)
                    old = bytes(self.platter[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES])
                    kept = kept[:torn] + old.ljust(SECTOR_BYTES, b"\0")[torn:]
                self._put(number, kept)
        self._resize_platter(size)
        self.cache = bytearray(self.platter)
        self.dirty.clear()
        self.sizes.clear()
        self.holder = None
        self.modified_ns = self._kept_modified_ns

    def forget_dirty(self, chance: random.Random) -> None:
        for number in self.dirty:
            if chance.random() < _EVEN:
                self._put(number, self.sector(number))
        if chance.random() < _EVEN:
            self._resize_platter(len(self.cache))
        self.dirty.clear()
        self.sizes.clear()
        self.errors += 1

    def _put(self, number: int, data: bytes) -> None:
        start = number * SECTOR_BYTES
        if start > len(self.platter):
            self.platter += bytes(start - len(self.platter))
        self.platter[start : start + len(data)] = data

    def _resize_platter(self, size: int) -> None:
        del self.platter[size:]
        self.platter += bytes(size - len(self.platter))
