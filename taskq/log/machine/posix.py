"""Linux and macOS: every system call of the log; ``windows`` has the same names.

Calls under the writer lock keep the GIL if releasing it costs far more than the call.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import grp
import os
import pwd
import select
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Final, ParamSpec, TypeVar

from taskq.log.machine import forks
from taskq.log.machine.ports import NotAFile

# Type checkers on Windows know few of these names.
assert sys.platform != "win32"

P = ParamSpec("P")
T = TypeVar("T")

_OFFSET: Final = ctypes.c_int64
_SEEK_END: Final = 2
#: Duration of a call that keeps the GIL, above which it stops the program's threads for too long;
#: and time for which later calls then release it. File systems write out new data every few
#: seconds.
SLOW_SECONDS: Final = 0.005
PATIENT_SECONDS: Final = 10.0
#: Switches between threads that may happen between the end of a call and the GIL.
_SWITCHES: Final = 3
#: Larger writes release the GIL: a batch may have 34 MiB.
_LARGE_WRITE: Final = 512 * 1024
#: Errors of F_FULLFSYNC on macOS if the file system lacks it.
_NO_FULL_SYNC: Final = frozenset({errno.ENOTSUP, errno.ENOTTY, errno.EINVAL})
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
#: Errors of ``posix_fallocate`` if the file system lacks it.
_NO_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV})
#: statx(2): flag of the birth time, size of the structure, and layout up to the birth time.
_STATX_BTIME: Final = 0x800
_BIRTH_BYTES: Final = 256
_BIRTH: Final = struct.Struct("<I76xqI")
_SESSION_BYTES: Final = 64
#: Errors for a missing name; ESTALE: another machine removed it.
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
#: Device numbers are signed on macOS.
_U64_MAX: Final = 2**64 - 1
#: STATX_INO and STATX_SIZE.
_STATX_WANTED: Final = 0x300
#: Inode, size, and both device numbers in a ``struct statx``, the same on every machine.
_STATX: Final = struct.Struct("<32xQQ88xII112x")


#: Every batch looks up the same few paths.
_encoded: Final = functools.lru_cache(16)(os.fsencode)


def _load() -> Any:
    """Return the C library, if its calls agree with Python's.

    A thread that releases the GIL for a microsecond's call waits for it afterwards: up to a switch
    interval (5 ms) while another thread computes. Measured with one CPU-bound thread: the writer
    lock was held 10 ms with plain calls and 13 µs with these. And a sender that pokes the storage
    thread with a plain ``os.write`` hands it the GIL after the first request, so batches have one
    request.

    The calls go through ``ctypes.PyDLL``, or else through plain ``os`` calls. Plain calls are also
    used after a slow call (``Pace``): on a slow disk a call that keeps the GIL would stop every
    thread of the program, again and again.
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
        library.pread.restype = library.pwrite.restype = library.write.restype = ctypes.c_ssize_t
        library.lseek.restype = _OFFSET
        return library if _agrees(library) else None
    except (OSError, AttributeError):
        return None


def _agrees(library: Any) -> bool:
    """Check that a call works like Python's: with a wrong offset it would destroy logs.

    Raises:
        OSError: no file can be made for the check.
    """
    if sys.platform != "linux":
        return True  # other systems lack such files, and always have offsets of 64 bits
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
    """Return the call that looks up a path, if the system has and allows it."""
    try:
        call = ctypes.PyDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    # It is called for every batch, and declared argument types would add a third to its time. Small
    # numbers, bytes and buffers are passed correctly without them.
    buffer = ctypes.create_string_buffer(_STATX.size)
    return call if call(_AT_FDCWD, b"/", 0, _STATX_WANTED, buffer) == 0 else None


_statx: Final = _load_statx()


