"""Noticing that code changed, for ``taskq worker --reload``."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq.errors import UsageError
from taskq.extras import missing
from taskq.values import listed

if TYPE_CHECKING:
    from collections.abc import Callable

#: Files named in one line.
_NAMED_MAX: Final = 3


class CodeWatcher:
    """Watches the .py files under a folder, on a thread of its own.

    Args:
        folder: watched with all folders in it, but for virtual environments, caches and the like.

    Raises:
        UsageError: watchfiles is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._watchfiles: Any = importlib.import_module("watchfiles")
        except ImportError as error:
            lacking = missing("--reload", error.name, "reload")
            raise UsageError(f"{lacking}, or leave the option out") from error
        self._folder = folder
        self._over = threading.Event()

    def start(self, changed: Callable[[str], None]) -> None:
        """Begin to watch.

        Args:
            changed: called from the thread with what changed, in words.
        """
        work = threading.Thread(
            target=self._work, args=(changed,), name="taskq-reload", daemon=True
        )
        work.start()

    def stop(self) -> None:
        """Watch no more; returns at once."""
        self._over.set()

    def _work(self, changed: Callable[[str], None]) -> None:
        changes = self._watchfiles.watch(
            self._folder,
            watch_filter=self._watchfiles.PythonFilter(),
            stop_event=self._over,
            raise_interrupt=False,
        )
        for batch in changes:
            names = {_short(Path(path), self._folder) for _, path in batch}
            changed(listed(sorted(names), _NAMED_MAX))


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
