"""Running the jobs of a test, here and now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import LogReader, kinds
from taskq.values import SECOND_NS, TIME_NS_MAX, dataclass

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.testing.clock import FakeClock

#: Jobs that one drain runs; more enqueue one another for ever.
DRAINED_MAX: Final = 100_000
#: Failures that an error tells of.
_SHOWN_MAX: Final = 5
#: A float of seconds may fall a little short of a moment in nanoseconds.
_LATER_SECONDS: Final = 0.001
_FAILURES: Final = frozenset({"retried", "dead"})


@dataclass(slots=True)
class Drained:
    """Result of a drain.

    Attributes:
        outcomes: how many attempts ended "succeeded", "retried", "dead", "released", "cancelled".
        failures: one text for each failed attempt: task, job, attempt and reason.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Return how many attempts ran."""
        return self.outcomes.total()

    @property
    def succeeded(self) -> int:
        """Return how many jobs ran well."""
        return self.outcomes["succeeded"]

    def __call__(self, event: Any) -> None:
        """Count one ``JobFinished``."""
        self.outcomes[event.outcome] += 1
        if event.outcome in _FAILURES:
            self.failures.append(
                f"{event.task} {event.job_id}, attempt {event.attempt}: {event.reason}"
            )
        if self.count > DRAINED_MAX:
            raise AssertionError(f"over {DRAINED_MAX} jobs ran: they enqueue one another for ever")


async def drain(
    app: TaskQ,
    queues: Iterable[str] | None = None,
    *,
    concurrency: int = 1,
    ahead: FakeClock | None = None,
    raises: bool = True,
) -> Drained:
    """Run the jobs that are ready, and those that they enqueue, until none is left.

    They run in this event loop (sync ones in threads), in the order of a worker with so many slots.

    Args:
        app: whose jobs.
        queues: names of the queues to drain; None for all.
        concurrency: how many run at a time.
        ahead: the app's clock, to be moved to when the next job is due, as long as one is.
        raises: whether a failed attempt makes this raise at the end.

    Raises:
        AssertionError: an attempt failed, or the jobs enqueue one another for ever.
    """
    report = Drained()
    names = None if queues is None else list(queues)
    while True:
        worker = app.worker(concurrency, names, burst=True, on_event=report)
        async with worker as running:
            await running.stopped.wait()
        if report.count > DRAINED_MAX:
            raise AssertionError(f"over {DRAINED_MAX} jobs ran: they enqueue one another for ever")
        if ahead is None or not _move_to_next(app, ahead, names):
            break
    if raises and report.failures:
        shown = "\n".join(report.failures[:_SHOWN_MAX])
        raise AssertionError(
            f"{len(report.failures)} of {report.count} attempts failed "
            f"(raises=False to go on):\n{shown}"
        )
    return report


def _move_to_next(app: TaskQ, clock: FakeClock, queues: list[str] | None) -> bool:
    """Move the clock to when the next job is due; False if none is scheduled for any time."""
    with LogReader.open(str(app.data_dir), clock) as reader:
        views = reader.jobs(set(kinds.BY_TIME), None, None, DRAINED_MAX)
    moments = [
        view.due_ns
        for view in views
        if (queues is None or view.queue in queues) and view.task in app.tasks
    ]
    now_ns = clock.wall_ns()
    moments = [moment for moment in moments if moment < TIME_NS_MAX]  # else it waits for jobs
    if not moments:
        return False
    clock.advance(max(min(moments) - now_ns, 0) / SECOND_NS + _LATER_SECONDS)
    return True
