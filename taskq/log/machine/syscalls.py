"""System calls that keep the GIL, where giving it up costs far more than the call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import struct
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_OFFSET: Final = ctypes.c_int64
_SEEK_END: Final = 2
#: A call that keeps the GIL for longer stops all threads of the program for too long; and for how
#: long the calls after it give the GIL up. File systems write out what is new every few seconds.
SLOW_SECONDS: Final = 0.005
PATIENT_SECONDS: Final = 10.0
#: Switches between threads that may come between the end of a call and the GIL.
_SWITCHES: Final = 3
#: More than this is written without the GIL: a batch may have 34 MiB.
_LARGE_WRITE: Final = 512 * 1024
#: Errors of F_FULLFSYNC on macOS on a file system without it.
_NO_FULL_SYNC: Final = frozenset({errno.ENOTSUP, errno.ENOTTY, errno.EINVAL})
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
#: Errors for a missing name; ESTALE: another machine removed it.
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
#: Device numbers are signed on macOS.
_U64_MAX: Final = 2**64 - 1
#: STATX_INO and STATX_SIZE.
_STATX_WANTED: Final = 0x300
#: Inode, size, and the device's two numbers in a ``struct statx``, the same on every machine.
_STATX: Final = struct.Struct("<32xQQ88xII112x")


#: The same few paths are looked up for every batch.
_encoded: Final = functools.lru_cache(16)(os.fsencode)


def _load() -> Any:
    """Return the C library, if its calls do as Python's do.

    A thread that gives the GIL up for a microsecond's call waits for it afterwards: up to a switch
    interval (5 ms) while another thread computes. Measured beside one CPU-bound thread: the writer
    lock was held 10 ms with plain calls and 13 µs with these. And a sender that pokes the storage
    thread with a plain ``os.write`` hands it the GIL after its first request, which makes a batch
    of one.

    They go through ``ctypes.PyDLL``; where that is not to be had, plain ``os`` calls do the same.
    So they do behind a call that took long (``Pace``): on a slow disk a call that keeps the GIL
    would stop every thread of the program, again and again.
    """
    try:
        library = ctypes.PyDLL(None, use_errno=True)
        for name in ("pread", "pwrite", "lseek"):
            # If ``long`` has 4 bytes, the plain calls of most C libraries take such an offset.
            if ctypes.sizeof(ctypes.c_long) < ctypes.sizeof(_OFFSET) and hasattr(
                library, f"{name}64"
            ):
                setattr(library, name, getattr(library, f"{name}64"))
        descriptor, size = ctypes.c_int, ctypes.c_size_t
        library.pread.argtypes = (descriptor, ctypes.c_void_p, size, _OFFSET)
        library.pwrite.argtypes = (descriptor, ctypes.c_char_p, size, _OFFSET)
        library.write.argtypes = (descriptor, ctypes.c_char_p, size)
        library.read.argtypes = (descriptor, ctypes.c_void_p, size)
        library.read.restype = ctypes.c_ssize_t
        library.lseek.argtypes = (descriptor, _OFFSET, ctypes.c_int)
        library.flock.argtypes = (descriptor, ctypes.c_int)
        library.utimes.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        library.pread.restype = library.pwrite.restype = library.write.restype = ctypes.c_ssize_t
        library.lseek.restype = _OFFSET
        return library if _agrees(library) else None
    except (OSError, AttributeError):
        return None


def _agrees(library: Any) -> bool:
    """Try whether it works as Python does: with a wrong offset it destroys logs.

    Raises:
        OSError: no file can be made for the trial.
    """
    if sys.platform != "linux":
        return True  # others have no such files, and offsets of 64 bits everywhere
    descriptor, part = os.memfd_create("taskq"), b"xy"
    buffer = ctypes.create_string_buffer(len(part))
    try:
        os.pwrite(descriptor, b"abcdef", 0)
        return (
            library.pwrite(descriptor, part, len(part), 2) == len(part)
            and os.pread(descriptor, 7, 0) == b"abxyef"
            and library.pread(descriptor, buffer, len(part), 3) == len(part)
            and buffer.raw == b"ye"
            and library.lseek(descriptor, 0, _SEEK_END) == os.fstat(descriptor).st_size
        )
    finally:
        os.close(descriptor)


_library: Final = _load()


def _load_statx() -> Any:
    """Return the call that looks a path up, where there is one and the system allows it."""
    try:
        call = ctypes.PyDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    # It is called for every batch, and declared arguments cost it a third of the time. Small
    # numbers, bytes and buffers are passed as they must be without that.
    buffer = ctypes.create_string_buffer(_STATX.size)
    return call if call(_AT_FDCWD, b"/", 0, _STATX_WANTED, buffer) == 0 else None


_statx: Final = _load_statx()


def _error() -> OSError:
    """Return the error of the last call."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


