"""Segments of a log and their durable end, from the headers of their frames."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from taskq.arrow.problems import SegmentUnreadable, shown
from taskq.engine import Border, Gap, LocalDisk, Replica, read_file, segment_lsn
from taskq.errors import LogError
from taskq.values import parse_json
from taskq_plugins.fleet.places import (
    ENTRIES_MAX,
    START,
    FleetError,
    LogPlace,
    Position,
    SegmentFile,
    SegmentPlace,
    facts_of,
)

_log: Final = logging.getLogger("taskq")
#: Frames to step back in search of one declared synced; after that, read from the segment's start.
_STEPS_BACK: Final = 64


def durable_end(log: LogPlace, places: list[SegmentPlace]) -> Position:
    """Return the durable end of a log with these segments; no crash removes a record before it.

    Hops over frame headers from the last frame that a later header declares synced. Only bodies of
    frames after this one are read.

    Raises:
        SegmentUnreadable: the last segment cannot be read.
        FormatError: a newer taskq wrote the last segment.
    """
    usable = [place for place in places if place.epoch]
    if not usable:
        return _nowhere(log)
    failed_lsn = Replica.failed_lsn(LocalDisk(), log.path)
    if failed_lsn is not None:
        return _declared_end(log, usable, failed_lsn)
    try:
        return _end_of(log, usable[-1])
    except FileNotFoundError:
        return _nowhere(log)


def last_end(log: LogPlace, places: list[SegmentPlace]) -> Position:
    """Return the end of a parent's segments in a child's directory; no process writes to them."""
    for place in reversed(places):
        with SegmentFile(place.path, log.log_id, place.first_lsn) as file:
            start, last = _start(log, file), file.last_before(place.size_bytes)
            return start if last is None else start.after(*last)
    return _nowhere(log)


def _nowhere(log: LogPlace) -> Position:
    return Position(log.device, 0, 0, 0)


def _end_of(log: LogPlace, place: SegmentPlace) -> Position:
    with SegmentFile(place.path, log.log_id, place.first_lsn) as file:
        declared, _ = _declared(file, _near_end(log, file), 0)
        end = _whole(file, declared)
        # Another process may have seen a failed fsync just now and written the marker.
        if end != declared and (
            not file.sync() or Replica.failed_lsn(LocalDisk(), log.path) is not None
        ):
            return declared
        return end


def _near_end(log: LogPlace, file: SegmentFile) -> Position:
    start, last = _start(log, file), file.last_before(file.size_bytes)
    synced_through = last[1].synced_through if last is not None else 0
    for _ in range(_STEPS_BACK):
        if last is None:
            break
        offset, header = last
        if header.next_lsn <= synced_through:
            return start.after(offset, header)
        last = file.last_before(offset)
    return start


def _start(log: LogPlace, file: SegmentFile) -> Position:
    header = file.header()
    time_ns = header.created_ns if header is not None else 0
    return Position(log.device, file.first_lsn, START, file.first_lsn, time_ns)


def _declared(file: SegmentFile, begin: Position, synced_through: int) -> tuple[Position, int]:
    for _, header in file.hop(begin.offset, file.size_bytes):
        synced_through = max(synced_through, header.synced_through)
    end = begin
    for offset, header in file.hop(begin.offset, file.size_bytes):
        if header.next_lsn > synced_through:
            break
        end = begin.after(offset, header)
    return end, synced_through


def _whole(file: SegmentFile, begin: Position) -> Position:
    end = begin
    for item in file.scanner.frames(begin.offset, begin.lsn):
        if not isinstance(item, Gap):
            end = begin.after(item.offset, item.header)
        elif item.torn:
            break
        else:
            end = end._replace(offset=item.end, lsn=item.next_lsn, frame=0)
    return end


# -- after a failed fsync -------------------------------------------------------------------------


def _declared_end(log: LogPlace, usable: list[SegmentPlace], durable: int) -> Position:
    end = _nowhere(log)
    for place in reversed(usable):
        try:
            with SegmentFile(place.path, log.log_id, place.first_lsn) as file:
                end, durable = _declared(file, _start(log, file), durable)
        except FileNotFoundError:
            continue
        if end.frame:
            break
    return end


#: File of declared breaks, in the directory of a copy.
BREAKS: Final = "breaks.jsonl"
_BYTES_MAX: Final = 64 * 1024 * 1024


class DeclaredBreak(NamedTuple):
    """A declared gap: the device lost its records before ``at``.

    Attributes:
        left: end of the copy before the gap.
        at: position of the device's next record.
        end_lsn: lsn after the device's last record at the time of the declaration.
        cause: text for people.
        old: directory of the earlier segments.
    """

    left: Border
    at: Border
    end_lsn: int
    cause: str
    old: str

    @property
    def lsn(self) -> int:
        return self.left.next_lsn


def breaks(log: LogPlace) -> list[DeclaredBreak]:
    path = f"{log.path}/{BREAKS}"
    try:
        data = read_file(path, _BYTES_MAX) if facts_of(path) else b""
    except OSError:
        return []
    begun: dict[int, DeclaredBreak] = {}
    done: list[DeclaredBreak] = []
    for line in data.splitlines():
        try:
            values: dict[str, Any] = parse_json(line)
            number = int(values["n"])
            if values["step"] == "done":
                done.append(begun[number])
            else:
                begun[number] = DeclaredBreak(
                    Border.from_list(values["left"]), Border.from_list(values["at"]),
                    int(values["end_lsn"]), str(values["cause"]), f"{log.path}/old/{number}",
                )  # fmt: skip
        except (ValueError, LookupError, TypeError):
            break
    return done


def segments(log: LogPlace, left_out: dict[int, LogError] | None = None) -> list[SegmentPlace]:
    """Return the log's segments, oldest first; none if the log is new or was removed.

    A hub's copy also has the segments from before each gap, which the hub set aside. A file with
    less than a whole header is left out. All sizes but the last segment's are final.

    Args:
        log: the log.
        left_out: gets the error of each unusable segment, by its first lsn; None: raise it.

    Raises:
        SegmentUnreadable: a file cannot be opened.
        FormatError: a newer taskq wrote a segment.
        FleetError: the directory cannot be read.
    """
    places: list[SegmentPlace] = []
    for lsn, path in segment_paths(log).items():
        try:
            place = _look(log, lsn, path)
        except FileNotFoundError:
            continue  # compaction removed it meanwhile
        except LogError as error:
            if left_out is None:
                raise
            left_out[lsn] = error
            continue
        if place is not None:
            places.append(place)
    return places


def segment_paths(log: LogPlace) -> dict[int, str]:
    gaps = [f"{left.old}/log" for left in breaks(log)]
    paths = {lsn: path for place in (*gaps, f"{log.path}/log") for lsn, path in _paths(place)}
    return dict(sorted(paths.items())) if gaps else paths


def _paths(directory: str) -> list[tuple[int, str]]:
    # Read all names before any size: then each segment before the last has its final size.
    try:
        names = os.listdir(directory)  # noqa: PTH208 - only names are needed
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FleetError(f"{shown(directory)} cannot be read ({error.strerror})") from error
    return sorted(
        (lsn, f"{directory}/{name}") for name in names if (lsn := segment_lsn(name)) is not None
    )


def _look(log: LogPlace, lsn: int, path: str) -> SegmentPlace | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 - a str, perhaps not UTF-8
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SegmentUnreadable(path, error.strerror or str(error)) from error
    epoch = _epoch(
        path, log.of_segment(lsn).log_id, lsn, (facts.st_ino, facts.st_mtime_ns, facts.st_size)
    )
    if epoch is None:
        return None
    return SegmentPlace(lsn, path, facts.st_size, facts.st_mtime_ns, epoch)


@lru_cache(ENTRIES_MAX)
def _epoch(path: str, log_id: str, lsn: int, _facts: tuple[int, int, int]) -> int | None:
    """Return the epoch of a file with these stat values; None for less than a whole header."""
    with SegmentFile(path, log_id, lsn) as file:
        header = file.header()
        if header is None:
            return None if file.size_bytes <= START else 0
        return header.epoch


class Edges(NamedTuple):
    """Begin and end of a segment.

    Attributes:
        created_ns: time of the last frame before the segment.
        link: offset and CRC of this frame; an offset before the first frame's names no frame.
        time_ns: time of the segment's own last frame; ``created_ns`` without frames.
        next_lsn: lsn after the segment's last record.
    """

    created_ns: int
    link: tuple[int, int]
    time_ns: int
    next_lsn: int


class SegmentRow(NamedTuple):
    """One segment of a log, by its first lsn; ``last_record_ns`` is None without a record.

    ``gap_from``: the first missing lsn, if segments are missing before this one.
    """

    segment: int
    next_lsn: int
    size_bytes: int
    modified_ns: int
    last_record_ns: int | None
    gap_from: int | None


def edges(log: LogPlace, place: SegmentPlace) -> Edges:
    return _edges(log.log_id, place)


@lru_cache(ENTRIES_MAX)
def _edges(log_id: str, place: SegmentPlace) -> Edges:
    with SegmentFile(place.path, log_id, place.first_lsn) as file:
        header, last = file.header(), file.last_before(place.size_bytes)
    created_ns, link = 0, (0, 0)
    if header is not None:
        created_ns, link = header.created_ns, (header.link.offset, header.link.crc)
    if last is None:
        return Edges(created_ns, link, created_ns, place.first_lsn)
    return Edges(created_ns, link, last[1].time_ns, last[1].next_lsn)


def follows(log: LogPlace, before: SegmentPlace, place: SegmentPlace) -> bool:
    """Return whether no segment is missing between two segments.

    A segment's header names the last frame of the segment before it; at this place is the frame, or
    damage. If the earlier segment has no frame, both headers name the same one.
    """
    link, last = edges(log, place).link, edges(log, before)
    offset, crc = link
    if offset < START or link == last.link or place.first_lsn <= last.next_lsn:
        return True
    with SegmentFile(before.path, log.log_id, before.first_lsn) as file:
        frame = file.last_before(offset + 1)
    if frame is None or frame[0] + frame[1].size <= offset:
        return offset < before.size_bytes
    return frame[0] == offset and frame[1].crc == crc


def segment_rows(
    log: LogPlace, places: Iterable[SegmentPlace], end: Position
) -> Iterator[SegmentRow]:
    """Yield a row for each segment of a log up to its end; log a segment that cannot be read."""
    before: SegmentPlace | None = None
    for place in places:
        try:
            now = edges(log, place)
            is_continued = before is None or follows(log, before, place)
        except FileNotFoundError:
            continue
        except LogError as error:
            _log.warning("left out: %s", error)
            before = None
            continue
        if place.first_lsn == end.segment:
            now = now._replace(next_lsn=end.lsn, time_ns=end.time_ns)
        elif place.first_lsn > end.segment:
            now = now._replace(next_lsn=place.first_lsn, time_ns=now.created_ns)
        yield SegmentRow(
            place.first_lsn,
            now.next_lsn,
            place.size_bytes,
            place.modified_ns,
            now.time_ns if now.next_lsn > place.first_lsn else None,
            None if is_continued or before is None else edges(log, before).next_lsn,
        )
        before = place
