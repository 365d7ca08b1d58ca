"""In which segments jobs ended: only there lies what is to go for its age.

What outlived its time goes with its segment, and the last one stays. So that one is sealed: once it
has held the end of a job for a part of the time for which that is kept. And where no job ended,
nothing is written again for its age: a log that only waits is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.kinds import CARRYING, LAST
from taskq.core.model import PASSING_STATES, SECOND_NS
from taskq.log.format.carried import decode_carried
from taskq.log.format.codec import KIND_AT, SEGMENT_HEADER, STATE_AT
from taskq.log.format.frames import Frame, Gap
from taskq.log.format.record import places
from taskq.log.upkeep.keeper import extent

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

#: Frames that are read in one step.
_FRAMES: Final = 32


class _Seen:
    """Part of a segment that has been read.

    Attributes:
        offset, next_lsn: where to read on.
        ended_ns: when the first job ended that is kept as long as the log says; 0 if none did.
        over_ns: when the first of those may go that were written again and are kept for a time of
            their own; 0 if there are none.
    """

    def __init__(self, segment: int) -> None:
        self.offset, self.next_lsn = SEGMENT_HEADER.size, segment
        self.ended_ns = self.over_ns = 0

    def look(self, frame: Frame, own_keep_ns: Callable[[bytes], int]) -> bool:
        data = frame.data
        for _, at, length in places(frame):
            kind = data[at + KIND_AT]
            if kind in LAST:
                self.ended_ns = _first(self.ended_ns, frame.header.time_ns)
                return True
            if kind in CARRYING and data[at + STATE_AT] in PASSING_STATES:
                carried = decode_carried(data[at : at + length])
                own_ns = own_keep_ns(carried.born)
                if own_ns:
                    self.over_ns = _first(self.over_ns, carried.ended_ns + own_ns)
                else:
                    self.ended_ns = _first(self.ended_ns, carried.ended_ns)
        return self.ended_ns > 0


class Endings:
    """The first ends in each segment, as far as they were asked for."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[int, _Seen] = {}

    def steps(self, segment: int, own_keep_ns: Callable[[bytes], int]) -> Iterator[None]:
        """Read on, to the first end in a segment.

        ``own_keep_ns`` tells of an ENQUEUED record how long that job is kept, 0 if the log's time
        counts.

        Raises:
            SegmentGone: another process compacted it.
        """
        files = self._journal.files
        self._seen = {lsn: seen for lsn, seen in self._seen.items() if lsn in files}
        seen = self._seen.setdefault(segment, _Seen(segment))
        if seen.ended_ns:
            return
        size, _ = extent(self._journal, segment)
        scanner = files.scanner(segment, size, seen.next_lsn, sealed=True)
        for number, item in enumerate(scanner.frames(seen.offset), 1):
            if isinstance(item, Gap):
                seen.offset, seen.next_lsn = item.resume, item.next_lsn
            else:
                seen.offset, seen.next_lsn = item.end, item.header.next_lsn
                if seen.look(item, own_keep_ns):
                    return
            if not number % _FRAMES:
                yield

    def any(self, segment: int, now_ns: int) -> bool:
        """Return whether something in a segment, all of which is past the log's time, is to go."""
        seen = self._seen[segment]
        return seen.ended_ns > 0 or 0 < seen.over_ns <= now_ns

    def are_due(self, segment: int, keep_seconds: float | None, now_ns: int) -> bool:
        seen = self._seen[segment]
        if keep_seconds is None:
            return 0 < seen.over_ns <= now_ns
        wait_ns = self._journal.config.segment_age_of(keep_seconds) * SECOND_NS
        early_ns = keep_seconds * SECOND_NS - wait_ns
        return 0 < seen.ended_ns <= now_ns - wait_ns or 0 < seen.over_ns <= now_ns + early_ns


def _first(known_ns: int, moment_ns: int) -> int:
    return min(known_ns or moment_ns, moment_ns)
