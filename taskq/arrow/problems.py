"""Errors of decoding a segment.

::

    LogError
    ├── SegmentUnreadable     its file cannot be opened or read
    ├── SegmentMissing        its file does not exist
    ├── WrongSegment          a whole segment of another log, or another segment of this log
    └── LogDamaged
        └── SegmentDamaged    bytes that are no whole frame, or no segment at all
"""

from __future__ import annotations

from typing import Final

from taskq.core.errors import LogDamaged, LogError


def shown(name: str) -> str:
    r"""Return a file's name as text, with invalid UTF-8 bytes as ``\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class SegmentUnreadable(LogError):
    """A segment's file exists, but it cannot be opened or read.

    Attributes:
        path: path of the file.
        reason: the system's error.
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
    """A segment's file does not exist (any more).

    Attributes:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{shown(path)}: the segment is missing: compaction took it, or it was not copied; "
            f"with failOnDataLoss=false it is passed over"
        )
        self.path = path


class WrongSegment(LogError):
    """The file holds another segment than its path says; its records must not be used."""

    def __init__(self, path: str, there: str, wanted: str) -> None:
        super().__init__(
            f"{shown(path)}: this is {there}, where {wanted} should be: "
            f"put each log into a directory of its own"
        )


#: The end of every message about damage.
ADVICE: Final = ": corruptMode=skip reads past them"


class SegmentDamaged(LogDamaged):
    """Bytes that are no whole frame.

    Attributes:
        path: path of the file.
        offset, resume: the first bad byte, and the next possible start of a frame.
        lsn: lsn of the first affected record.
    """

    def __init__(self, path: str, offset: int, resume: int, lsn: int, what: str) -> None:
        super().__init__(
            f"{shown(path)}: {what}, bytes {offset} to {resume}, from lsn {lsn} on{ADVICE}"
        )
        self.path: str = path
        self.offset: int = offset
        self.resume: int = resume
        self.lsn: int = lsn
