"""Windows: every system call of the log; ``posix`` has the same names.

Files are opened with share-delete, so that an open file can be renamed and removed. Locks are on a
byte far after any data, since locks on data keep readers out. Virus scanners and backup programs
hold files for moments, so refused calls are retried.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import getpass
import importlib
import ntpath
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from ctypes import wintypes
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from taskq.core import errors
from taskq.log.machine.ports import NotAFile

P = ParamSpec("P")
T = TypeVar("T")


class _Overlapped(ctypes.Structure):
    """Offset of a read, a write or a lock."""

    _fields_ = (
        ("internal", ctypes.c_void_p),
        ("internal_high", ctypes.c_void_p),
        ("offset", wintypes.DWORD),
        ("offset_high", wintypes.DWORD),
        ("event", wintypes.HANDLE),
    )


def _function(name: str, result: Any, *arguments: Any, library: Any = None) -> Any:
    call: Any = getattr(library or _kernel, name, None) or (lambda *_: None)
    call.restype, call.argtypes = result, arguments
    return call


# Other systems can import this module, too, to check and test code without Windows calls.
_IS_HERE: Final = sys.platform == "win32"
_library: Final[Any] = getattr(ctypes, "WinDLL", lambda *_, **__: None)
_kernel: Final = _library("kernel32", use_last_error=True)
_last_error: Final[Any] = getattr(ctypes, "get_last_error", int)
_text_of: Final[Any] = getattr(ctypes, "FormatError", str)
msvcrt: Final[Any] = importlib.import_module("msvcrt") if _IS_HERE else None
_BOOL, _DWORD, _HANDLE, _TEXT = wintypes.BOOL, wintypes.DWORD, wintypes.HANDLE, wintypes.LPCWSTR
_BYTES, _PLACE = ctypes.c_void_p, ctypes.POINTER(_Overlapped)
_COUNT: Final = ctypes.POINTER(_DWORD)
_create_file: Final = _function(
    "CreateFileW", _HANDLE, _TEXT, _DWORD, _DWORD, _BYTES, _DWORD, _DWORD, _HANDLE
)
_close_handle: Final = _function("CloseHandle", _BOOL, _HANDLE)
_read_file: Final = _function("ReadFile", _BOOL, _HANDLE, _BYTES, _DWORD, _COUNT, _PLACE)
_write_file: Final = _function("WriteFile", _BOOL, _HANDLE, _BYTES, _DWORD, _COUNT, _PLACE)
_flush_file: Final = _function("FlushFileBuffers", _BOOL, _HANDLE)
_reopen_file: Final = _function("ReOpenFile", _HANDLE, _HANDLE, _DWORD, _DWORD, _DWORD)
_lock_file: Final = _function("LockFileEx", _BOOL, _HANDLE, _DWORD, _DWORD, _DWORD, _DWORD, _PLACE)
_unlock_file: Final = _function("UnlockFileEx", _BOOL, _HANDLE, _DWORD, _DWORD, _DWORD, _PLACE)
_create_event: Final = _function("CreateEventW", _HANDLE, _BYTES, _BOOL, _BOOL, _TEXT)
_open_event: Final = _function("OpenEventW", _HANDLE, _DWORD, _BOOL, _TEXT)
# The call takes no time, unlike a release of the GIL.
_quick: Final = _IS_HERE and ctypes.PyDLL("kernel32", use_last_error=True)
_set_event: Final = _function("SetEvent", _BOOL, _HANDLE, library=_quick)
_wait_for: Final = _function("WaitForSingleObject", _DWORD, _HANDLE, _DWORD)
_wait_for_any: Final = _function(
    "WaitForMultipleObjects", _DWORD, _DWORD, ctypes.POINTER(_HANDLE), _BOOL, _DWORD
)
_open_process: Final = _function("OpenProcess", _HANDLE, _DWORD, _BOOL, _DWORD)

_BAD_HANDLE: Final = _HANDLE(-1).value
_READ, _WRITE = 0x80000000, 0x40000000
_SHARE_ALL: Final = 7
_CREATE_NEW, _CREATE_ALWAYS, _OPEN_EXISTING, _OPEN_ALWAYS, _TRUNCATE_EXISTING = 1, 2, 3, 4, 5
_BACKUP_SEMANTICS, _OPEN_REPARSE_POINT = 0x02000000, 0x00200000
_LOCK_AT_ONCE, _LOCK_EXCLUSIVE = 1, 2
_BINARY: Final = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
_INFINITE: Final = 0xFFFFFFFF
_SYNCHRONIZE, _EVENT_MODIFY = 0x100000, 2
_NOT_FOUND, _NO_PATH, _DENIED, _SHARING, _LOCKED = 2, 3, 5, 32, 33
_END_OF_FILE, _NOT_LOCKED = 38, 158
#: Errors while another program holds a file; tries, and first pause, as in SQLite: each pause is
#: longer than the one before by the first.
_BUSY: Final = frozenset({_DENIED, _SHARING, _LOCKED})
_TRIES, _PAUSE_SECONDS = 10, 0.025
#: Prefixes of paths of any length, and length from which paths get them: names below a log's
#: directory fit into the rest of Windows' 260.
_ANY_LENGTH, _ON_A_SERVER, _LONG = "\\\\?\\", "\\\\?\\UNC\\", 150
#: Longest path, for which Python itself raises ``ValueError``; Windows' error code for it.
_PATH_MAX, _TOO_LONG = 32_767, 206
#: After the end of every file.
_LOCK_PLACE: Final = 1 << 62
_U64_MAX: Final = 2**64 - 1
#: SystemTimeOfDayInformation, whose six numbers include the start of the system and the sum of
#: later settings of the clock; and the address of the boot number in every process.
_FACTS: Final = 3
_BOOT_NUMBER_PLACE: Final = 0x7FFE02C4

ROOT: Final = 0
HAS_MODES: Final = False
NONBLOCK: Final = 0
DIRECTORY_SHARED: Final = 0o700
steady_ns: Final = time.monotonic_ns


def _failed(path: object = None) -> OSError:
    """Return the error of the last call."""
    code = _last_error()
    name = None if path is None else str(path)
    return OSError(0, _text_of(code).strip(), name, code)


def _tried(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call, and retry while another program holds the file."""
    for number in range(1, _TRIES):
        try:
            return call(*args, **options)
        except OSError as error:
            if getattr(error, "winerror", None) not in _BUSY:
                raise
        time.sleep(_PAUSE_SECONDS * number)
    return call(*args, **options)


