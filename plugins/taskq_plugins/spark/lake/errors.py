"""Errors of a lake.

::

    TaskqError
    └── LakeError               the lake cannot be used as asked
        ├── NotALake            the directory holds no lake
        ├── LakeDamaged         a table's log, or a file that it names, is missing or not as written
        ├── TableLost           a table is gone, or an older copy than the lake had
        ├── LakeBusy            another process writes to it
        ├── LakeConflict        somebody else changed what was to be changed
        └── LakeDiskError       the disk refused a commit; the last batch stands
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskq.errors import TaskqError

if TYPE_CHECKING:
    from pathlib import Path


class LakeError(TaskqError):
    """The lake cannot be used as asked."""


class NotALake(LakeError):
    """The directory holds no lake."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(
            f"{path}: is not a lake (no directory in it is a Delta table of the pipeline); "
            f"make one with taskq pipeline run --journals DIR --lake {path}"
        )


class LakeDamaged(LakeError):
    """A table's log, or a file that it names, is missing or not as it was written.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. Restore the whole lake from a backup, or remove it: "
            f"taskq pipeline run then makes all tables anew from the logs"
        )
        self.path = path


class TableLost(LakeError):
    """Tables are gone, or older copies than the lake had; nothing was read.

    Attributes:
        tables: which.
    """

    def __init__(self, path: Path | str, problems: Mapping[str, str]) -> None:
        problem_list = "; ".join(f"{table} {problem}" for table, problem in problems.items())
        super().__init__(
            f"{path}: {problem_list}. Put back the whole lake from one backup, or remove it: "
            f"taskq pipeline run then makes all tables anew from the logs"
        )
        self.tables = tuple(problems)


class LakeBusy(LakeError):
    """Another process writes to the lake.

    Attributes:
        holder_pid: its process id, 0 if unknown.
    """

    def __init__(self, path: Path | str, holder_pid: int, host: str = "") -> None:
        holder = f"process {holder_pid}" if holder_pid else "another process"
        holder += f" on {host}" if host else ""
        super().__init__(
            f"{path}: {holder} writes to this lake: wait until it has ended, or stop it"
        )
        self.holder_pid = holder_pid


class LakeConflict(LakeError):
    """Somebody else changed what was to be changed; nothing was committed."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"{path}: somebody else writes to this table without the lake's lock ({problem}). "
            f"Nothing was committed: stop the other one, then run again"
        )


class LakeDiskError(LakeError):
    """The disk refused a commit; what was committed before stands.

    Attributes:
        errno: the operating system's code, for example ``errno.ENOSPC``.
    """

    def __init__(self, path: Path | str, error: OSError) -> None:
        super().__init__(
            f"{path}: could not be written ({error.strerror or error}); the batch before stands. "
            f"Free some space or check permissions, then run again"
        )
        self.errno = error.errno
