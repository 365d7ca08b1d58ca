"""Bloom filters over 64-bit keys, in pages: one page answers for a key.

With H(x, c) the lower half of ``x * c`` exclusive-or its upper half, for 32-bit x and c, a key's
lower half l and upper half u become ``f = H(l, 0x9E3779B1) ^ H(u, 0x85EBCA77)``, and that two
numbers: ``H(f, 0xC2B2AE3D) * pages >> 32`` is the key's page, and of ``H(f, 0x27D4EB2F)``, bits 0
to 14 are ``a``, bits 15 to 29 with bit 0 set are ``b``: the key's bits in the page are ``(a + i *
b) mod 32768`` for i = 0 to 3. Bit n is bit ``7 - n % 8`` of byte ``n // 8``. Eleven bits a key and
four of them set: 0.9 % of the keys that are not in it seem to be.

Building sets one byte for each bit, and packs pages by way of ``int(..., 2)``; the keys are mixed
as lanes of one large number. Key by key it took five times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.log.columns import column, packed

if TYPE_CHECKING:
    from array import array

PAGE_SIZE: Final = 4_096
#: Keys that are added in one step.
STEP_KEYS: Final = 4_096
_PAGE_BITS: Final = 8 * PAGE_SIZE
_BITS_A_KEY: Final = 11
_BITS_SET: Final = 4
_LOWER: Final = 0x9E37_79B1
_UPPER: Final = 0x85EB_CA77
_PAGE_FACTOR: Final = 0xC2B2_AE3D
_PLACE_FACTOR: Final = 0x27D4_EB2F
_HALF: Final = 2**32 - 1
_PLACE: Final = _PAGE_BITS - 1
_PLACE_BITS: Final = 15
_ONE: Final = ord("1")


def pages_for(keys: int) -> int:
    """How many pages a filter of so many keys has."""
    return -(-keys * _BITS_A_KEY // _PAGE_BITS)


def mixed(key: int) -> int:
    """A key's 64 bits: the upper half chooses its page, the lower one its places there."""
    return _mix(key, _HALF)


def page_of(word: int, pages: int) -> int:
    """The page of a mixed key."""
    return (word >> 32) * pages >> 32


def page_holds(page: bytes, word: int) -> bool:
    """Whether a mixed key seems to be in its page."""
    place, step = word & _PLACE, (word >> _PLACE_BITS & _PLACE) | 1
    for _ in range(_BITS_SET):
        if not page[place >> 3] & 0x80 >> (place & 7):
            return False
        place = place + step & _PLACE
    return True


class BloomBuilder:
    """A filter being filled. Takes 11 bytes a key until it is packed.

    Args:
        keys: how many there will be.
    """

    def __init__(self, keys: int) -> None:
        self.pages = pages_for(keys)
        self._bits = bytearray(b"0") * (self.pages * _PAGE_BITS)

    def add(self, keys: array[int]) -> None:
        """Add keys (u64), at most ``STEP_KEYS`` at a time for a step of about a millisecond."""
        bits, size = self._bits, 8 * len(keys)
        halves, places = _lanes(_HALF, len(keys)), _lanes(_PLACE, len(keys))
        words = _mix(int.from_bytes(packed(keys), "little"), halves)
        start = (words >> 32 & halves) * self.pages >> 32 & halves
        start <<= _PLACE_BITS
        place, step = words & places, (words >> _PLACE_BITS & places) | _lanes(1, len(keys))
        for _ in range(_BITS_SET):
            for bit in column("Q", (start + place).to_bytes(size, "little")):
                bits[bit] = _ONE
            place = place + step & places

    def page(self, number: int) -> bytes:
        """A page as it stands in a file."""
        start = number * _PAGE_BITS
        return int(self._bits[start : start + _PAGE_BITS], 2).to_bytes(PAGE_SIZE, "big")


def _mix(keys: int, halves: int) -> int:
    """Mix keys, one in each lane of 64 bits; ``halves`` has the lower 32 bits of each lane set.

    No product of two halves leaves its lane.
    """
    folded = _fold((keys & halves) * _LOWER, halves)
    uppers = keys >> 32 & halves
    if uppers:
        folded ^= _fold(uppers * _UPPER, halves)
    return _fold(folded * _PAGE_FACTOR, halves) << 32 | _fold(folded * _PLACE_FACTOR, halves)


def _fold(products: int, halves: int) -> int:
    return (products ^ products >> 32) & halves


def _lanes(value: int, count: int) -> int:
    """The value in each of so many lanes of 64 bits."""
    return int.from_bytes(value.to_bytes(8, "little") * count, "little")