# Files.


def named(path: str | Path) -> str:
    """Return a path in a form that every call of Windows accepts, at any length.

    Raises:
        LogError: the path is too long even for Windows.
    """
    path = str(path)
    if len(path) > _PATH_MAX - len(_ON_A_SERVER):
        error = OSError(errno.ENAMETOOLONG, "the path is too long", path, _TOO_LONG)
        raise errors.refusal(path, error) from None
    if path.startswith(_ANY_LENGTH):
        return _ANY_LENGTH + ntpath.normpath(path[4:])  # which Windows skips for such paths
    whole = path if ntpath.isabs(path) else ntpath.abspath(path)
    if len(whole) < _LONG:
        return path
    whole = ntpath.normpath(whole)
    return _ON_A_SERVER + whole[2:] if whole.startswith("\\\\") else _ANY_LENGTH + whole


def resolved(path: str | Path) -> str:
    """Return the path with links resolved, if the system reports their targets."""
    path = named(path)
    try:
        return named(os.path.realpath(path))
    except OSError:  # some virtual drives, and Wine for long paths
        return named(os.path.abspath(path))  # noqa: PTH100 - text


def open_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that no child inherits; ``O_CREAT`` makes a missing one.

    Raises:
        NotAFile: it is a link or a directory.
        OSError: the system refuses.
    """
    path = named(path)
    if os.path.isdir(path):  # noqa: PTH112 - text, maybe no UTF-8
        raise NotAFile(errno.EINVAL, "it is no regular file", path)
    access = _READ | (_WRITE if flags & (os.O_RDWR | os.O_WRONLY) else 0)
    how = _OPEN_EXISTING
    if flags & os.O_CREAT:
        how = _CREATE_ALWAYS if flags & os.O_TRUNC else _OPEN_ALWAYS
        how = _CREATE_NEW if flags & os.O_EXCL else how
    handle = _tried(_open, path, access, how, _OPEN_REPARSE_POINT)
    descriptor: int = msvcrt.open_osfhandle(handle, _BINARY)
    if os.path.islink(path):  # noqa: PTH114 - likewise
        os.close(descriptor)
        reason = "it is a symbolic link, and nothing inside a task log may be one"
        raise NotAFile(errno.ELOOP, reason, path)
    return descriptor


def _open(path: str, access: int, how: int, flags: int) -> int:
    handle: int = _create_file(path, access, _SHARE_ALL, None, how, flags, None)
    if handle == _BAD_HANDLE:
        raise _failed(path)
    return handle


def pread(descriptor: int, count: int, offset: int) -> bytes:
    """Return at most ``count`` bytes from ``offset``; fewer only at the end of the file."""
    buffer = ctypes.create_string_buffer(count)
    done = _tried(_read, descriptor, buffer, count, offset)
    return ctypes.string_at(buffer, done)


def preadv(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill the view from the file; return the bytes read."""
    buffer = (ctypes.c_char * len(view)).from_buffer(view)
    return _tried(_read, descriptor, buffer, len(view), offset)


