"""Queries of ports about the log as a whole, answered from this process's folds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.views import EngineStats, JobView, LogStats, QueueStats, Waiting
from taskq.log.state.story import tell
from taskq.log.state.uploads import waiting_uploads

if TYPE_CHECKING:
    from taskq.log.state.facets import Sight


def stats(sight: Sight, queues: tuple[QueueStats, ...], engine: EngineStats) -> LogStats:
    journal = sight.journal
    return LogStats(
        queues=queues,
        segments=len(journal.files.lsns),
        size=journal.files.total_size(),
        next_lsn=journal.next_lsn,
        engine=engine,
        uploads=len(waiting_uploads(journal.disk, journal.path)),
    )


def backlog(sight: Sight) -> tuple[Waiting, int | None]:
    """Return how many jobs wait, and the wall time at which the next scheduled one is due."""
    from taskq.core.why import waiting_in  # noqa: PLC0415 - few ask

    agenda = sight.facets.need_agenda()
    agenda.see(sight.journal.clock.wall_ns())
    return waiting_in(agenda.queues.stats()), agenda.first_due_ns()


def waiting_jobs(sight: Sight) -> tuple[dict[tuple[str, str], Waiting], set[str]]:
    from taskq.core.why import waiting_jobs as count_waiting  # noqa: PLC0415 - few ask

    agenda = sight.facets.need_agenda()
    return count_waiting(agenda), {stats.queue for stats in agenda.queues.stats()}


def peek(sight: Sight, count: int, queue: str | None) -> list[JobView]:
    journal, agenda = sight.journal, sight.facets.need_agenda()
    queues = None if queue is None else frozenset({queue})
    now_ns = journal.clock.wall_ns()
    views = (tell(journal, job, now_ns) for job in agenda.order.next_ready(count, queues))
    return [view for view in views if view is not None]
