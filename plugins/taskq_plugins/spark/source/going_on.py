"""Going on where a reader had come to: is what it read last still there, and what is missing?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taskq.log.format.frames import segment_name
from taskq_plugins.fleet.inventory import Edges, edges, follows
from taskq_plugins.fleet.segmentfile import START, SegmentFile
from taskq_plugins.spark.source.problems import DataLoss, OffsetMismatch
from taskq_plugins.spark.source.standing import at_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskq.core.errors import LogError
    from taskq.log.format.codec import FrameHeader
    from taskq_plugins.fleet.places import LogPlace, SegmentPlace
    from taskq_plugins.spark.source.positions import Position
    from taskq_plugins.spark.source.standing import Standing


class Stretch(NamedTuple):
    """Bytes of one segment, from one border of frames to another."""

    log: LogPlace
    place: SegmentPlace
    start: int
    end: int


def go_on(standing: Standing, position: Position, on_loss: Callable[[LogError], None]) -> Position:
    """The place to read from, given how far the log was read.

    It is another than the position if a recovery or a repair moved frames, if the segment was read
    to its end and compaction took it, and if ``on_loss`` lets reading go on behind what is lost.

    Raises:
        DataLoss, OffsetMismatch: by ``on_loss``.
    """
    if not position.segment or not standing.end.mark.segment:
        # An empty log, then or now; one that lost all its segments is seen when it has some again.
        return standing.earliest if not position.segment else position
    place = standing.find(position.segment)
    if place is not None:
        with standing.open(place) as file:
            if _stands(file, position):
                return position
    moved = _moved(standing, position)
    if moved is not None:
        return moved
    if place is not None:
        where = f"{segment_name(position.segment)}, offset {position.offset},"
        on_loss(OffsetMismatch(position.device, where, position.lsn, position.epoch))
        return _keep_origin(at_lsn(standing, position.lsn), position)
    following = next((one for one in standing.places if one.first_lsn >= position.lsn), None)
    if following is None:
        on_loss(_loss(position, position.segment, "where it is found again"))
        return position
    with standing.open(following) as file:
        header = file.header()
    if following.first_lsn > position.lsn and not (
        position.time_ns and header is not None and header.created_ns == position.time_ns
    ):
        goes_on = f"at lsn {following.first_lsn}"
        on_loss(_loss(position, position.segment, goes_on))
    return _keep_origin(standing.start_of(following), position)


def _loss(position: Position, segment: int, goes_on: str) -> DataLoss:
    return DataLoss(position.device, f"segment {segment_name(segment)}", position.lsn, goes_on)


def _keep_origin(place: Position, old: Position) -> Position:
    return place._replace(from_segment=old.from_segment, from_offset=old.from_offset)


def _stands(file: SegmentFile, position: Position) -> bool:
    """Whether the frame before the position, or behind it, is the one that was there."""
    if position.offset > file.size_bytes:
        return False
    if position.frame:
        header = file.frame_at(position.frame)
        return (
            header is not None
            and _is_last(header, position)
            and position.frame + header.size == position.offset
        )
    if position.offset <= START:
        start = file.header()
        return start is None or position.epoch in {0, start.epoch}
    if position.offset == file.size_bytes:
        return True
    header = file.frame_at(position.offset)
    # Nothing readable stands there after damage, and a place that a person named has no lsn.
    return header is None or header.first_lsn >= position.lsn


def _is_last(header: FrameHeader, position: Position) -> bool:
    """Whether it is the frame that was read last.

    Its time decides where a log was restored and went on in its epoch: numbers and places of frames
    are then the same again.
    """
    return (header.epoch, header.next_lsn) == (position.epoch, position.lsn) and (
        header.time_ns == position.time_ns
    )


def _moved(standing: Standing, position: Position) -> Position | None:
    """Where the frame stands now that was read last; None if it is not in the log."""
    if not position.frame:
        return None
    found = at_lsn(standing, position.lsn - 1)
    place = standing.find(found.segment)
    if place is None:
        return None
    with standing.open(place) as file:
        header = file.frame_at(found.offset)
    if header is None or not _is_last(header, position):
        return None
    return position._replace(
        segment=found.segment, offset=found.offset + header.size, frame=found.offset
    )


def stretches(
    standing: Standing, start: Position, end: tuple[int, int], on_loss: Callable[[LogError], None]
) -> Iterator[Stretch]:
    """The bytes from ``start`` to ``end``, segment by segment.

    Raises:
        DataLoss: a segment between the two is missing, by ``on_loss``.
    """
    last, end_offset = end
    before: Edges | None = None
    for place in standing.places:
        if place.first_lsn < start.segment:
            continue
        if place.first_lsn > last:
            break
        if before is not None:
            _check_gap(standing, before, place, on_loss)
        low = max(start.offset if place.first_lsn == start.segment else START, START)
        high = min(end_offset, place.size_bytes) if place.first_lsn == last else place.size_bytes
        if low < high:
            yield Stretch(standing.log, place, low, high)
        before = edges(standing.log, place) if place.first_lsn < last else None
        if place.first_lsn == last and high < end_offset:
            where = f"{segment_name(last)} from offset {high} to {end_offset}"
            on_loss(DataLoss(start.device, where, place.first_lsn, "without it"))
    if standing.find(last) is None and start.segment <= last and (start.segment, last) != (0, 0):
        on_loss(_loss(start._replace(lsn=last), last, "without it"))


def _check_gap(
    standing: Standing,
    before: Edges,
    place: SegmentPlace,
    on_loss: Callable[[LogError], None],
) -> None:
    with standing.open(place) as file:
        header = file.header()
    is_passed_over = any(before.next_lsn <= one < place.first_lsn for one in standing.left_out)
    if not is_passed_over and not follows(
        before, place, header.created_ns if header is not None else 0
    ):
        where = f"at least one segment before {segment_name(place.first_lsn)}"
        goes_on = f"at lsn {place.first_lsn}"
        on_loss(DataLoss(standing.log.device, where, before.next_lsn, goes_on))
