# ruff: noqa: INP001 - Python imports it by its name
"""Take what only Linux has from every Python that is started with it, for .ci/fallbacks.

FALLBACKS_WITHOUT names it, with commas between several. Only calls of the product miss
it: tests may look into /proc.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from typing import Any

MISSING = os.environ.get("FALLBACKS_WITHOUT", "").split(",")
SOURCES = ("/taskq/", "/taskq_workers/", "/taskq_plugins/")


def is_ours() -> bool:
    """Return whether the product itself calls, perhaps through the standard library."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/lib/python" not in name and not name.startswith("<frozen"):
            return any(part in name for part in SOURCES) and "/tests/" not in name
        frame = frame.f_back
    return False


def take_proc() -> None:
    """Let nothing be found below /proc."""

    def hide(event: str, arguments: tuple[Any, ...]) -> None:
        named = event in {"open", "os.listdir", "os.scandir"} and arguments[0]
        if isinstance(named, str) and named.startswith("/proc") and is_ours():
            raise FileNotFoundError(errno.ENOENT, "taken away", named)

    real = os.stat

    def stat(path: Any, *rest: Any, **options: Any) -> Any:
        if str(path).startswith("/proc") and is_ours():
            raise FileNotFoundError(errno.ENOENT, "taken away", path)
        return real(path, *rest, **options)

    sys.addaudithook(hide)
    os.stat = stat


def take_pidfd() -> None:
    """Let the kernel know no descriptors of processes."""
    real = os.pidfd_open

    def refuse(pid: int, flags: int = 0) -> int:
        if is_ours():
            raise OSError(errno.ENOSYS, "taken away")
        return real(pid, flags)

    os.pidfd_open = refuse


def take_from_library(*names: str) -> None:
    """Let the C library lack these functions."""
    real = ctypes.CDLL.__getattr__

    def get(self: ctypes.CDLL, name: str) -> Any:
        if name in names:
            raise AttributeError(name)
        return real(self, name)

    ctypes.CDLL.__getattr__ = get  # type: ignore[method-assign]


for missing in MISSING:
    match missing:
        case "proc":
            take_proc()
        case "statx" | "prctl":
            take_from_library(missing)
        case "ctypes":
            take_from_library("pread", "statx", "prctl")
        case "pidfd_open":
            take_pidfd()
        case "posix_fallocate":
            del os.posix_fallocate
        case "CLOCK_BOOTTIME":
            del time.CLOCK_BOOTTIME
        case _:
            raise SystemExit(f"FALLBACKS_WITHOUT={missing} is nothing that can be taken")
