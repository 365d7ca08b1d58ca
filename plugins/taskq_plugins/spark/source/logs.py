"""Current state of the logs of a directory: segments, durable ends, unreadable parts.

A restored or copied log is a log of its own; its directory begins with its parent's segments. This
module groups segments by the log that wrote them, in any directory. A parent is read from its own
directory or, without one, from the child with most of its segments.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.errors import LogError
from taskq_plugins.fleet import inventory, places
from taskq_plugins.fleet.places import (
    START,
    FileFacts,
    LogPlace,
    Position,
    SegmentFile,
    SegmentPlace,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Earlier results by path, with the stat values of their files, since most logs rarely change.
_seen: Final[dict[str, tuple[dict[str, FileFacts], list[LogInventory]]]] = {}


@dataclass(frozen=True, eq=False)
class LogInventory:
    """The segments that one log wrote, and their durable end.

    Attributes:
        log: the directory, and the log that wrote these segments: the directory's own or a parent.
        left_out: unusable segments, with the reasons.
        bound: for a parent in a child's directory, the first lsn that they do not share; else 0.
        copies: by first lsn all files of each segment with more than one.
    """

    log: LogPlace
    places: list[SegmentPlace]
    end: Position
    left_out: Mapping[int, LogError] = field(default_factory=dict)
    bound: int = 0
    copies: Mapping[int, list[SegmentPlace]] = field(default_factory=dict)

    @cached_property
    def parents(self) -> list[tuple[str, int]]:
        """Return (id, first lsn that it does not share) of each parent, oldest first."""
        return [(str(log_id), next_lsn) for log_id, next_lsn in self.log.identity.parents]

    @cached_property
    def breaks(self) -> list[inventory.DeclaredBreak]:
        """Return the declared gaps of a hub's copy."""
        return inventory.breaks(self.log)

    @cached_property
    def segments(self) -> list[dict[str, Any]]:
        own = {"device": self.log.device, "log_id": self.log.log_id}
        rows = inventory.segment_rows(self.log, self.places, self.end)
        return [own | row._asdict() for row in rows]

    def gap_before(self, first_lsn: int) -> inventory.DeclaredBreak | None:
        return next((gap for gap in self.breaks if gap.at.segment == first_lsn), None)

    @cached_property
    def earliest(self) -> Position:
        if not self.places or not self.end.segment:
            return self.end
        return self.start_of(self.places[0])

    def joined(self, other: LogInventory) -> LogInventory:
        """Return the union of two directories' segments of the same log."""
        longer, shorter = self, other
        if self.end.place < other.end.place:
            longer, shorter = other, self
        segments = defaultdict[int, list[SegmentPlace]](list)
        for standing in (longer, shorter):
            for place in standing.places:
                segments[place.first_lsn] += standing.copies_of(place)
        left_out = {**shorter.left_out, **longer.left_out}
        return LogInventory(
            (self if not self.bound else other).log,
            [max(segments[lsn], key=_extent) for lsn in sorted(segments)],
            longer.end,
            {lsn: why for lsn, why in left_out.items() if lsn not in segments},
            max(self.bound, other.bound) if self.bound and other.bound else 0,
            {lsn: files for lsn, files in segments.items() if len(files) > 1},
        )

    def copies_of(self, place: SegmentPlace) -> list[SegmentPlace]:
        """Return all files of a segment, this one first."""
        others = self.copies.get(place.first_lsn, ())
        return [place, *(other for other in others if other.path != place.path)]

    def start_of(self, place: SegmentPlace) -> Position:
        return Position(self.log.device, place.first_lsn, START, place.first_lsn)

    def find(self, first_lsn: int) -> SegmentPlace | None:
        return next((place for place in self.places if place.first_lsn == first_lsn), None)

    def from_segment(self, first_lsn: int) -> list[SegmentPlace]:
        last = self.end.segment
        return [place for place in self.places if first_lsn <= place.first_lsn <= last]

    def open(self, place: SegmentPlace) -> SegmentFile:
        return SegmentFile(place.path, self.log.log_id, place.first_lsn)

    def size(self, place: SegmentPlace) -> int:
        if place.first_lsn == self.end.segment:
            return self.end.offset
        return place.size_bytes if place.first_lsn < self.end.segment else START


def _extent(place: SegmentPlace) -> tuple[bool, int]:
    return bool(place.epoch), place.size_bytes


class Problem(NamedTuple):
    """Reason why a log cannot be read to its end; ``log_id`` is "" if it is not known.

    ``is_whole``: nothing of the log can be read.
    """

    device: str
    log_id: str
    error: LogError
    is_whole: bool = False

    @property
    def text(self) -> str:
        return str(self.error)


class FleetSnapshot(NamedTuple):
    """The logs of a directory by id, at a moment in nanoseconds since 1970.

    ``passed`` has, by log id, problems of a copy with a whole second copy.
    """

    logs: dict[str, LogInventory]
    problems: list[Problem]
    at_ns: int
    passed: Mapping[str, list[str]] = MappingProxyType({})

    def problem_of(self, device: str, log_id: str) -> str:
        """Return why a missing log cannot be read, or "" if the reason is unknown."""
        own = [each for each in self.problems if log_id == each.log_id]
        near = [each for each in self.problems if device == each.device and not each.log_id]
        return next((problem.text for problem in own + near), "")


