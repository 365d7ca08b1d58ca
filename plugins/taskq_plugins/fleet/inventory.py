"""What there is of each log: its segments with their first and last records, and what is missing.

Lsns have gaps by design, so numbers alone tell nothing. A segment begins at the very lsn where the
one before it ended, or, after an unclean start, in a new epoch and 2^20 further on; and its header
holds the time of the last frame before it. So between two segments nothing is missing when

- the second begins at or below the lsn after the last frame of the first (below: a recovery wrote
  frames again, elsewhere), or
- its header holds the time of that frame, or
- the first one's end is damaged, so that its last frame is unknown, and what is damaged has room
  for the records up to the second, or an epoch begins.

Anything else is a gap. What compaction took from the front of a log is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import Replica
from taskq.errors import LogError
from taskq_plugins.fleet.memory import Memory
from taskq_plugins.fleet.problems import tell
from taskq_plugins.fleet.segmentfile import START, SegmentFile

if TYPE_CHECKING:
    from taskq_plugins.fleet.marks import End
    from taskq_plugins.fleet.places import LogPlace, SegmentPlace


class Edges(NamedTuple):
    """What a segment begins and ends with.

    ``created_ns`` is the time of the last frame before it, ``time_ns`` that of its own last frame
    (the same when it has none), ``next_lsn`` the lsn after that. Behind that frame nothing else
    should stand: ``lsn_bound`` is what lsn the records there may have come to if something does.
    """

    created_ns: int
    time_ns: int
    next_lsn: int
    epoch: int
    lsn_bound: int


class SegmentRow(NamedTuple):
    """One segment of a log.

    ``is_gap_before``: at least one segment is missing between this one and the one before it.
    """

    first_lsn: int
    next_lsn: int
    size_bytes: int
    modified_ns: int
    last_time_ns: int
    is_gap_before: bool


_edges: Final[Memory[tuple[str, int, int], Edges]] = Memory()


def edges(log: LogPlace, place: SegmentPlace) -> Edges:
    """Return what a sealed segment begins and ends with, from two reads.

    Raises:
        FileNotFoundError: it is gone.
        SegmentUnreadable, FormatError: it cannot be read.
    """
    key = (place.path, place.size_bytes, place.modified_ns)
    known = _edges.get(key)
    if known is None:
        with SegmentFile(place.path, log.log_id, place.first_lsn) as file:
            known = _edges[key] = _look(file, place)
    return known


def _look(file: SegmentFile, place: SegmentPlace) -> Edges:
    header = file.header()
    created_ns = header.created_ns if header is not None else 0
    last = file.last_before(place.size_bytes)
    if last is None:
        bound = _bound(place.first_lsn, place.size_bytes - START)
        return Edges(created_ns, created_ns, place.first_lsn, place.epoch, bound)
    offset, frame = last
    bound = _bound(frame.next_lsn, place.size_bytes - offset - frame.size)
    return Edges(created_ns, frame.time_ns, frame.next_lsn, frame.epoch, bound)


def _bound(next_lsn: int, size_bytes: int) -> int:
    return next_lsn + max(size_bytes, 0) // Replica.RECORD_BYTES_MIN


def follows(before: Edges, place: SegmentPlace, created_ns: int) -> bool:
    if place.first_lsn <= before.next_lsn or created_ns == before.time_ns:
        return True
    if before.lsn_bound == before.next_lsn:
        return False
    is_epoch = place.epoch != before.epoch and place.first_lsn - before.next_lsn >= Replica.LSN_SKIP
    return is_epoch or place.first_lsn <= before.lsn_bound


def segment_rows(
    log: LogPlace,
    places: Iterable[SegmentPlace],
    end: End,
    *,
    on_problem: Callable[[LogError], None] | None = None,
) -> Iterator[SegmentRow]:
    """Yield a row for each segment of a log that ends there.

    Raises:
        SegmentUnreadable, FormatError: without ``on_problem``, what cannot be read.
    """
    before: Edges | None = None
    for place in places:
        try:
            now = edges(log, place)
        except FileNotFoundError:
            continue
        except LogError as error:
            tell(error, on_problem)
            before = None
            continue
        if place.first_lsn == end.mark.segment:
            now = now._replace(next_lsn=end.mark.next_lsn, time_ns=end.time_ns)
        elif place.first_lsn > end.mark.segment:
            now = now._replace(next_lsn=place.first_lsn, time_ns=now.created_ns)
        yield SegmentRow(
            place.first_lsn,
            now.next_lsn,
            place.size_bytes,
            place.modified_ns,
            now.time_ns,
            before is not None and not follows(before, place, now.created_ns),
        )
        before = now
