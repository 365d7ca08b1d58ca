"""Ready jobs that no live worker would take: of a task that none knows, or of an unserved queue."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.lanes import BLOCKED_BY_PAUSE
from taskq.core.why import serves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from taskq.core.agenda import Agenda
    from taskq.core.model import Serving

#: Names of tasks or queues in one sentence.
_NAMED_MAX: Final = 5


class Strays(NamedTuple):
    """How many jobs wait in vain.

    Attributes:
        by_task: of queues that are served, by the tasks that no worker of them knows.
        by_queue: of queues that no worker serves.
    """

    by_task: Mapping[str, int]
    by_queue: Mapping[str, int]

    def told(self) -> list[str]:
        """A sentence for each kind that there is, and what to do."""
        sentences = []
        if self.by_task:
            sentences.append(
                f"{_wait(self.by_task)} that no worker knows: {_listed(self.by_task)}; start one "
                f"with the app that registers them, or name their module with -I"
            )
        if self.by_queue:
            sentences.append(
                f"{_wait(self.by_queue)} in a queue that no worker serves: "
                f"{_listed(self.by_queue)}; start one with "
                f"-Q {','.join(sorted(self.by_queue)[:_NAMED_MAX])}, or without -Q"
            )
        return sentences


def ready_jobs(agenda: Agenda) -> dict[tuple[str, str], int]:
    """How many jobs of each (queue, task) may be claimed now; none of a paused queue.

    Those that were put as bytes are left out: who claims such jobs tells nobody.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for lane in agenda.lanes:
        if lane.ready and lane.task and not lane.blocked & BLOCKED_BY_PAUSE:
            counts[lane.queue, lane.task] += lane.ready
    return counts


def strays_of(ready: Mapping[tuple[str, str], int], servings: Iterable[Serving]) -> Strays:
    """Those among the ready jobs that none of the workers would take."""
    servings = list(servings)
    by_task: Counter[str] = Counter()
    by_queue: Counter[str] = Counter()
    for (queue, task), count in ready.items():
        if any(serves(one, queue, task) for one in servings):
            continue
        if any(one.queues is None or queue in one.queues for one in servings):
            by_task[task] += count
        else:
            by_queue[queue] += count
    return Strays(by_task, by_queue)


def _wait(counts: Mapping[str, int]) -> str:
    count = sum(counts.values())
    return "1 job waits" if count == 1 else f"{count:,} jobs wait"


def _listed(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown = ", ".join(f"{name} ({count:,})" for name, count in ordered[:_NAMED_MAX])
    more = len(ordered) - _NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown
