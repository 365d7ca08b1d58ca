"""Dead letters and waiting jobs by a filter, found without the writer lock.

One call scans a limited number of entries and returns the start of the next call, so it delays the
storage thread and the next batch only briefly. A job may change between the scan and the act: the
batch checks each job again under the lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from heapq import nlargest
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from taskq.core import errors, model
from taskq.core.folds import agenda, jobtable
from taskq.core.folds.dedup import key_hash
from taskq.core.values import dataclass
from taskq.core.views import JobView
from taskq.log.format.carried import encode_attempts
from taskq.log.format.options import DUE_OPTIONS, enqueue_extras, queue_of, timeless
from taskq.log.read.jobs import JobFilter
from taskq.log.requests import LETTERS_BYTES_MAX, LETTERS_MAX, Letter, Rewrite
from taskq.log.state.job_history import job_not_found, job_view

if TYPE_CHECKING:
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import LogView

Item = TypeVar("Item")

#: Most entries of a table that one call scans.
_SCAN_MAX: Final = 20_000
#: Most jobs whose records one call reads.
_READ_MAX: Final = 200
#: States of waiting jobs.
WAITING: Final = model.WAITING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Filter of dead letters; None fits all.

    Attributes:
        queue, task: by name.
        error: text in the reason, or a pattern to search in it.
        since_ns, before_ns: wall time of the death, in whole seconds.
    """

    queue: str | None = None
    task: str | None = None
    error: str | re.Pattern[str] | None = None
    since_ns: int = 0
    before_ns: int = model.TIME_NS_MAX

    def fits_reason(self, reason: str) -> bool:
        if self.error is None:
            return True
        if isinstance(self.error, str):
            return self.error in reason
        return self.error.search(reason) is not None


class PageEnd(NamedTuple):
    """A position in the order of deaths."""

    #: of wall time
    second: int
    job: int


class Page(NamedTuple, Generic[Item]):
    """Jobs found by one call."""

    items: list[Item]
    #: selected jobs that were refused, with the error
    refused: list[tuple[int, errors.TaskqError]]
    #: job at which the next call begins; 0 at the end
    following: int


def newest_dead(
    sight: LogView, wanted: DeadFilter, limit: int, below: PageEnd | None
) -> tuple[list[JobView], PageEnd | None]:
    """Return dead letters that fit, the latest death first, and where to go on; None at the end."""
    journal, agenda = sight.journal, sight.facets.need_agenda()
    fits = _fitting(agenda, wanted)
    places = (
        PageEnd(chunk.metas[index], chunk.ids[index])
        for chunk, index in agenda.dead
        if fits(chunk, index)
    )
    rest = places if below is None else (place for place in places if place < below)
    count = _READ_MAX if wanted.error is not None else min(limit, _READ_MAX)
    latest = nlargest(count, rest)
    views: list[JobView] = []
    for place in latest:
        if len(views) == limit:
            return views, None
        view = _dead_view(journal, place.job)
        if view is not None and wanted.fits_reason(view.reason):
            views.append(view)
    return views, latest[-1] if len(latest) == count else None


def count_dead(sight: LogView, wanted: DeadFilter) -> int:
    agenda = sight.facets.need_agenda()
    if wanted == DeadFilter():
        return agenda.dead.live
    fits = _fitting(agenda, wanted)
    return sum(fits(chunk, index) for chunk, index in agenda.dead)


def dead_page(sight: LogView, wanted: DeadFilter, start: int, end: int, limit: int) -> Page[int]:
    """Return dead letters that fit, among the jobs from ``start`` to before ``end``."""
    journal, agenda = sight.journal, sight.facets.need_agenda()
    fits = _fitting(agenda, wanted)
    page: Page[int] = Page([], [], 0)
    looked_at = 0
    for number, (chunk, index) in enumerate(agenda.dead.since(start)):
        job = chunk.ids[index]
        if job >= end:
            break
        if number == _SCAN_MAX or len(page.items) == limit or looked_at == _READ_MAX:
            return page._replace(following=job)
        if not fits(chunk, index):
            continue
        if wanted.error is not None:
            looked_at += 1
            view = _dead_view(journal, job)
            if view is None or not wanted.fits_reason(view.reason):
                continue
        page.items.append(job)
    return page


def letters(sight: LogView, jobs: list[int]) -> Page[Letter]:
    """Return the first of these dead letters, up to one batch, for their requeue.

    ``following`` is the first job of the rest.
    """
    journal, agenda = sight.journal, sight.facets.need_agenda()
    page: Page[Letter] = Page([], [], 0)
    size = 0
    for job in jobs:
        if len(page.items) == LETTERS_MAX or size >= LETTERS_BYTES_MAX:
            return page._replace(following=job)
        chunk = agenda.dead.find(job)
        try:
            if chunk is None:
                raise _not_dead(journal, job)
            location = chunk.locations[agenda.dead.index]
            letter = _letter(journal, job, location)
        except errors.TaskqError as error:
            page.refused.append((job, error))
        else:
            size += letter.size
            page.items.append(letter)
    return page


