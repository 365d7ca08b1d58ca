"""The folds that this process needs, each built when first asked for and caught up on its own.

A process that only enqueues builds none of them; a claimer builds the agenda; an enqueue with a key
builds the table of keys; whoever waits for a job watches for its outcome.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from taskq.core.agenda import Agenda
from taskq.core.dedup import Dedup
from taskq.core.model import Damage
from taskq.log.fold import fold_damaged, fold_frame
from taskq.log.foldother import Watch
from taskq.log.segment import Gap, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.log import codec
    from taskq.log.cursor import Cursor
    from taskq.log.journal import Journal
    from taskq.log.segment import Frame

#: Damage that is kept for people to see; more is only counted.
DAMAGE_MAX: Final = 1_000
#: Settled jobs whose outcome is found without a walk.
ENDED_MAX: Final = 16_384


class Facets:
    """Agenda, dedup table and watch of one process, with how far each has come.

    Attributes:
        agenda, dedup: None until first needed.
        damage: what did not read back, as far as the folds met it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._generation = journal.generation
        self.agenda: Agenda | None = None
        self.dedup: Dedup | None = None
        self.watch = Watch()
        self.damage: list[Damage] = []
        #: jobs that this process settled lately: the location of the record that did
        self.ended: dict[int, int] = {}
        self._sought: set[int] = set()
        self._cursors: dict[str, Cursor] = {}

    def need_agenda(self) -> Agenda:
        """The agenda, caught up to the journal's known end."""
        if self.agenda is None:
            self.agenda = Agenda()
            self._cursors["agenda"] = self._journal.start()
        self._follow("agenda")
        return self.agenda

    def need_dedup(self) -> Dedup:
        """The table of keys, caught up to the journal's known end."""
        if self.dedup is None:
            self.dedup = Dedup()
            self._cursors["dedup"] = self._journal.start()
        self._follow("dedup")
        return self.dedup

    def catch_up(self) -> None:
        """Bring everything that was built up to the journal's known end."""
        if self._journal.generation != self._generation:
            self.discard()
        for name in self._cursors:
            self._follow(name)
        self.look_back()

    def watch_for(self, job: int) -> None:
        """Look for the end of ``job``: where it may stand already, and in what is still to come."""
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
        """Look for the jobs newly waited for, all in one walk from the oldest of them on."""
        if not self._sought:
            return
        sought = self._sought
        cursor = self._journal.cursor_at(min(sought))
        alone = Watch()
        alone.jobs = set(sought)
        for base, item in self._journal.frames(cursor):
            if not isinstance(item, Gap):
                fold_frame(base, item, None, None, alone)
            if not (alone.jobs or alone.dead):  # a dead letter may be ready again by now
                break
        self._sought = set()
        self.watch.settled += alone.settled
        for job in alone.jobs:
            self._expect(job)

    def _expect(self, job: int) -> None:
        """The job has not ended up to the journal's known end."""
        if not self.watch.jobs:
            self._cursors["watch"] = self._journal.end()
        self.watch.jobs.add(job)

    def note_ends(self, jobs: list[int], location: int, size: int) -> None:
        """Do as ``note_end`` for jobs whose records, of ``size`` bytes each, follow one another."""
        locations = range(location, location + size * len(jobs), size)
        self._trim_ended(len(jobs))
        self.ended.update(zip(jobs, locations, strict=True))
        for job in self.watch.jobs.intersection(jobs):
            self.watch.see(job, self.ended[job])

    def note_end(self, job: int, location: int) -> None:
        """A record that this process writes settles the job."""
        if self.agenda is None or self.agenda.dead.find(job) is None:
            # A dead letter is not kept here, since others may requeue it unnoticed.
            self._trim_ended(1)
            self.ended[job] = location
        if job in self.watch.jobs:
            self.watch.see(job, location)

    def _trim_ended(self, more: int) -> None:
        if len(self.ended) + more > ENDED_MAX:
            for old in list(islice(self.ended, ENDED_MAX // 2 + more)):
                del self.ended[old]

    def appended(self, start: Cursor) -> None:
        """A frame of our own was applied while it was made: step over it."""
        journal = self._journal
        for cursor in self._cursors.values():
            if cursor.offset == start.offset and cursor.segment == start.segment:
                cursor.segment, cursor.offset = journal.segment, journal.offset
                cursor.next_lsn = journal.next_lsn

    def discard(self) -> None:
        """Forget all that was folded: the log has it, and it is folded anew when needed."""
        self._generation = self._journal.generation
        self.agenda = self.dedup = None
        self._sought |= self.watch.jobs | {job for job, _ in self.watch.settled}
        self.ended.clear()
        self._cursors.clear()
        self.watch = Watch()

    def _follow(self, name: str) -> None:
        journal = self._journal
        cursor = self._cursors[name]
        if journal.is_at_end(cursor):
            return
        if name == "watch" and not self.watch.jobs:
            cursor.segment, cursor.offset = journal.segment, journal.offset
            cursor.next_lsn = journal.next_lsn
            return
        agenda = self.agenda if name == "agenda" else None
        dedup = self.dedup if name == "dedup" else None
        watch = self.watch if name == "watch" else None

        def fold(base: int, frame: Frame) -> None:
            fold_frame(base, frame, agenda, dedup, watch)

        def salvage(base: int, gap: Gap, header: codec.FrameHeader, body: bytes, at: int) -> int:
            return fold_damaged(body, base, at, gap.first_lsn, header, agenda, dedup, watch)

        self._walk(cursor, fold, salvage)

    def _walk(
        self,
        cursor: Cursor,
        fold: Callable[[int, Frame], None],
        salvage: Callable[[int, Gap, codec.FrameHeader, bytes, int], int],
    ) -> None:
        for base, item in self._journal.frames(cursor):
            if not isinstance(item, Gap):
                fold(base, item)
                continue
            salvaged = 0
            found = self._journal.files.damaged_frame(base, item)
            if found is not None:
                header, body, at = found
                salvaged = salvage(base, item, header, body, at)
            self._report(self._journal.files.segment_at(base), item, salvaged)

    def _report(self, segment: int, gap: Gap, salvaged: int) -> None:
        damage = Damage(
            segment=segment_name(segment),
            offset=gap.offset,
            size=gap.resume - gap.offset,
            first_lsn=gap.first_lsn,
            next_lsn=gap.next_lsn,
            salvaged=salvaged,
        )
        if len(self.damage) < DAMAGE_MAX and damage not in self.damage:
            self.damage.append(damage)
