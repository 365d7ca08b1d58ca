"""How far each log is read in one trigger, when there is a limit: fair over the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from taskq_plugins.fleet.segmentfile import START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskq_plugins.fleet.places import SegmentPlace
    from taskq_plugins.spark.source.positions import Position
    from taskq_plugins.spark.source.standing import Standing

#: No limit.
UNLIMITED: Final = 2**62
#: What a log gets at least when its turn comes: with thousands of logs an even share would be less
#: than a frame.
SHARE_BYTES_MIN: Final = 256 * 1024


class Backlog(NamedTuple):
    """A log with something to read: from ``here`` up to ``target``."""

    standing: Standing
    here: Position
    target: Position


class Limits(NamedTuple):
    """What one trigger may read at most; a single frame that is larger is read all the same."""

    size_bytes: int = UNLIMITED
    files: int = UNLIMITED


class _Step(NamedTuple):
    here: Position
    size_bytes: int
    files: int


def allot(backlogs: Sequence[Backlog], limits: Limits) -> tuple[list[Position], int]:
    """(how far to read each of these logs, number of the last one that got something, -1: none).

    They are served in their order, each with an even share, and what some do not need goes to the
    others. Who begins behind the last one that was served the next time lets none starve.
    """
    here = [one.here for one in backlogs]
    size_left, files_left = limits
    last = -1
    while True:
        waiting = [n for n, one in enumerate(backlogs) if here[n].place < one.target.place]
        if not waiting:
            return here, last
        size_share = max(size_left // len(waiting), SHARE_BYTES_MIN)
        files_share = max(files_left // len(waiting), 1)
        has_moved = False
        for n in waiting:
            share = Limits(min(size_share, size_left), min(files_share, files_left))
            # A frame that is larger than the share still goes if the trigger has room for it.
            frame_max = size_left if last >= 0 else UNLIMITED
            step = _advance(backlogs[n]._replace(here=here[n]), share, frame_max)
            if step.here == here[n]:
                continue
            here[n], last, has_moved = step.here, n, True
            size_left -= step.size_bytes
            files_left -= step.files
            if size_left <= 0 or files_left <= 0:
                return here, last
        if not has_moved:
            return here, last


def _advance(backlog: Backlog, share: Limits, frame_max: int) -> _Step:
    """As far as a share goes; one frame at least, if it has no more than ``frame_max`` bytes."""
    standing, here, target = backlog
    size = files = 0
    while here.place < target.place and files < share.files:
        place = standing.find(here.segment)
        is_last = here.segment == target.segment
        limit = target.offset if is_last else place.size_bytes if place is not None else 0
        rest = limit - here.offset
        room = share.size_bytes - size
        if place is None or rest <= room:
            here = target if is_last else _next_segment(standing, here, target)
            size += max(rest, 0)
            files += rest > 0
            continue
        cut = _cut(standing, here, place, limit, room)
        if cut.offset - here.offset <= (room if size else max(room, frame_max)):
            size += cut.offset - here.offset
            files += 1
            here = cut
        break
    return _Step(here, size, files)


def _next_segment(standing: Standing, here: Position, target: Position) -> Position:
    """The start of the segment behind this one."""
    for place in standing.places:
        if here.segment < place.first_lsn <= target.segment:
            start = standing.start_of(place)
            return start._replace(from_segment=here.from_segment, from_offset=here.from_offset)
    return target


def _cut(
    standing: Standing,
    here: Position,
    place: SegmentPlace,
    limit: int,
    room: int,
) -> Position:
    """The last border of frames within the room, or else the first one beyond it."""
    with standing.open(place) as file:
        found = file.last_before(min(here.offset + room + 1, limit), here.offset + 8)
        if found is None:
            found = file.first_from(here.offset + 8, limit)
            if found is None:
                return _at(here, limit)
        offset, header = found
        before = file.last_before(offset, max(here.offset, START))
    if before is not None and before[0] + before[1].size == offset:
        frame, was = before
        return here._replace(
            offset=offset, lsn=was.next_lsn, epoch=was.epoch, frame=frame, time_ns=was.time_ns
        )
    # Behind damage: only what follows is known.
    return _at(here, offset)._replace(lsn=header.first_lsn, epoch=header.epoch)


def _at(here: Position, offset: int) -> Position:
    return here._replace(offset=offset, frame=0)