def _error() -> OSError:
    """Return the error of the last call."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


class Pace:
    """Pace of one log's calls: they keep the GIL while all calls are fast.

    Attributes:
        patient_until: time until which all calls release the GIL after a slow one; 0: none.
    """

    def __init__(self) -> None:
        self.patient_until: float = 0.0

    def be_patient(self) -> None:
        """Release the GIL in later calls, after a slow one."""
        self.patient_until = perf_counter() + PATIENT_SECONDS

    def patiently(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Make a call without the GIL, and check whether calls are fast again.

        The time to get the GIL back from computing threads does not count as the disk's.
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
    """Return bytes of the file; fewer than ``count`` only at its end."""
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
        """Return at most ``count`` bytes; fewer only at the end of the file."""
        pace = self._pace
        if count > self.size_max:  # copying more would hold up other threads
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
    """Looks up files by path or descriptor, for one thread."""

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
    """Write at ``offset`` like ``os.pwrite``."""
    if pace.patient_until or _library is None:
        return pace.patiently(os.pwrite, descriptor, data, offset)
    if len(data) > _LARGE_WRITE:  # copying takes long even on a fast disk
        return os.pwrite(descriptor, data, offset)
    began = perf_counter()
    done: int = _library.pwrite(descriptor, data, len(data), offset)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if done < 0:
        raise _error()
    return done


def size(pace: Pace, descriptor: int) -> int:
    """Return the size of a file."""
    if pace.patient_until or _library is None:
        return pace.patiently(os.fstat, descriptor).st_size
    began = perf_counter()
    end: int = _library.lseek(descriptor, 0, _SEEK_END)
    if perf_counter() - began > SLOW_SECONDS:
        pace.be_patient()
    if end < 0:
        raise _error()
    return end


def try_flock(pace: Pace, descriptor: int) -> bool:
    """Take an exclusive flock if it is free."""
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
    """Release a flock."""
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
    """Write a file to stable storage, without the GIL.

    macOS's fsync stops at the drive's cache, F_FULLFSYNC does not.
    """
    del pace
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
            os.fsync(descriptor)  # on a network disk
    else:
        os.fdatasync(descriptor)


pread: Final = os.pread
pwrite: Final = os.pwrite
geteuid: Final = os.geteuid
is_same: Final = os.path.samestat
link: Final = os.link


def rename(source: str | Path, target: str | Path, *, waits: bool = True) -> None:
    """Replace ``target`` in one step; other programs never prevent it here."""
    del waits
    os.replace(source, target)  # noqa: PTH105 - text, maybe no UTF-8


def preadv(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill the view from the file; return the bytes read."""
    return os.preadv(descriptor, [view], offset)


def lock(descriptor: int) -> None:
    """Wait in line for an exclusive flock."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def lock_owner(descriptor: int) -> None:
    """Take the lock of a living owner; it ends with its process, even after forks."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_owned(descriptor: int) -> bool:
    """Return whether another process holds an owner's record lock, by trying to share it.

    Owners lock a file before it gets its name, so this test never keeps an owner out. F_GETLK tests
    without locking, but its struct has another layout on each system.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    return False


def remove(path: str | Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - usually text


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allocate(descriptor: int, size: int) -> bool:
    """Allocate bytes; False if the system has no call for that."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_ALLOCATE:
            raise
        return False
    return True


def room(path: str | Path) -> tuple[int, int, tuple[int, int] | None]:
    """Return (bytes free, bytes in all, (files free, most files) or None without a limit)."""
    facts = os.statvfs(path)
    files = (facts.f_favail, facts.f_files) if facts.f_files else None
    return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize, files


def is_read_only(path: str | Path) -> bool:
    """Return whether the file system is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def born_ns(descriptor: int) -> int:
    """Return the creation time of an open file; 0 if system or file system lacks it."""
    if sys.platform == "darwin":
        return int(os.fstat(descriptor).st_birthtime * 10**9)
    # Older C libraries lack this function.
    facts, statx = ctypes.create_string_buffer(_BIRTH_BYTES), getattr(_libc(), "statx", None)
    if statx is None or statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, facts):
        return 0
    mask, seconds, nanoseconds = _BIRTH.unpack_from(facts)
    return int(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else 0


def was_restored(descriptor: int) -> bool:
    """Compare the file's times: a write sets both alike; ``cp -a``, rsync and tar restore one."""
    facts = os.fstat(descriptor)
    return facts.st_mtime_ns != facts.st_ctime_ns


