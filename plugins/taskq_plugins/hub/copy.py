"""A hub's copy of one log: it grows by whole frames, each checked, and by nothing else.

What was answered survives any crash: an answer goes out behind the fsync. What a crash leaves
behind that is cut at the next touch, since the device has it still. A segment's file gets its name
only with its first whole frame, and only where the end before it is the one that it names.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError
from taskq.log.format import codec
from taskq.log.format.frames import Gap, segment_name
from taskq.log.journal.recovery import write_once_more
from taskq.log.machine.ports import write_all, write_file
from taskq.log.segments.segments import SegmentFiles
from taskq_plugins.hub.aside import MARK, Breaks
from taskq_plugins.hub.messages import Declare, Kind, Refusal, Stored, Trouble
from taskq_plugins.hub.notes import Notes, content
from taskq_plugins.hub.positions import HEAD, NOWHERE, START, Position, stands

if TYPE_CHECKING:
    from uuid import UUID

    from taskq.log.machine.ports import Disk
    from taskq_plugins.hub.messages import Append, Seal

_PIECE_BYTES: Final = 1024 * 1024
#: How far a copy grows before it notes what of it is durable: no more is looked at, and written
#: once more, when it is opened after a crash.
MARK_BYTES: Final = 4 * 1024 * 1024
#: Below, nothing is taken any more: what is there must still be read, sealed and set aside.
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024


class Copy:
    """One copy, as its only writer has it. After an ``OSError`` it is to be opened anew.

    ``mark_bytes`` as MARK_BYTES.

    Attributes:
        at: behind its last durable frame. NOWHERE: nothing came yet; with offset 0: a break waits
            for that segment.
        is_sealed: the segment ends there.
        high_lsn: no record that was ever in the copy, on any branch, reaches it.
        breaks: those that were declared.

    Raises:
        OSError: the disk refused.
    """

    def __init__(self, disk: Disk, path: str, log_id: UUID, mark_bytes: int = MARK_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._mark_bytes = mark_bytes
        self._marked = NOWHERE
        self.breaks = Breaks(disk, path)
        self._seals = Notes(disk, f"{path}/seals.jsonl")
        self._files = SegmentFiles(disk, path, writable=True)
        self._files.log_id = log_id
        self.at, self.is_sealed, self.high_lsn = NOWHERE, False, 0
        self._find_end()

    def close(self) -> None:
        """Give the files back."""
        self._files.forget()

    def _find_end(self) -> None:
        disk, files, log = self._disk, self._files, f"{self._path}/log"
        files.forget()
        for name in disk.names(log):
            if name.endswith(".tmp"):
                disk.remove(f"{log}/{name}")
        files.refresh()
        seals = {line["segment"]: line for line in self._seals.lines}
        self.at, self.is_sealed = self.breaks.all[-1].at if self.breaks.all else NOWHERE, False
        if files.lsns:
            last = files.lsns[-1]
            if last in seals:
                self.at, self.is_sealed = Position.from_list(seals[last]["end"]), True
            else:
                self.at = self._secured(last)
        # Who was killed between a rename and its sync told nobody; now it counts.
        for directory in (log, self._path):
            disk.sync_directory(directory)
        high = [line["next_lsn"] for line in self._seals.lines]
        high += [one.high_lsn for one in self.breaks.all]
        self.high_lsn = max(self.high_lsn, self.at.next_lsn if self.at.frame else 0, *high, 0)

    def _secured(self, segment: int) -> Position:
        """The end of a segment that is not sealed, once all that does not read back is cut off."""
        files, disk = self._files, self._disk
        size, mark = files.size(segment), self._read_mark()
        if mark.segment != segment or not self.has(mark):
            mark = NOWHERE
        end = self._marked = mark
        scanner = files.scanner(segment, size, max(mark.next_lsn, segment), sealed=False)
        for item in scanner.frames(max(mark.offset, START)):
            if isinstance(item, Gap):
                break
            stem = item.data[item.at - HEAD : item.at]
            end = Position(segment, item.end, item.offset, bytes(stem))
        descriptor = files.descriptor(segment)
        if size > end.offset:
            disk.truncate(descriptor, end.offset)
        elif size < end.offset:
            write_all(disk, descriptor, bytes(end.offset - size), size)
        # A failed fsync leaves pages that read back and are written by nobody.
        write_once_more(disk, descriptor, mark.offset, end.offset)
        disk.sync(descriptor)
        return end

    @property
    def begins(self) -> int:
        """First lsn of its oldest segment, 0 if it has none."""
        return next(iter(self._files.lsns), 0)

    def has(self, at: Position) -> bool:
        """Whether that very frame stands at that very place."""
        return stands(self._disk, self._files, at)

    # -- growing ----------------------------------------------------------------------------------

    def receive(self, asked: Append) -> Part:
        """Let frames be added; give them to what is returned.

        Raises:
            Refusal: they do not begin where the copy ends.
        """
        behind, at = asked.behind, self.at
        if behind.offset:
            fits = behind == at and not self.is_sealed
        else:
            is_awaited = at.segment in (0, behind.segment) and not at.offset
            fits = is_awaited or (at.offset > 0 and behind.segment > at.segment)
        if not fits:
            raise Refusal(Trouble.MISMATCH, at)
        if self._disk.free_bytes(self._path) < _FREE_BYTES_MIN:
            raise Refusal(Trouble.FULL, at)
        return Part(self, self._disk, self._files, behind)

    def check_follows(self, header: codec.SegmentHeader) -> None:
        """Refuse a segment that does not go on where the copy ends.

        Its header names the end before it, which seals that if the device had it no more. One that
        names none was made where a recovery was cut short, and has the time of that end; one that
        says that the end was lost tells so wherever it stands.
        """
        at = self.at
        last = at.header
        if last is None:
            return
        if header.link == at.link:
            if not self.is_sealed:
                self._note_seal(at, self._digest(at))
            return
        is_near = header.link == codec.NO_LINK and header.created_ns == last.time_ns
        if not self.is_sealed or not (is_near or header.link == codec.LOST):
            raise Refusal(Trouble.GAP if self.is_sealed else Trouble.MISMATCH, at)

    def stored(self, at: Position) -> Stored:
        """Let the copy end there: it is on disk."""
        if at != self.at:
            self.at, self.is_sealed = at, False
            self.high_lsn = max(self.high_lsn, at.next_lsn)
            marked = self._marked
            grown = at.offset - (marked.offset if marked.segment == at.segment else 0)
            if grown >= self._mark_bytes:
                self._mark(at)
        return Stored(at)

    def _mark(self, at: Position) -> None:
        """Note what is durable; without a sync, since what a crash makes of it is found out."""
        data, path = json.dumps({"durable": at.as_list()}).encode(), f"{self._path}/{MARK}"
        descriptor = self._disk.open(f"{path}.tmp", create=True)
        try:
            self._disk.truncate(descriptor, 0)
            write_all(self._disk, descriptor, data, 0)
        finally:
            self._disk.close(descriptor)
        self._disk.rename(f"{path}.tmp", path)
        self._marked = at

    def _read_mark(self) -> Position:
        try:
            return Position.from_list(
                json.loads(content(self._disk, f"{self._path}/{MARK}"))["durable"]
            )
        except (ValueError, KeyError, TypeError):
            return NOWHERE

    def seal(self, asked: Seal) -> Stored:
        """Let the segment end there: what is before is what the device has.

        Where it is not, the segment goes to ``torn/`` and is to be sent again. What the copy has
        behind it stays: a recovery of the device moved it, and it comes again.

        Raises:
            Refusal: the copy does not end in that segment, or has another.
        """
        end, digest = asked.end, asked.digest.hex()
        for line in self._seals.lines:
            if (line["end"], line["sha256"]) == (end.as_list(), digest):
                return Stored(end)
        if self.is_sealed or end.segment != self.at.segment or not (end.offset and self.has(end)):
            raise Refusal(Trouble.MISMATCH, self.at)
        if self._digest(end) != digest:
            self._throw_out(end.segment)
            raise Refusal(Trouble.MISMATCH, self.at)
        self._note_seal(end, digest)
        return Stored(end)

    def _note_seal(self, end: Position, digest: str) -> None:
        next_lsn = max(self.at.next_lsn, end.next_lsn)
        self._seals.add(segment=end.segment, end=end.as_list(), sha256=digest, next_lsn=next_lsn)
        self.at, self.is_sealed = end, True

    def declare(self, asked: Declare) -> Stored:
        """Set aside what a break leaves; once, however often it is asked.

        Raises:
            Refusal: the copy ends elsewhere, or does not hold the place.
        """
        if self.breaks.knows(asked):
            return Stored(self.at)
        at = asked.at
        is_there = self.has(at) if at.offset else at.segment and not at.stem
        if asked.left != self.at or not is_there or (asked.kind is Kind.GAP and at.offset):
            raise Refusal(Trouble.MISMATCH, self.at)
        self._files.forget()
        self.breaks.declare(asked, self.high_lsn)
        self._seals = Notes(self._disk, f"{self._path}/seals.jsonl")
        self._find_end()
        return Stored(self.at)

    def _digest(self, end: Position) -> str:
        found, descriptor = hashlib.sha256(), self._files.descriptor(end.segment)
        for at in range(0, end.offset, _PIECE_BYTES):
            found.update(self._disk.read(descriptor, min(_PIECE_BYTES, end.offset - at), at))
        return found.hexdigest()

    def _throw_out(self, segment: int) -> None:
        torn = f"{self._path}/torn"
        self._disk.make_directory(torn)
        self._files.forget()
        self._disk.remove(f"{self._path}/{MARK}")  # the file of that name is another from now on
        self._disk.sync_directory(self._path)
        name = segment_name(segment)
        number = len(self._disk.names(torn))
        self._disk.rename(f"{self._path}/log/{name}", f"{torn}/{name}.{number}")
        self._find_end()


class Part:
    """Frames on their way into a copy, in pieces of any size. End it with ``end``."""

    def __init__(self, copy: Copy, disk: Disk, files: SegmentFiles, behind: Position) -> None:
        self._copy = copy
        self._disk = disk
        self._files = files
        self._seed = files.seed(behind.segment)
        self._end = behind
        self._epoch = 0
        self._next_lsn = behind.next_lsn
        header = behind.header
        if header is not None:
            self._epoch = header.epoch
        #: what of the last piece is no whole frame yet, and where it stands
        self._left, self._offset = b"", behind.offset
        self._is_new = not behind.offset

    def take(self, piece: bytes) -> None:
        """Write the whole frames that came with these bytes.

        Raises:
            Refusal: what came is no frame that may stand there; what came before it counts.
            OSError: the disk refused.
        """
        data, start = self._left + piece if self._left else piece, 0
        if not self._offset:
            if len(data) < START:
                self._left = data
                return
            self._check_header(data[:START])
            start = START
        end, is_well = self._whole(data, start)
        if end > start:
            self._write(data[:end])
        self._left = data[end:] if end > start else data
        self._offset += end if end > start else 0
        if not is_well:
            raise Refusal(Trouble.DAMAGED, self._end)

    def _whole(self, data: bytes, at: int) -> tuple[int, bool]:
        """Where the whole frames there end, and whether what follows may become one.

        One loop and no object a frame: a backlog of small ones is as fast as this is.
        """
        unpack, crc32, view, size = codec.FRAME_HEADER.unpack_from, codec.crc32, memoryview(data), 0
        base, seed, epoch, next_lsn = self._offset, self._seed, self._epoch, self._next_lsn
        behind, is_well, last = len(data), True, -1
        while at + HEAD <= behind:
            magic, size, count, flags, _, first, of, _, _, body_crc, crc = unpack(data, at)
            place = crc32((base + at).to_bytes(8, "little"), seed)
            body = at + HEAD
            is_well = (
                crc32(data[at : body - 4], place) == crc
                and magic == codec.FRAME_MAGIC
                and of == epoch
                and not flags
                and size <= codec.FRAME_BODY_MAX
                and next_lsn <= first < codec.LSN_MAX
            )
            if not is_well or body + size > behind:
                break
            # In one call, which lets others run meanwhile; the codec's own keeps the GIL on purpose.
            is_well = crc32(view[body : body + size], place) == body_crc
            following = (body + size + 7) & ~7
            if not is_well or following > behind:
                break
            next_lsn, last, at = first + count, at, following
        if last >= 0:
            stem = data[last : last + HEAD]
            self._next_lsn = next_lsn
            self._end = Position(self._end.segment, base + at, base + last, stem)
        return at, is_well

    def end(self) -> Stored:
        """Make durable what was taken; what is no whole frame is forgotten.

        Raises:
            OSError: the disk refused.
        """
        if self._end != self._copy.at and self._end.frame:
            self._disk.sync(self._files.descriptor(self._end.segment))
            return self._copy.stored(self._end)
        return Stored(self._copy.at)

    def _check_header(self, data: bytes) -> None:
        segment = self._end.segment
        try:
            header = codec.decode_segment_header(data, segment_name(segment))
        except FormatError:
            header = None
        log_id = self._files.log_id.bytes
        if header is None or (header.first_lsn, header.log_id) != (segment, log_id):
            raise Refusal(Trouble.DAMAGED, self._copy.at)
        self._copy.check_follows(header)
        self._epoch = header.epoch

    def _write(self, data: bytes) -> None:
        segment, files, disk = self._end.segment, self._files, self._disk
        path = files.file_path(segment)
        if self._is_new:
            self._is_new = False
            write_file(disk, f"{path}.tmp", data)
            disk.rename(f"{path}.tmp", path)
            disk.sync_directory(path.rpartition("/")[0])
            files.refresh()
            return
        write_all(disk, files.descriptor(segment), data, self._offset)
