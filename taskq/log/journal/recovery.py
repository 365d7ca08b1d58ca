"""What is done to the files after a crash or a failed fsync. The caller holds the writer lock."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import LogError, command
from taskq.core.parsing import parse_json
from taskq.core.values import NamedTuple
from taskq.log.format import codec
from taskq.log.format.frames import Frame, Gap, Scanner, segment_lsn, segment_name
from taskq.log.machine.ports import Disk, write_all, write_file

if TYPE_CHECKING:
    from uuid import UUID

    from taskq.log.journal.lock import Home, TailHint, WriterLock
    from taskq.log.segments.segments import SegmentFiles, Walk

FAILED_FILE: Final = "failed"
#: Torn tails that are kept for a person to look at.
_ASIDE_MAX: Final = 16
_MARKER_BYTES_MAX: Final = 4_096
_COPY_BYTES: Final = 1024 * 1024


class _Log(NamedTuple):
    """The log whose frames are saved."""

    disk: Disk
    path: str
    log_id: UUID
    #: as of ``Journal``
    in_order: bool


def bears_out(files: SegmentFiles, hint: TailHint) -> bool:
    """Return whether the segments say nothing else: the hint's is the last, and ends as it says.

    A damaged last frame says nothing: it is no torn tail for that.
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
    """Part of a last segment that is known before a walk to its end."""

    #: behind its last frame of which is known
    offset: int
    next_lsn: int
    epoch: int
    time_ns: int
    #: where that frame starts, 0 if none is known
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
    if hint is not None and hint.fits(home, segment, size) and bears_out(files, hint):
        known = Known(
            hint.offset, hint.next_lsn, hint.epoch, hint.time_ns, hint.last_frame, hint.clean_offset
        )
    return known, files.walk(segment, size, known.offset, known.next_lsn, in_order=in_order)


def set_aside(disk: Disk, path: str, descriptor: int, segment: int, offset: int, size: int) -> str:
    """Copy a torn tail to ``torn/``, then cut it off; returns what was done, in words.

    The tail was never answered for, so a disk that is too full for the copy does not stop the cut.
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


def left_damaged(path: str, segment: int) -> str:
    return (
        f"{segment_name(segment)} is damaged: what is whole behind that stays, and new records go "
        f"to another segment; see: {command(path, 'verify')}"
    )


def unmark_failed(disk: Disk, path: str) -> None:
    disk.remove(f"{path}/{FAILED_FILE}")
    disk.sync_directory(path)


def _copy(disk: Disk, source: int, offset: int, end: int, path: str) -> None:
    target = disk.open(path, create=True)
    try:
        disk.truncate(target, 0)
        for at in range(offset, end, _COPY_BYTES):
            data = disk.read(source, min(_COPY_BYTES, end - at), at)
            write_all(disk, target, data, at - offset)
        disk.sync(target)
    finally:
        disk.close(target)


def write_once_more(disk: Disk, descriptor: int, start: int, end: int) -> None:
    """Write bytes in place as they read, so that the next sync is sure to put them on disk.

    A process that is killed in an fsync that fails can leave no marker, and pages whose write
    failed count as clean: whoever comes after it would sync nothing, and be told that all is well.
    """
    for at in range(start, end, _COPY_BYTES):
        write_all(disk, descriptor, disk.read(descriptor, min(_COPY_BYTES, end - at), at), at)


def failed_lsn(disk: Disk, path: str) -> int | None:
    """Return what was on disk for sure when an fsync failed; None: ``is_marked_failed`` is not so.

    0: nothing is known to have been.
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
    """Keep everybody from writing, and leave the next opener a marker.

    False if those who have the log open cannot be told.
    """
    was_held = writer.held
    try:
        hint = writer.acquire()
    except (OSError, LogError):
        _write_marker(disk, path, marker)
        return False
    try:
        if hint is not None and hint.generation != generation:
            return True  # somebody opened the log since, and wrote again what had failed
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
    """Note how far the log is known to be on disk."""
    return {
        "segment": segment,
        "durable_lsn": durable_lsn,
        "error": error.strerror or str(error),
    }


def _write_marker(disk: Disk, path: str, marker: dict[str, object]) -> bool:
    with contextlib.suppress(OSError):  # a disk that fails may fail here too: the hint still tells
        if not is_marked_failed(disk, path):
            write_file(disk, f"{path}/{FAILED_FILE}", json.dumps(marker).encode())
            disk.sync_directory(path)
        return True
    return False


def save_failed_frames(disk: Disk, path: str, log_id: UUID, *, in_order: bool) -> list[str]:
    """Copy every frame that may exist only in memory to a new segment, and sync it.

    The log has another generation after it.

    After a failed fsync Linux marks the pages clean: they read back well and are never written
    again. So what reads back is written once more, elsewhere, before anyone relies on it. The
    order (new segment whole and named, then the old one cut) makes every step repeatable.
    """
    log = _Log(disk, path, log_id, in_order)
    marker = _read_marker(disk, path)
    durable = marker.get("durable_lsn")
    if not isinstance(durable, int):  # then nothing is known to be on disk
        durable = 0
    lsns = [lsn for name in disk.names(f"{path}/log") if (lsn := segment_lsn(name)) is not None]
    notes = []
    for segment, following in zip(lsns, [*lsns, 0][1:], strict=True):
        # A segment is whole on disk before its successor gets a byte, but for the marked one.
        if not following or segment == marker.get("segment"):
            saved = _save_segment(log, segment, durable, following)
            if saved:
                notes.append(f"wrote {saved} frames again after a failed fsync")
    return notes