def look(root: Path | str, devices: frozenset[str] | None = None) -> FleetSnapshot:
    """Return the logs in a directory, and a problem for each that cannot be read.

    Args:
        root: one log, or a directory of logs, as ``find_logs``.
        devices: names of devices, or log ids; None for all.

    Raises:
        FleetError: the directory does not exist.
    """
    problems: list[Problem] = []
    at_ns = time.time_ns()

    def note(error: LogError, device: str, log_id: str = "") -> None:
        twice = error.log_id if isinstance(error, places.LogTwice) else log_id
        problems.append(Problem(device, twice, error, is_whole=True))

    by_id: dict[str, LogInventory] = {}
    odd = defaultdict[str, list[LogError]](list)
    for log in places.find_logs(Path(root), devices, on_problem=note):
        failed: list[LogError] = []
        for path in (log.path, *log.copies):
            try:
                directory = log if path == log.path else log._replace(path=path)
                standings = _standings(directory, devices, at_ns)
            except LogError as error:
                failed.append(error)
                continue
            for standing in standings:
                log_id = standing.log.log_id
                known = by_id.get(log_id)
                by_id[log_id] = standing if known is None else known.joined(standing)
                odd[log_id] += standing.left_out.values()
        odd[log.log_id] += failed
        if len(failed) > len(log.copies):
            note(failed[0], log.device, log.log_id)
    for problem in problems:
        if problem.is_whole:
            by_id.pop(problem.log_id, None)
    for log_id, standing in by_id.items():
        device = standing.log.device
        problems += [Problem(device, log_id, error) for error in standing.left_out.values()]
    passed = {
        log_id: [
            f"{error}; another copy was read"
            for error in odd[log_id]
            if error not in log.left_out.values()
        ]
        for log_id, log in by_id.items()
    }
    return FleetSnapshot(by_id, problems, at_ns, passed)


def _standings(log: LogPlace, devices: frozenset[str] | None, at_ns: int) -> list[LogInventory]:
    standings = _as_seen(log)
    if standings is None:
        standings = list(_inventories(log))
        _remember(log, standings, at_ns)
    return [
        standing
        for standing in standings
        if devices is None or {log.device, standing.log.log_id} & devices
    ]


def _inventories(log: LogPlace) -> Iterator[LogInventory]:
    left_out: dict[int, LogError] = {}
    segments = inventory.segments(log, left_out)
    for owner, group in groupby(segments, key=lambda place: log.of_segment(place.first_lsn)):
        shared = list(group)
        if owner.log_id != log.log_id:
            bad = {lsn: why for lsn, why in left_out.items() if log.of_segment(lsn) == owner}
            bound = next(end for log_id, end in log.identity.parents if str(log_id) == owner.log_id)
            yield LogInventory(owner, shared, inventory.last_end(owner, shared), bad, bound)
    first = log.identity.begins
    mine = [place for place in segments if place.first_lsn >= first]
    bad = {lsn: why for lsn, why in left_out.items() if lsn >= first}
    yield LogInventory(log, mine, inventory.durable_end(log, mine), bad)


def _as_seen(log: LogPlace) -> list[LogInventory] | None:
    facts, standings = _seen.get(log.path) or ({}, None)
    if not standings or standings[-1].log[:3] != log[:3]:
        return None
    is_same = all(places.facts_of(path) == fact for path, fact in facts.items())
    return standings if is_same else None


def _remember(log: LogPlace, standings: list[LogInventory], at_ns: int) -> None:
    """Cache the result for a log that can be read to its end and has not changed for a while.

    Any change of such a log changes its stat values.
    """
    standing = standings[-1]
    if any(each.left_out for each in standings):
        return
    if not standing.places or standing.end.offset != standing.places[-1].size_bytes:
        return
    breaks = f"{log.path}/{inventory.BREAKS}"
    names = (log.path, f"{log.path}/log", breaks, standing.places[-1].path)
    facts = {name: fact for name in names if (fact := places.facts_of(name)) is not None}
    if all(fact.changed_ns < at_ns - places.SETTLED_NS for fact in facts.values()):
        if len(_seen) >= places.ENTRIES_MAX:
            _seen.clear()
        _seen[log.path] = facts, standings


# -- positions in a log ----------------------------------------------------------------------------


def at_border(standing: LogInventory, place: SegmentPlace, offset: int) -> Position:
    """Return the position at an offset between frames."""
    here = standing.start_of(place)
    if offset <= START:
        return here
    with standing.open(place) as file:
        last = file.last_before(offset)
        if last is None:
            return here._replace(offset=offset)
        frame, header = last
        if frame + header.size == offset:
            return here.after(frame, header)
        following = file.first_from(offset, place.size_bytes)
    # After damage the frame before does not count, since the damage was skipped.
    lsn = header.next_lsn if following is None else following[1].first_lsn
    return here._replace(offset=offset, lsn=lsn)


def at_lsn(standing: LogInventory, lsn: int) -> Position:
    """Return the position of the frame with an lsn, or of the first later one; else the end."""
    chain = standing.from_segment(0)
    if not chain:
        return standing.end
    place = max((each for each in chain if each.first_lsn <= lsn), default=chain[0])
    end = standing.size(place)
    with standing.open(place) as file:
        offset = START
        while frame := file.first_from(offset, end):  # skips damage
            offset, header = frame
            if header.next_lsn > lsn:
                return standing.start_of(place)._replace(offset=offset, lsn=header.first_lsn)
            offset += header.size
    later = standing.from_segment(place.first_lsn + 1)
    return standing.start_of(later[0]) if later else standing.end
