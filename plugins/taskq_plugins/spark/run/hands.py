"""What runs the steps of a batch: this process, or Spark's executors."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Bytes of log that one step of a batch reads.
PART_BYTES: Final = 4 * 1024 * 1024


class Hands(Protocol):
    """Runs the steps of a batch."""

    @property
    def steps(self) -> int:
        """Return about how many steps a batch has: as much is read, folded and held in memory."""
        ...

    def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Run the step for each part."""
        ...

    def cancel(self) -> None:
        """Stop what runs."""
        ...


class Here:
    """Runs one step after the other in this process, and ends none before its time."""

    steps = 2

    def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Run the step for each part."""
        for part in parts:
            step(part)

    def cancel(self) -> None:
        """Let the step end that runs."""


def give_back_memory() -> None:
    """Give the system what is free in Arrow's pool, and in the heaps that each thread has."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # where the C library is another than glibc
        ctypes.CDLL(None).malloc_trim(0)
