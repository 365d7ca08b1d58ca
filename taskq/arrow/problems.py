"""Name what is wrong with a segment that was to be decoded.

::

    LogError
    ├── SegmentUnreadable     its file cannot be opened or read
    ├── SegmentMissing        there is no such file
    ├── WrongSegment          a whole segment of another log, or another one of this log
    └── LogDamaged
        └── SegmentDamaged    bytes that are no whole frame, or no segment at all
"""

from __future__ import annotations

from typing import Final

from taskq.core.errors import LogDamaged, LogError


def shown(name: str) -> str:
    r"""Return a file's name as text: bytes of it that are no UTF-8 as ``\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class SegmentUnreadable(LogError):
    """A segment's file is there, but it cannot be opened or read.

    Attributes:
        path: of the file.
        reason: what the system says.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{shown(self.path)}: the segment cannot be read ({self.reason}): check the file's "
            f"rights and the disk"
        )


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

    def __init__(self, path: str, there: str, wanted: str) -> None:
        super().__init__(
            f"{shown(path)}: this is {there}, where {wanted} should be: "
            f"put each log into a directory of its own"
        )


#: The end of a message of damage in every copy.
ADVICE: Final = ": corruptMode=skip reads past them"


class SegmentDamaged(LogDamaged):
    """Bytes that are no whole frame.

    Attributes:
        path: of the file.
        offset, resume: from the first bad byte to where a frame may start again.
        lsn: of the first record that is concerned.
    """

    def __init__(self, path: str, offset: int, resume: int, lsn: int, what: str) -> None:
        super().__init__(
            f"{shown(path)}: {what}, bytes {offset} to {resume}, from lsn {lsn} on{ADVICE}"
        )
        self.path: str = path
        self.offset: int = offset
        self.resume: int = resume
        self.lsn: int = lsn
