"""What can be wrong with a lake.

::

    TaskqError
    └── LakeError               the lake cannot be used as asked
        ├── NotALake            the directory holds no lake
        ├── LakeFormatError     a newer taskq wrote it
        ├── LakeDamaged         a manifest, or a file that it names, is missing or not as written
        ├── LakeBusy            another process writes to it
        ├── LakeConflict        somebody else made the version that was to be committed
        ├── LakeDiskError       the disk refused a commit; the last version stands
        └── CheckpointMismatch  the stream's checkpoint and the tables tell different stories
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.errors import TaskqError

if TYPE_CHECKING:
    from pathlib import Path


class LakeError(TaskqError):
    """The lake cannot be used as asked."""


class NotALake(LakeError):
    """The directory holds no lake."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: is not a lake (there is no taskq-lake.json); "
            f"make one with taskq pipeline run --journals DIR --lake {path}"
        )


class LakeFormatError(LakeError):
    """Bytes of a version that this taskq does not know."""

    def __init__(self, path: Path, version: object) -> None:
        super().__init__(f"{path}: format {version} is unknown: a newer taskq wrote it; use that")


class LakeDamaged(LakeError):
    """A manifest, or a file that it names, is missing or not as it was written.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. Restore it from a backup of the lake, or make a new lake "
            f"from the logs with taskq pipeline run"
        )
        self.path = path


class LakeBusy(LakeError):
    """Another process writes to the lake.

    Attributes:
        holder_pid: its process id, 0 if unknown.
    """

    def __init__(self, path: Path, holder_pid: int, holder_state: str) -> None:
        holder = f"process {holder_pid} ({holder_state})" if holder_pid else "another process"
        super().__init__(
            f"{path}: {holder} writes to this lake: wait until it has ended, or stop it"
        )
        self.holder_pid = holder_pid


class LakeConflict(LakeError):
    """Somebody else made the version that was to be committed; nothing was committed."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: exists already, so somebody else writes to this lake without its lock. "
            f"Nothing was committed: stop the other one, then run again"
        )


class LakeDiskError(LakeError):
    """The disk refused a commit; nothing of it is visible and the last version stands.

    Attributes:
        errno: the operating system's code, for example ``errno.ENOSPC``.
    """

    def __init__(self, path: Path, error: OSError, version: int) -> None:
        super().__init__(
            f"{path}: could not be written ({error.strerror or error}); nothing was committed, "
            f"version {version} stands. Free some space or check permissions, then run again"
        )
        self.errno = error.errno


class CheckpointMismatch(LakeError):
    """The stream's checkpoint and the tables tell different stories; nothing was read."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}: going on would leave records out or count them twice. "
            f"Make the checkpoint anew from the tables with --restore-checkpoint"
        )