def _read_marker(disk: Disk, path: str) -> dict[str, Any]:
    try:
        descriptor = disk.open(f"{path}/{FAILED_FILE}", write=False)
    except OSError:
        return {}
    try:
        values = parse_json(disk.read(descriptor, _MARKER_BYTES_MAX, 0))
    except (ValueError, OSError):
        return {}
    finally:
        disk.close(descriptor)
    return values if isinstance(values, dict) else {}


def _save_segment(log: _Log, segment: int, durable: int, following: int) -> int:
    """Move the frames that may be lost to a segment of their own; returns how many.

    Those that the ``following`` segment begins with were moved before, by a try that was cut short
    before it could cut off the old ones.
    """
    disk = log.disk
    old = disk.open(f"{log.path}/log/{segment_name(segment)}")
    try:
        size = disk.size(old)

        def items(end: int) -> Iterator[Frame | Gap]:
            seed = codec.segment_seed(log.log_id, segment)
            read = functools.partial(_read_from, disk, old)
            scanner = Scanner(read, seed, end, segment, sealed=False, in_order=log.in_order)
            return scanner.frames(codec.SEGMENT_HEADER.size)

        air = _in_the_air(items(size), size, durable, following)
        end, first, before = air.end, air.first, air.before
        saved = 0
        if first is not None:
            start = first.offset
            frames = (
                item for item in items(end) if isinstance(item, Frame) and item.offset > start
            )
            header = codec.SegmentHeader(
                first.header.first_lsn, first.header.epoch, log.log_id.bytes, first.header.time_ns,
                before,
            )  # fmt: skip
            if first.header.first_lsn == segment:  # replaced as a whole: it begins as it began
                header = _header_of(disk, old) or header._replace(link=codec.NO_LINK)
            saved = _write_again(log, first, frames, header)
            # One that holds nothing else was replaced as a whole.
            end = air.begin if first.header.first_lsn != segment else size
        if end < size:
            set_aside(disk, log.path, old, segment, end, size)
        elif following:
            # A try that was cut short may have cut the frames off, but not synced that: after a
            # power loss they would stand here again, damaged, in the way of those that were moved.
            disk.sync(old)
    finally:
        disk.close(old)
    return saved


class _Air(NamedTuple):
    """Part of a segment that may exist only in memory.

    Attributes:
        begin: offset of it; the sync points right before the first frame belong to it.
        first: its first frame with records; None if there is none.
        before: the last frame that is on disk.
        end: offset of what was moved before, or the segment's size.
    """

    begin: int
    first: Frame | None
    before: codec.Link
    end: int


def _in_the_air(items: Iterator[Frame | Gap], size: int, durable: int, following: int) -> _Air:
    before, points = codec.NO_LINK, None
    for item in items:
        if following and _first_lsn(item) >= following and not _is_sync_point(item):
            return _Air(size, None, before, item.offset if points is None else points)
        if _is_sync_point(item):
            points = item.offset if points is None else points
        elif isinstance(item, Frame):
            if item.header.next_lsn > durable:
                begin = item.offset if points is None else points
                return _Air(begin, item, before, _end_of(items, size, following))
            points, before = None, codec.Link(item.offset, item.header.crc)
    return _Air(size, None, before, size)


def _end_of(items: Iterator[Frame | Gap], size: int, following: int) -> int:
    for item in items:
        if following and _first_lsn(item) >= following and not _is_sync_point(item):
            return item.offset
    return size


def _first_lsn(item: Frame | Gap) -> int:
    return item.header.first_lsn if isinstance(item, Frame) else item.first_lsn


def _is_sync_point(item: Frame | Gap) -> bool:
    return isinstance(item, Frame) and item.header.is_sync_point


def _read_from(disk: Disk, descriptor: int, count: int, offset: int) -> bytes:
    return disk.read(descriptor, count, offset)


def _header_of(disk: Disk, descriptor: int) -> codec.SegmentHeader | None:
    return codec.decode_segment_header(disk.read(descriptor, codec.SEGMENT_HEADER.size, 0), "")


def _write_again(
    log: _Log, first_frame: Frame, others: Iterator[Frame], header: codec.SegmentHeader
) -> int:
    disk, first = log.disk, first_frame.header
    seed = codec.segment_seed(log.log_id, first.first_lsn)
    target = f"{log.path}/log/{segment_name(first.first_lsn)}"
    temporary = f"{target}.tmp"
    descriptor = disk.open(temporary, create=True)
    try:
        disk.truncate(descriptor, 0)
        write_all(disk, descriptor, codec.encode_segment_header(header), 0)
        offset = codec.SEGMENT_HEADER.size
        saved = 0
        for frame in itertools.chain((first_frame,), others):
            saved += 1
            write_all(disk, descriptor, moved(frame, seed, offset), offset)
            offset += frame.header.size
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(temporary, target)
    disk.sync_directory(f"{log.path}/log")
    return saved


def moved(frame: Frame, seed: int, offset: int) -> bytes:
    head = frame.header
    body = bytes(frame.data[frame.at : frame.at + head.body_size])
    return codec.encode_frame(
        body,
        head.records,
        head.first_lsn,
        head.epoch,
        head.time_ns,
        head.synced_through,
        seed,
        offset,
    )
