"""The real disk and the real clock; what is called under the lock keeps the GIL (``syscalls``)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import struct
import sys
import time

# The same as in hashlib, which would load OpenSSL: 4 MiB.
from _blake2 import blake2b
from pathlib import Path
from typing import Final

from taskq.log.machine import access, forks, syscalls

#: Reads up to this size keep the GIL.
_SMALL_READ: Final = 16 * 1024
#: Errors of ``posix_fallocate`` on a file system without it.
_NO_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV})
#: Of statx(2): flags, size of its structure, and where in it stand mask and time of birth.
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_STATX: Final = struct.Struct("<I76xqI")
_NOISE_BYTES: Final = 64 * 1024
_SESSION_BYTES: Final = 64
_MINUTE_NS: Final = 60 * 10**9


class LocalDisk(syscalls.Pace):
    """The files of this machine. One instance serves one thread, at a pace of its own."""

    # As ``Disk`` has them; each is asked for every batch, and a call less is worth it.
    size = syscalls.size
    write = syscalls.write_at
    try_lock = syscalls.try_flock
    unlock = syscalls.unflock
    touch = syscalls.touch
    sync = syscalls.sync

    def __init__(self) -> None:
        super().__init__()
        self.read = syscalls.Reader(_SMALL_READ, self).read
        self.status = syscalls.StatusReader(self).status

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
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                if error.errno not in _NO_ALLOCATE:
                    raise
            else:
                return
        offset = os.fstat(descriptor).st_size
        while offset < size:
            # Noise, since a file system that compresses would set nothing aside for zeros.
            noise = os.urandom(min(_NOISE_BYTES, size - offset))
            offset += os.pwrite(descriptor, noise, offset)

    def sync_directory(self, path: str) -> None:
        """Make the directory's entries durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` in one step."""
        Path(source).replace(target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        Path(target).hardlink_to(source)

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        Path(path).unlink(missing_ok=True)

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        access.make_directory(path)

    def names(self, path: str) -> list[str]:
        """Return sorted names in a directory; empty for a missing one."""
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names are all that is wanted
        except (FileNotFoundError, NotADirectoryError):
            return []

    def identity(self, descriptor: int) -> tuple[int, int]:
        """(device, inode) of an open file."""
        status = self.status(descriptor)
        assert status is not None  # an open file has no name that could be gone
        return status[:2]

    def born_ns(self, descriptor: int) -> int:
        """Return when an open file was made; 0 where neither system nor file system says."""
        if sys.platform == "darwin":
            return int(os.fstat(descriptor).st_birthtime * 10**9)
        # An older C library has no such function.
        facts, statx = ctypes.create_string_buffer(_STATX_BYTES), getattr(_libc(), "statx", None)
        if statx is None or statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, facts):
            return 0
        mask, seconds, nanoseconds = _STATX.unpack_from(facts)
        return int(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else 0

    def modified_ns(self, path: str) -> int | None:
        """Return when a file was last written or touched; None when it is missing."""
        try:
            return os.stat(path).st_mtime_ns  # noqa: PTH116 - no object for a path that is text
        except FileNotFoundError:
            return None

    def free_bytes(self, path: str) -> int:
        """Return bytes that may still be written."""
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def total_bytes(self, path: str) -> int:
        """Return bytes of the whole file system."""
        room = os.statvfs(path)
        return room.f_blocks * room.f_frsize

    def files(self, path: str) -> tuple[int, int] | None:
        """Return (files that may still be made, most files); None without a limit."""
        room = os.statvfs(path)
        return (room.f_favail, room.f_files) if room.f_files else None

    def lock(self, descriptor: int) -> None:
        """Wait in line for the lock."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def boot_id(self) -> int:
        """A number of this boot of this machine; a guess where the system has none."""
        return _boot()

    def has_living_owners(self, path: str) -> bool:
        """Return whether a process of this machine has the log open, so since this boot."""
        from taskq.log.machine import peers  # noqa: PLC0415 - few are asked

        return peers.has_neighbours(Path(path) / "owners")

    def was_restored(self, descriptor: int) -> bool:
        """A write sets both times alike; ``cp -a``, rsync and tar restore the first."""
        facts = os.fstat(descriptor)
        return facts.st_mtime_ns != facts.st_ctime_ns


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache  # no process outlives its boot
def _boot() -> int:
    try:
        # The kernel's number alone: containers of one machine share it.
        mark = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        mark = _boot_session() or _boot_minute()
    return int.from_bytes(blake2b(mark, digest_size=8).digest(), "little")


def _boot_session() -> bytes:
    """Return macOS's name of this boot; empty where the system has none."""
    size = ctypes.c_size_t(_SESSION_BYTES)
    name = ctypes.create_string_buffer(_SESSION_BYTES)
    try:
        failed = _libc().sysctlbyname(
            b"kern.bootsessionuuid", name, ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (AttributeError, OSError):
        return b""
    return b"" if failed else name.raw[: size.value]


def _boot_minute() -> bytes:
    """Return boot time by subtraction, to the minute: the clocks are not read at one instant.

    It holds through sleep, and changes when the clock is set: ``has_living_owners`` is for that.
    """
    minute = (SystemClock.wall_ns() - SystemClock.steady_ns()) // _MINUTE_NS
    return f"{minute}{os.uname().nodename}".encode()


class PatientDisk(LocalDisk):
    """The same for threads that hold no lock: while a large file is written, others compute."""

    def write(self, descriptor: int, data: bytes, offset: int) -> int:
        """Return bytes written, which may be fewer than given."""
        return os.pwrite(descriptor, data, offset)


class SystemClock:
    """The machine's clocks."""

    wall_ns = staticmethod(time.time_ns)
    #: since boot, suspended time included (so macOS counts anyway): waking up is no step of it
    steady_ns = staticmethod(
        functools.partial(
            time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        )
    )
