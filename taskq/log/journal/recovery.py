"""Recovery of files after a crash or failed fsync, under the writer lock; gaps in the log."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from taskq.core import errors, kinds, parsing, views
from taskq.core.values import NamedTuple
from taskq.log.config import LSN_SKIP
from taskq.log.format import carried, codec, record
from taskq.log.format.frames import Frame, Gap, segment_lsn, segment_name, whole
from taskq.log.machine.ports import Disk, opened, read_file, write_all, write_file
from taskq.log.segments.identity import Identity, write_identity
from taskq.log.segments.segments import FLOOR, SegmentFiles, SegmentGone, write_segment

if TYPE_CHECKING:
    from taskq.log.journal.lock import Home, TailHint, WriterLock
    from taskq.log.segments.segments import Place, Walk

FAILED_FILE: Final = "failed"
#: Torn tails kept for inspection.
_ASIDE_MAX: Final = 16
_MARKER_BYTES_MAX: Final = 4_096
_COPY_BYTES: Final = 1024 * 1024


def confirms_hint(files: SegmentFiles, hint: TailHint) -> bool:
    """Return whether the segments agree with the hint: its segment is last, and ends as it says.

    A damaged last frame agrees, since it is no torn tail.
    """
    if files.lsns[-1:] != [hint.segment]:
        return False
    end = hint.offset, hint.next_lsn
    if not hint.last_frame:
        return end == (codec.SEGMENT_HEADER.size, hint.segment)
    last = files.frame_header(hint.segment, hint.last_frame)
    if last is None:
        return files.size(hint.segment) == hint.offset
    return end == (hint.last_frame + last.size, last.next_lsn) and last.epoch == hint.epoch


class Known(NamedTuple):
    """Part of a last segment that is known before the walk to its end."""

    #: end of its last known frame
    offset: int
    next_lsn: int
    epoch: int
    time_ns: int
    #: offset of that frame, 0 if none is known
    last_frame: int
    #: every byte before it is on disk
    clean_offset: int


def walk_to_end(
    files: SegmentFiles, segment: int, hint: TailHint | None, home: Home, *, in_order: bool
) -> tuple[Known, Walk]:
    header, size = files.header(segment), files.size(segment)
    assert header is not None
    start = codec.SEGMENT_HEADER.size
    known = Known(start, header.first_lsn, header.epoch, header.created_ns, 0, start)
    if hint is not None and hint.fits(home, segment, size) and confirms_hint(files, hint):
        known = Known(
            hint.offset, hint.next_lsn, hint.epoch, hint.time_ns, hint.last_frame, hint.clean_offset
        )
    return known, files.walk(segment, size, known.offset, known.next_lsn, in_order=in_order)


def set_aside(disk: Disk, path: str, descriptor: int, segment: int, offset: int, size: int) -> str:
    """Copy a torn tail to ``torn/``, then cut it off; return a note in words.

    No answer depended on the tail, so the cut happens even if the disk is too full for the copy.
    """
    directory = f"{path}/torn"
    name = f"{segment_name(segment)}.{offset}.{size}"
    with contextlib.suppress(OSError):
        disk.make_directory(directory)
        for old in disk.names(directory)[: 1 - _ASIDE_MAX]:
            disk.remove(f"{directory}/{old}")
        _copy(disk, descriptor, offset, size, f"{directory}/{name}")
        disk.sync_directory(directory)
    disk.truncate(descriptor, offset)
    disk.sync(descriptor)
    return f"cut a torn tail of {size - offset} bytes off {segment_name(segment)} (kept in torn/)"


def unmark_failed(disk: Disk, path: str) -> None:
    disk.remove(f"{path}/{FAILED_FILE}")
    disk.sync_directory(path)


def _copy(disk: Disk, source: int, offset: int, end: int, path: str) -> None:
    with opened(disk, path, create=True) as target:
        disk.truncate(target, 0)
        for at in range(offset, end, _COPY_BYTES):
            data = disk.read(source, min(_COPY_BYTES, end - at), at)
            write_all(disk, target, data, at - offset)
        disk.sync(target)


def write_once_more(disk: Disk, descriptor: int, start: int, end: int) -> None:
    """Rewrite bytes in place, so that the next sync surely puts them on disk.

    A process killed during a failing fsync may leave no marker, and pages whose write failed count
    as clean. The next process would sync nothing and report success.
    """
    for at in range(start, end, _COPY_BYTES):
        write_all(disk, descriptor, disk.read(descriptor, min(_COPY_BYTES, end - at), at), at)


def failed_lsn(disk: Disk, path: str) -> int | None:
    """Return the lsn that was surely on disk when an fsync failed; None if not marked failed.

    0: no lsn is known.
    """
    if not is_marked_failed(disk, path):
        return None
    durable = _read_marker(disk, path).get("durable_lsn")
    return durable if isinstance(durable, int) else 0


def is_marked_failed(disk: Disk, path: str) -> bool:
    """Return whether an fsync failed, and the log was not opened since."""
    return FAILED_FILE in disk.names(path)


def mark_failed(
    disk: Disk, path: str, writer: WriterLock, generation: int, marker: dict[str, object]
) -> bool:
    """Stop all processes from writing, and leave a marker for the next opener.

    False if processes that have the log open cannot be reached.
    """
    was_held = writer.held
    try:
        hint = writer.acquire()
    except (OSError, errors.LogError):
        _write_marker(disk, path, marker)
        return False
    try:
        if hint is not None and hint.generation != generation:
            return True  # another process opened the log since, and saved the frames
        # The hint first: it takes a microsecond, and this process may be killed at any time.
        is_marked = hint is None
        if hint is not None:
            with contextlib.suppress(OSError):
                writer.write_hint(hint._replace(failed=1))
                is_marked = True
        return _write_marker(disk, path, marker) and is_marked
    finally:
        if not was_held:
            writer.release()


def failure_marker(segment: int, durable_lsn: int, error: OSError) -> dict[str, object]:
    """Return the marker's content: the part of the log that is known to be on disk."""
    return {
        "segment": segment,
        "durable_lsn": durable_lsn,
        "error": error.strerror or str(error),
    }


