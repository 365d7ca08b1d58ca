"""Going on where a reader had come to: is what it read last still there, and what is missing?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import DETAILS, Break, Corrupt, Piece, decode
from taskq.engine import Kind, kinds, segment_name
from taskq.errors import LogError
from taskq_plugins.fleet.inventory import (
    START,
    DurableEnd,
    Edges,
    SegmentFile,
    breaks,
    edges,
    follows,
)
from taskq_plugins.fleet.inventory import DeclaredBreak as Declared
from taskq_plugins.fleet.places import LogPlace, Mark, SegmentPlace
from taskq_plugins.spark.source.positions import DataLoss, LogPosition, loss_handler
from taskq_plugins.spark.source.snapshot import LogInventory, at_lsn, at_time

if TYPE_CHECKING:
    from taskq.engine import FrameHeader

#: Cause of a gap made by the log's own compaction.
COMPACTION: Final = "compaction took it"
COMPACTED: Final = kinds.name_of(Kind.COMPACTED)


class Stretch(NamedTuple):
    """Bytes of one segment, from one border of frames to another; and the break before them."""

    log: LogPlace
    place: SegmentPlace
    start: int
    end: int
    branch: int = 0
    behind: Break | None = None


def go_on(
    standing: LogInventory, position: LogPosition, on_loss: Callable[[LogError], None]
) -> LogPosition | None:
    """Return the place to resume reading a log from.

    It differs from the position if a recovery or a repair moved frames, if compaction removed the
    segment after it was read, or if ``on_loss`` accepts a loss. If the log was restored from a
    backup, it is the beginning of the next branch, or None while that has no record.
    """
    if not position.segment or not standing.end.mark.segment:
        # An empty log, then or now. A log that lost all segments is noticed once it has some again.
        return standing.earliest if not position.segment else position
    place = standing.find(position.segment)
    if place is None and position.segment in standing.left_out:
        return position
    if place is not None:
        with standing.open(place) as file:
            if _stands(file, position):
                return position
    moved = _moved(standing, position)
    return moved if moved is not None else _behind_break(standing, position, on_loss)


def _behind_break(
    standing: LogInventory, position: LogPosition, on_loss: Callable[[LogError], None]
) -> LogPosition | None:
    declared = _declared(standing, position)
    if declared is not None:
        return declared if declared.place < standing.latest.place else None
    following = next((place for place in standing.places if place.first_lsn >= position.lsn), None)
    if following is None or standing.find(position.segment) is not None:
        return next_branch(standing, position)
    return _from_segment(standing, following, position, on_loss)


def _declared(standing: LogInventory, position: LogPosition) -> LogPosition | None:
    """Return where a hub says that a device went on which was restored; None: it says nothing.

    It keeps what a device left, so it is certain which forks came since: those from the one on that
    left the frame which was read last.
    """
    begin: LogPosition | None = None
    for fork in reversed([fork for fork in breaks(standing.log) if fork.is_fork]):
        start = LogPosition(position.device, *_place_of(fork), fork.at.segment, 0)
        begin = start if begin is None or start.place < begin.place else begin
        try:
            with SegmentFile(
                fork.left_segment(position.segment), standing.log.log_id, position.segment
            ) as file:
                if position.frame and _stands(file, position):
                    return begin.begun()._replace(branch=position.branch + 1)
        except (FileNotFoundError, LogError):
            continue
    return None


def _place_of(declared: Declared) -> tuple[int, int]:
    return declared.at.segment, max(declared.at.offset, START)


def _gap_before(standing: LogInventory, first_lsn: int) -> Declared | None:
    gaps = (
        gap for gap in breaks(standing.log) if (gap.is_fork, gap.at.segment) == (False, first_lsn)
    )
    return next(gaps, None)


def _from_segment(
    standing: LogInventory,
    following: SegmentPlace,
    position: LogPosition,
    on_loss: Callable[[LogError], None],
) -> LogPosition | None:
    gap = _gap_before(standing, following.first_lsn)
    if not (gap is not None and gap.left[:2] == position.place) and not _is_next(
        standing, following, position
    ):
        # The missing part was written after the last read; a truncated log ended before that.
        branch = next_branch(standing, position)
        is_before = branch is not None and branch.segment < following.first_lsn
        with standing.open(following) as file:
            header = file.header()
        if (header.created_ns if header is not None else 0) < position.time_ns or is_before:
            return branch
        on_loss(_loss(position, position.segment, f"at lsn {following.first_lsn}"))
    return standing.start_of(following).of(position)


def _is_next(standing: LogInventory, following: SegmentPlace, position: LogPosition) -> bool:
    if following.first_lsn <= position.lsn:
        return True
    with standing.open(following) as file:
        header = file.header()
    return position.time_ns == (header.created_ns if header is not None else 0) != 0


def break_before(standing: LogInventory, was: LogPosition, here: LogPosition) -> Break | None:
    if here.branch != was.branch:
        forks = (
            fork for fork in breaks(standing.log) if fork.is_fork and _place_of(fork) == here.place
        )
        declared = next(forks, None)
        return Break(
            "fork",
            _shared(standing, here),
            None,
            declared and declared.end_lsn,
            declared and declared.cause,
        )
    place = standing.find(here.segment)
    if here.segment == was.segment or here.offset > START or place is None:
        return None
    if standing.find(was.segment) is not None or _is_next(standing, place, was):
        return None
    return _gap(standing, was.lsn, place)


def _gap(standing: LogInventory, lsn: int, place: SegmentPlace) -> Break:
    declared = _gap_before(standing, place.first_lsn)
    if declared is not None:
        return Break("gap", lsn, place.first_lsn, declared.end_lsn, declared.cause)
    end_lsn = _compacted(standing, place.first_lsn)
    return Break("gap", lsn, place.first_lsn, end_lsn, COMPACTION if end_lsn else None)


def _compacted(standing: LogInventory, first_lsn: int) -> int | None:
    log = standing.log
    columns = pa.schema([DETAILS.field(name) for name in ("kind", "lsn", "token")])
    says = (pc.field("kind") == COMPACTED) & (pc.field("token") >= first_lsn)
    for place in standing.places:
        end = standing.size(place)
        if place.first_lsn < first_lsn or end <= START:
            continue
        piece = Piece(place.path, log.device, log.log_id, log.tag, place.first_lsn, START, end)
        with suppress(LogError):
            for rows in decode(piece, columns, corrupt=Corrupt.SKIP):
                if lsns := rows.filter(says)["lsn"]:
                    return int(lsns[0].as_py()) + 1
    return None


def _shared(standing: LogInventory, here: LogPosition) -> int:
    place = standing.find(here.segment)
    if place is not None and here.offset > START:
        with standing.open(place) as file:
            last = file.last_before(here.offset)
        if last is not None:
            return last[1].next_lsn
    before = [segment for segment in standing.places if segment.first_lsn < here.segment]
    return edges(standing.log, before[-1]).next_lsn if before else 0


def next_branch(standing: LogInventory, position: LogPosition) -> LogPosition | None:
    """Return where a log continues on another branch; None if it does not yet.

    That is the first frame later than the last one read, by time or by epoch. Records of a device
    with a slow clock may be skipped, unless they have an epoch of their own. If the clock went back
    before, some read records are repeated in the branch.
    """
    begins = [standing.latest]
    places = [place for place in standing.places if place.first_lsn <= standing.end.mark.segment]
    known = [number for number, place in enumerate(places) if place.epoch == position.epoch]
    if position.time_ns:
        begins.append(at_time(standing, position.time_ns + 1))
    else:  # after damage, where no time is known
        begins.append(standing.earliest)
    later = places[known[-1] + 1 :] if known else []
    begins += [standing.start_of(segment) for segment in later[:1]]
    begin = min(begins, key=lambda at: at.place)
    if begin.place == standing.latest.place:
        return None
    return begin.begun()._replace(branch=position.branch + 1)


def _loss(position: LogPosition, segment: int, goes_on: str) -> DataLoss:
    return DataLoss(position.device, f"segment {segment_name(segment)}", position.lsn, goes_on)


def _stands(file: SegmentFile, position: LogPosition) -> bool:
    if position.offset > file.size_bytes:
        return False
    if position.frame:
        header = file.frame_at(position.frame)
        if header is None:  # maybe damaged since: then the frame before it ends there
            before = file.last_before(position.frame)
            return (before[0] + before[1].size if before is not None else START) == position.frame
        return _is_last(header, position) and position.frame + header.size == position.offset
    if position.offset <= START:
        start = file.header()
        return start is None or (
            position.epoch in {0, start.epoch} and position.time_ns in {0, start.created_ns}
        )
    if position.offset == file.size_bytes:
        return True
    header = file.frame_at(position.offset)
    # Nothing readable stands there after damage, and a place that a person named has no lsn.
    return header is None or header.first_lsn >= position.lsn


def _is_last(header: FrameHeader, position: LogPosition) -> bool:
    """Return whether it is the frame that was read last.

    Its time decides where a log was restored and went on in its epoch: numbers and places of frames
    are then the same again.
    """
    return (header.epoch, header.next_lsn) == (position.epoch, position.lsn) and (
        header.time_ns == position.time_ns
    )


def _moved(standing: LogInventory, position: LogPosition) -> LogPosition | None:
    if not position.frame:
        return None
    stood = at_lsn(standing, position.lsn - 1)
    place = standing.find(stood.segment)
    if place is None:
        return None
    with standing.open(place) as file:
        header = file.frame_at(stood.offset)
    if header is None or not _is_last(header, position):
        return None
    return position._replace(
        segment=stood.segment, offset=stood.offset + header.size, frame=stood.offset
    )


def stretches(
    standing: LogInventory,
    start: LogPosition,
    end: tuple[int, int],
    on_loss: Callable[[LogError], None],
    behind: Break | None = None,
) -> Iterator[Stretch]:
    """Yield the bytes from ``start`` to ``end`` by segment, each with the break before it.

    ``behind`` is the break before the first. If the last segments are gone, an empty stretch names
    the missing part.
    """
    last, end_offset = end
    before: Edges | None = None
    for place in standing.places:
        if place.first_lsn < start.segment:
            continue
        if place.first_lsn > last:
            break
        if before is not None:
            behind = _check_gap(standing, before, place, on_loss) or behind
        low = max(start.offset if place.first_lsn == start.segment else START, START)
        high = place.size_bytes if place.first_lsn < last else end_offset
        if place.size_bytes < high:
            high, lsn = _whole_end(standing, place, high)
        if low < high:
            yield Stretch(standing.log, place, low, high, start.branch, behind)
            behind = None
        if place.first_lsn == last:
            if high < end_offset:
                where = f"{segment_name(last)} from offset {high} to {end_offset}"
                on_loss(DataLoss(start.device, where, lsn, "without it"))
                missing = behind or Break("gap", lsn)
                yield Stretch(standing.log, place, high, high, start.branch, missing)
            return
        before = edges(standing.log, place)
    if start.segment <= last and (start.segment, last) != (0, 0):
        on_loss(_loss(start._replace(lsn=last), last, "without it"))
        gone = SegmentPlace(last, f"{standing.log.path}/log/{segment_name(last)}", 0, 0, 0)
        missing = Break("gap", before.next_lsn if before is not None else last)
        yield Stretch(standing.log, gone, START, START, start.branch, missing)


def _whole_end(standing: LogInventory, place: SegmentPlace, end: int) -> tuple[int, int]:
    """Return (offset, lsn) after the last whole frame of a truncated segment.

    A segment that grew after the listing is not truncated: it has at least the listed bytes.
    """
    with standing.open(place) as file:
        if file.size_bytes >= end:
            return end, 0
        last = file.last_before(file.size_bytes)
        if last is not None and last[0] + last[1].size > file.size_bytes:
            last = file.last_before(last[0])
    if last is None:
        return START, place.first_lsn
    offset, header = last
    return offset + header.size, header.next_lsn


def whole_until(standing: LogInventory, start: LogPosition, end: LogPosition) -> LogPosition:
    reached: Stretch | None = None
    try:
        for stretch in stretches(standing, start, end.place, loss_handler("hold")):
            reached = stretch
    except DataLoss as error:
        held = start._replace(held=str(error))
        if reached is None:
            return held
        with standing.open(reached.place) as file:
            last = file.last_before(reached.end)
        if last is None:
            return held._replace(segment=reached.place.first_lsn, offset=reached.end, frame=0)
        offset, header = last
        mark = Mark(reached.place.first_lsn, reached.end, header.next_lsn, header.epoch)
        return held.moved_to(DurableEnd(mark, offset, header.time_ns))
    return end


def _check_gap(
    standing: LogInventory,
    before: Edges,
    place: SegmentPlace,
    on_loss: Callable[[LogError], None],
) -> Break | None:
    if _gap_before(standing, place.first_lsn) is not None:
        return _gap(standing, before.next_lsn, place)
    with standing.open(place) as file:
        header = file.header()
    is_passed_over = any(
        before.next_lsn <= first_lsn < place.first_lsn for first_lsn in standing.left_out
    )
    if is_passed_over or follows(before, place, header.created_ns if header is not None else 0):
        return None
    where = f"at least one segment before {segment_name(place.first_lsn)}"
    on_loss(DataLoss(standing.log.device, where, before.next_lsn, f"at lsn {place.first_lsn}"))
    return _gap(standing, before.next_lsn, place)
