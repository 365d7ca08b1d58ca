"""Errors of a lake; each names its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.errors import TaskqError

if TYPE_CHECKING:
    from pathlib import Path

_ANEW: Final = "taskq pipeline run then makes all tables anew from the logs"


class LakeError(TaskqError):
    """The lake cannot be used as asked."""


class LakeDamaged(LakeError):
    """A table, its log or a file of it is missing, older, or not as it was written."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. Restore the whole lake from one backup, or remove it: {_ANEW}"
        )


class LakeBusy(LakeError):
    """Another process writes to the lake."""

    def __init__(self, path: Path | str, holder_pid: int) -> None:
        holder = f"process {holder_pid}" if holder_pid else "another process"
        super().__init__(
            f"{path}: {holder} writes to this lake: wait until it has ended, or stop it"
        )


class LakeConflict(LakeError):
    """Somebody else changed what was to be changed; nothing was committed."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"{path}: somebody else writes to this table without the lake's lock ({problem}). "
            f"Nothing was committed: stop the other one, then run again"
        )


class LakeDiskError(LakeError):
    """The disk or the store refused a commit; what was committed before stands.

    Attributes:
        errno: the operating system's code, for example ``errno.ENOSPC``.
    """

    def __init__(self, path: Path | str, error: OSError) -> None:
        super().__init__(
            f"{path}: could not be written ({error.strerror or error}); the batch before stands. "
            f"Free some space or check permissions, then run again"
        )
        self.errno = error.errno
