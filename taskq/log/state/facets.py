"""The folds that this process needs, each built at its first use and caught up on its own."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq.core.errors import JobNotFound, TaskqError
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.model import SECOND_NS
from taskq.core.values import NamedTuple
from taskq.core.views import Damage, JobView, OwnerView
from taskq.log.format import frames
from taskq.log.format.frames import Gap
from taskq.log.format.record import Record
from taskq.log.machine.owners import owner_views
from taskq.log.machine.threads import Reporter
from taskq.log.segments.segments import SegmentGone
from taskq.log.state.fold import Watch, fold_damaged, fold_frame, fold_steps
from taskq.log.state.job_history import find_end, is_job, job_view

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal

_log: Final = Reporter("taskq")
#: Most damage that is kept for people to see; further damage is only counted.
DAMAGE_MAX: Final = 1_000
#: Settled jobs whose outcome is found without a walk.
ENDED_MAX: Final = 8_192
#: Most times that a fold begins anew because compaction removed its segment.
_TRIES: Final = 4
#: Broken batches in a row after which the folds are suspected, and not the requests.
_BROKEN_MAX: Final = 8
#: In place of a location: the job does not exist.
NO_JOB: Final = -1
#: Most bytes folded at once while requests wait that do not need the fold.
AT_ONCE_BYTES: Final = 512 * 1024
#: Bytes of log that are walked to find the ends of jobs; beyond them each job is looked up.
_WALK_BYTES: Final = 256 * 1024
_WALK_BYTES_A_JOB: Final = 16 * 1024


class Facets:
    """Agenda, dedup table and watch of one process, with their positions in the log.

    A process that only enqueues builds none of them. A claimer builds the agenda, and an enqueue
    with a key builds the table of keys. A caller that waits for a job's outcome uses the watch. A
    fold is built from the newest snapshot that fits, and the frames since.

    Attributes:
        path: directory of the log.
        agenda, dedup: None until first needed.
        damage: damage that the folds found.
        trusts_snapshots: whether snapshots are used; False after a series of broken batches.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.path: str = journal.path
        # A past moment uses no snapshot: one of that very position may hold jobs as ready that were
        # only due when it was made.
        self.trusts_snapshots: bool = not journal.is_past
        self.generation: int = journal.generation
        self.agenda: Agenda | None = None
        self.dedup: Dedup | None = None
        self.watch: Watch = Watch()
        self.damage: list[Damage] = []
        #: recently settled jobs of this process: location of the settling record
        self.ended: dict[int, int] = {}
        #: number of records folded from the log
        self.caught_up: int = 0
        #: broken batches in a row
        self._broken = 0
        self._sought: set[int] = set()
        #: position of each fold that is built
        self.followed: dict[str, frames.Cursor] = {}
        #: folds that are being built in steps
        self.unfinished: dict[str, Iterator[None]] = {}
        #: folds that were built in steps as far as possible
        self._at_once: set[str] = set()

    def need_agenda(self) -> Agenda:
        self._until_whole("agenda")
        assert self.agenda is not None
        return self.agenda

    def need_dedup(self) -> Dedup:
        """Return the table of keys, caught up to the journal's known end."""
        self._until_whole("dedup")
        assert self.dedup is not None
        return self.dedup

    def _build(self, name: str) -> None:
        for _ in self.unfinished.pop(name, ()):
            pass  # the rest of a build in steps
        if name not in self.followed:
            self._put(name, *self._opened(name))
        self._follow(name)
        self._at_once.discard(name)

    def _opened(self, name: str) -> tuple[Agenda | Dedup, frames.Cursor]:
        """Return the newest snapshot that fits, or an empty fold at the start of the log."""
        # An enqueue without a key needs none.
        from taskq.log.state.snapshot import AGENDA, DEDUP, load_newest  # noqa: PLC0415

        journal = self._journal
        if name == "dedup":
            keys = load_newest(journal, DEDUP) if self.trusts_snapshots else None
            return keys or (Dedup(), journal.start())
        loaded = load_newest(journal, AGENDA) if self.trusts_snapshots else None
        agenda, cursor = loaded or (Agenda(), journal.start())
        window_seconds = journal.config.starvation_seconds
        agenda.ages.window_ns = round((window_seconds or 0) * SECOND_NS)
        return agenda, cursor

    def _put(self, name: str, fold: Agenda | Dedup, cursor: frames.Cursor) -> None:
        self.followed[name] = cursor
        if isinstance(fold, Agenda):
            self.agenda = fold
        else:
            self.dedup = fold

    def lacks(self, *, agenda: bool, keys: bool) -> bool:
        """Return whether a needed fold is being built in steps, or begins to be.

        Steps are used if there is much to read, for a new fold or for other processes' records.
        Until ``build`` finishes it, the fold counts as not built.
        """
        is_lacking = False
        for name, is_wanted in (("agenda", agenda), ("dedup", keys)):
            if name not in self.unfinished and self._is_far(name, is_wanted):
                fold = self.agenda if name == "agenda" else self.dedup
                cursor = self.followed.get(name)
                built = None if fold is None or cursor is None else (fold, cursor)
                if built is not None:
                    self._forget(name)
                self.unfinished[name] = self._building(name, built)
            is_lacking |= is_wanted and name in self.unfinished
        return is_lacking

    def build(self) -> bool:
        name, steps = next(iter(self.unfinished.items()))
        try:
            next(steps)
        except StopIteration:
            self._end_building(name)
        except (TaskqError, OSError) as error:
            # The caller that needs the fold gets the same error, and handles it.
            _log.debug("%s: %s is built at once: %s", self._journal.path, name, error)
            self._end_building(name)
        return bool(self.unfinished)

    def _end_building(self, name: str) -> None:
        """Fold the rest at once, since other processes may never stop writing."""
        self.unfinished.pop(name, None)
        self._at_once.add(name)

    def _is_far(self, name: str, is_wanted: bool) -> bool:
        journal = self._journal
        cursor = self.followed.get(name)
        if name in self._at_once:
            return False
        if cursor is None:
            return is_wanted and journal.files.total_size() > AT_ONCE_BYTES
        if cursor.segment == journal.segment:
            return journal.offset - cursor.offset > AT_ONCE_BYTES
        if cursor.segment not in journal.files.lsns:
            return False
        rest = journal.files.size(cursor.segment) - cursor.offset
        return rest + journal.offset > AT_ONCE_BYTES

    def dedup_steps(self) -> Iterator[None]:
        """Build the table of keys, a part of a frame per step; ``need_dedup`` does so at once.

        Raises:
            SegmentGone: compaction was faster.
        """
        if self.dedup is None:
            yield from self._building("dedup", None)

    def _building(
        self, name: str, built: tuple[Agenda | Dedup, frames.Cursor] | None
    ) -> Iterator[None]:
        journal = self._journal
        fold, cursor = built or self._opened(name)
        agenda, dedup = (fold, None) if isinstance(fold, Agenda) else (None, fold)
        generation = journal.generation
        while not journal.is_at_end(cursor):
            for base, item in journal.frames(cursor):
                if isinstance(item, Gap):
                    return  # damage is rare: need_... handles it
                yield from fold_steps(base, item, agenda, dedup)
                self.caught_up += item.header.records
        if name not in self.followed and generation == journal.generation:
            self._put(name, fold, cursor)

    def catch_up(self) -> None:
        """Bring every built fold up to the journal's known end.

        A fold whose segment is gone is dropped, and built anew when needed.
        """
        journal = self._journal
        if journal.generation != self.generation:
            self.discard()
        for name, cursor in list(self.followed.items()):
            if cursor.offset == journal.offset and cursor.segment == journal.segment:
                self._at_once.discard(name)
                continue
            with contextlib.suppress(SegmentGone):
                self._follow(name)
                self._at_once.discard(name)

    def cursor_of(self, name: str) -> frames.Cursor | None:
        """Return the position of the agenda or the dedup table; None if it is not built."""
        return self.followed.get(name)

    def _until_whole(self, name: str) -> None:
        """Build a fold, and retry from the oldest segment if segments are removed meanwhile."""
        self._again(lambda: self._build(name))

    def _again(self, step: Callable[[], None]) -> None:
        for _ in range(_TRIES):
            with contextlib.suppress(SegmentGone):
                step()
                return
        step()

    def watch_for(self, job: int) -> None:
        """Look for the end of ``job``, in the log so far and in future frames."""
        if self.agenda is not None:
            if self.agenda.table.find(job) is not None:
                self._expect(job)
                return
            location = self.ended.get(job)
            if location is not None:
                self.watch.settled.append((job, location))
                return
        self._sought.add(job)

    def look_back(self) -> None:
        """Look for the ends of newly watched jobs; do not call under the writer lock.

        Recent jobs are found in one walk, others through the indexes.
        """
        if self._sought:
            self._again(self._look_back)

    def _look_back(self) -> None:
        sought = self._sought
        start = self._journal.mark_before(min(sought))
        if start is not None and self._is_near(start, len(sought)):
            ends = self._walk_back(start, sought)
        else:
            ends = {job: self._look_up(job) for job in sought}
        self._sought = set()
        for job, location in ends.items():
            if location is None:
                self._expect(job)
            else:
                self.watch.settled.append((job, location))

    def _is_near(self, start: frames.Cursor, jobs: int) -> bool:
        journal = self._journal
        return (
            start.segment == journal.segment
            and journal.offset - start.offset <= _WALK_BYTES + jobs * _WALK_BYTES_A_JOB
        )

    def _walk_back(self, start: frames.Cursor, sought: set[int]) -> dict[int, int | None]:
        alone = Watch()
        alone.jobs = {job for job in sought if is_job(self._journal, job)}
        ends: dict[int, int | None] = dict.fromkeys(sought, NO_JOB)
        ends.update(dict.fromkeys(alone.jobs))
        for base, item in self._journal.frames(start):
            if not isinstance(item, Gap):
                fold_frame(base, item, None, None, alone)
            if not (alone.jobs or alone.dead):  # a dead letter may be ready again by now
                break
        ends.update(alone.settled)
        return ends

    def _look_up(self, job: int) -> int | None:
        try:
            return find_end(self._journal, job)
        except JobNotFound:
            return NO_JOB

    def _expect(self, job: int) -> None:
        if not self.watch.jobs:
            self.followed["watch"] = self._journal.end()
        self.watch.jobs.add(job)

    def note_ends(self, jobs: list[int], location: int, size: int) -> None:
        """Do as ``note_end`` for jobs with adjacent records of ``size`` bytes each."""
        locations = range(location, location + size * len(jobs), size)
        self._trim_ended(len(jobs))
        self.ended.update(zip(jobs, locations, strict=True))
        watched = self.watch.jobs
        for job in watched.intersection(jobs) if watched else ():
            self.watch.see(job, self.ended[job])

    def note_end(self, job: int, location: int) -> None:
        if self.agenda is None or self.agenda.dead.find(job) is None:
            # A dead letter is left out, since another process may requeue it unnoticed.
            self._trim_ended(1)
            self.ended[job] = location
        if job in self.watch.jobs:
            self.watch.see(job, location)

    def _trim_ended(self, more: int) -> None:
        if len(self.ended) + more > ENDED_MAX:
            # A new dict: the next resize of a shortened one would make room for thrice as many.
            younger = islice(self.ended.items(), ENDED_MAX // 2 + more, None)
            self.ended = dict(younger)

    def appended(self, start: tuple[int, int]) -> None:
        """Move positions past a frame of this process, which was applied while it was made.

        ``start`` is its (segment, offset).
        """
        journal = self._journal
        self._broken = 0
        for cursor in self.followed.values():
            if (cursor.segment, cursor.offset) == start:
                cursor.segment, cursor.offset = journal.segment, journal.offset
                cursor.next_lsn = journal.next_lsn
                cursor.frame = start[1]

    def discard(self, *, broken: bool = False) -> None:
        """Drop all folds; they are built anew from the log when needed.

        ``broken``: a batch met an impossible state. A request may be the cause. If all batches
        fail, the folds are, and their snapshots are not used again.
        """
        # Without a fold, no fold is the cause.
        self._broken += broken and bool(self.followed)
        if self._broken >= _BROKEN_MAX and self.trusts_snapshots:
            self.trusts_snapshots = False
            _log.warning("%s: snapshots are not used any more here", self._journal.path)
        self.generation = self._journal.generation
        self.agenda = self.dedup = None
        self._sought |= self.watch.jobs | {job for job, _ in self.watch.settled}
        self.ended.clear()
        self.followed.clear()
        self.unfinished.clear()
        self.watch = Watch()

    def _forget(self, name: str) -> None:
        del self.followed[name]
        if name == "agenda":
            self.agenda = None
        elif name == "dedup":
            self.dedup = None
        else:
            self._sought |= self.watch.jobs
            self.watch.jobs.clear()

    def _follow(self, name: str) -> None:
        """Catch up one fold.

        Raises:
            SegmentGone: compaction removed its next segment; the fold was forgotten.
        """
        try:
            self._fold_on(name)
        except SegmentGone:
            self._forget(name)
            raise

    def _fold_on(self, name: str) -> None:
        journal = self._journal
        cursor = self.followed[name]
        if journal.is_at_end(cursor):
            return
        if name == "watch" and not self.watch.jobs:
            cursor.segment, cursor.offset = journal.segment, journal.offset
            cursor.next_lsn = journal.next_lsn
            return
        agenda = self.agenda if name == "agenda" else None
        dedup = self.dedup if name == "dedup" else None
        watch = self.watch if name == "watch" else None

        files = journal.files
        for base, item in journal.frames(cursor):
            if not isinstance(item, Gap):
                fold_frame(base, item, agenda, dedup, watch)
                self.caught_up += item.header.records
                continue
            salvaged, readable = 0, files.damaged_frame(base, item)
            if readable is not None:
                header, body, at = readable
                where = base, at, item.first_lsn
                salvaged = fold_damaged(body, *where, header, agenda, dedup, watch)
            damage = files.damage(base, item, salvaged)
            if len(self.damage) < DAMAGE_MAX and damage not in self.damage:
                self.damage.append(damage)


class LogView(NamedTuple):
    """Log and folds for read requests, on the thread that owns them."""

    journal: Journal
    facets: Facets

    def view(self, job: int) -> JobView | None:
        """Return the view of a job from all its records, None for an unknown job."""
        return job_view(self.journal, job, self.journal.clock.wall_ns())

    def brought(self, job: int) -> Record:
        """Return the enqueue record of a waiting job, with its payload.

        Raises:
            LogDamaged: it cannot be read.
        """
        location = self.facets.need_agenda().location(job)
        return Record(self.journal.files.record(location, job), job, 0, 0)

    def peek(self, count: int, queue: str | None) -> list[JobView]:
        """Return the next ready jobs, in the order of their claims."""
        queues = None if queue is None else frozenset({queue})
        jobs = self.facets.need_agenda().order.next_ready(count, queues)
        return [view for view in map(self.view, jobs) if view is not None]

    def owners(self) -> list[OwnerView]:
        """Return processes that have the log open, and dead processes that still hold jobs."""
        claims = self.facets.need_agenda().running.values()
        running = Counter(owner for _, _, owner in claims)
        return owner_views(Path(self.journal.path) / "owners", running)
