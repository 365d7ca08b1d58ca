"""What is done to many jobs at once: how its answers are counted, and how its filters are read."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from taskq.core.durations import Duration, moment_ns, nanoseconds
from taskq.core.errors import TaskqError, UsageError
from taskq.core.parsing import whole
from taskq.log.read.selection import WAITING, WaitingFilter, count_running, waiting_page
from taskq.log.requests import WITHDRAWN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from taskq.connection import Connection
    from taskq.core.model import State
    from taskq.core.records import Cause
    from taskq.log.read.selection import Page

_STATES: Final = {state.name.lower(): state for state in WAITING}
#: Refusals that are kept with their reason; of more only the number.
REFUSED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What became of a selection of jobs.

    Attributes:
        count: jobs that it was done to.
        refused_count: jobs that it could not be done to.
        refused: why, by job id, for the first 1 000 of these.
        running: jobs that were meant, but run and were left alone.
    """

    count: int = 0
    refused_count: int = 0
    refused: Mapping[str, TaskqError] = field(default_factory=dict)
    running: int = 0


class Sweeping:
    """Counts answers.

    Args:
        tag: what every job id of the log starts with.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._refused: dict[str, TaskqError] = {}
        self._refused_count = 0
        self.count = 0

    def take(self, jobs: list[int], answers: list[TaskqError | None]) -> None:
        """The answers to one slice: None where it was done."""
        refused = [
            (job, error) for job, error in zip(jobs, answers, strict=True) if error is not None
        ]
        self.count += len(jobs) - len(refused)
        self.refuse(refused)

    def refuse(self, refused: Iterable[tuple[int, TaskqError]]) -> None:
        """Jobs that it was not done to."""
        for job, error in refused:
            self._refused_count += 1
            if len(self._refused) < REFUSED_MAX:
                self._refused[f"{self._tag}-{job}"] = error

    def swept(self, running: int = 0) -> Swept:
        """The sum of it."""
        return Swept(
            count=self.count,
            refused_count=self._refused_count,
            refused=self._refused,
            running=running,
        )


def moment_before(value: Duration | datetime, what: str) -> int:
    """Wall time in nanoseconds of a datetime with a time zone, or of so long ago.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(value, datetime):
        return moment_ns(value, what)
    return max(time.time_ns() - nanoseconds(value, what), 0)


def checked_limit(limit: int, what: str = "limit") -> int:
    """The most of something that is asked for.

    Raises:
        UsageError: it is below 1, or no whole number.
    """
    limit = whole(limit, what)
    if limit < 1:
        raise UsageError(f"{what} is {limit}, it must be 1 or more")
    return limit


async def withdraw(
    connection: Connection, wanted: WaitingFilter, limit: int | None, cause: Cause, *, dry_run: bool
) -> Swept:
    """Cancel the waiting jobs that fit, slice by slice; those that run are counted."""
    port = await connection.port()
    end: int = await port.look(lambda one: one.journal.next_lsn)
    sweeping = Sweeping(connection.tag)
    start, left = 1, limit
    while start and left != 0:
        count = WITHDRAWN_MAX if left is None else min(left, WITHDRAWN_MAX)
        look = partial(waiting_page, wanted=wanted, start=start, end=end, limit=count)
        port = await connection.port()
        page: Page[int] = await port.look(look)
        jobs = page.items
        if jobs and not dry_run:
            port = await connection.port()
            jobs = await port.withdraw(jobs, cause)
        sweeping.count += len(jobs)
        left = None if left is None else left - len(jobs)
        start = page.following
    port = await connection.port()
    running = partial(count_running, queue=wanted.queue, task=wanted.task)
    return sweeping.swept(await port.look(running))


def waiting_states(state: Literal["scheduled", "ready"] | State | None) -> frozenset[State]:
    """The states that are meant; raises UsageError if that is no state of a waiting job."""
    if state is None:
        return WAITING
    chosen = _STATES.get(state) if isinstance(state, str) else state
    if chosen not in WAITING:
        raise UsageError(f'state is {state!r:.60}, it must be "scheduled" or "ready"')
    return frozenset({chosen})