def _write_marker(disk: Disk, path: str, marker: dict[str, object]) -> bool:
    with contextlib.suppress(OSError):  # a failing disk may fail here, too: the hint remains
        if not is_marked_failed(disk, path):
            write_file(disk, f"{path}/{FAILED_FILE}", json.dumps(marker).encode())
            disk.sync_directory(path)
        return True
    return False


def save_failed_frames(disk: Disk, files: SegmentFiles, *, in_order: bool) -> list[str]:
    """Copy every frame that may exist only in memory to a new segment, and sync it.

    The log has another generation afterwards.

    After a failed fsync Linux marks the pages clean: they can be read and are never written again.
    So the readable frames are written elsewhere before any process relies on them. The order (first
    the new segment, whole and named, then the cut of the old one) makes every step repeatable.
    """
    files.refresh()
    marker = _read_marker(disk, files.path)
    durable = marker.get("durable_lsn")
    if not isinstance(durable, int):  # then no frame is known to be on disk
        durable = 0
    notes = []
    for segment, following in itertools.pairwise((*files.lsns, 0)):
        # A segment is whole on disk before its successor gets a byte, except for the marked one.
        if not following or segment == marker.get("segment"):
            saved = _save_segment(disk, files, segment, durable, following, in_order=in_order)
            if saved:
                notes.append(f"wrote {saved} frames again after a failed fsync")
    return notes


def _read_marker(disk: Disk, path: str) -> dict[str, Any]:
    try:
        values = parsing.parse_json(read_file(disk, f"{path}/{FAILED_FILE}", _MARKER_BYTES_MAX))
    except (ValueError, OSError):
        return {}
    return values if isinstance(values, dict) else {}


