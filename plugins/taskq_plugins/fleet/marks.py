"""How far a log may be read by somebody who leaves with what he read: its durable mark.

A frame below the position that a later frame declares synced is durable. So is one that was seen
whole before an fsync of the file that this process made itself, which needs no right to write.
While the marker ``failed`` stands only what frames and the marker declare counts: the rest will be
moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import Gap, LocalDisk, Replica
from taskq_plugins.fleet.memory import Memory
from taskq_plugins.fleet.places import LogPlace, Mark, SegmentPlace
from taskq_plugins.fleet.segmentfile import START, SegmentFile

if TYPE_CHECKING:
    from taskq.engine import FrameHeader

#: Frames that are stepped back over for one that is declared synced, before the segment is read
#: from its start.
_STEPS_BACK: Final = 64


class End(NamedTuple):
    """A mark, and the frame before it: where it stands (0: there is none) and its time."""

    mark: Mark
    frame: int
    time_ns: int


class _Known(NamedTuple):
    inode: int
    size_bytes: int
    modified_ns: int
    end: End


NOWHERE: Final = End(Mark(0, 0, 0, 0), 0, 0)
_known: Final[Memory[str, _Known]] = Memory()


def durable_end(log: LogPlace, places: list[SegmentPlace]) -> End:
    """Return the durable end of a log with these segments: what was read up to there stays.

    Hops over frame headers from the mark that this process knew before; bodies are read only of
    frames that nothing declares synced yet.

    Raises:
        SegmentUnreadable: the last segment cannot be read.
        FormatError: a newer taskq wrote it.
    """
    usable = [place for place in places if place.epoch]
    if not usable:
        return NOWHERE
    failed_lsn = Replica.failed_lsn(LocalDisk(), log.path)
    if failed_lsn is not None:
        return _declared_end(log, usable, failed_lsn)
    try:
        return _end_of(log, usable[-1])
    except FileNotFoundError:
        return NOWHERE


def _end_of(log: LogPlace, place: SegmentPlace) -> End:
    known = _known.get(place.path)
    with SegmentFile(place.path, log.log_id, place.first_lsn) as file:
        if known is not None and _facts(file) == known[:3]:
            return known.end
        begin = known.end if known is not None and _stands(file, known) else _near_end(file, place)
        declared, _ = _declared(file, begin, 0)
        end = _whole(file, declared)
        # Whoever finds that an fsync failed says so in the marker, perhaps just now.
        if end != declared and (
            not file.sync() or Replica.failed_lsn(LocalDisk(), log.path) is not None
        ):
            return declared
        _known[place.path] = _Known(*_facts(file), end)
        return end


def _facts(file: SegmentFile) -> tuple[int, int, int]:
    return file.inode, file.size_bytes, file.modified_ns


def _stands(file: SegmentFile, known: _Known) -> bool:
    end = known.end
    if known.inode != file.inode or end.mark.offset > file.size_bytes:
        return False
    header = file.frame_at(end.frame) if end.frame else None
    return header is not None and _behind(file, end.frame, header) == end


def _behind(file: SegmentFile, offset: int, header: FrameHeader) -> End:
    mark = Mark(file.first_lsn, offset + header.size, header.next_lsn, header.epoch)
    return End(mark, offset, header.time_ns)


def _near_end(file: SegmentFile, place: SegmentPlace) -> End:
    last = file.last_before(file.size_bytes)
    synced_through = last[1].synced_through if last is not None else 0
    for _ in range(_STEPS_BACK):
        if last is None:
            break
        offset, header = last
        if header.next_lsn <= synced_through:
            return _behind(file, offset, header)
        last = file.last_before(offset)
    return _start(file, place)


def _start(file: SegmentFile, place: SegmentPlace) -> End:
    header = file.header()
    mark = Mark(place.first_lsn, START, place.first_lsn, place.epoch)
    return End(mark, 0, header.created_ns if header is not None else 0)


def _declared(file: SegmentFile, begin: End, synced_through: int) -> tuple[End, int]:
    for _, header in file.hop(begin.mark.offset, file.size_bytes):
        synced_through = max(synced_through, header.synced_through)
    end = begin
    for offset, header in file.hop(begin.mark.offset, file.size_bytes):
        if header.next_lsn > synced_through:
            break
        end = _behind(file, offset, header)
    return end, synced_through


def _whole(file: SegmentFile, begin: End) -> End:
    end = begin
    for item in file.scanner.frames(begin.mark.offset, begin.mark.next_lsn):
        if not isinstance(item, Gap):
            end = _behind(file, item.offset, item.header)
        elif item.torn:
            break
        else:
            mark = Mark(file.first_lsn, item.resume, item.next_lsn, end.mark.epoch)
            end = End(mark, 0, end.time_ns)
    return end


# -- after a failed fsync -------------------------------------------------------------------------


def _declared_end(log: LogPlace, usable: list[SegmentPlace], durable: int) -> End:
    end = NOWHERE
    for place in reversed(usable):
        try:
            with SegmentFile(place.path, log.log_id, place.first_lsn) as file:
                end, durable = _declared(file, _start(file, place), durable)
        except FileNotFoundError:
            continue
        if end.frame:
            break
    return end
