"""Waiting for the log to grow: the streams of one process, and readers that have it not open.

A stream reads only what is durable. Who wants to know that more is asks the storage thread, which
sleeps until some process has appended, and syncs what nobody else does. With durability ``os``
nothing is ever known to be durable, so everything that was written counts.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import LogError, LogFailed, LogGone
from taskq.core.model import Durability
from taskq.log.codec import SEGMENT_HEADER
from taskq.log.locate import Extent
from taskq.log.lock import LOCK_FILE, read_hint

if TYPE_CHECKING:
    from taskq.log.journal import Journal
    from taskq.log.requests import Answer

#: How long what streams wait for may stay unsynced, in the hope that another sync takes it along.
_COMPANY_SECONDS: Final = 0.002


class Growth:
    """Who waits for the log to grow; on the storage thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._durability = journal.config.durability
        self._waiting: list[tuple[int, Any, Any]] = []

    def __bool__(self) -> bool:
        if self._waiting:
            self._waiting = [one for one in self._waiting if not one[2].done()]
        return bool(self._waiting)

    def add(self, lsn: int | None, port: Any, future: Any) -> None:
        """Tell how far the log may be read once that is beyond ``lsn``.

        None: once everything that is in the log now may be read.
        """
        if lsn is None:
            lsn = self._journal.next_lsn - 1
        self._waiting.append((lsn, port, future))

    def told(self) -> list[Answer]:
        """The answers that can be given now."""
        if not self._waiting:
            return []
        journal = self._journal
        extent = Extent(journal.segment, journal.offset, self._limit)
        left: list[tuple[int, Any, Any]] = []
        answers: list[Answer] = []
        for one in self._waiting:
            lsn, port, future = one
            if lsn < extent.lsn:
                answers.append((port, future, extent))
            else:
                left.append(one)
        self._waiting = left
        if left and self._has_failed():
            error = LogFailed(journal.path, "an fsync failed in one of its processes")
            answers += [(port, future, error) for port, future in self.take_all()]
        return answers

    @property
    def _limit(self) -> int:
        journal = self._journal
        if self._durability is Durability.OS:
            return journal.next_lsn
        return min(journal.durable_lsn, journal.next_lsn)

    @property
    def lacking(self) -> bool:
        """Whether they wait for what was written and is not on disk."""
        return bool(self._waiting) and self._limit < self._journal.next_lsn

    def sync_seconds(self, usual: float) -> float:
        """How long they wait for somebody's sync before one is made for them."""
        if self._durability is Durability.FSYNC and self.lacking:
            return min(usual, _COMPANY_SECONDS)
        return usual

    def take_all(self) -> list[tuple[Any, Any]]:
        """Everyone who waits; they wait no more."""
        everyone, self._waiting = self.all(), []
        return everyone

    def all(self) -> list[tuple[Any, Any]]:
        """Everyone who waits."""
        return [(port, future) for _, port, future in self._waiting]

    def _has_failed(self) -> bool:
        hint = self._journal.writer.peek()
        return hint is not None and hint.failed != 0


class Onlooker:
    """Sees the log grow without having it open: it writes nothing, so nobody wakes it.

    It shows what was written, on disk or not, as all who only look do.

    Args:
        journal: one for reading; it is closed with this.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._hint_path = f"{journal.path}/{LOCK_FILE}"
        try:
            self._hint_file = journal.disk.open(self._hint_path, write=False)
            self._home = (journal.boot, *journal.disk.identity(self._hint_file))
        except OSError:  # written by nobody since it was copied here
            self._hint_file = -1

    def look(self) -> Extent:
        """Where the log ends now.

        Raises:
            LogGone: its files were removed, moved or replaced.
        """
        journal = self.journal
        if not self._is_in_place():
            raise LogGone(journal.path, "the directory was removed, moved or replaced")
        if not self._believe_hint():
            self._walk()
        return Extent(journal.segment, journal.offset, journal.next_lsn)

    def close(self) -> None:
        """Close the files. Legal twice."""
        self.journal.close()
        if self._hint_file >= 0:
            self.journal.disk.close(self._hint_file)
            self._hint_file = -1

    def _is_in_place(self) -> bool:
        disk = self.journal.disk
        with contextlib.suppress(OSError):  # who cannot be asked says nothing
            if self._hint_file < 0:
                return disk.status(f"{self.journal.path}/log") is not None
            status = disk.status(self._hint_path)
            return status is not None and status[:2] == self._home[1:]
        return True

    def _believe_hint(self) -> bool:
        """Take over what the last writer noted, if that can be so."""
        journal = self.journal
        hint = read_hint(journal.disk, self._hint_file) if self._hint_file >= 0 else None
        if hint is None or hint.failed or hint.home != self._home:
            return False
        if hint.segment not in journal.files:
            journal.files.refresh()
        if hint.segment not in journal.files.lsns:
            return False
        if journal.files.size(hint.segment) < hint.offset:
            return False
        journal.segment, journal.offset = hint.segment, hint.offset
        journal.next_lsn = hint.next_lsn
        return True

    def _walk(self) -> None:
        """Look at the files themselves: whole frames count, one that is being written does not."""
        journal = self.journal
        files = journal.files
        files.refresh()
        newest = files.lsns[-1] if files.lsns else 0
        if newest > journal.segment and files.header(newest) is not None:
            journal.segment, journal.offset = newest, SEGMENT_HEADER.size
            journal.next_lsn = max(journal.next_lsn, newest)
        try:
            size = files.size(journal.segment)
        except LogError:
            return
        if size > journal.offset:
            start = journal.offset, journal.next_lsn
            walk = files.walk(journal.segment, size, *start, in_order=journal.in_order)
            journal.offset, journal.next_lsn = walk.offset, walk.next_lsn
