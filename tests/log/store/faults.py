"""A disk that refuses any call of the port on demand, once or for good."""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from taskq.log.machine import forks, owners, peers, posix
from taskq.log.machine.access import replace_file
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.ports import Disk
from taskq.log.store import thread
from tests.machine.crashable import CrashableDisk

CODES: Final = (
    errno.EIO, errno.EACCES, errno.ENOSPC, errno.EMFILE, errno.ENOENT, errno.ENOTDIR, errno.EROFS,
)  # fmt: skip
#: Calls that fail only in broken programs: a close, and requests for nothing.
_SURE: Final = frozenset({"close", "boot_id", "identity", "was_restored"})
_CALLS: Final = sorted(
    name for name in vars(Disk) if not name.startswith("_") and name not in _SURE
)


class Fault(Enum):
    """How a call is refused."""

    #: this one
    ONCE = auto()
    #: and all of its name that follow
    FOR_GOOD = auto()
    #: and all later ones
    DEAD = auto()
    #: it did what it was to do, and fails all the same
    AFTER = auto()
    #: the same, and what would undo it fails, too
    AFTER_FOR_GOOD = auto()
    #: it did a part of it, and what would undo it fails, too
    TORN = auto()


class Faults:
    """Counts the calls of one disk from now on, and refuses some.

    Attributes:
        calls: (name, what it is about) of each so far.
    """

    def __init__(self, disk: CrashableDisk) -> None:
        self.calls: list[tuple[str, object]] = []
        self._at = -1
        self._code = 0
        self._fault = Fault.ONCE
        self._failing: set[str] = set()
        for name in _CALLS:
            call = functools.partial(self._call, name, getattr(disk, name))
            setattr(disk, name, call)

    def fail_at(self, number: int, code: int, fault: Fault) -> None:
        self._at, self._code, self._fault = number, code, fault

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        number = len(self.calls)
        self.calls.append((name, args[0] if args else None))
        fault = self._fault
        if number == self._at:
            if fault is Fault.TORN and name == "write":
                call(args[0], args[1][: len(args[1]) // 2], args[2])
            elif fault in (Fault.AFTER, Fault.AFTER_FOR_GOOD):
                call(*args, **options)
            if fault is Fault.FOR_GOOD:
                self._failing.add(name)
            elif fault in (Fault.TORN, Fault.AFTER_FOR_GOOD):
                self._failing.add("truncate")
            elif fault is Fault.DEAD:
                self._failing.update(_CALLS)
        elif name not in self._failing:
            return call(*args, **options)
        raise OSError(self._code, os.strerror(self._code))


# -- sites -----------------------------------------------------------------------------------------


#: Errors of writers, and of readers; then each call's own.
_WRITES: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_LOOKS: Final = (errno.EIO, errno.ESTALE, errno.ENOMEM)
_NAMES: Final = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)
_LOCKS: Final = (errno.ENOLCK, errno.EIO)
_OPENS: Final = (errno.EMFILE, errno.EACCES, errno.ENOSPC, errno.EIO)
#: Call -> errors that the system may answer it with.
ERRORS: Final = {
    "open": _OPENS, "open_file": _OPENS, "open_pipe": _OPENS, "make_pipe": _OPENS,
    "write": (*_WRITES, errno.EFBIG), "write_at": _WRITES, "pwrite": _WRITES,
    "read": _LOOKS, "pread": _LOOKS, "size": _LOOKS, "status": _LOOKS, "stat": _LOOKS,
    "names": _LOOKS, "identity": _LOOKS, "modified_ns": _LOOKS, "free_bytes": _LOOKS,
    "total_bytes": _LOOKS, "files": _LOOKS, "was_restored": _LOOKS, "fstat": _LOOKS,
    "read_file": (*_LOOKS, errno.EMFILE), "replace_file": (*_WRITES, errno.EMFILE),
    "truncate": _WRITES, "allocate": _WRITES, "sync": _WRITES, "sync_directory": _WRITES,
    "rename": _NAMES, "link": _NAMES, "remove": _NAMES, "make_directory": _NAMES,
    "touch": _NAMES,
    "lock": _LOCKS, "try_lock": _LOCKS, "unlock": _LOCKS, "lock_owner": _LOCKS, "is_owned": _LOCKS,
    "ring": (*_WRITES, errno.ENOMEM), "poll": (errno.ENOMEM,),
    "close": (errno.EIO, errno.ENOSPC),
}  # fmt: skip
#: These have done what they were to do when they fail: a full disk refuses a pipe its new time,
#: after the byte is in it, and a network its close.
_DONE: Final = {
    "close": (errno.EIO, errno.ENOSPC),
    "ring": _WRITES,
}
#: What peers call of the system, besides their bells.
_PEERS_CALLS: Final = (
    "write_at", "pread", "pwrite", "rename", "remove", "lock_owner", "is_owned",
)  # fmt: skip
#: Functions that lead to a call which are part of its site.
_DEPTH: Final = 3
_CODE: Final = f"{os.sep}taskq{os.sep}log{os.sep}"
#: The port answers for these: a close is looked at below it.
_NEVER_FAIL: Final = {"boot_id", "close"}
_DISK_CALLS: Final = sorted(
    name for name in vars(Disk) if not name.startswith("_") and name not in _NEVER_FAIL
)


class Site(NamedTuple):
    """A call of the machine, and who makes it, the nearest first."""

    call: str
    callers: tuple[str, ...]

    def __str__(self) -> str:
        return " < ".join((self.call, *self.callers))


class Sites:
    """Notes where the machine is called, and lets the first call at one site fail.

    Attributes:
        seen: the sites so far, in order.
        hit: whether that call came.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[Site, None] = {}
        self.hit = False
        self._at: Site | None = None
        self._code = 0
        self._guard = threading.Lock()
        sites = self

        class Watched(LocalDisk):
            def __init__(self) -> None:
                super().__init__()
                for name in _DISK_CALLS:
                    setattr(self, name, sites._watched(name, getattr(self, name)))

        monkeypatch.setattr(thread, "LocalDisk", Watched)
        self._watch_peers(monkeypatch)

    def fail(self, site: Site | None, code: int = 0) -> None:
        self._at, self._code, self.hit = site, code, False

    def fail_no_more(self) -> None:
        self._at = None

    def _watch_peers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Reader(posix.Reader):
            read = self._watched("read", posix.Reader.read)

        def module(of: Any, **calls: Callable[..., Any]) -> Any:
            watched = {name: self._watched(name, call) for name, call in calls.items()}
            return SimpleNamespace(**{**vars(of), **watched})

        calls = module(posix, **{name: getattr(posix, name) for name in _PEERS_CALLS})
        calls.Reader = Reader
        monkeypatch.setattr(peers, "system", calls)
        monkeypatch.setattr(posix, "write", self._watched("ring", posix.write))
        for name in ("open_pipe", "make_pipe"):
            monkeypatch.setattr(posix, name, self._watched(name, getattr(posix, name)))
        monkeypatch.setattr(peers, "os", module(os, fstat=os.fstat, close=os.close))
        monkeypatch.setattr(forks, "os", module(os, close=os.close))
        monkeypatch.setattr(peers, "Path", self._watched_path())
        for name in ("open_file", "make_directory", "read_file"):
            monkeypatch.setattr(peers, name, self._watched(name, getattr(peers, name)))
        monkeypatch.setattr(owners, "replace_file", self._watched("replace_file", replace_file))

    def _watched_path(self) -> Any:
        path = type(Path())

        class Watched(path):  # type: ignore[misc, valid-type]
            stat = self._watched("stat", path.stat)

        return Watched

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **options: Any) -> Any:
            site = Site(name, _callers())
            with self._guard:
                self.seen[site] = None
                fails = site == self._at and not self.hit
                self.hit = self.hit or fails
            if not fails:
                return call(*args, **options)
            if self._code in _DONE.get(name, ()):
                call(*args, **options)
            raise OSError(self._code, os.strerror(self._code))

        return watched


def _callers() -> tuple[str, ...]:
    """Name the functions of the log that led here, without the watchers themselves."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(names) < _DEPTH:
        if _CODE in frame.f_code.co_filename:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return tuple(names)
