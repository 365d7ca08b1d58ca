"""A hub's copy of one log: it grows by whole frames, each checked, and by nothing else.

What was answered survives any crash: an answer goes out behind the fsync. What a crash leaves
behind that is cut at the next touch, since the device has it still. A segment's file gets its name
only with its first whole frame, and only where the end before it is the one that it names.
"""

from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.records import CARRYING_KINDS
from taskq.engine import Flag, Gap, SegmentFiles, decode_record, places, segment_name, write_file
from taskq.errors import FormatError
from taskq.log.format import codec
from taskq.log.format.codec import FLAGS_AT, KIND_AT
from taskq.log.journal.chain import compactions
from taskq.log.journal.recovery import write_once_more
from taskq.log.machine.ports import write_all
from taskq.log.segments.identity import FILE
from taskq.log.segments.segments import sweep_gone
from taskq.log.segments.spill import DIRECTORY as SPILL
from taskq.log.segments.spill import decode_reference, files_named
from taskq_plugins.fleet.positions import HEAD, NOWHERE, START, Position, stands
from taskq_plugins.hub.aside import LOG, MARK, PART, SEALS, Breaks, Notes, content
from taskq_plugins.hub.messages import Declare, Kind, Missing, Refusal, Stored, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from taskq.engine import Disk, Frame
    from taskq_plugins.hub.messages import Append, Seal, SpillPart

#: In one sector: of what a loss of power makes of it, all or nothing is there.
_MARK_FILE_BYTES: Final = 512
NAME: Final = re.compile(r"[0-9a-f]{64}\Z")
_PIECE_BYTES: Final = 1024 * 1024
#: Below, nothing is taken any more: what is there must still be read, sealed and set aside.
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024
#: How far a copy grows before it notes what of it is durable: no more is looked at, and written
#: once more, when it is opened after a crash.
MARK_BYTES: Final = 4 * 1024 * 1024


def check_room(disk: Disk, path: str, at: Position) -> None:
    """Refuse what would be written where the disk is nearly full."""
    if disk.free_bytes(path) < _FREE_BYTES_MIN:
        raise Refusal(Trouble.FULL, at)


