"""Files that are whole and on disk before anybody can see them."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def publish(path: Path, data: bytes) -> None:
    """Make a file that nobody ever sees in part, durably.

    Raises:
        FileExistsError: there is one of that name; it is left as it is.
        OSError: the disk refused; there is no file of that name.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # A link refuses to take the place of another file; a rename would not.
        path.hardlink_to(temporary)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Put on disk what another process or thread wrote to the file."""
    with _opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