def _save_segment(
    disk: Disk, files: SegmentFiles, segment: int, durable: int, following: int, *, in_order: bool
) -> int:
    """Move the frames that may be lost to a segment of their own; return their number.

    Frames at the start of the ``following`` segment were moved by an earlier, incomplete try,
    before it removed the old frames.
    """

    def items(end: int) -> Iterator[Frame | Gap]:
        scanner = files.scanner(segment, end, segment, sealed=False, in_order=in_order)
        return scanner.frames(codec.SEGMENT_HEADER.size)

    size, saved = files.size(segment), 0
    air = _unsynced_part(items(size), size, durable, following)
    end, first = air.end, air.first
    if first is not None:
        start, lsn = first.offset, first.header.first_lsn
        frames = (
            frame for frame in items(end) if isinstance(frame, Frame) and frame.offset >= start
        )
        header = codec.SegmentHeader(
            lsn, first.header.epoch, files.owner(lsn), first.header.time_ns, air.before
        )
        if lsn == segment:  # replaced as a whole, with the same beginning
            header = files.header(segment) or header._replace(link=codec.NO_LINK)
        path = files.file_path(lsn)
        bodies = ((frame.header, frame.body) for frame in frames)
        saved, _ = write_segment(disk, f"{path}.tmp", header, bodies)
        disk.rename(f"{path}.tmp", path)
        disk.sync_directory(f"{files.path}/log")
        # A segment without other frames was replaced as a whole.
        end = air.begin if lsn != segment else size
    old = files.descriptor(segment)
    if end < size:
        set_aside(disk, files.path, old, segment, end, size)
    elif following:
        # An incomplete try may have cut the frames off without a sync: after a power loss they
        # would be here again, damaged, before the moved frames.
        disk.sync(old)
    return saved


class _Unsynced(NamedTuple):
    """Part of a segment that may exist only in memory.

    Attributes:
        begin: its offset; includes sync points right before the first frame.
        first: its first frame with records, None without one.
        before: the last frame on disk.
        end: offset of the frames moved earlier, or the segment's size.
    """

    begin: int
    first: Frame | None
    before: codec.Link
    end: int


def _unsynced_part(
    items: Iterator[Frame | Gap], size: int, durable: int, following: int
) -> _Unsynced:
    before, points = codec.NO_LINK, None
    for item in items:
        if following and item.first_lsn >= following and not _is_sync_point(item):
            return _Unsynced(size, None, before, item.offset if points is None else points)
        if _is_sync_point(item):
            points = item.offset if points is None else points
        elif isinstance(item, Frame):
            if item.header.next_lsn > durable:
                begin = item.offset if points is None else points
                return _Unsynced(begin, item, before, _end_of(items, size, following))
            points, before = None, codec.Link(item.offset, item.header.crc)
    return _Unsynced(size, None, before, size)


def _end_of(items: Iterator[Frame | Gap], size: int, following: int) -> int:
    for item in items:
        if following and item.first_lsn >= following and not _is_sync_point(item):
            return item.offset
    return size


def _is_sync_point(item: Frame | Gap) -> bool:
    return isinstance(item, Frame) and item.header.is_sync_point


#: Suffix of a fork's segment before it replaces another.
FORKED: Final = ".fork"


def sweep_forked(disk: Disk, path: str, names: list[str]) -> None:
    """Remove files of a fork that was interrupted before its identity was written."""
    for name in names:
        if name.endswith(FORKED):
            disk.remove(f"{path}/log/{name}")


def finish_fork(disk: Disk, path: str, identity: Identity) -> Identity:
    """Move the segments of a fork into place; return the identity without the pending fork.

    The identity is written. Each step may have been done by a killed process.
    """
    assert identity.cut is not None
    disk.sync_directory(path)
    segment, offset, segments = identity.cut
    directory = f"{path}/log"
    for name in disk.names(directory):
        lsn = segment_lsn(f"{name.partition('.')[0]}.log") or 0
        is_other = lsn not in segments and not name.endswith(FLOOR)
        if lsn >= identity.begins and (name.endswith(_INDEX_SUFFIX) or is_other):
            disk.remove(f"{directory}/{name}")
    for lsn in segments:
        place = f"{directory}/{segment_name(lsn)}"
        if disk.status(place + FORKED):
            disk.rename(place + FORKED, place)
    if segment:
        with opened(disk, f"{directory}/{segment_name(segment)}") as descriptor:
            disk.truncate(descriptor, offset)
            disk.sync(descriptor)
    for name in disk.names(f"{path}/{_SNAPSHOTS[0]}"):
        if (segment_lsn(f"{name.partition('.')[0]}.log") or 0) > identity.begins:
            disk.remove(f"{path}/{_SNAPSHOTS[0]}/{name}")
    disk.sync_directory(directory)
    identity = identity._replace(cut=None)
    write_identity(disk, path, identity)
    disk.sync_directory(path)
    return identity


