"""Many stretches of many files into few partitions: each costs Spark about 28 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq_plugins.fleet.segmentfile import START, SegmentFile
from taskq_plugins.spark.decode import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq_plugins.spark.source.going_on import Stretch

#: A stretch is not cut for the sake of less than this part of a partition.
_CUT_MIN: Final = 8


def pack(found: Iterable[Stretch], target_bytes: int) -> list[list[Piece]]:
    """Pieces by partition, in the order of the stretches: about ``target_bytes`` in each.

    A pure function of the stretches and of bytes that never change. The partitions are made about
    equal, so that none is a small rest which some core works off alone.
    """
    waiting = list(found)
    left = sum(one.end - one.start for one in waiting)
    count = max(round(left / target_bytes), 1)
    parts: list[list[Piece]] = []
    room = slack = 0
    for stretch in waiting:
        start, is_begun = stretch.start, False
        while start < stretch.end or not is_begun:
            size = stretch.end - start
            if len(parts) < count and (room <= 0 or (room < slack < size - room)):
                # What others took too much or too little is evened out by those to come.
                room = -(-left // (count - len(parts)))
                slack = room // _CUT_MIN
                parts.append([])
            end = stretch.end
            if len(parts) < count and size > room + slack:
                end = _border(stretch, start + room)
            parts[-1].append(_piece(stretch, start, end))
            room -= end - start
            left -= end - start
            start, is_begun = end, True
    return parts


def _border(stretch: Stretch, offset: int) -> int:
    """The first border of frames from ``offset`` on."""
    place = stretch.place
    with SegmentFile(place.path, stretch.log.log_id, place.first_lsn) as file:
        found = file.first_from((offset + 7) & ~7, stretch.end)
    return found[0] if found is not None else stretch.end


def _piece(stretch: Stretch, start: int, end: int) -> Piece:
    log, place = stretch.log, stretch.place
    # From 0 on the header is checked, too.
    begin = 0 if start == START < end else start
    return Piece(
        place.path, log.device, log.log_id, log.tag, place.first_lsn, begin, end, stretch.branch,
        stretch.behind if start == stretch.start else None,
    )  # fmt: skip
