"""The log's ports to the system: a disk, a clock and peers. Tests pass simulated ones.

Every path is absolute. Errors are ``OSError`` of the operating system.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol


class NotAFile(OSError):
    """Something else is at the path of a file, a pipe or a directory."""


class Disk(Protocol):
    """Files, with only the calls that the log needs."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Return a descriptor that no child inherits; ``create`` makes a missing file."""

    def close(self, descriptor: int) -> None:
        """Close the descriptor; raises nothing, since durable data was synced before."""

    def size(self, descriptor: int) -> int:
        """Return the size of the file."""

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        """Return at most ``count`` bytes from ``offset``; fewer at the end of the file."""

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write at ``offset``; return the bytes written, which may be fewer than given."""

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def allocate(self, descriptor: int, size: int) -> None:
        """Make the file at least ``size`` bytes long, and allocate all of them on the disk."""

    def sync(self, descriptor: int) -> None:
        """Return once the file's data survives a power loss (fdatasync; F_FULLFSYNC on macOS)."""

    def sync_directory(self, path: str) -> None:
        """Return once the directory's entries survive a power loss."""

    def rename(self, source: str, target: str, *, waits: bool = True) -> None:
        """Replace ``target`` in one step; ``waits`` up to a second for programs that hold it."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second, free name on the same device."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; an existing one is no error."""

    def names(self, path: str) -> list[str]:
        """Return sorted names in a directory; empty for a missing one."""

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return (device, inode) of an open file, by which a copy of the file is recognised."""

    def born_ns(self, descriptor: int) -> int:
        """Return the file's creation time, which no tool restores; 0 if the system lacks it."""

    def status(self, path: str) -> tuple[int, int, int] | None:
        """Return (device, inode, size) of a file; None if it is missing."""

    def modified_ns(self, path: str) -> int | None:
        """Return the time of a file's last write in nanoseconds; None if it is missing."""

    def free_bytes(self, path: str) -> int:
        """Return bytes that this process may still write there."""

    def total_bytes(self, path: str) -> int:
        """Return the capacity of the file system in bytes."""

    def files(self, path: str) -> tuple[int, int] | None:
        """Return (files that may still be made, most files); None without a limit."""

    def try_lock(self, descriptor: int) -> bool:
        """Take the exclusive lock of the open file, without waiting."""

    def lock(self, descriptor: int) -> None:
        """Take the lock, waiting in line."""

    def unlock(self, descriptor: int) -> None:
        """Release the lock."""

    def boot_id(self) -> int:
        """Return a 64-bit number of this boot of this machine; a guess if the system has none."""

    def has_living_owners(self, path: str) -> bool:
        """Return whether a process of this machine has the log open, since this boot."""

    def was_restored(self, descriptor: int) -> bool:
        """Return whether a copying tool wrote the file last, according to its times."""


class Clock(Protocol):
    """The two clocks of a log."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970. People set this clock, so it may step."""

    def steady_ns(self) -> int:
        """Return nanoseconds of a clock that never steps and counts suspended time if possible."""


class Peers(Protocol):
    """Processes that share a directory: detect living ones, and wake sleeping ones.

    It raises nothing. An unreachable process counts as alive, and sleepers check by themselves, so
    a lost wake-up costs only time.
    """

    @property
    def owner(self) -> int:
        """Owner number of this process, never 0 and never reused."""

    def alive(self, owner: int) -> bool: ...
    def is_known(self) -> bool: ...
    def forget(self, owner: int) -> None:
        """Remove a dead owner's files, after the last of its claims."""

    def wake(self, interest: int) -> None: ...
    def sleep(self, interest: int, timeout_seconds: float | None) -> bool:
        """Block until poked or woken by a peer; return False after the timeout."""

    def announce(self, interest: int) -> None:
        """Publish the events that this owner will wait for; 0 when it is awake again."""

    def poke(self) -> None:
        """Wake this owner's own ``sleep``; any thread may call it."""

    def close(self) -> None:
        """Leave: the owner is dead afterwards. May be called twice."""


#: Interest bits: a job may have become ready; a job was settled; a record was appended; a cancel of
#: a running job or a change for workers was requested.
INTEREST_READY = 1
INTEREST_OUTCOME = 2
INTEREST_GROWTH = 4
INTEREST_CANCEL = 8


@contextlib.contextmanager
def opened(disk: Disk, path: str, *, create: bool = False, write: bool = True) -> Iterator[int]:
    descriptor = disk.open(path, create=create, write=write)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def read_file(disk: Disk, path: str, bytes_max: int) -> bytes:
    with opened(disk, path, write=False) as descriptor:
        return disk.read(descriptor, bytes_max, 0)


def write_file(disk: Disk, path: str, data: bytes) -> None:
    with opened(disk, path, create=True) as descriptor:
        disk.truncate(descriptor, 0)
        write_all(disk, descriptor, data, 0)
        disk.sync(descriptor)


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace or make a file in one step, durably."""
    write_file(disk, f"{path}.tmp", data)
    disk.rename(f"{path}.tmp", path)
    disk.sync_directory(path.rpartition("/")[0])


def write_all(disk: Disk, descriptor: int, data: bytes, offset: int) -> None:
    """Write all bytes, by several writes if needed.

    Raises:
        OSError: the disk refused; a part may have been written.
    """
    done = disk.write(descriptor, data, offset)
    while done < len(data):
        written = disk.write(descriptor, data[done:], offset + done)
        if not written:
            raise OSError(28, "the disk takes no more bytes")
        done += written
