"""How a worker's process gets memory from the system, and gives it back.

glibc raises the size from which a block is mapped by itself with each such block that is freed, and
gives threads heaps of their own. After the first segment was indexed, columns of megabytes then lie
in the heaps, between small blocks that keep them from shrinking: 4 to 6 MiB more for ever.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

#: Blocks from this size on are mapped each by itself, and given back when freed.
MAP_BYTES_MIN: Final = 64 * 1024
#: Free memory at the end of a heap that is given back.
TRIM_BYTES_MIN: Final = 128 * 1024
#: Parameters of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8


def keep_heap_small() -> None:
    """Set the C library up for a process that lives long; nothing where it is not glibc.

    Whoever set ``MALLOC_…`` variables decided for himself.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        library = ctypes.CDLL(None)
        if not hasattr(library, "gnu_get_libc_version"):
            return
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, MAP_BYTES_MIN)
        library.mallopt(_TRIM_THRESHOLD, TRIM_BYTES_MIN)
    except (OSError, AttributeError):
        return