_HEAD: Final = codec.SEGMENT_HEADER.size
#: Start of every COMPACTED record.
_FLOOR_HEAD: Final = carried.encode_compacted(0, 0)[: codec.PREFIX.size]
_INDEX_SUFFIX: Final = ".idx"
_SNAPSHOTS: Final = ("snapshot", ".snap")
#: Read size that covers the headers of indexes and snapshots, with the id of their log.
_HEADER_BYTES: Final = 256
#: Most tries while segments are removed during each; then the last findings count.
_LOOKS_MAX: Final = 8


def link_to(files: SegmentFiles, segment: int, last_frame: int) -> codec.Link:
    """Return a new segment's link to the end of this one, or this one's own link if empty."""
    if not last_frame:
        header = files.header(segment)
        return codec.NO_LINK if header is None else header.link
    frame = files.frame_header(segment, last_frame)
    return codec.NO_LINK if frame is None else codec.Link(last_frame, frame.crc)


def declared_lsn(place: Place, boot: int, hint: TailHint | None) -> int:
    """Return an lsn that the log has surely reached, without its segments; 0 if unknown.

    Call it before reading the segments, so that it is never ahead of them.
    """
    declared = 0
    if hint is not None and not _is_as_long(place.files, hint):
        # Writes of this boot are there; earlier ones only if they were on disk.
        is_fresh = hint.boot == boot and not hint.failed
        declared = hint.next_lsn if is_fresh else hint.durable_lsn
    # An index proves a segment with records.
    index, snapshot = _newest(place, "log", _INDEX_SUFFIX), _newest(place, *_SNAPSHOTS)
    return max(declared, index + 1 if index else 0, snapshot)


def _is_as_long(files: SegmentFiles, hint: TailHint) -> bool:
    """Return whether the segment has all bytes before the hint; unreadable bytes are damage."""
    try:
        return files.size(hint.segment) >= hint.offset
    except SegmentGone:
        return False
    except (errors.LogError, OSError):
        return True


def _newest(place: Place, directory: str, suffix: str) -> int:
    """Return the lsn in the name of the last file of a kind, 0 if this log has none."""
    disk, files = place.disk, place.files
    for name in reversed(disk.names(f"{place.path}/{directory}")):
        lsn = segment_lsn(f"{name.partition('.')[0]}.log")
        if name.endswith(suffix) and lsn is not None:
            with contextlib.suppress(OSError):
                start = read_file(disk, f"{place.path}/{directory}/{name}", _HEADER_BYTES)
                return lsn if files.owner(lsn) in start else 0
    return 0


def find_losses(place: Place, declared: int) -> tuple[views.Damage, ...]:
    """Return the gaps in the log up to its known end, in order; empty for a complete log."""
    losses: list[views.Damage] = []
    for _ in range(_LOOKS_MAX):
        losses.clear()
        try:
            with place.files.looked_at() as files:
                losses.extend(_losses(place, files, declared))
        except SegmentGone:  # compaction removed the oldest meanwhile
            place.files.refresh()
            continue
        except (errors.LogError, OSError):
            # An unreadable file: its readers get the error, opening the log does not.
            pass
        break
    return tuple(losses)


def _losses(place: Place, files: SegmentFiles, declared: int) -> Iterator[views.Damage]:
    floor = files.floor
    for before, lsn in seams(files):
        if lsn > floor and is_broken(files, before, lsn):
            floor = max(floor, compacted_floor(place))
            loss = _loss(files, before, lsn, floor) if lsn > floor else None
            if loss is not None:
                yield loss
    # A segment with an unreadable beginning is damaged, not lost.
    strange = (lsn for lsn in files.lsns if lsn > place.segment and files.size(lsn) > _HEAD)
    if max((place.next_lsn, *map(files.bound, strange))) < declared:
        name = segment_name(place.segment) if place.segment else segment_name(1)
        yield _gap(name, place.offset, place.next_lsn, declared)


