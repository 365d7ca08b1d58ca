"""Executor of a batch's steps: this process, or Spark."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import pyarrow as pa

#: Bytes of log that one step of a batch reads.
PART_BYTES: Final = 4 * 1024 * 1024


class StepExecutor(Protocol):
    """Runs the steps of a batch."""

    @property
    def steps(self) -> int: ...

    def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None: ...

    def cancel(self) -> None: ...


class LocalExecutor:
    """Runs one step after the other in this process, and ends none before its time."""

    steps = 2

    def each(self, step: Callable[[Any], None], parts: Sequence[Any]) -> None:
        for part in parts:
            step(part)

    def cancel(self) -> None: ...


def give_back_memory() -> None:
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # where the C library is another than glibc
        ctypes.CDLL(None).malloc_trim(0)
