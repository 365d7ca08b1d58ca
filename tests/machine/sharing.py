"""Run a log by Windows' calls on any system, while another program holds each file for a moment.

The calls of kernel32 are made of those of POSIX, and are refused as a virus scanner or a backup
program causes it: at each line of the source that reaches the system, several times in a row. What
such a line does not try again raises here.
"""

import builtins
import contextlib
import errno
import fcntl
import functools
import importlib
import io
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from taskq.log.machine import windows

SHARING, LOCKED, TIMEOUT = 32, 33, 258
#: Refusals in a row at each place.
REFUSALS: Final = 3
#: Places that such a run comes to, at least.
PLACES_MIN: Final = 30
_ROOT: Final = str(Path(__file__).parents[2])
_BELOW: Final = {__file__, windows.__file__}
_WRITES, _FOLDER = 0x40000000, 0x02000000
_EXCLUSIVE, _AT_ONCE = 2, 1
_HOW: Final = {1: os.O_CREAT | os.O_EXCL, 2: os.O_CREAT | os.O_TRUNC, 4: os.O_CREAT}
_CODES: Final = {errno.ENOENT: 2, errno.ENOTDIR: 3, errno.EEXIST: 80, errno.EWOULDBLOCK: LOCKED}
_ERRORS: Final = {code: number for number, code in _CODES.items()}


class Held(PermissionError):
    """A refusal of Windows."""

    def __init__(self, code: int, path: object = None) -> None:
        super().__init__(errno.EACCES, "held", path)
        self.winerror = code


class Scanner:
    """Holds files: each place in the source meets it, the first times that it comes there.

    Attributes:
        watched: it holds files of this directory.
        places: (file, line, call) -> how often it came there.
        kept: (call, path) that it refuses for longer.
    """

    def __init__(self, watched: str) -> None:
        self.watched = watched
        self.places = Counter[tuple[str, int, str]]()
        self.kept = set[tuple[str, str]]()

    def holds(self, call: str, path: object) -> bool:
        if not isinstance(path, str | Path) or not str(path).startswith(self.watched):
            return False
        if (call, str(path)) in self.kept:
            return True
        frame = sys._getframe(1)
        while frame.f_code.co_filename in _BELOW or not frame.f_code.co_filename.startswith(_ROOT):
            if frame.f_back is None:
                return False
            frame = frame.f_back
        place = frame.f_code.co_filename.removeprefix(_ROOT), frame.f_lineno, call
        self.places[place] += 1
        return self.places[place] <= REFUSALS


