"""How far each log is read in one trigger, when there is a limit: fair over the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from taskq_plugins.fleet.inventory import START, edges
from taskq_plugins.fleet.places import SegmentPlace
from taskq_plugins.spark.source.positions import Position
from taskq_plugins.spark.source.standing import Standing, at_lsn

#: No limit.
UNLIMITED: Final = 2**62
#: Likewise of records.
SHARE_RECORDS_MIN: Final = 1_000
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
    records: int = UNLIMITED


class _Step(NamedTuple):
    here: Position
    size_bytes: int
    files: int
    records: int


class Left(NamedTuple):
    """What there is of a log behind a place."""

    size_bytes: int
    records: int


def left(standing: Standing, here: Position) -> Left:
    size = records = 0
    end = standing.end.mark
    places = [place for place in standing.places if here.segment <= place.first_lsn <= end.segment]
    for number, place in enumerate(places):
        is_here = place.first_lsn == here.segment
        size += max(standing.size(place) - (here.offset if is_here else START), 0)
        following = places[number + 1] if number + 1 < len(places) else None
        if following is None:
            next_lsn = end.next_lsn if place.first_lsn == end.segment else place.first_lsn
        elif following.epoch == place.epoch:
            next_lsn = following.first_lsn
        else:
            next_lsn = edges(standing.log, place).next_lsn
        records += max(next_lsn - max(place.first_lsn, here.lsn if is_here else 0), 0)
    return Left(size, records)


def allot(backlogs: Sequence[Backlog], limits: Limits) -> tuple[list[Position], int]:
    """Return (how far to read each log, number of the last that got something or -1).

    They are served in their order, each with an even share, and what some do not need goes to the
    others. Who begins behind the last one that was served the next time lets none starve.
    """
    here = [backlog.here for backlog in backlogs]
    size_left, files_left, records_left = limits
    last = -1
    while True:
        waiting = [n for n, backlog in enumerate(backlogs) if here[n].place < backlog.target.place]
        if not waiting:
            return here, last
        size_share = max(size_left // len(waiting), SHARE_BYTES_MIN)
        files_share = max(files_left // len(waiting), 1)
        records_share = max(records_left // len(waiting), SHARE_RECORDS_MIN)
        has_moved = False
        for n in waiting:
            share = Limits(
                min(size_share, size_left),
                min(files_share, files_left),
                min(records_share, records_left),
            )
            # A frame that is larger than the share still goes if the trigger has room for it.
            room = Limits(size_left, records=records_left) if last >= 0 else Limits()
            step = _advance(backlogs[n]._replace(here=here[n]), share, room)
            if step.here == here[n]:
                continue
            here[n], last, has_moved = step.here, n, True
            size_left -= step.size_bytes
            files_left -= step.files
            records_left -= step.records
            if min(size_left, files_left, records_left) <= 0:
                return here, last
        if not has_moved:
            return here, last


def _advance(backlog: Backlog, share: Limits, frame_max: Limits) -> _Step:
    standing, here, target = backlog
    size = files = records = 0
    while here.place < target.place and files < share.files and records < share.records:
        place = standing.find(here.segment)
        limit = (
            target.offset
            if here.segment == target.segment
            else place.size_bytes
            if place is not None
            else 0
        )
        rest = limit - here.offset
        room = share.size_bytes - size
        if place is not None:
            room = min(room, _bytes_of(standing, here, share.records - records))
        cut = None if place is None or rest <= room else _cut(standing, here, place, limit, room)
        whole = cut is None or cut.offset >= limit
        moved = cut if cut is not None and not whole else _behind(standing, here, target)
        count = 0
        if place is not None and share.records < UNLIMITED:
            last = (
                moved.lsn if moved.segment == here.segment else edges(standing.log, place).next_lsn
            )
            count = max(last - here.lsn, 0)
        if cut is not None:
            taken = min(cut.offset, limit) - here.offset
            is_alone = not size and count <= frame_max.records
            if taken > (max(room, frame_max.size_bytes) if is_alone else room):
                break
            rest = taken
        size, files, records = size + max(rest, 0), files + (rest > 0), records + count
        here = moved
        if cut is not None:
            break
    return _Step(_timed(standing, here), size, files, records)


def _timed(standing: Standing, here: Position) -> Position:
    place = standing.find(here.segment)
    if here.offset != START or here.time_ns or place is None:
        return here
    with standing.open(place) as file:
        header = file.header()
    return here if header is None else here._replace(time_ns=header.created_ns)


def _bytes_of(standing: Standing, here: Position, records: int) -> int:
    if records >= UNLIMITED // 2:
        return UNLIMITED
    behind = at_lsn(standing, here.lsn + records)
    return max(behind.offset - here.offset, 0) if behind.segment == here.segment else UNLIMITED


def _behind(standing: Standing, here: Position, target: Position) -> Position:
    if here.segment == target.segment:
        return target
    for place in standing.places:
        if here.segment < place.first_lsn <= target.segment:
            return standing.start_of(place).of(here)
    return target


def _cut(
    standing: Standing,
    here: Position,
    place: SegmentPlace,
    limit: int,
    room: int,
) -> Position:
    with standing.open(place) as file:
        border = file.last_before(min(here.offset + room + 1, limit), start=here.offset + 8)
        if border is None:
            border = file.first_from(here.offset + 8, limit)
            if border is None:
                return _at(here, limit)
        offset, header = border
        before = file.last_before(offset, start=max(here.offset, START))
    if before is not None and before[0] + before[1].size == offset:
        frame, was = before
        return here._replace(
            offset=offset, lsn=was.next_lsn, epoch=was.epoch, frame=frame, time_ns=was.time_ns
        )
    # Behind damage: only what follows is known.
    return _at(here, offset)._replace(lsn=header.first_lsn, epoch=header.epoch)


def _at(here: Position, offset: int) -> Position:
    return here._replace(offset=offset, frame=0)
