"""Files that are whole and on disk before anybody can see them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from taskq_plugins.spark.lake.errors import LakeBusy

if TYPE_CHECKING:
    from pathlib import Path


def sync_file(path: Path) -> None:
    with _opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def publish(path: Path, data: bytes, beside: Path, *, over: bool = False) -> None:
    """Make a file that is whole and on disk before anybody can see it.

    Args:
        path: where it is to be.
        data: what it holds.
        beside: where it is written first; of the same file system.
        over: whether it takes the place of one that is there.

    Raises:
        FileExistsError: there is one.
    """
    beside.parent.mkdir(exist_ok=True)
    try:
        beside.write_bytes(data)
        sync_file(beside)
        (os.replace if over else os.link)(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# One writer at a time.

LOCK: Final = "_lock"
#: The tables as of the last batch that all have, a line of JSON each: they are held against it.
LAST_BATCH: Final = "last_batch.json"
_PID_SIZE_MAX: Final = 20


@contextmanager
def writer_lock(lake: Path) -> Iterator[None]:
    """Hold the lake's lock; it goes with the process, however that ends.

    Raises:
        LakeBusy: another process, or another part of this one, has it.
    """
    path = lake / LOCK
    # Whoever may open it can lock out all writers, or has put something else in its place.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            noted = os.pread(descriptor, _PID_SIZE_MAX, 0).strip()
            raise LakeBusy(lake, int(noted) if noted.isdigit() else 0) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)
