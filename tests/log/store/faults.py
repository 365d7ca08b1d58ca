"""A disk that refuses any call of the port on demand, once or for good."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from taskq.log.machine.ports import Disk
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
