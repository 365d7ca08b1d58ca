"""The real disk and clock; calls under the writer lock keep the GIL (``system``)."""

from __future__ import annotations

import functools
import os
import time

# The same function as in hashlib, without loading OpenSSL (4 MiB).
from _blake2 import blake2b
from pathlib import Path
from typing import ClassVar, Final

from taskq.log.machine import access, forks
from taskq.log.machine.system import system

#: Reads up to this size keep the GIL.
_SMALL_READ: Final = 16 * 1024
_NOISE_BYTES: Final = 64 * 1024
_MINUTE_NS: Final = 60 * 10**9


class LocalDisk(system.Pace):
    """The files of this machine. Each instance serves one thread, with a pace of its own."""

    # As in ``Disk``. Each is called for every batch, so one call less matters.
    size: Final = system.size
    write: Final = system.write_at
    try_lock: Final = system.try_flock
    unlock: Final = system.unflock
    sync: Final = system.sync

    def __init__(self) -> None:
        super().__init__()
        self.read: Final = system.Reader(_SMALL_READ, self).read
        self.status: Final = system.StatusReader(self).status

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Return a descriptor that no child inherits; a forked child may keep read-only ones."""
        if not write:
            return access.open_file(path)
        return forks.open_unshared(
            access.open_file, path, os.O_RDWR | (os.O_CREAT if create else 0)
        )

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        forks.close_unshared(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Allocate bytes; without a system call for that, by writing them."""
        if system.allocate(descriptor, size):
            return
        offset = os.fstat(descriptor).st_size
        while offset < size:
            # Random bytes, since a compressing file system would allocate nothing for zeros.
            noise = os.urandom(min(_NOISE_BYTES, size - offset))
            offset += system.pwrite(descriptor, noise, offset)

    def sync_directory(self, path: str) -> None:
        """Make the directory's entries durable."""
        system.sync_directory(path)

    def rename(self, source: str, target: str, *, waits: bool = True) -> None:
        """Replace ``target`` in one step."""
        system.rename(source, target, waits=waits)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        system.link(source, target)

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        system.remove(path)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        access.make_directory(path)

    def names(self, path: str) -> list[str]:
        """Return sorted names in a directory; empty for a missing one.

        Raises:
            NotADirectoryError: something else has its name.
        """
        try:
            return sorted(os.listdir(system.named(path)))  # noqa: PTH208 - only names are needed
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if os.path.lexists(path):
                raise
            return []  # a directory above it is something else

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return (device, inode) of an open file."""
        status = self.status(descriptor)
        assert status is not None  # an open file cannot be missing
        return status[:2]

    def born_ns(self, descriptor: int) -> int:
        """Return the creation time of an open file; 0 if system or file system lacks it."""
        return system.born_ns(descriptor)

    def modified_ns(self, path: str) -> int | None:
        """Return the time of a file's last write; None if it is missing."""
        try:
            return os.stat(system.named(path)).st_mtime_ns  # noqa: PTH116 - no object for a path that is text
        except FileNotFoundError:
            return None

    def free_bytes(self, path: str) -> int:
        """Return bytes that may still be written."""
        return system.room(path)[0]

    def total_bytes(self, path: str) -> int:
        """Return bytes of the whole file system."""
        return system.room(path)[1]

    def files(self, path: str) -> tuple[int, int] | None:
        """Return (files that may still be made, most files); None without a limit."""
        return system.room(path)[2]

    def lock(self, descriptor: int) -> None:
        """Wait in line for the lock."""
        system.lock(descriptor)

    def boot_id(self) -> int:
        """Return a number of this boot of this machine; a guess if the system has none."""
        return _boot()

    def has_living_owners(self, path: str) -> bool:
        """Return whether a process of this machine has the log open, since this boot."""
        from taskq.log.machine import peers  # noqa: PLC0415 - rarely needed

        return peers.has_neighbours(Path(path) / "owners")

    def was_restored(self, descriptor: int) -> bool:
        """Return whether a copying tool wrote the file last, according to its times."""
        return system.was_restored(descriptor)


@functools.cache  # no process outlives its boot
def _boot() -> int:
    mark = system.boot_mark() or _boot_minute()
    return int.from_bytes(blake2b(mark, digest_size=8).digest(), "little")


def _boot_minute() -> bytes:
    """Return the boot time by subtraction, to the minute, since the clocks are read one by one.

    It counts sleep and changes when the clock is set, so ``has_living_owners`` is used as well.
    """
    minute = (SystemClock.wall_ns() - SystemClock.steady_ns()) // _MINUTE_NS
    return f"{minute}{system.host_name()}".encode()


class PatientDisk(LocalDisk):
    """A disk for threads without a lock: other threads run while it writes a large file."""

    def write(  # type: ignore[misc]
        self, descriptor: int, data: bytes, offset: int
    ) -> int:
        """Return bytes written, which may be fewer than given."""
        return system.pwrite(descriptor, data, offset)


class SystemClock:
    """The machine's clocks."""

    wall_ns: ClassVar[staticmethod[[], int]] = staticmethod(time.time_ns)
    steady_ns: ClassVar[staticmethod[[], int]] = staticmethod(system.steady_ns)
