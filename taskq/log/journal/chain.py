"""What the log lacks: segments that are gone or were cut, though nothing says that they may be.

Every segment names the last frame of the one before it (``codec`` has the format), and compaction
takes segments from the oldest on, each after a COMPACTED record that says so is on disk. So a gap
between two segments, or before the first, is told from one that was made on purpose. How far the
last segment came nothing in the log tells: the lock's hint does, an index of a segment that is
gone, and a snapshot, which is published only when all before it is on disk.

A gap is a loss only if lsns are missing in it: a crash at any step leaves none that do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogError
from taskq.core.kinds import FLOORS
from taskq.core.views import Damage
from taskq.log.config import LSN_SKIP
from taskq.log.format import codec
from taskq.log.format.carried import encode_compacted
from taskq.log.format.codec import KIND_AT, LOST, NO_LINK, Link
from taskq.log.format.frames import Frame, Gap, segment_lsn, segment_name
from taskq.log.format.record import places
from taskq.log.machine.ports import Disk
from taskq.log.segments.segments import SegmentFiles, SegmentGone

if TYPE_CHECKING:
    from taskq.log.journal.lock import TailHint
    from taskq.log.segments.place import Place

_HEAD: Final = codec.SEGMENT_HEADER.size
#: What a COMPACTED record starts with, whatever it says.
_FLOOR_HEAD: Final = encode_compacted(0, 0)[: codec.PREFIX.size]
_INDEX_SUFFIX: Final = ".idx"
_SNAPSHOTS: Final = ("snapshot", ".snap")
#: The headers of indexes and snapshots, and the id of their log in them, are shorter.
_HEADER_BYTES: Final = 256
#: Looks at a log of which something is removed at each; then what was found has to do.
_LOOKS_MAX: Final = 8


def link_to(files: SegmentFiles, segment: int, last_frame: int) -> Link:
    """Return how a segment made now names the end of this one, or what this one itself names."""
    if not last_frame:
        header = files.header(segment)
        return NO_LINK if header is None else header.link
    frame = files.frame_header(segment, last_frame)
    return NO_LINK if frame is None else Link(last_frame, frame.crc)


def said_lsn(place: Place, boot: int, hint: TailHint | None) -> int:
    """An lsn that the log has reached for sure, whatever its segments hold; 0 if nothing tells.

    Ask before looking at the segments, so that what is said is never ahead of them.
    """
    said = 0
    if hint is not None and not _is_as_long(place.files, hint):
        # What was written on this boot is there; of what was before, what was on disk.
        is_fresh = hint.boot == boot and not hint.failed
        said = hint.next_lsn if is_fresh else hint.durable_lsn
    # An index is of a segment that holds a record.
    index, snapshot = _newest(place, "log", _INDEX_SUFFIX), _newest(place, *_SNAPSHOTS)
    return max(said, index + 1 if index else 0, snapshot)


def _is_as_long(files: SegmentFiles, hint: TailHint) -> bool:
    """Return whether all bytes of the hint are there: those that do not read are damage."""
    try:
        return files.size(hint.segment) >= hint.offset
    except SegmentGone:
        return False
    except (LogError, OSError):
        return True


def _newest(place: Place, directory: str, suffix: str) -> int:
    """The lsn in the name of the last file of a kind, 0 if there is none, or another log's."""
    disk, log_id = place.disk, place.files.log_id.bytes
    for name in reversed(disk.names(f"{place.path}/{directory}")):
        lsn = segment_lsn(f"{name.partition('.')[0]}.log")
        if name.endswith(suffix) and lsn is not None:
            with contextlib.suppress(OSError):
                return lsn if log_id in read_start(disk, f"{place.path}/{directory}/{name}") else 0
    return 0


def read_start(disk: Disk, path: str) -> bytes:
    descriptor = disk.open(path, write=False)
    try:
        return disk.read(descriptor, _HEADER_BYTES, 0)
    finally:
        disk.close(descriptor)


def find_losses(place: Place, said: int) -> tuple[Damage, ...]:
    """Each gap in the log up to its known end, in order; empty for a log that lacks nothing."""
    losses: list[Damage] = []
    for _ in range(_LOOKS_MAX):
        losses.clear()
        try:
            with place.files.looked_at() as files:
                losses.extend(_losses(place, files, said))
        except SegmentGone:  # compaction took the oldest meanwhile
            place.files.refresh()
            continue
        except (LogError, OSError):
            # A file that cannot be read: whoever needs what is in it is told that, not who opens.
            pass
        break
    return tuple(losses)