class Kernel:
    """Calls of kernel32; a handle is a descriptor, or the number of an event."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._state = threading.local()
        self._events: dict[int, tuple[threading.Event, str]] = {}
        self._guard = threading.Lock()

    def install(self) -> None:
        """Let the log of this process use Windows' calls; before it is imported."""
        calls: dict[str, Any] = {
            name: getattr(self, name[1:]) for name in vars(windows) if hasattr(self, name[1:])
        }
        own = SimpleNamespace(
            open_osfhandle=lambda handle, _: handle, get_osfhandle=lambda number: number
        )
        calls |= {
            "msvcrt": own,
            "_PAUSE_SECONDS": 0.0,
            "boot_mark": lambda: b"one",
            "named": str,
            "resolved": os.path.realpath,
        }
        for name, value in calls.items():
            setattr(windows, name, value)
        for module, name in ((os, "replace"), (os, "unlink"), (os, "link"), (os, "open")):
            setattr(module, name, self._held(name, getattr(module, name)))
        io.open = builtins.open = self._held("open", open)
        chosen: Any = types.ModuleType("taskq.log.machine.system")
        chosen.system = windows
        sys.modules[chosen.__name__] = chosen

    def _held(self, name: str, call: Callable[..., Any]) -> Any:
        def held(*args: Any, **options: Any) -> Any:
            for path in args[:2]:
                if self._scanner.holds(name, path):
                    raise Held(SHARING, path)
            return call(*args, **options)

        return held

    def _refuse(self, code: int) -> bool:
        self._state.code = code
        return False

    def _refuses(self, call: str, handle: int) -> bool:
        path = str(Path(f"/proc/self/fd/{handle}").readlink())
        return self._scanner.holds(call, path) and not self._refuse(LOCKED)

    def failed(self, path: object = None) -> OSError:
        code = self._state.code
        if code in windows._BUSY:
            return Held(code, path)
        number = _ERRORS.get(code, errno.EINVAL)
        return OSError(number, os.strerror(number), path)

    def last_error(self) -> int:
        return int(self._state.code)

    def create_file(self, path: str, access: int, _: int, __: None, how: int, *rest: Any) -> Any:
        if self._scanner.holds("open", path):
            self._refuse(SHARING)
            return windows._BAD_HANDLE
        writes = access & _WRITES and not rest[0] & _FOLDER
        try:
            return os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | _HOW.get(how, 0), 0o600)
        except OSError as error:
            self._refuse(_CODES[error.errno or 0])
            return windows._BAD_HANDLE

    def close_handle(self, handle: int) -> None:
        if handle not in self._events:
            os.close(handle)

    def read_file(self, handle: int, buffer: Any, count: int, done: Any, place: Any) -> bool:
        if self._refuses("read", handle):
            return False
        data = os.pread(handle, count, _offset(place))
        memoryview(buffer).cast("B")[: len(data)] = data
        done.value = len(data)
        return True

    def write_file(self, handle: int, data: bytes, count: int, done: Any, place: Any) -> bool:
        if self._refuses("write", handle):
            return False
        done.value = os.pwrite(handle, data[:count], _offset(place))
        return True

    def flush_file(self, handle: int) -> bool:
        os.fsync(handle)
        return True

    def lock_file(self, handle: int, flags: int, *_: Any) -> bool:
        how = fcntl.LOCK_EX if flags & _EXCLUSIVE else fcntl.LOCK_SH
        try:
            fcntl.flock(handle, how | (fcntl.LOCK_NB if flags & _AT_ONCE else 0))
        except BlockingIOError:
            return self._refuse(LOCKED)
        return True

    def unlock_file(self, handle: int, *_: Any) -> bool:
        fcntl.flock(handle, fcntl.LOCK_UN)
        return True

    def create_event(self, *words: Any) -> int:
        # Their numbers are no descriptors'.
        with self._guard:
            self._events[-1 - len(self._events)] = threading.Event(), words[-1]
            return -len(self._events)

    def open_event(self, _: int, __: bool, name: str) -> int:
        with self._guard:
            return next((key for key, (_, own) in self._events.items() if own == name), 0)

    def set_event(self, event: int) -> bool:
        self._events[event][0].set()
        return True

    def wait_for(self, event: int, milliseconds: int) -> int:
        seconds = None if milliseconds == windows._INFINITE else milliseconds / 1_000
        if not self._events[event][0].wait(seconds):
            return TIMEOUT
        self._events[event][0].clear()
        return 0


def _offset(place: Any) -> int:
    return int(place._obj.offset | place._obj.offset_high << 32)


def _is_dead(job: Any) -> bool:
    return bool(job.status_sync().name == "DEAD")


def main(folder: Path) -> None:
    case, folder = folder / "case.zip", folder / "logs"
    folder.mkdir()
    scanner = Scanner(str(folder))
    Kernel(scanner).install()
    names = ("taskq", "taskq_workers", "tests.processes.harness")
    taskq, workers, harness = map(importlib.import_module, names)
    data = folder / "data"
    for keep in ("1h", "0s"):
        app = taskq.TaskQ(data, durability="os", segment_bytes=65_536, keep=keep, keep_segments=1)
        adds = app.task(name="adds")(lambda number: number + 1)
        fails = app.task(name="fails")(lambda number: number / 0)
        first = next((data / "log").glob("*.log"), data)
        scanner.kept = {("replace", str(first)), ("unlink", str(first))}
        with workers.WorkerThread(app):
            jobs = app.enqueue_many_sync([adds.call(number) for number in range(300)])
            dead = app.enqueue_sync(fails.call(1).options(attempts=1))
            harness.eventually(functools.partial(_is_dead, dead))
            if keep == "1h":
                assert [job.result_sync() for job in jobs] == [*range(1, 301)]
            else:
                app.compact_sync(keep=0)
        app.close_sync()
    assert first.exists()
    scanner.kept.clear()
    command = importlib.import_module("taskq.cli.main").main
    for words in (
        ["ls", data], ["stats", data], ["workers", data], ["verify", data],
        ["show", "-d", data, dead.id], ["timeline", "-d", data, dead.id], ["compact", data],
        ["backup", data, folder / "copy"], ["restore", folder / "copy", folder / "again"],
        ["export", data], ["report", data, "-o", case], ["repair", data, "--to", folder / "mended"],
    ):  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            assert not command(list(map(str, words)), standalone_mode=False), words
    assert not first.exists()
    assert len(scanner.places) > PLACES_MIN, sorted(scanner.places)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
