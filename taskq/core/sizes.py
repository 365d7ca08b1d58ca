"""Sizes as people write them, turned into bytes."""

from __future__ import annotations

import re
from typing import Final, SupportsIndex, TypeAlias

from taskq.core.counts import whole
from taskq.core.errors import UsageError

#: Bytes, or text such as "500MB" (millions) or "2GiB" (powers of two).
Size: TypeAlias = int | str

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (power + 1) for power, letter in enumerate("kmgt")},
}
_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]{0,3})\s*", re.ASCII | re.IGNORECASE)
#: What a file system or a machine's memory may hold.
_BYTES_MAX: Final = 2**63 - 1


def size_bytes(value: Size, what: str = "size") -> int:
    """The size in bytes, above 0.

    Args:
        value: bytes, or text with a unit.
        what: how an error names the value.

    Raises:
        UsageError: not a size, or none that can be.
    """
    size = -1
    given: object = value
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        size = whole(given, what)
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is not None and match[2].lower() in _UNITS:
            size = round(float(match[1]) * _UNITS[match[2].lower()])
    if not 0 < size <= _BYTES_MAX:
        raise UsageError(
            f'{what} is {value!r:.60}: give a number of bytes above 0, or text such as "500MB", '
            f'"1GB" or "2GiB"'
        )
    return size