def _losses(place: Place, files: SegmentFiles, said: int) -> Iterator[Damage]:
    floor = files.floor
    for before, lsn in seams(files):
        if lsn > floor and is_broken(files, before, lsn):
            floor = max(floor, compacted_floor(place))
            loss = _loss(files, before, lsn, floor) if lsn > floor else None
            if loss is not None:
                yield loss
    # A segment whose beginning does not read is damaged, not lost.
    strange = (lsn for lsn in files.lsns if lsn > place.segment and files.size(lsn) > _HEAD)
    if max((place.next_lsn, *map(files.bound, strange))) < said:
        name = segment_name(place.segment) if place.segment else segment_name(1)
        yield _gap(name, place.offset, place.next_lsn, said)


def seams(files: SegmentFiles) -> Iterator[tuple[int, int]]:
    """(segment or 0, the one that follows it), of those that have frames, and of the last.

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
    link = NO_LINK if header is None else header.link
    if link == NO_LINK:
        return False
    if not before or link == LOST:
        return True
    frame = files.frame_header(before, link.offset)
    if frame is None or frame.crc != link.crc:
        return True
    # The zeros behind its body say nothing: a loss of power may have taken them.
    return link.offset + codec.FRAME_HEADER_SIZE + frame.body_size > files.sealed_size(before)


def _loss(files: SegmentFiles, before: int, lsn: int, floor: int) -> Damage | None:
    """Return what stood between two segments, the first of them 0 for none; None if no lsn did."""
    header = files.header(lsn)
    assert header is not None
    if not before:
        return _gap(segment_name(lsn), 0, max(floor, 1), lsn)
    first = files.header(before)
    next_lsn, epoch = before, 0 if first is None else first.epoch
    size, named = files.size(before), header.link.offset
    # Bytes that are there and do not read are damage, as anywhere else: verify finds them.
    is_there = named + codec.FRAME_HEADER_SIZE <= size
    may_be_damage = is_there and files.frame_header(before, named) is None
    for item in files.scanner(before, size, before, sealed=True).frames(_HEAD):
        if isinstance(item, Gap):
            next_lsn = item.next_lsn
            if may_be_damage and item.offset <= named < item.resume:
                return None
        else:
            next_lsn, epoch = item.header.next_lsn, item.header.epoch
    # The first lsns of an epoch are left out; which of these they are is known of the last only.
    skipped = 0 if header.epoch == epoch else LSN_SKIP
    if header.link == LOST:
        lsn, skipped = lsn - skipped, 0
    if next_lsn + skipped >= lsn:
        return None
    return _gap(segment_name(before), size, next_lsn, lsn, skipped)


def _gap(segment: str, offset: int, first_lsn: int, next_lsn: int, skipped: int = 0) -> Damage:
    return Damage(
        segment=segment,
        offset=offset,
        size=0,
        first_lsn=first_lsn,
        next_lsn=next_lsn,
        skipped=skipped,
    )


def link_to_end(files: SegmentFiles, segment: int) -> Link:
    if not segment:
        return NO_LINK
    last = 0
    scanner = files.scanner(segment, files.size(segment), segment, sealed=True)
    for item in scanner.frames(_HEAD):
        if not isinstance(item, Gap):
            last = item.offset
    return link_to(files, segment, last)


@contextlib.contextmanager
def moving_frames(files: SegmentFiles) -> Iterator[None]:
    """Let a last segment without frames name the log's end, wherever what it named is moved here.

    It hands that on to the next. If this is cut short it names nothing, and accuses nobody.
    """
    last = 0
    with files.looked_at() as looked:
        for before, lsn in list(seams(looked))[-1:]:
            if looked.size(lsn) <= _HEAD and not is_broken(looked, before, lsn):
                last = lsn
    if last:
        files.relink(last, NO_LINK)
    yield
    files.refresh()
    if last:
        with files.looked_at() as looked:
            end = next((before for before, lsn in seams(looked) if lsn == last), 0)
        files.relink(last, link_to_end(files, end))


def compacted_floor(place: Place) -> int:
    floor = 0
    for _, item in place.frames(place.start()):
        if not isinstance(item, Gap):
            floor = max(floor, *(below for _, below in compactions(item)), 0)
    return floor


def compactions(frame: Frame) -> list[tuple[int, int]]:
    if frame.data.find(_FLOOR_HEAD, frame.at, frame.at + frame.header.body_size) < 0:
        return []
    return [
        (lsn, codec.MARK.unpack_from(frame.data, at)[6])
        for lsn, at, _ in places(frame)
        if frame.data[at + KIND_AT] in FLOORS
    ]