#: since boot with suspended time (which macOS always counts), so waking up is no step of it
steady_ns: Final = functools.partial(
    time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def boot_mark() -> bytes:
    """Return the system's name for this boot; empty if it has none."""
    try:
        # The kernel's number alone, which containers of one machine share.
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return boot_session()


def boot_session() -> bytes:
    """Return macOS's name for this boot; empty if the system has none."""
    size = ctypes.c_size_t(_SESSION_BYTES)
    name = ctypes.create_string_buffer(_SESSION_BYTES)
    try:
        failed = _libc().sysctlbyname(
            b"kern.bootsessionuuid", name, ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (AttributeError, OSError):
        return b""
    return b"" if failed else name.raw[: size.value]


# Non-blocking pipes: no thread ever waits at them.

_drained: Final = ctypes.create_string_buffer(4_096)


def drain(descriptor: int) -> None:
    """Discard up to 4 KiB from a non-blocking pipe."""
    if _library is not None:
        _library.read(descriptor, _drained, len(_drained))  # an error means that it is empty
        return
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, len(_drained))


def write(descriptor: int, data: bytes) -> int:
    """Write like ``os.write``."""
    if _library is None:
        return os.write(descriptor, data)
    done: int = _library.write(descriptor, data, len(data))
    if done < 0:
        raise _error()
    return done


class Bell:
    """A named pipe at which an owner sleeps, and by which other processes wake it.

    Raises:
        OSError: it cannot be made; or another owner's pipe has no reader.
    """

    #: suffix of its file
    SUFFIX: Final = ".pipe"

    def __init__(self, folder: Path, owner: int, *, make: bool = False) -> None:
        path = folder / f"{owner:016x}{self.SUFFIX}"
        # Its maker opens it for writing, too: so it reports no end when a waker closes it.
        self.pipe: int = (
            forks.open_unshared(make_pipe, path)
            if make
            else forks.open_unshared(open_pipe, path, os.O_WRONLY)
        )
        if make:
            self._poll = select.poll()
            self._poll.register(self.pipe, select.POLLIN)

    def ring(self) -> None:
        """Wake its owner; raises ``BlockingIOError`` if the owner is awake already."""
        poke(self.pipe)

    def wait(self, milliseconds: float | None) -> bool:
        """Sleep until it rings; return False after the timeout."""
        if not self._poll.poll(milliseconds):
            return False
        drain(self.pipe)
        return True

    def close(self) -> None:
        forks.close_unshared(self.pipe)


def make_channel() -> tuple[int, int]:
    """Return both ends of a non-blocking pipe, for an event loop.

    Raises:
        NotImplementedError: event loops cannot read pipes on this system.
    """
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def poke(channel: int) -> None:
    """Write a byte into a channel; raises ``BlockingIOError`` if it is full."""
    write(channel, b"\1")


def block_broken_pipe() -> None:
    """Block SIGPIPE in this thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})


def host_name() -> str:
    return os.uname().nodename


def lives(pid: int) -> bool:
    """Return whether the process exists."""
    if pid <= 0:  # 0 and below are groups
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


def has_open(pid: int, path: Path) -> bool:
    """Return whether a process has a file open; True if the system does not show that."""
    files = Path(f"/proc/{pid}/fd")
    try:
        opened = [*files.iterdir()]
    except OSError:
        return not Path("/proc/self/fd").exists()
    try:
        status = path.stat()
    except OSError:  # its log was closed meanwhile
        return False
    for file in opened:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(file.stat(), status):
                return True
    return False


def is_parent(parent: int, pid: int) -> bool:
    """Return whether a process is the parent of another one; False if unknown."""
    try:
        number = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1]
    except (OSError, IndexError):
        import subprocess  # noqa: PLC0415 - only without /proc

        command = ("ps", "-o", "ppid=", "-p", str(pid))
        try:
            number = subprocess.run(command, capture_output=True, check=False).stdout  # noqa: S603
        except OSError:
            return False
    return number.strip() == b"%d" % parent


def end_with_parent(process: object) -> None:
    """Do nothing: the child itself notices the end of its parent."""
    del process


def watch_stop(action: Callable[[], object]) -> Callable[[], None]:
    """Do nothing: signals stop this process."""
    del action
    return lambda: None


def leave_console() -> None:
    """Do nothing: process groups keep a terminal's signals from children."""


def ask_to_stop(pid: int) -> bool:
    """Ask a process to end after its present work; False if it does not exist."""
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        return False
    return True


def on_battery() -> bool | None:
    """Return None: the caller reads the kernel's list of power supplies."""
    return None


def memory_bytes() -> int:
    """Return the resident memory of this process, or its peak without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        import resource  # noqa: PLC0415 - rarely needed

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1_024
    return pages * os.sysconf("SC_PAGE_SIZE")


# Files and directories of a log, and their owners.

#: The user with all permissions.
ROOT: Final = 0
#: True if modes of files keep other users out.
HAS_MODES: Final = True
#: Without it, opening a pipe without a writer would wait for ever; it has no effect on files.
NONBLOCK: Final = os.O_NONBLOCK
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_PRIVATE, _FILE_SHARED = 0o600, 0o660
_DIRECTORY_PRIVATE, DIRECTORY_SHARED = 0o700, 0o2770
#: Mode of a log's new parent directories: other users may pass through them.
_DIRECTORY_ABOVE: Final = 0o755
_SYMLINK: Final = "it is a symbolic link, and nothing inside a task log may be one"


def named(path: str | Path) -> str:
    return str(path)


def resolved(path: str | Path) -> str:
    """Return the path with symbolic links resolved."""
    return os.path.realpath(path)


def open_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that no executed child inherits; ``O_CREAT`` makes a missing one.

    Raises:
        NotAFile: it is a symbolic link, a pipe, a device or a directory.
        OSError: the system refuses.
    """
    path = str(path)
    if not flags & (os.O_RDWR | os.O_WRONLY):
        return _opened(path, flags, stat.S_ISREG)
    with _directory_of(path) as (directory, name):
        if not flags & os.O_CREAT:
            return _opened(path, flags, stat.S_ISREG, name, directory)
        while True:
            with contextlib.suppress(FileNotFoundError):
                return _opened(path, flags & ~os.O_CREAT, stat.S_ISREG, name, directory)
            with contextlib.suppress(FileExistsError):  # another process was faster
                return _made(path, flags | os.O_EXCL, name, directory)


def open_pipe(path: str | Path, flags: int) -> int:
    """Open a named pipe without waiting for its other end.

    Raises:
        OSError: the system refuses, the pipe has no reader, or it is no pipe.
    """
    return _opened(str(path), flags, stat.S_ISFIFO)


def make_pipe(path: str | Path) -> int:
    with _directory_of(str(path)) as (directory, name):
        # No process knows the pipe yet, so the umask does no harm.
        os.mkfifo(path, _FILE_PRIVATE)
        descriptor = _opened(str(path), os.O_RDWR, stat.S_ISFIFO, name, directory)
        _give(descriptor, os.fstat(directory), _FILE_PRIVATE, _FILE_SHARED)
        return descriptor


def make_directory(path: str | Path) -> None:
    """Make a directory for the users of its parent directory; it may exist.

    Missing parents are made, too.

    Raises:
        OSError: the system refuses, or the path is something else, even a link to a directory.
    """
    path = Path(path)
    if not path.parent.exists():
        make_private(path.parent)
    with _directory_of(str(path)) as (directory, name):
        try:
            mode = (
                DIRECTORY_SHARED if is_shared(os.fstat(directory).st_mode) else _DIRECTORY_PRIVATE
            )
            os.mkdir(name, mode, dir_fd=directory)
        except FileExistsError:
            os.close(_open_directory(str(path), name, directory))
        else:
            made = _open_directory(str(path), name, directory)
            try:
                _give(made, os.fstat(directory), _DIRECTORY_PRIVATE, DIRECTORY_SHARED)
            finally:
                os.close(made)


def make_private(path: Path) -> bool:
    """Make a data directory for this user alone; False if it exists.

    Raises:
        OSError: the system refuses.
    """
    _make_above(path)
    try:
        path.mkdir(_DIRECTORY_PRIVATE)
    except FileExistsError:
        return False
    # Set-group-ID comes from the parent directory, and has no effect without access for the group.
    _set_mode(path, path.stat(), _DIRECTORY_PRIVATE)
    return True


def _make_above(path: Path) -> None:
    for parent in reversed(path.parents):
        with contextlib.suppress(FileExistsError):
            if not parent.exists():
                parent.mkdir(_DIRECTORY_ABOVE)


@contextlib.contextmanager
def _directory_of(path: str) -> Iterator[tuple[int, str]]:
    above, name = os.path.split(path)
    directory = _open_directory(above or ".")
    try:
        yield directory, name
    except OSError as error:
        if error.filename == name:
            error.filename = path
        raise
    finally:
        os.close(directory)


def _open_directory(path: str, name: str | None = None, directory: int | None = None) -> int:
    try:
        return os.open(name or path, _DIRECTORY, dir_fd=directory)
    except OSError as error:
        # Systems report a link with different errors.
        if error.errno in {errno.ENOTDIR, errno.ELOOP} and os.path.islink(path):  # noqa: PTH114 - text, maybe no UTF-8
            raise NotAFile(errno.ELOOP, _SYMLINK, path) from None
        raise


def _opened(
    path: str,
    flags: int,
    is_right: Callable[[int], bool],
    name: str | None = None,
    directory: int | None = None,
) -> int:
    try:
        descriptor = os.open(name or path, flags | _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAFile(errno.ELOOP, _SYMLINK, path) from None
        error.filename = path
        raise
    if not is_right(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        what = "file" if is_right is stat.S_ISREG else "pipe"
        raise NotAFile(errno.EINVAL, f"it is no regular {what}", path)
    return descriptor


def _made(path: str, flags: int, name: str, directory: int) -> int:
    facts = os.fstat(directory)
    mode = _FILE_SHARED if is_shared(facts.st_mode) else _FILE_PRIVATE
    try:
        descriptor = os.open(name, flags | _FLAGS, mode, dir_fd=directory)
    except OSError as error:
        error.filename = path
        raise
    try:
        _give(descriptor, facts, _FILE_PRIVATE, _FILE_SHARED)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _give(descriptor: int, directory: os.stat_result, private: int, shared: int) -> None:
    """Give a new file the owner and group of its directory, and its mode."""
    facts = os.fstat(descriptor)
    wanted = (directory.st_uid, directory.st_gid)
    if os.geteuid() == ROOT != directory.st_uid and (facts.st_uid, facts.st_gid) != wanted:
        # If root has no rights, as in some containers and network file systems, the owner stays.
        with contextlib.suppress(OSError):
            os.fchown(descriptor, *wanted)
    mode = shared if is_shared(directory.st_mode) else private
    _set_mode(descriptor, os.fstat(descriptor), mode)


def _set_mode(file: int | Path, facts: os.stat_result, mode: int) -> None:
    now = stat.S_IMODE(facts.st_mode)
    # On Linux a directory may inherit the bit of its parent. A user outside the group would lose it
    # with a chmod, so a correct mode is left alone.
    if now != (wanted := mode | now & stat.S_ISGID):
        # Some file systems have no modes: opening the log reports the effect.
        with contextlib.suppress(PermissionError):
            os.chmod(file, wanted)  # noqa: PTH101 - it takes a descriptor as well


def is_shared(mode: int) -> bool:
    """Return whether a directory's mode lets its group use it."""
    return mode & (stat.S_ISGID | stat.S_IWGRP) == stat.S_ISGID | stat.S_IWGRP


def user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def group(status: os.stat_result) -> str:
    try:
        return grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        return str(status.st_gid)


def is_alone(status: os.stat_result) -> bool:
    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}
