"""How long ago a job was enqueued, whatever the wall clock did meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.log.history import tell

if TYPE_CHECKING:
    from taskq.log.journal import Journal


def age_ns(journal: Journal, lsn: int) -> int:
    """Nanoseconds since a job was enqueued; 0 if the log does not know it any more.

    Steps of the clock are no time that passed: a machine that booted in 1970 and then learnt the
    year has not made its jobs old.
    """
    # Not the wall clock: a step that it has just made is in no record yet.
    now_ns = journal._time.base_ns + journal.clock.steady_ns()
    view = tell(journal, lsn, now_ns)
    if view is None:
        return 0
    stepped_ns = sum(step for _, step in journal.indexes.steps_after(lsn))
    return max(now_ns - view.enqueued_ns - stepped_ns, 0)
