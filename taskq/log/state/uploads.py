"""How far uploads have come in the log, found by hopping from frame to frame.

Adoption folds no jobs: it looks at the end of each frame since the upload was published.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.core.kinds import ADOPTIONS
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.codec import KIND_AT
from taskq.log.format.frames import Cursor, Frame, Gap
from taskq.log.format.notes import ADOPTED_SIZE, UploadProgress, adopted_at_end, decode_adopted
from taskq.log.format.record import places
from taskq.log.machine.ports import Disk
from taskq.log.segments.segments import SegmentGone, hop

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

INBOX: Final = "inbox"
#: Suffix of the file that publishes an upload.
MANIFEST: Final = ".json"
#: Bytes of a frame that are read to find records at its end.
_END_BYTES: Final = 4_096
#: Likely ADOPTED records of one upload, checked when they matter.
_FOUND_MAX: Final = 64
_TRIES: Final = 4


def waiting_uploads(disk: Disk, path: str) -> list[str]:
    names = disk.names(f"{path}/{INBOX}")
    return [name.removesuffix(MANIFEST) for name in names if name.endswith(MANIFEST)]


class _Found(NamedTuple):
    """Hold what looks like an ADOPTED record, as a payload at a frame's end could, too."""

    lsn: int
    adopted: UploadProgress
    segment: int
    #: of its frame; -1: it is known to be one
    offset: int


class UploadsSeen:
    """The progress of uploads, up to where this process has looked."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._generation = journal.generation
        self._from_lsn = 0
        self._cursor: Cursor | None = None
        self._found: dict[bytes, deque[_Found]] = {}

    def progress(self, upload: bytes) -> tuple[int, UploadProgress] | None:
        """(lsn, what it says) of the upload's latest ADOPTED record; None before the first."""
        noted = self._found.get(upload)
        while noted:
            latest = noted[-1]
            if latest.offset < 0:
                return latest.lsn, latest.adopted
            noted.pop()
            if self._is_record(latest):
                noted.append(latest._replace(offset=-1))
        return None

    def look_from(self, lsn: int) -> None:
        """Look from the segment of that record on, which no later one of interest comes before."""
        if self._cursor is None or lsn < self._from_lsn:
            self._from_lsn = lsn
            self._cursor = self._journal.files.cursor_at(lsn)
            self._found.clear()

    def keep_only(self, waiting: Iterable[bytes]) -> None:
        """Forget all others: they are over.

        Called with the waiting uploads, before looking further: a later upload has no record yet.
        """
        kept = set(waiting)
        self._found = {upload: noted for upload, noted in self._found.items() if upload in kept}

    def catch_up(self) -> None:
        """Look at all frames since the last look, up to the journal's known end."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Do as ``catch_up``, a frame at a time."""
        if self._generation != self._journal.generation:
            self._generation, self._cursor = self._journal.generation, None
        for number in range(_TRIES):
            if self._cursor is None:
                self.look_from(self._from_lsn)
            try:
                yield from self._hop()
            except SegmentGone:  # its needed records were written again
                self._cursor = None
                if number == _TRIES - 1:
                    raise
            else:
                return

    def appended(
        self, start: tuple[int, int], adopted: dict[bytes, UploadProgress], next_lsn: int
    ) -> None:
        """Step over a frame of our own, which begins at (segment, offset) and ends in these."""
        cursor, journal = self._cursor, self._journal
        if cursor is None or (cursor.segment, cursor.offset) != start:
            return
        first = next_lsn - len(adopted)
        for lsn, progress in enumerate(adopted.values(), first):
            self._add(_Found(lsn, progress, start[0], -1))
        cursor.segment, cursor.offset = journal.segment, journal.offset
        cursor.next_lsn = next_lsn

    # -- inside -----------------------------------------------------------------------------------

    def _hop(self) -> Iterator[None]:
        journal, files, cursor = self._journal, self._journal.files, self._cursor
        if cursor is None:
            return
        while not journal.is_at_end(cursor):
            segment = cursor.segment
            size = journal.offset if segment == journal.segment else files.size(segment)
            for offset, header in hop(files, segment, cursor.offset, size):
                self._look_at(segment, offset, header)
                cursor.offset, cursor.next_lsn = offset + header.size, header.next_lsn
                yield
            if cursor.offset < size:
                self._pass_damage(cursor, size)
                continue
            following = files.after(segment, journal.segment)
            if segment not in files.lsns:
                raise SegmentGone(f"{journal.path}: a segment is gone")
            if following is None:
                return
            cursor.segment, cursor.offset = following, codec.SEGMENT_HEADER.size
            cursor.next_lsn = max(cursor.next_lsn, following)

    def _look_at(self, segment: int, offset: int, header: codec.FrameHeader) -> None:
        size = min(header.body_size, _END_BYTES)
        ends = self._ends(segment, offset, header, size)
        if len(ends) >= size // ADOPTED_SIZE > 0 and size < header.body_size:
            ends = self._ends(segment, offset, header, header.body_size)
        for lsn, adopted in ends:
            self._add(_Found(lsn, adopted, segment, offset))

    def _ends(
        self, segment: int, offset: int, header: codec.FrameHeader, size: int
    ) -> list[tuple[int, UploadProgress]]:
        files = self._journal.files
        at = offset + codec.FRAME_HEADER_SIZE + header.body_size - size
        data = files._read(files.descriptor(segment), size, at)
        return list(adopted_at_end(data, header.next_lsn))

    def _add(self, place: _Found) -> None:
        adopted = place.adopted
        self._found.setdefault(adopted.upload, deque(maxlen=_FOUND_MAX)).append(place)

    def _pass_damage(self, cursor: Cursor, size: int) -> None:
        """Go on after an unreadable header; whole records in its frame count."""
        files, segment = self._journal.files, cursor.segment
        scanner = files.scanner(segment, size, cursor.next_lsn, sealed=True)
        item = next(scanner.frames(cursor.offset), None)
        if item is None:
            cursor.offset = size
            return
        if not isinstance(item, Gap):
            cursor.offset, cursor.next_lsn = item.end, item.header.next_lsn
            return
        damaged = files.damaged_frame(files.base(segment), item)
        if damaged is not None:
            from taskq.log.format.salvage import salvage  # noqa: PLC0415 - little is damaged

            for lsn, _, record in salvage(damaged[1], item.first_lsn):
                if record[KIND_AT] in ADOPTIONS:
                    self._add(_Found(lsn, decode_adopted(record), segment, -1))
        cursor.offset, cursor.next_lsn = max(item.resume, cursor.offset + 8), item.next_lsn

    def _is_record(self, place: _Found) -> bool:
        files = self._journal.files
        with contextlib.suppress(SegmentGone, FormatError):
            size = files.size(place.segment)
            scanner = files.scanner(place.segment, size, 0, sealed=True)
            frame = next(scanner.frames(place.offset), None)
            if not isinstance(frame, Frame):
                return True  # damaged: its own CRC is all there is to go by
            return any(
                lsn == place.lsn and frame.data[at + KIND_AT] in ADOPTIONS
                for lsn, at, _ in places(frame)
            )
        return False