def _read(descriptor: int, buffer: Any, count: int, offset: int) -> int:
    done = _DWORD()
    place = _place(offset)
    ok = _read_file(msvcrt.get_osfhandle(descriptor), buffer, count, done, place)
    if not ok and _last_error() != _END_OF_FILE:
        raise _failed()
    return done.value


def pwrite(descriptor: int, data: bytes, offset: int) -> int:
    """Write at ``offset``; return the bytes written."""
    return _tried(_write, descriptor, bytes(data), offset)


def _write(descriptor: int, data: bytes, offset: int) -> int:
    done = _DWORD()
    handle = msvcrt.get_osfhandle(descriptor)
    if not _write_file(handle, data, len(data), done, _place(offset)):
        raise _failed()
    return done.value


def _place(offset: int) -> Any:
    return ctypes.byref(_Overlapped(offset=offset & 0xFFFFFFFF, offset_high=offset >> 32))


class Pace:
    """Like ``posix.Pace``; here all calls release the GIL."""


class Reader:
    def __init__(self, size_max: int, pace: Pace) -> None:
        del pace
        self.size_max = size_max
        self.read = pread


class StatusReader:
    """Looks up files by path or descriptor."""

    def __init__(self, pace: Pace) -> None:
        del pace

    def status(self, file: str | int) -> tuple[int, int, int] | None:
        """Return (device, inode, size) of the file; None if it is missing."""
        try:
            status = _tried(os.stat, named(file) if isinstance(file, str) else file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev & _U64_MAX, status.st_ino & _U64_MAX, status.st_size


def write_at(pace: Pace, descriptor: int, data: bytes, offset: int) -> int:
    """Write like ``pwrite``."""
    del pace
    return pwrite(descriptor, data, offset)


def size(pace: Pace, descriptor: int) -> int:
    """Return the size of a file."""
    del pace
    return os.fstat(descriptor).st_size


def sync(pace: Pace, descriptor: int) -> None:
    """Write a file to stable storage, even if it was opened for reading."""
    del pace
    handle = msvcrt.get_osfhandle(descriptor)
    if _flush_file(handle):
        return
    if _last_error() != _DENIED:
        raise _failed()
    writing = _reopen_file(handle, _WRITE, _SHARE_ALL, 0)
    if writing == _BAD_HANDLE:
        raise _failed()
    try:
        if not _flush_file(writing):
            raise _failed()
    finally:
        _close_handle(writing)


def sync_directory(path: str) -> None:
    """Make the directory's entries durable, if this user may do that."""
    handle = _tried(_open, named(path), _READ | _WRITE, _OPEN_EXISTING, _BACKUP_SEMANTICS)
    _flush_file(handle)  # entries are in NTFS's journal, and some users may not flush
    _close_handle(handle)


def allocate(descriptor: int, size: int) -> bool:
    """Return False: the caller allocates by writing."""
    del descriptor, size
    return False


def rename(source: str | Path, target: str | Path, *, waits: bool = True) -> None:
    """Replace ``target`` in one step; ``waits`` for other programs that hold the file."""
    source, target = named(source), named(target)
    if waits:
        _tried(os.replace, source, target)
    else:
        os.replace(source, target)  # noqa: PTH105 - text, maybe no UTF-8


def link(source: str, target: str) -> None:
    _tried(os.link, named(source), named(target))


def remove(path: str | Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        _tried(os.unlink, named(path))


def room(path: str | Path) -> tuple[int, int, tuple[int, int] | None]:
    """Return (bytes free, bytes in all, None), since files have no limit."""
    path = named(path)
    usage = shutil.disk_usage(path if os.path.isdir(path) else os.path.dirname(path))  # noqa: PTH112, PTH120 - as above
    return usage.free, usage.total, None


def is_read_only(path: str | Path) -> bool:
    """Return False: the first write shows whether a disk is read-only."""
    del path
    return False


def born_ns(descriptor: int) -> int:
    """Return 0: tools restore the creation time, so it proves nothing."""
    del descriptor
    return 0


def was_restored(descriptor: int) -> bool:
    """Return False: a file's times do not show its writer."""
    del descriptor
    return False


def is_same(this: os.stat_result, that: os.stat_result) -> bool:
    """Return whether two files of one directory are the same."""
    return this.st_ino == that.st_ino


# Locks.


def _lock(descriptor: int, flags: int) -> bool:
    handle = msvcrt.get_osfhandle(descriptor)
    if _lock_file(handle, flags, 0, 1, 0, _place(_LOCK_PLACE)):
        return True
    if _last_error() != _LOCKED:
        raise _failed()
    return False


def lock(descriptor: int) -> None:
    """Wait in line for the exclusive lock."""
    _lock(descriptor, _LOCK_EXCLUSIVE)


def try_flock(pace: Pace, descriptor: int) -> bool:
    """Take the exclusive lock if it is free."""
    del pace
    return _lock(descriptor, _LOCK_EXCLUSIVE | _LOCK_AT_ONCE)


def unflock(pace: Pace, descriptor: int) -> None:
    """Release the lock."""
    del pace
    ok = _unlock_file(msvcrt.get_osfhandle(descriptor), 0, 1, 0, _place(_LOCK_PLACE))
    if not ok and _last_error() != _NOT_LOCKED:
        raise _failed()


def lock_owner(descriptor: int) -> None:
    """Take the lock of a living owner; it ends with its process."""
    if not _lock(descriptor, _LOCK_EXCLUSIVE | _LOCK_AT_ONCE):
        raise BlockingIOError(errno.EWOULDBLOCK, "another process has it")


def is_owned(descriptor: int) -> bool:
    """Return whether another process holds an owner's lock, by trying to share it."""
    return not _lock(descriptor, _LOCK_AT_ONCE)


# Processes.


class Bell:
    """A named event at which an owner sleeps, and by which other processes wake it.

    Raises:
        OSError: the owner is gone.
    """

    #: suffix of the files that name owners
    SUFFIX: Final = ".lock"

    def __init__(self, folder: Path, owner: int, *, make: bool = False) -> None:
        del folder
        name = f"Global\\taskq-{owner:016x}"
        self.pipe: int = (
            _create_event(None, False, False, name)
            if make
            else _open_event(_EVENT_MODIFY, False, name)
        )
        if not self.pipe:
            raise _failed()

    def ring(self) -> None:
        if not _set_event(self.pipe):
            raise _failed()

    def wait(self, milliseconds: float | None) -> bool:
        """Sleep until it rings; return False after the timeout."""
        limit = _INFINITE if milliseconds is None else min(int(milliseconds), _INFINITE - 1)
        return bool(_wait_for(self.pipe, limit) == 0)

    def close(self) -> None:
        _close_handle(self.pipe)


def make_channel() -> tuple[int, int]:
    """Raise: event loops cannot read pipes here.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError


def poke(channel: int) -> None:
    """Do nothing: there are no channels."""


def block_broken_pipe() -> None:
    """Do nothing: Windows has no SIGPIPE."""


def host_name() -> str:
    import socket  # noqa: PLC0415 - a program without an event loop has not loaded it

    return socket.gethostname()


def lives(pid: int) -> bool:
    """Return whether the process exists; ``os.kill`` would end it."""
    handle = _open_process(_SYNCHRONIZE, False, pid)
    if not handle:
        return bool(_last_error() == _DENIED)  # another user's process
    try:
        return bool(_wait_for(handle, 0) != 0)
    finally:
        _close_handle(handle)


def has_open(pid: int, path: Path) -> bool:
    """Return True: the system does not show that, and containers have their own events."""
    del pid, path
    return True


def is_parent(parent: int, pid: int) -> bool:
    """Return True: only a process that listens under its pid is ever asked."""
    del parent, pid
    return True


class _JobLimits(ctypes.Structure):
    """Extended limits of a job object; only one flag is set."""

    _fields_ = (
        ("times", ctypes.c_int64 * 2),
        ("flags", _DWORD),
        ("rest", ctypes.c_size_t * 15),
    )


_KILL_ON_CLOSE, _EXTENDED_LIMITS, _LIMITS_BYTES = 0x2000, 9, 144


@functools.cache
def _job() -> int:
    """Return the job object of this process's children, which end when its last handle closes."""
    limits = _JobLimits(flags=_KILL_ON_CLOSE)
    job: int = _function("CreateJobObjectW", _HANDLE, _BYTES, _TEXT)(None, None)
    limit = _function("SetInformationJobObject", _BOOL, _HANDLE, ctypes.c_int, _BYTES, _DWORD)
    if not limit(job, _EXTENDED_LIMITS, ctypes.byref(limits), _LIMITS_BYTES):
        raise _failed()
    return job


def end_with_parent(process: Any) -> None:
    """End a child when this process ends in any way."""
    assign = _function("AssignProcessToJobObject", _BOOL, _HANDLE, _HANDLE)
    if not assign(_job(), int(process._handle)) and process.poll() is None:
        raise _failed()


#: SYSTEM_POWER_STATUS: its size, and states of the line in its first byte.
_POWER_BYTES, _LINE_OFF, _LINE_ON = 12, 0, 1
#: Console events: Ctrl-C and Ctrl-Break, which are signals; a log-off, which only services get. The
#: others are a closed window and a shutdown, for which the handler waits this long, if the system
#: allows it.
_CONTROL_KEYS, _LOGS_OFF, _CLOSE_SECONDS = (0, 1), 5, 20.0
_on_stop: Final[list[Callable[[], object]]] = []
_is_below: Final = threading.Event()


def _leave(event: int) -> bool:
    is_below = _is_below.is_set()
    if not is_below and (event in _CONTROL_KEYS or not _on_stop):
        return False
    if event not in (*_CONTROL_KEYS, _LOGS_OFF):
        for action in () if is_below else (*_on_stop,):
            action()
        time.sleep(_CLOSE_SECONDS)  # the process ends when this returns
    return True


# Kept for ever, since the system may be in a call when the last watch ends.
_leaver: Final[Any] = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)(_BOOL, _DWORD)(_leave)


def _handle_console(is_handled: bool) -> None:
    _function("SetConsoleCtrlHandler", _BOOL, _BYTES, _BOOL)(_leaver, is_handled)


def leave_console() -> None:
    """Leave Ctrl-Break and the end of the console to the parent process.

    The console sends them to every process. A child would end at once, and a worker below a guard
    would get two stop requests, which cancel its jobs.
    """
    _is_below.set()
    _handle_console(True)


def watch_stop(action: Callable[[], object]) -> Callable[[], None]:
    """Call ``action`` on a thread at each stop request for this process.

    Return a function that stops the watch and refuses further requests.
    """
    asked = _create_event(None, False, False, f"Global\\taskq-stop-{os.getpid()}")
    ended = _create_event(None, True, False, None)

    def watch() -> None:
        while _wait_for_any(2, (_HANDLE * 2)(ended, asked), False, _INFINITE) == 1:
            action()

    def stop() -> None:
        _set_event(ended)
        thread.join()
        _on_stop.remove(action)
        _handle_console(False)
        _close_handle(asked)
        _close_handle(ended)

    thread = threading.Thread(target=watch, name="taskq-stop", daemon=True)
    thread.start()
    _on_stop.append(action)
    _handle_console(True)
    return stop


def ask_to_stop(pid: int) -> bool:
    """Ask a process to end after its present work; False if it does not listen."""
    event = _open_event(_EVENT_MODIFY, False, f"Global\\taskq-stop-{pid}")
    if not event:
        return False
    _set_event(event)
    _close_handle(event)
    return True


def on_battery() -> bool | None:
    """Return whether the machine runs on battery; None if unknown."""
    status = (ctypes.c_uint8 * _POWER_BYTES)()
    if not _function("GetSystemPowerStatus", _BOOL, _BYTES)(ctypes.byref(status)):
        return None
    return {_LINE_OFF: True, _LINE_ON: False}.get(status[0])


def memory_bytes() -> int:
    facts = (ctypes.c_size_t * 9)()
    ask = _function("K32GetProcessMemoryInfo", _BOOL, _HANDLE, _BYTES, _DWORD)
    ask(_HANDLE(-1), ctypes.byref(facts), ctypes.sizeof(facts))
    return facts[2]  # after two numbers of 32 bits and the peak


def boot_mark() -> bytes:
    """Return the system's number of this boot, and its start, which setting the clock keeps."""
    facts = (ctypes.c_uint64 * 6)()
    _library("ntdll").NtQuerySystemInformation(_FACTS, facts, ctypes.sizeof(facts), None)
    began = facts[0] - facts[4]
    number = ctypes.c_uint32.from_address(_BOOT_NUMBER_PLACE).value
    return f"{os.environ.get('COMPUTERNAME', '')} {number} {began}".encode()


# Permissions: a folder in the user's profile keeps other users out; modes have no effect.


def geteuid() -> int:
    """Return the number that every file has as its owner."""
    return ROOT


def user(number: int) -> str:
    """Describe the user of this process."""
    del number
    return f"user {getpass.getuser()}"


def group(status: os.stat_result) -> str:
    """Return words for a sentence about groups, which files do not have here."""
    del status
    return "(none on Windows: the permissions of the folder decide that)"


def is_shared(mode: int) -> bool:
    """Return False: modes share nothing."""
    del mode
    return False


def is_alone(status: os.stat_result) -> bool:
    """Return True: files have no group."""
    del status
    return True


def make_directory(path: str | Path) -> None:
    """Make a directory and its parents; an existing one is no error.

    Raises:
        OSError: the system refuses, or the path is something else, even a link to a directory.
    """
    place = Path(named(path))
    if not make_private(place) and (place.is_symlink() or not place.is_dir()):
        raise NotAFile(errno.ENOTDIR, "it is no directory", str(path))


def make_private(path: Path) -> bool:
    """Make a data directory; False if it exists.

    Raises:
        OSError: the system refuses.
    """
    path = Path(named(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True