def seams(files: SegmentFiles) -> Iterator[tuple[int, int]]:
    """Yield (segment or 0, following segment) for segments with frames, and the last one.

    Give it, as ``is_broken``, files that are ``looked_at``.
    """
    before = 0
    for lsn in list(files.lsns):
        has_frames = files.sealed_size(lsn) > _HEAD
        if has_frames or lsn == files.lsns[-1]:
            yield before, lsn
        before = lsn if has_frames else before


def is_broken(files: SegmentFiles, before: int, lsn: int) -> bool:
    header = files.header(lsn)
    link = codec.NO_LINK if header is None else header.link
    if link == codec.NO_LINK:
        return False
    if not before or link == codec.LOST:
        return True
    frame = files.frame_header(before, link.offset)
    if frame is None or frame.crc != link.crc:
        return True
    # The zeros after its body do not count: a power loss may have removed them.
    return link.offset + codec.FRAME_HEADER_SIZE + frame.body_size > files.sealed_size(before)


def _loss(files: SegmentFiles, before: int, lsn: int, floor: int) -> views.Damage | None:
    """Return the gap between two segments, with 0 for no first one; None without lost lsns."""
    header = files.header(lsn)
    assert header is not None
    if not before:
        return _gap(segment_name(lsn), 0, max(floor, 1), lsn)
    first = files.header(before)
    next_lsn, epoch = before, 0 if first is None else first.epoch
    size, named = files.size(before), header.link.offset
    # Present but unreadable bytes are damage, which verify finds.
    is_there = named + codec.FRAME_HEADER_SIZE <= size
    may_be_damage = is_there and files.frame_header(before, named) is None
    for item in files.scanner(before, size, before, sealed=True).frames(_HEAD):
        if isinstance(item, Gap):
            next_lsn = item.next_lsn
            if may_be_damage and item.offset <= named < item.end:
                return None
        else:
            next_lsn, epoch = item.header.next_lsn, item.header.epoch
    # An epoch skips its first lsns. For several epochs only the last skip is known.
    is_one = header.epoch == epoch or header.log_id != files.owner(before)
    skipped = 0 if is_one else LSN_SKIP
    if header.link == codec.LOST:
        lsn, skipped = lsn - skipped, 0
    if next_lsn + skipped >= lsn:
        return None
    return _gap(segment_name(before), size, next_lsn, lsn, skipped)


def _gap(
    segment: str, offset: int, first_lsn: int, next_lsn: int, skipped: int = 0
) -> views.Damage:
    return views.Damage(
        segment=segment,
        offset=offset,
        size=0,
        first_lsn=first_lsn,
        next_lsn=next_lsn,
        skipped=skipped,
    )


def link_to_end(files: SegmentFiles, segment: int) -> codec.Link:
    if not segment:
        return codec.NO_LINK
    last = 0
    scanner = files.scanner(segment, files.size(segment), segment, sealed=True)
    for item in scanner.frames(_HEAD):
        if not isinstance(item, Gap):
            last = item.offset
    return link_to(files, segment, last)


@contextlib.contextmanager
def moving_frames(files: SegmentFiles) -> Iterator[None]:
    """Relink a last segment without frames to the log's end, after frames were moved.

    Meanwhile it has no link, so an interruption causes no false gap.
    """
    last = 0
    with files.looked_at() as looked:
        for before, lsn in list(seams(looked))[-1:]:
            if looked.size(lsn) <= _HEAD and not is_broken(looked, before, lsn):
                last = lsn
    if last:
        files.relink(last, codec.NO_LINK)
    yield
    files.refresh()
    if last:
        with files.looked_at() as looked:
            end = next((before for before, lsn in seams(looked) if lsn == last), 0)
        files.relink(last, link_to_end(files, end))


def compacted_floor(place: Place) -> int:
    floor = 0
    for frame in whole(place.frames(place.start())):
        floor = max(floor, *(below for _, below in compactions(frame)), 0)
    return floor


def compactions(frame: Frame) -> list[tuple[int, int]]:
    if frame.data.find(_FLOOR_HEAD, frame.at, frame.at + frame.header.body_size) < 0:
        return []
    return [
        (lsn, codec.MARK.unpack_from(frame.data, at)[6])
        for lsn, at, _ in record.places(frame)
        if frame.data[at + codec.KIND_AT] in kinds.FLOORS
    ]