def check_dead(sight: LogView, jobs: list[int]) -> Page[int]:
    journal, agenda = sight.journal, sight.facets.need_agenda()
    page: Page[int] = Page([], [], 0)
    for job in jobs:
        if agenda.dead.find(job) is None:
            page.refused.append((job, _not_dead(journal, job)))
        else:
            page.items.append(job)
    return page


def _not_dead(journal: Journal, job: int) -> errors.TaskqError:
    view = job_view(journal, job, journal.clock.wall_ns()) if 0 < job < journal.next_lsn else None
    job_id = journal.tag.id(job)
    if view is None:
        return job_not_found(journal, job)
    return errors.NotDead(job_id, view.state.name.lower(), journal.path)


def _dead_view(journal: Journal, job: int) -> JobView | None:
    view = job_view(journal, job, journal.clock.wall_ns())
    return view if view is not None and view.state is model.State.DEAD else None


def _fitting(agenda: agenda.Agenda, wanted: DeadFilter) -> Callable[[jobtable.Chunk, int], bool]:
    lanes = _lanes(agenda, wanted.queue, wanted.task)
    since, before = wanted.since_ns // model.SECOND_NS, wanted.before_ns // model.SECOND_NS

    def fits(chunk: jobtable.Chunk, index: int) -> bool:
        return chunk.lanes[index] in lanes and since <= chunk.metas[index] < before

    return fits


def _lanes(agenda: agenda.Agenda, queue: str | None, task: str | None) -> frozenset[int]:
    return frozenset(
        lane.number
        for lane in agenda.lanes
        if queue in (None, lane.queue) and task in (None, lane.task)
    )


def _letter(journal: Journal, job: int, location: int) -> Letter:
    """Return a dead letter whose ENQUEUED record is at a location, or within the record there."""
    born = timeless(journal.files.record(location, job), job, DUE_OPTIONS)
    view = job_view(journal, job, journal.clock.wall_ns())
    if view is None:
        raise errors.LogDamaged(f"{journal.path}: the frame of lsn {job} does not read back")
    return Letter(job, born, view.enqueued_ns, *encode_attempts(view.attempts))


def waiting_page(sight: LogView, wanted: JobFilter, start: int, end: int, limit: int) -> Page[int]:
    """Return waiting jobs that fit, among the jobs from ``start`` to before ``end``."""
    journal, agenda = sight.journal, sight.facets.need_agenda()
    time_ns, step_ns = journal.log_time()
    # A clock step without a record makes no job due.
    agenda.promote(time_ns - step_ns)
    if wanted.until_ns is not None:
        end = min(end, journal.indexes.lsn_at(wanted.until_ns))
    lanes = _lanes(agenda, wanted.queue, wanted.task)
    states = frozenset(map(int, wanted.states or WAITING))
    page: Page[int] = Page([], [], 0)
    for number, (chunk, index) in enumerate(agenda.table.since(start)):
        job = chunk.ids[index]
        if job >= end:
            break
        if number == _SCAN_MAX or len(page.items) == limit:
            return page._replace(following=job)
        if chunk.lanes[index] in lanes and chunk.metas[index] & jobtable.STATE_MASK in states:
            page.items.append(job)
    return page


def waiting_job(sight: LogView, job: int) -> Rewrite:
    """Return a waiting job in the form in which an edit rewrites it."""
    journal, agenda = sight.journal, sight.facets.need_agenda()
    time_ns, step_ns = journal.log_time()
    agenda.promote(time_ns - step_ns)
    chunk = agenda.table.find(job)
    state = (
        model.State.ABSENT
        if chunk is None
        else model.State(chunk.metas[agenda.table.index] & jobtable.STATE_MASK)
    )
    view = job_view(journal, job, time_ns) if 0 < job < journal.next_lsn else None
    job_id = journal.tag.id(job)
    if view is None:
        raise job_not_found(journal, job)
    if chunk is None or state not in WAITING:
        actual = state if chunk is not None else view.state
        raise errors.NotWaiting(job_id, actual.name.lower(), journal.path)
    location, shift_ns = agenda.location(job), agenda.times.shift_ns
    is_wall = agenda.times.waits(job, view.due_ns, is_wall=True)
    history, lines = encode_attempts(view.attempts)
    return Rewrite(
        job, location, state, journal.files.record(location, job), view.enqueued_ns,
        agenda.attempt(job), view.due_ns - (0 if is_wall else shift_ns), is_wall,
        view.expires_ns - shift_ns, history=history, lines=lines,
    )  # fmt: skip


def count_running(sight: LogView, queue: str | None, task: str | None) -> int:
    agenda = sight.facets.need_agenda()
    lanes = _lanes(agenda, queue, task)
    return sum(agenda.lanes[number].running for number in lanes)


def key_holder(sight: LogView, queue: bytes, key: bytes) -> int | None:
    """Return the job that holds a key in a queue, by its record; None if no job does.

    A holder with an unreadable record counts, since an enqueue with its key would be refused.
    """
    journal = sight.journal
    dedup = sight.facets.need_dedup()
    for job, location in dedup.holders(key_hash(queue, key), journal.clock.wall_ns()):
        try:
            record = journal.files.record(location, job)
        except errors.LogDamaged:
            return job
        if queue_of(record) == queue and enqueue_extras(record).key == key:
            return job
    return None
