"""How far running jobs are, as they tell it themselves: ``owners/<owner>.progress``.

Not in the log, which it would bloat: each process has one small file that it replaces as a whole,
at most ten times a second, and never syncs. A reader takes the word of whoever runs the job now:
what is told of an earlier claim, or by a process that is gone, counts for nothing. The file goes
with its owner's other files.

The file is a JSON array of ``[job, token, fraction, message, at in nanoseconds]``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from taskq.core.parsing import parse_json
from taskq.core.views import ProgressView
from taskq.log.machine.door import read_file, replace_file
from taskq.log.machine.peers import PROGRESS, PROGRESS_NEW

#: Running jobs of one process that tell of themselves; of more, the latest to do so.
JOBS_MAX: Final = 4_096
#: Least time between two writes of the file.
PAUSE_SECONDS: Final = 0.1
#: The writer's thread ends when nothing was told for so long.
_IDLE_SECONDS: Final = 2.0
_BYTES_MAX: Final = 8 * 1024 * 1024
_FIELDS: Final = 5


class ProgressBoard:
    """Take what the jobs of one process tell, and write it down on a thread.

    The first word is written at once, the last one at most ``PAUSE_SECONDS`` after it was said.
    """

    def __init__(self, directory: Path, owner: int) -> None:
        self._path = directory / f"{owner:016x}{PROGRESS}"
        self._guard = threading.Condition()
        self._ended = threading.Event()
        #: (job, token) -> whoever runs it, and what it told
        self._told: dict[tuple[int, int], tuple[weakref.ref[Any], ProgressView]] = {}
        self._has_news = False
        self._thread: threading.Thread | None = None

    def tell(self, runner: object, job: int, token: int, view: ProgressView) -> None:
        """Note what a job told, until ``runner`` is gone. From any thread; returns at once."""
        with self._guard:
            if self._ended.is_set():
                return
            key = job, token
            if key not in self._told and len(self._told) >= JOBS_MAX:
                self._forget_gone()
            self._told[key] = weakref.ref(runner), view
            if self._has_news:
                return
            self._has_news = True
            self._guard.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="taskq-progress", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Tell nothing any more; the file is the owner's to remove. Legal twice."""
        with self._guard:
            self._ended.set()
            self._guard.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _forget_gone(self) -> None:
        for key in [key for key, (runner, _) in self._told.items() if runner() is None]:
            del self._told[key]
        while len(self._told) >= JOBS_MAX:
            del self._told[next(iter(self._told))]

    def _run(self) -> None:
        while True:
            with self._guard:
                while not self._has_news:
                    if self._ended.is_set() or not self._guard.wait(_IDLE_SECONDS):
                        self._thread = None
                        return
                self._has_news = False
                self._forget_gone()
                rows = [[*key, *view] for key, (_, view) in self._told.items()]
            # Whoever wants to know how far a job is sees the last word that the disk took.
            with contextlib.suppress(OSError):
                self._write(rows)
            self._ended.wait(PAUSE_SECONDS)

    def _write(self, rows: list[list[object]]) -> None:
        temporary = self._path.with_suffix(PROGRESS_NEW)
        replace_file(self._path, temporary, json.dumps(rows).encode())


def read_told(path: Path, job: int, token: int) -> ProgressView | None:
    try:
        rows = parse_json(read_file(path, _BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == _FIELDS and row[:2] == [job, token]:
            return _told(*row[2:])
    return None


def _told(fraction: object, message: object, at_ns: object) -> ProgressView | None:
    if isinstance(fraction, int | float) and isinstance(message, str) and isinstance(at_ns, int):
        return ProgressView(float(fraction), message, at_ns)
    return None