class Copy:
    """One copy, as its only writer has it. After an ``OSError`` it is to be opened anew.

    ``mark_bytes`` as MARK_BYTES.

    Attributes:
        at: behind its last durable frame. NOWHERE: nothing came yet; with offset 0: a break waits
            for that segment.
        is_sealed: the segment ends there.
        high_lsn: no record that was ever in the copy, on any branch, reaches it.
        breaks: those that were declared.
        bodies: the files beside it.

    Raises:
        OSError: the disk refused.
    """

    def __init__(self, disk: Disk, path: str, log_id: UUID, mark_bytes: int = MARK_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._mark_bytes = mark_bytes
        self._marked = NOWHERE
        self._incompat: frozenset[str] = frozenset()
        self.bodies = Bodies(disk, path)
        self.breaks = Breaks(disk, path)
        self._seals = Notes(disk, f"{path}/{SEALS}")
        self._files = SegmentFiles(disk, path, writable=True)
        self._files.log_id = log_id
        self.at, self.is_sealed, self.high_lsn = NOWHERE, False, 0
        self._find_end()

    def close(self) -> None:
        """Give the files back."""
        self._files.forget()

    def rest(self) -> None:
        """Note what is durable, so that who opens the copy next need not look at it."""
        if self.at.frame and not self.is_sealed and self._marked != self.at:
            self._mark(self.at)
        self.close()

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
        if self._marked != self.at or not self.at.frame:
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
        if mark.frame and size == mark.offset:  # nothing came since it was on disk
            return mark
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

    def learn(self, incompat: frozenset[str]) -> None:
        """Say which features the log has, before any frame comes that needs them.

        Those that this hub does not know are for who reads: frames are checked without.
        """
        if self._incompat >= incompat:
            return
        values = json.loads(content(self._disk, f"{self._path}/{FILE}"))
        features, known = values["features"], frozenset(values["features"]["incompat"])
        if not known >= incompat:
            features["incompat"] = sorted(known | incompat)
            temporary = f"{self._path}/{FILE}.tmp"
            write_file(self._disk, temporary, json.dumps(values, indent=2).encode() + b"\n")
            self._disk.rename(temporary, f"{self._path}/{FILE}")
            self._disk.sync_directory(self._path)
        self._incompat = known | incompat

    @property
    def begins(self) -> int:
        """First lsn of the oldest segment that it had since the last gap, 0 if there was none."""
        kept = [line["segment"] for line in self._seals.lines[:1]]
        return min([*kept, *self._files.lsns[:1]], default=0)

    def safe(self, before_ns: int) -> int:
        """Return all below this lsn arrived before that moment."""
        for segment in self._files.lsns:
            if (self._disk.modified_ns(self._files.file_path(segment)) or before_ns) >= before_ns:
                return segment
        return self.at.next_lsn

    def keep(
        self, before_ns: int, known: tuple[int, int] = (0, 0), *, dry_run: bool
    ) -> tuple[list[Old], tuple[int, int]]:
        """Let the oldest segments go, of which the log itself says that all is written again.

        And which arrived before that moment.

        And what a break left, if all of it arrived before; and bodies that nothing names any more.

        Args:
            before_ns: that moment.
            known: what was returned beside the files before, so that no more is read again.
            dry_run: they stay.
        """
        files, disk = self._files, self._disk
        limit = self.safe(before_ns)
        if files.lsns and limit > files.lsns[0]:
            known = files.lsns[-1], max(known[1], self._floor(known[0]))
        limit = min(limit, known[1])
        over = [one for one, following in pairwise(files.lsns) if following <= limit]
        gone = [Old(f"{LOG}/{segment_name(one)}", files.size(one)) for one in over]
        gone += self._unnamed(files.lsns[len(over) :], before_ns) if over else []
        gone += (one for left in self.breaks.left() for one in self._left(left, before_ns))
        for segment in [] if dry_run else over:
            # One at a time, the oldest first: what is left is a log at any moment.
            files.remove(segment)
            sweep_gone(disk, f"{self._path}/{LOG}")
            disk.sync_directory(f"{self._path}/{LOG}")
        for one in [] if dry_run else gone[len(over) :]:
            disk.remove(f"{self._path}/{one.name}")
            disk.sync_directory(f"{self._path}/{one.name}".rpartition("/")[0])
        return gone, known

    def _left(self, path: str, before_ns: int) -> Iterator[Old]:
        """The files of what a break left, if all of them are that old; the log's name first."""
        disk = self._disk
        names = [f"{of}/{name}" for of in (LOG, SPILL) for name in disk.names(f"{path}/{of}")]
        if all((disk.modified_ns(f"{path}/{name}") or 0) < before_ns for name in names):
            below = path.removeprefix(f"{self._path}/")
            for name in (FILE, SEALS, *names):
                found = disk.status(f"{path}/{name}")
                if found is not None:
                    yield Old(f"{below}/{name}", found[2])

    def _unnamed(self, kept: list[int], before_ns: int) -> list[Old]:
        """The bodies that came before that moment, and that no record of these segments names."""
        disk, folder = self._disk, f"{self._path}/{SPILL}"
        names = {
            name
            for name in disk.names(folder)
            if (disk.modified_ns(f"{folder}/{name}") or before_ns) < before_ns
        }
        for left in self.breaks.left():  # who reads what was left looks for its bodies here
            names.difference_update(disk.names(f"{left}/{SPILL}"))
        for segment in kept if names else ():
            scanner = self._files.scanner(segment, self._files.size(segment), segment, sealed=False)
            for frame in scanner.frames(START):
                if not isinstance(frame, Gap):
                    names.difference_update(_bodies(frame))
        found = ((name, disk.status(f"{folder}/{name}")) for name in sorted(names))
        return [Old(f"{SPILL}/{name}", status[2]) for name, status in found if status is not None]

    def _floor(self, since: int) -> int:
        """What the newest COMPACTED record says: it is not told before its records are there."""
        for segment in reversed([one for one in self._files.lsns if one >= since]):
            scanner = self._files.scanner(segment, self._files.size(segment), segment, sealed=False)
            found = [
                below
                for frame in scanner.frames(START)
                if not isinstance(frame, Gap)
                for _, below in compactions(frame)
            ]
            if found:
                return max(found)
        return 0

    def has(self, at: Position) -> bool:
        """Return whether that very frame stands at that very place."""
        return stands(self._disk, self._files, at)

    # -- growing ----------------------------------------------------------------------------------

    def append(self, asked: Append, received: int | None = None) -> Stored:
        """Add the whole frames among the bytes that came, the first so many of them; None: all.

        Raises:
            Refusal: they do not begin where the copy ends; or what comes then is no frame that may
                stand there, and what came before it counts.
        """
        behind, at, disk, files = asked.behind, self.at, self._disk, self._files
        data, start, header = asked.data[:received], 0, behind.header
        epoch = 0 if header is None else header.epoch
        if behind.offset:
            fits = behind == at and not self.is_sealed
        else:
            is_awaited = at.segment in (0, behind.segment) and not at.offset
            fits = is_awaited or (at.offset > 0 and behind.segment > at.segment)
        if not fits:
            raise Refusal(Trouble.MISMATCH, at)
        check_room(disk, self._path, at)
        if not behind.offset:
            if len(data) < START:
                return Stored(at)
            start, epoch = START, self._begin(behind.segment, data[:START])
        end, is_well = _whole(data, start, behind, files.seed(behind.segment), epoch)
        if end != behind:
            self._write(data[: end.offset - behind.offset], behind)
            disk.sync(files.descriptor(end.segment))
            self._stored(end)
        if not is_well:
            raise Refusal(Trouble.DAMAGED, end)
        return Stored(self.at)

    def _begin(self, segment: int, data: bytes) -> int:
        """Return the epoch of a segment with that header, which may stand there."""
        try:
            header = codec.decode_segment_header(data, segment_name(segment))
        except FormatError:
            header = None
        if header is None or (header.first_lsn, header.log_id) != (
            segment, self._files.log_id.bytes,
        ):  # fmt: skip
            raise Refusal(Trouble.DAMAGED, self.at)
        self._check_follows(header)
        return header.epoch

    def _write(self, data: bytes, behind: Position) -> None:
        files, disk = self._files, self._disk
        path = files.file_path(behind.segment)
        if behind.offset:
            write_all(disk, files.descriptor(behind.segment), data, behind.offset)
            return
        write_file(disk, f"{path}.tmp", data)
        disk.rename(f"{path}.tmp", path)
        disk.sync_directory(path.rpartition("/")[0])
        files.refresh()

    def _check_follows(self, header: codec.SegmentHeader) -> None:
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

    def _stored(self, at: Position) -> None:
        """Let the copy end there: it is on disk."""
        self.at, self.is_sealed = at, False
        self.high_lsn = max(self.high_lsn, at.next_lsn)
        marked = self._marked
        if at.offset - (marked.offset if marked.segment == at.segment else 0) >= self._mark_bytes:
            self._mark(at)

    def _mark(self, at: Position) -> None:
        """Note what is durable; without a sync, since what a crash makes of it is found out."""
        data = json.dumps({"durable": at.as_list()}).encode().ljust(_MARK_FILE_BYTES)
        # Written over as it is: a file system makes sure that one which is renamed is on disk.
        descriptor = self._disk.open(f"{self._path}/{MARK}", create=True)
        try:
            write_all(self._disk, descriptor, data, 0)
        finally:
            self._disk.close(descriptor)
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
        self._seals = Notes(self._disk, f"{self._path}/{SEALS}")
        self._find_end()
        return Stored(self.at)

    def _digest(self, end: Position) -> str:
        return _digest(self._disk, self._files.descriptor(end.segment), end.offset)

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


def _digest(disk: Disk, descriptor: int, size: int) -> str:
    """Return the SHA-256 of a file's beginning."""
    found = hashlib.sha256()
    for at in range(0, size, _PIECE_BYTES):
        found.update(disk.read(descriptor, min(_PIECE_BYTES, size - at), at))
    return found.hexdigest()


def _bodies(frame: Frame) -> Iterator[str]:
    """Yield the names of the files that records of a frame name."""
    data = frame.data
    for lsn, at, length in places(frame):
        if data[at + FLAGS_AT] & Flag.SPILLED or data[at + KIND_AT] in CARRYING_KINDS:
            record = decode_record(bytes(data[at : at + length]), lsn, 0, 0)
            yield from (decode_reference(one, "a body").name for one in files_named(record))


class Old(NamedTuple):
    """A file of a copy that a hub lets go, and its bytes."""

    name: str
    size: int


def _whole(data: bytes, at: int, behind: Position, seed: int, epoch: int) -> tuple[Position, bool]:
    """Return where the whole frames that begin there end, and whether what follows may become one.

    One loop and no object a frame: a backlog of small ones is as fast as this is.

    Args:
        data: what stands behind a position.
        at: where in it the first of them begins.
        behind: that position.
        seed: of the segment's CRCs.
        epoch: of the segment.
    """
    unpack, crc32, view = codec.FRAME_HEADER.unpack_from, codec.crc32, memoryview(data)
    base, next_lsn, end, last, is_well = behind.offset, behind.next_lsn, len(data), -1, True
    while at + HEAD <= end:
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
        if not is_well or body + size > end:
            break
        # In one call, which lets others run meanwhile; the codec's own keeps the GIL.
        is_well = crc32(view[body : body + size], place) == body_crc
        following = (body + size + 7) & ~7
        if not is_well or following > end:
            break
        next_lsn, last, at = first + count, at, following
    if last < 0:
        return behind, is_well
    return Position(behind.segment, base + at, base + last, data[last : last + HEAD]), is_well


# -- files beside it ------------------------------------------------------------------------------


class Bodies:
    """Large bodies by their SHA-256, which come before the records that name them.

    They come bit by bit, under a name of their own until they are whole and what they are called.
    What a crash makes of a part is found out then, so nothing is synced before.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def missing(self, names: tuple[str, ...]) -> Missing:
        """Say which of these are not there, and how much of each is."""
        disk, folder = self._disk, f"{self._path}/{SPILL}"
        there = frozenset(disk.names(folder))
        for name in there.intersection(names):  # a record is about to name it
            disk.touch(f"{folder}/{name}")
        lacking = [name for name in names if NAME.match(name) and name not in there]
        parts = (disk.status(f"{folder}/{name}{PART}") for name in lacking)
        sizes = (0 if part is None else part[2] for part in parts)
        return Missing(tuple(zip(lacking, sizes, strict=True)))

    def take(self, asked: SpillPart, received: int | None) -> Missing:
        """Add to a file, and say what is missing of it still."""
        disk, name = self._disk, asked.name
        folder, data = f"{self._path}/{SPILL}", asked.data[:received]
        part = f"{folder}/{name}{PART}"
        if disk.status(f"{folder}/{name}") is not None:
            return Missing(())
        check_room(disk, self._path, NOWHERE)
        disk.make_directory(folder)
        descriptor = disk.open(part, create=True)
        try:
            size = disk.size(descriptor)
            if size != asked.offset:
                return Missing(((name, size),))
            write_all(disk, descriptor, data, size)
            size += len(data)
            if not asked.is_last or len(data) < len(asked.data):
                return Missing(((name, size),))
            if _digest(disk, descriptor, size) != name:
                disk.remove(part)
                return Missing(((name, 0),))
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.rename(part, f"{folder}/{name}")
        for directory in (folder, self._path):
            disk.sync_directory(directory)
        return Missing(())
