"""What may be wrong with a segment file; each error names the file, and what to do.

One that the system refuses to read is a ``SegmentUnreadable`` of the fleet.

::

    LogError
    ├── SegmentMissing      there is no such file
    ├── WrongSegment        a whole segment of another log, or another one of this log
    └── LogDamaged
        └── SegmentDamaged  bytes that are no whole frame, or no segment at all
"""

from __future__ import annotations

from taskq.core.errors import LogDamaged, LogError
from taskq_plugins.fleet.problems import shown


class SegmentMissing(LogError):
    """The file is not there (any more).

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{shown(path)}: the segment is missing: compaction took it, or it was not copied; "
            f"with failOnDataLoss=false it is passed over"
        )
        self.path = path


class WrongSegment(LogError):
    """The file is another segment than its place says; its records must not be taken for ours."""

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(
            f"{shown(path)}: this is {found}, where {wanted} should be: "
            f"put each log into a directory of its own"
        )


class SegmentDamaged(LogDamaged):
    """Bytes that are no whole frame.

    Attributes:
        path: of the file.
        offset, resume: from the first bad byte to where a frame may start again.
        lsn: of the first record that is concerned.
    """

    def __init__(self, path: str, offset: int, resume: int, lsn: int, what: str) -> None:
        super().__init__(
            f"{shown(path)}: {what}, bytes {offset} to {resume}, from lsn {lsn} on: "
            f"corruptMode=skip reads past them, corruptMode=quarantine keeps them as rows of kind "
            f'"damaged"'
        )
        self.path, self.offset, self.resume, self.lsn = path, offset, resume, lsn
