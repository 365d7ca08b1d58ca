"""Snapshot of each log's segments and end, and places in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.errors import LogError
from taskq_plugins.fleet.inventory import (
    BREAKS,
    START,
    DeclaredBreak,
    DurableEnd,
    SegmentFile,
    breaks,
    durable_end,
    segment_paths,
    segments,
)
from taskq_plugins.fleet.places import (
    SETTLED_NS,
    FileFacts,
    LogPlace,
    LogTwice,
    Mark,
    Memory,
    SegmentPlace,
    facts_of,
    find_logs,
    log_problem,
)
from taskq_plugins.spark.source.positions import Given, LogPosition, Lsn, OptionError, Unreadable

if TYPE_CHECKING:
    from taskq_plugins.spark.source.options import ReadOptions

#: Logs by path as they stood, and what the system said of their files: most are silent mostly.
_seen: Final[Memory[str, tuple[dict[str, FileFacts], LogInventory]]] = Memory()
#: A search by halves ends in a stretch of this size, which is hopped through.
_HALVING_ENDS_BYTES: Final = 64 * 1024


@dataclass(frozen=True, eq=False)
class LogInventory:
    """One log as it was found: its segments, and how far it may be read.

    ``left_out`` are segments that are there but cannot be used, where that is to be passed over.
    A silent log keeps its one, so what follows from it is found once.
    """

    log: LogPlace
    places: list[SegmentPlace]
    end: DurableEnd
    left_out: frozenset[int] = frozenset()

    @cached_property
    def latest(self) -> LogPosition:
        return LogPosition(self.log.device, *self.end.mark, self.end.frame, self.end.time_ns)

    @cached_property
    def breaks(self) -> list[DeclaredBreak]:
        return breaks(self.log)

    @property
    def earliest(self) -> LogPosition:
        if not self.places or not self.end.mark.segment:
            return self.latest.begun()
        return self.start_of(self.places[0]).begun()

    def start_of(self, place: SegmentPlace) -> LogPosition:
        return LogPosition(self.log.device, place.first_lsn, START, place.first_lsn, place.epoch)

    def find(self, first_lsn: int) -> SegmentPlace | None:
        return next((place for place in self.places if place.first_lsn == first_lsn), None)

    def open(self, place: SegmentPlace) -> SegmentFile:
        return SegmentFile(place.path, self.log.log_id, place.first_lsn)

    def size(self, place: SegmentPlace) -> int:
        mark = self.end.mark
        if place.first_lsn == mark.segment:
            return mark.offset
        return place.size_bytes if place.first_lsn < mark.segment else START


class FleetSnapshot(NamedTuple):
    """The logs of a directory at a moment, in nanoseconds since 1970.

    ``has_problems``: some could not be used and were left out.
    """

    standings: list[LogInventory]
    has_problems: bool
    at_ns: int
    #: problem of a held log by id: two directories have it with different content
    twice: Mapping[str, str] = MappingProxyType({})


def look(options: ReadOptions) -> FleetSnapshot:
    if not Path(options.path).is_dir():
        raise OptionError("path", f": {options.path!r} is no directory: give one with task logs")
    problems: list[LogError] = []
    twice: dict[str, str] = {}
    at_ns = time.time_ns()

    def on_problem(error: LogError, about: object = None) -> None:
        del about
        if isinstance(error, LogTwice) and options.fail_on_data_loss == "hold":
            twice[error.log_id] = str(error)
            return
        if options.corrupt_mode == "fail":
            raise Unreadable(error)
        problems.append(error)
        log_problem(error)

    logs = find_logs(Path(options.path), options.devices, on_problem=on_problem)
    standings: list[LogInventory] = []
    for log in logs:
        if (seen := _as_seen(log)) is not None:
            standings.append(seen)
            continue
        known = len(problems)
        try:
            places = segments(log, on_problem=on_problem)
            end = durable_end(log, places)
        except LogError as error:
            if isinstance(error, Unreadable):
                raise
            on_problem(error)
            continue
        left_out = frozenset[int]()
        if len(problems) > known:
            left_out = frozenset(segment_paths(log)) - {place.first_lsn for place in places}
        standings.append(LogInventory(log, places, end, left_out))
        _remember(standings[-1], at_ns)
    return FleetSnapshot(standings, bool(problems), at_ns, twice)


def _as_seen(log: LogPlace) -> LogInventory | None:
    facts, standing = _seen.get(log.path) or ({}, None)
    # It is another as soon as anything happens in the log's own directory.
    if standing is None or standing.log is not log:
        return None
    return standing if all(facts_of(path) == fact for path, fact in facts.items()) else None


def _remember(standing: LogInventory, at_ns: int) -> None:
    """Remember a log whose inspection is final and that has not changed for a while.

    Any change of a log that may be read to its end changes its facts.
    """
    path, places, mark = standing.log.path, standing.places, standing.end.mark
    if not places or standing.left_out or mark.offset != places[-1].size_bytes:
        return
    names = (f"{path}/log", f"{path}/{BREAKS}", places[-1].path)
    facts = {name: fact for name in names if (fact := facts_of(name)) is not None}
    if all(fact.changed_ns < at_ns - SETTLED_NS for fact in facts.values()):
        _seen[path] = facts, standing


def place_of(standing: LogInventory, given: Given) -> LogPosition:
    if given == "earliest":
        return standing.earliest
    if given == "latest":
        return standing.latest.begun()
    if isinstance(given, Lsn):
        return at_lsn(standing, given.lsn).begun()
    at = LogPosition(standing.log.device, given.segment, given.offset, given.lsn, 0, given.frame)
    return _at_border(standing, at._replace(time_ns=given.time_ns)).begun()


def _at_border(standing: LogInventory, position: LogPosition) -> LogPosition:
    place = standing.find(position.segment)
    if place is None or position.frame:
        return position
    with standing.open(place) as file:
        last = file.last_before(position.offset + 1)
    if last is None or last[0] + last[1].size <= position.offset:
        return position
    return position._replace(offset=last[0], lsn=last[1].first_lsn, epoch=last[1].epoch)


def at_lsn(standing: LogInventory, lsn: int) -> LogPosition:
    places = [place for place in standing.places if place.first_lsn <= standing.end.mark.segment]
    if not places:
        return standing.latest
    place = max((segment for segment in places if segment.first_lsn <= lsn), default=places[0])
    end = standing.size(place)
    position = standing.start_of(place)
    with standing.open(place) as file:
        start = _halve(file, lsn, end)
        for offset, header in file.hop(start, end):
            if header.next_lsn > lsn:
                return position._replace(offset=offset, lsn=header.first_lsn, epoch=header.epoch)
            mark = Mark(place.first_lsn, offset + header.size, header.next_lsn, header.epoch)
            position = position.moved_to(DurableEnd(mark, offset, header.time_ns))
    following = next((segment for segment in places if segment.first_lsn > place.first_lsn), None)
    if following is not None:
        return standing.start_of(following)
    return position


def _halve(file: SegmentFile, lsn: int, end: int) -> int:
    low, high = START, end
    while high - low > _HALVING_ENDS_BYTES:
        middle = (low + high) // 2 & ~7
        frame = file.first_from(middle, high)
        if frame is None or frame[1].first_lsn > lsn:
            high = middle
        else:
            low = frame[0]
    return low


def at_time(standing: LogInventory, time_ns: int) -> LogPosition:
    """Return the first frame of that time or later; the end without such a frame.

    Log time may go back, so headers are scanned from the segment that passed the time first.
    """
    places = [place for place in standing.places if place.first_lsn <= standing.end.mark.segment]
    first = len(places)
    for number, place in enumerate(places):
        with standing.open(place) as file:
            header = file.header()
        if header is not None and header.created_ns >= time_ns:
            first = number
            break
    for place in places[max(first - 1, 0) :]:
        with standing.open(place) as file:
            for offset, frame in file.hop(START, standing.size(place)):
                if frame.time_ns >= time_ns:
                    position = standing.start_of(place)
                    return position._replace(
                        offset=offset, lsn=frame.first_lsn, epoch=frame.epoch
                    ).begun()
    return standing.latest.begun()