class Pace:
    """The pace of one log's calls: they keep the GIL while all are quick.

    Attributes:
        patient_until: after a slow call all calls give the GIL up until then; 0: no slow call.
    """

    def __init__(self) -> None:
        self.patient_until = 0.0

    def be_patient(self) -> None:
        """A call was slow: the next ones give the GIL up."""
        self.patient_until = perf_counter() + PATIENT_SECONDS

    def patiently(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Do it without the GIL, and see whether the log is quick again.

        The time that it takes to get the GIL back beside threads that compute is not the disk's.
        """
        began = perf_counter()
        try:
            return call(*args, **options)
        finally:
            now = perf_counter()
            if now - began > SLOW_SECONDS + _SWITCHES * sys.getswitchinterval():
                self.be_patient()
            elif now > self.patient_until:
                self.patient_until = 0.0


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """Return bytes of the file; fewer than asked for only at its end."""
    parts: list[bytes] = []
    while count:
        part = os.pread(descriptor, count, offset)
        if not part:
            break
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Reader:
    """Reads into a buffer of its own, for one thread; more than ``size_max`` without the GIL."""

    def __init__(self, size_max: int, pace: Pace) -> None:
        self.size_max = size_max
        self._pace = pace
        self._buffer: Any = ctypes.create_string_buffer(size_max)

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        """At most ``count`` bytes; fewer only at the end of the file."""
        pace = self._pace
        if count > self.size_max:  # copying more would hold up the other threads
            return read_at(descriptor, count, offset)
        if pace.patient_until or _library is None:
            return pace.patiently(os.pread, descriptor, count, offset)
        began = perf_counter()
        got = _library.pread(descriptor, self._buffer, count, offset)
        if perf_counter() - began > SLOW_SECONDS:
            pace.be_patient()
        if got < 0:
            raise _error()
        data: bytes = self._buffer[:got]
        return data


class StatusReader:
    """Looks files up, by a path or a descriptor: for one thread."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._buffer = ctypes.create_string_buffer(_STATX.size)

    def status(self, file: str | int) -> tuple[int, int, int] | None:
        """Return (device, inode, size) of the file; None if it is missing."""
        pace = self._pace
        if pace.patient_until or _statx is None:
            try:
                status = pace.patiently(os.stat, file)
            except OSError as error:
                if error.errno in _NOT_THERE:
                    return None
                raise
            device = status.st_dev & _U64_MAX
            if sys.platform == "linux":  # the layout of ``statx``, which other systems may have
                device = os.major(device) << 32 | os.minor(device)
            return device, status.st_ino & _U64_MAX, status.st_size
        began = perf_counter()
        if type(file) is str:
            failed = _statx(_AT_FDCWD, _encoded(file), 0, _STATX_WANTED, self._buffer)
        else:
            failed = _statx(file, b"", _AT_EMPTY_PATH, _STATX_WANTED, self._buffer)
        if perf_counter() - began > SLOW_SECONDS:
            pace.be_patient()
        if failed:
            missing = _error()
            if missing.errno in _NOT_THERE:
                return None
            raise missing
        inode, size, major, minor = _STATX.unpack_from(self._buffer)
        return major << 32 | minor, inode, size


def write_at(pace: Pace, descriptor: int, data: bytes, offset: int) -> int:
    """Return what ``os.pwrite`` returns."""
    if pace.patient_until or _library is None:
        return pace.patiently(os.pwrite, descriptor, data, offset)
    if len(data) > _LARGE_WRITE:  # to copy it takes long, however quick the disk is
        return os.pwrite(descriptor, data, offset)
    began = perf_counter()
    done: int = _library.pwrite(descriptor, data, len(data), offset)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if done < 0:
        raise _error()
    return done


def size(pace: Pace, descriptor: int) -> int:
    """Return bytes in a file."""
    if pace.patient_until or _library is None:
        return pace.patiently(os.fstat, descriptor).st_size
    began = perf_counter()
    end: int = _library.lseek(descriptor, 0, _SEEK_END)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if end < 0:
        raise _error()
    return end


def touch(pace: Pace, path: str) -> None:
    """Do what ``os.utime`` does."""
    if pace.patient_until or _library is None:
        pace.patiently(os.utime, path)
        return
    began = perf_counter()
    failed = _library.utimes(os.fsencode(path), None)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if failed:
        raise _error()


def try_flock(pace: Pace, descriptor: int) -> bool:
    """Take an exclusive flock if nobody has it."""
    if pace.patient_until or _library is None:
        try:
            pace.patiently(fcntl.flock, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    began = perf_counter()
    failed = _library.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if failed:
        error = _error()
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        raise error
    return True


def unflock(pace: Pace, descriptor: int) -> None:
    """Give a flock back."""
    if pace.patient_until or _library is None:
        pace.patiently(fcntl.flock, descriptor, fcntl.LOCK_UN)
        return
    began = perf_counter()
    failed = _library.flock(descriptor, fcntl.LOCK_UN)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if failed:
        raise _error()


def sync(pace: Pace, descriptor: int) -> None:
    """Write a file to the platter, without the GIL.

    macOS's fsync stops at the drive's cache, F_FULLFSYNC does not.
    """
    del pace
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
            os.fsync(descriptor)  # on a network's disk
    else:
        os.fdatasync(descriptor)


# Pipes that do not block: nobody ever waits for these.

_drained: Final = ctypes.create_string_buffer(4_096)


def drain(descriptor: int) -> None:
    """Take what is in a pipe that does not block, up to 4 KiB; what it was is lost."""
    if _library is not None:
        _library.read(descriptor, _drained, len(_drained))  # an error means that it is empty
        return
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, len(_drained))


def write(descriptor: int, data: bytes) -> int:
    """Return what ``os.write`` returns."""
    if _library is None:
        return os.write(descriptor, data)
    done: int = _library.write(descriptor, data, len(data))
    if done < 0:
        raise _error()
    return done
