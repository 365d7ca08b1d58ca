"""One folder of temporary files for each process that runs Spark, and an end to those left behind.

A process that was killed removes nothing. So each folder holds a file that its process keeps
locked, and whoever makes the next folder removes those whose lock is free. The lock and not the
process id decides: two containers may share a folder of temporary files and count alike.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq_plugins.spark.errors import SparkError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = "taskq-spark-"
_LOCK: Final = "alive"
#: A folder without a lock file is either being made just now, or its maker died at that moment.
_UNBORN_SECONDS: Final = 60.0

_guard: Final = threading.Lock()
#: process id -> its folder and the descriptor of its lock
_made: Final[dict[int, tuple[Path, int]]] = {}


def work_dir() -> Path:
    """This process's folder, made when it is first asked for and removed at the process's end.

    Raises:
        SparkError: there is no room or no right to make it.
    """
    with _guard:
        made = _made.get(os.getpid())
        if made is None:
            remove_abandoned()
            made = _made[os.getpid()] = _make()
            atexit.register(remove, os.getpid())
    return made[0]


def remove(pid: int) -> None:
    """Remove the folder of this process; legal twice, and does nothing in its children."""
    if pid == os.getpid() and pid in _made:
        path, lock = _made.pop(pid)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> list[Path]:
    """Remove the folders of processes that are gone; returns which."""
    removed = []
    for path in _folders():
        if _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _make() -> tuple[Path, int]:
    try:
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        # Locked before it has its name: a free lock of that name says that its process is gone.
        unnamed = path / f".{_LOCK}"
        lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(path / _LOCK)
        (path / "tmp").mkdir()
    except OSError as error:
        why = "is full" if error.errno == errno.ENOSPC else f"cannot be used ({error.strerror})"
        raise SparkError(
            f"{tempfile.gettempdir()}: the folder for temporary files {why}: make room, "
            f"or set TMPDIR to another"
        ) from error
    return path, lock


def _folders() -> Iterator[Path]:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and path.is_dir() and not path.is_symlink():
                yield path


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        try:
            return time.time() - path.stat().st_mtime > _UNBORN_SECONDS
        except OSError:
            return False
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)
