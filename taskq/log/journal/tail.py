"""The segment that is written to, as one process has it open."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import OutcomeUnknown
from taskq.core.model import SECOND_NS
from taskq.log.format import codec
from taskq.log.machine.meters import SLOW_SYNC_NS, Meters
from taskq.log.machine.ports import Clock, Disk, write_all
from taskq.log.machine.reports import Reporter

if TYPE_CHECKING:
    from taskq.log.journal.lock import TailHint, WriterLock
    from taskq.log.segments.segments import SegmentFiles

_log: Final = Reporter("taskq")
#: How soon it is tried again to begin a segment for which no file was to be had.
_ROTATE_AGAIN_NS: Final = SECOND_NS
_PEEKS_MAX: Final = 3


class Tail:
    """The log's last segment: written to, synced, and looked for where it was.

    Attributes:
        descriptor: -1: none is open.
        is_syncing: a sync has begun, and did not succeed.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        files: SegmentFiles,
        meters: Meters,
        writer: WriterLock | None,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._files = files
        self._meters = meters
        self._writer = writer
        self.descriptor = -1
        self.is_syncing = False
        self._path = ""
        self._identity = (0, 0)
        self._rotate_at_ns = 0

    def enter(self, segment: int) -> None:
        files = self._files
        self.descriptor = files.descriptor(segment)
        files.pinned = segment
        self._path = files.file_path(segment)
        self._identity = self._disk.identity(self.descriptor)

    def size(self) -> int | None:
        try:
            status = self._disk.status(self._path)
        except OSError:  # who cannot be asked says nothing
            return self._disk.size(self.descriptor)
        if status is None or status[:2] != self._identity:
            return None
        return status[2]

    def write(self, frame: bytes, offset: int, whole_bytes: int) -> None:
        """Write a frame, which is whole with so many of its bytes, or cut it off again.

        Raises:
            OSError: the disk refused.
            OutcomeUnknown: the same, but the frame may be whole and could not be cut off.
        """
        try:
            if self._disk.write(self.descriptor, frame, offset) < len(frame):
                write_all(self._disk, self.descriptor, frame, offset)  # the rest, or it says why
        except OSError as error:
            self._cut_back(offset, whole_bytes, error)
            raise

    def fill_up(self, size: int, offset: int) -> None:
        """Add the zeros that a frame lacks whose writer died at its last bytes.

        It is whole without them, but to processes that wait for it the file is too short.
        """
        with contextlib.suppress(OSError):  # the next frame makes up for them
            write_all(self._disk, self.descriptor, bytes(offset - size), size)

    def _cut_back(self, offset: int, whole_bytes: int, error: OSError) -> None:
        with contextlib.suppress(OSError):
            self._disk.truncate(self.descriptor, offset)
            return
        with contextlib.suppress(OSError):
            if self._disk.size(self.descriptor) < offset + whole_bytes:
                return
        raise OutcomeUnknown(self._files.path, error, "a write") from error

    @property
    def is_patient(self) -> bool:
        return self._clock.steady_ns() < self._rotate_at_ns

    def finds_file(self, next_lsn: int) -> bool:
        """Return whether there is a file for a segment behind it.

        On a disk without an inode jobs must still be settled. Only where nothing at all was made:
        a file that comes back after a loss of power, whole, would end the log before its end.
        """
        try:
            path = self._files.file_path(next_lsn)
            self._disk.close(self._disk.open(path, create=True))
        except OSError as error:
            if not self._rotate_at_ns:
                _log.warning("%s: the segment grows on, no next one: %s", self._files.path, error)
            self._rotate_at_ns = self._clock.steady_ns() + _ROTATE_AGAIN_NS
            return False
        self._rotate_at_ns = 0
        return True

    def sync(self) -> None:
        """Sync it and note how long that took; a slow one is worth a line in the program's log.

        Raises:
            OSError: it may be lost.
        """
        start_ns = self._clock.steady_ns()
        self.is_syncing = True
        try:
            self._disk.sync(self.descriptor)
            self.is_syncing = False
        finally:
            took_ns = self._clock.steady_ns() - start_ns
            self._meters.syncs.record(took_ns)
            if self._writer is not None and self._writer.held:
                self._writer.excuse(took_ns)
            if took_ns > SLOW_SYNC_NS:
                self._meters.slow_syncs += 1
                _log.warning("%s: an fsync took %.1f s", self._files.path, took_ns / SECOND_NS)

    def sync_for_all(
        self, segment: int, generation: int, next_lsn: int, offset: int
    ) -> tuple[int, int]:
        """Sync it, which ends there; returns (lsn, offset) up to which it is on disk, others' too.

        Raises:
            OSError: it may be lost.
        """
        writer = self._writer
        assert writer is not None
        hint = None
        if not writer.is_alone:
            with contextlib.suppress(OSError):  # then it tells of its own frames alone
                hint = writer.peek()
        if hint is not None and (hint.segment, hint.generation) == (segment, generation):
            next_lsn, offset = max(next_lsn, hint.next_lsn), max(offset, hint.offset)
        self.sync()
        # A failed fsync marks the lost pages clean, and then the next one succeeds.
        hint = self._peek_surely(writer)
        if hint is not None and (hint.failed or hint.generation != generation):
            raise OSError(errno.EIO, "another process's fsync of this file failed")
        return next_lsn, offset

    def _peek_surely(self, writer: WriterLock) -> TailHint | None:
        """Return the hint; not to know it is as bad as a failed fsync, so it is asked for again.

        Raises:
            OSError: it cannot be read.
        """
        for number in range(_PEEKS_MAX):
            try:
                return writer.peek()
            except OSError:
                if number == _PEEKS_MAX - 1:
                    raise
        return None

    def ends_in_sync_point(self, segment: int, offset: int) -> bool:
        at = offset - codec.FRAME_HEADER_SIZE
        if at < codec.SEGMENT_HEADER.size:
            return True
        data = self._disk.read(self.descriptor, codec.FRAME_HEADER_SIZE, at)
        header = codec.decode_frame_header(data, 0, self._files.seed(segment), at)
        return header is not None and header.is_sync_point

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Do not count the time that this block waits for the disk as that of the lock."""
        start_ns = self._clock.steady_ns()
        try:
            yield
        finally:
            if self._writer is not None:
                self._writer.excuse(self._clock.steady_ns() - start_ns)
