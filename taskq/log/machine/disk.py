"""The real disk and the real clock; what is called under the lock keeps the GIL (``system``)."""

from __future__ import annotations

import functools
import os
import socket
import time

# The same as in hashlib, which would load OpenSSL: 4 MiB.
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
    """The files of this machine. One instance serves one thread, at a pace of its own."""

    # As ``Disk`` has them; each is asked for every batch, and a call less is worth it.
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
        """A descriptor that no child inherits; a forked one may read on with those for reading."""
        if not write:
            return access.open_file(path)
        return forks.open_unshared(
            access.open_file, path, os.O_RDWR | (os.O_CREAT if create else 0)
        )

    def close(self, descriptor: int) -> None:
        """Give the descriptor back."""
        forks.close_unshared(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file."""
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, size: int) -> None:
        """Set bytes aside; where the system has no call for that, by writing them."""
        if system.allocate(descriptor, size):
            return
        offset = os.fstat(descriptor).st_size
        while offset < size:
            # Noise, since a file system that compresses would set nothing aside for zeros.
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
            return sorted(os.listdir(system.named(path)))  # noqa: PTH208 - names are all that is wanted
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if os.path.lexists(path):
                raise
            return []  # something else has the name of a directory above it

    def identity(self, descriptor: int) -> tuple[int, int]:
        """(device, inode) of an open file."""
        status = self.status(descriptor)
        assert status is not None  # an open file has no name that could be gone
        return status[:2]

    def born_ns(self, descriptor: int) -> int:
        """Return when an open file was made; 0 where neither system nor file system says."""
        return system.born_ns(descriptor)

    def modified_ns(self, path: str) -> int | None:
        """Return when a file was last written; None when it is missing."""
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
        """A number of this boot of this machine; a guess where the system has none."""
        return _boot()

    def has_living_owners(self, path: str) -> bool:
        """Return whether a process of this machine has the log open, so since this boot."""
        from taskq.log.machine import peers  # noqa: PLC0415 - few are asked

        return peers.has_neighbours(Path(path) / "owners")

    def was_restored(self, descriptor: int) -> bool:
        """Return whether a tool that copies wrote the file last, as its times show."""
        return system.was_restored(descriptor)


@functools.cache  # no process outlives its boot
def _boot() -> int:
    mark = system.boot_mark() or _boot_minute()
    return int.from_bytes(blake2b(mark, digest_size=8).digest(), "little")


def _boot_minute() -> bytes:
    """Return boot time by subtraction, to the minute: the clocks are not read at one instant.

    It holds through sleep, and changes when the clock is set: ``has_living_owners`` is for that.
    """
    minute = (SystemClock.wall_ns() - SystemClock.steady_ns()) // _MINUTE_NS
    return f"{minute}{socket.gethostname()}".encode()


class PatientDisk(LocalDisk):
    """The same for threads that hold no lock: while a large file is written, others compute."""

    def write(  # type: ignore[misc]
        self, descriptor: int, data: bytes, offset: int
    ) -> int:
        """Return bytes written, which may be fewer than given."""
        return system.pwrite(descriptor, data, offset)


class SystemClock:
    """The machine's clocks."""

    wall_ns: ClassVar[staticmethod[[], int]] = staticmethod(time.time_ns)
    steady_ns: ClassVar[staticmethod[[], int]] = staticmethod(system.steady_ns)
