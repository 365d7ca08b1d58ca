"""What ``taskq top`` shows, gathered from a directory: no lock, no write, without the app."""

from __future__ import annotations

import shutil
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq.errors import TaskqError
from taskq.values import dataclass
from taskq.views import SETTLED_STATES
from taskq_plugins.looks.reading import Causes, Failure, now_of

if TYPE_CHECKING:
    from taskq.engine import Cursor, LogReader
    from taskq.views import JobView, ProgressView, QueueStats, Standing

#: Jobs that ended last, of which is told.
_ENDS_MAX: Final = 8
#: Records before the end of the log among which they are looked for at first.
_LOOK_BACK: Final = 5_000
#: Looks that a sparkline is made of.
SPARKS_MAX: Final = 20
#: Nothing was written: what only time changes is looked at so often.
_IDLE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One look at the log.

    Attributes:
        path: its directory.
        at: the moment that it is of, as it was given; "" for now.
        time_ns: wall time of the look, or that moment.
        size: bytes of all segments, and ``free`` of the disk.
        workers, slots: processes that run jobs, and how many at a time; 0 slots where one does not
            say.
        standing: how the log stands, in words.
        queues: counts of each.
        sparks: of each queue, how many of its jobs ended between two looks.
        running: jobs that run, and how far they are.
        ended: jobs that ended last, the latest first.
        failures: dead letters by what they share.
    """

    path: str
    at: str
    time_ns: int
    size: int
    free: int
    workers: int
    slots: int
    standing: Standing
    queues: tuple[QueueStats, ...]
    sparks: dict[str, tuple[int, ...]]
    running: tuple[tuple[JobView, ProgressView | None], ...]
    ended: tuple[JobView, ...]
    failures: tuple[Failure, ...]


class Watcher:
    """Looks at a log again and again; what was read once is not read anew.

    Args:
        reader: of the log, now or at a moment.
        at: that moment, as it was given; "" for now.
    """

    def __init__(self, reader: LogReader, at: str = "") -> None:
        self._reader = reader
        self._at = at
        self._last: Picture | None = None
        self._stand: object = None
        self._looked = float("-inf")
        self._causes = Causes()
        self._ended: dict[str, int] = {}
        self._sparks: dict[str, deque[int]] = {}
        self._ends: deque[int] = deque(maxlen=_ENDS_MAX)
        self._views: dict[int, JobView] = {}
        self._cursor: Cursor | None = None

    def look(self) -> Picture:
        """Return the log as it stands, or stood then.

        Raises:
            LogError: it was removed, or cannot be read.
        """
        reader, now = self._reader, time.monotonic()
        if self._at and self._last is not None:
            return self._last
        reader.refresh()
        end = reader.journal.end()
        stand = end.segment, end.offset
        is_still = stand == self._stand and not (self._last and self._last.running)
        if self._last is not None and is_still and now - self._looked < _IDLE_SECONDS:
            self._note_sparks(self._last.queues)
            return self._last
        self._stand, self._looked = stand, now
        facts = now_of(reader)
        queues = facts["stats"].queues
        self._note_sparks(queues)
        self._last = self._picture(facts)
        return self._last

    def _picture(self, facts: dict[str, Any]) -> Picture:
        path = self._reader.path
        serving = [serving for owner in facts["owners"] if owner.alive for serving in owner.serves]
        return Picture(
            path=str(Path(path).absolute()),
            at=self._at,
            time_ns=self._reader.now_ns,
            size=facts["stats"].size,
            free=shutil.disk_usage(path).free,
            workers=facts["workers"],
            slots=sum(worker.slots for worker in serving),
            standing=facts["standing"],
            queues=facts["stats"].queues,
            sparks={name: tuple(line) for name, line in self._sparks.items()},
            running=tuple(facts["running"]),
            ended=tuple(self._told_ends()),
            failures=tuple(self._causes.of(self._reader, facts["totals"]["dead"])),
        )

    def _note_sparks(self, queues: tuple[QueueStats, ...]) -> None:
        for queue in queues:
            ended = queue.succeeded + queue.dead + queue.cancelled + queue.expired
            before = self._ended.get(queue.queue, ended)
            self._ended[queue.queue] = ended
            line = self._sparks.setdefault(queue.queue, deque(maxlen=SPARKS_MAX))
            line.append(max(ended - before, 0))

    def _follow(self) -> None:
        """Note which jobs ended since the last look, by the kinds of the records alone."""
        journal = self._reader.journal
        if self._cursor is None:
            self._cursor = journal.cursor_at(max(journal.next_lsn - _LOOK_BACK, 1))
        try:
            self._ends.extend(self._reader.ended(self._cursor))
        except TaskqError:  # what was there was removed or cut: go on from the end
            self._cursor = journal.end()

    def _told_ends(self) -> list[JobView]:
        if self._at:
            return self._reader.jobs(set(SETTLED_STATES), None, None, _ENDS_MAX)
        self._follow()
        views: list[JobView] = []
        for lsn in dict.fromkeys(reversed(self._ends)):
            view = self._views.get(lsn) or self._reader.job(lsn, body_bytes_max=0)
            if view is not None and view.state in SETTLED_STATES:
                views.append(view)
        self._views = {view.lsn: view for view in views}
        return views
