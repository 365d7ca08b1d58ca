"""What TaskLog and TaskQ have in common: dead letters, and what is done to whole queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from taskq.blocking import blocking
from taskq.core.errors import UsageError
from taskq.core.records import Cause
from taskq.deadletters import DeadLetters
from taskq.log.requests import WITHDRAWN_MAX, check_name
from taskq.log.selection import WAITING, WaitingFilter, count_running, waiting_page
from taskq.schedulesview import LogSchedules
from taskq.sweeping import Sweeping, Swept, checked_limit, moment_before

if TYPE_CHECKING:
    from datetime import datetime

    from taskq.connection import Connection
    from taskq.core.durations import Duration
    from taskq.core.model import State
    from taskq.log.selection import Page

_STATES = {state.name.lower(): state for state in WAITING}


class LogQueues:
    """Pause, resume and purge a queue; cancel the waiting jobs that fit; the dead letters."""

    _connection: Connection

    @property
    def dead(self) -> DeadLetters:
        """The log's dead letters: list, requeue, purge."""
        return DeadLetters(self._connection)

    @property
    def schedules(self) -> LogSchedules:
        """The schedules that the log knows of: list, pause, resume, reset, remove."""
        return LogSchedules(self._connection)

    async def pause(self, queue: str) -> bool:
        """Let no worker, of any process, claim from the queue until it is resumed.

        Jobs can still be enqueued; those that run go on. It holds across restarts, and a queue that
        has no jobs yet may be paused, too.

        Returns:
            False if it was paused already.

        Raises:
            UsageError: that is no name of a queue.
            LogError: the log could not be opened or written.
        """
        return await self._set_paused(queue, paused=True)

    pause_sync = blocking(pause)

    async def resume(self, queue: str) -> bool:
        """Let workers claim from the queue again; False if it was not paused.

        Raises:
            UsageError: that is no name of a queue.
            LogError: the log could not be opened or written.
        """
        return await self._set_paused(queue, paused=False)

    resume_sync = blocking(resume)

    async def purge(self, queue: str, *, dry_run: bool = False) -> Swept:
        """Cancel all jobs of a queue that wait, due or not; those that run are left and counted.

        It is done in slices of some hundreds, of which each is all or none. Jobs that are enqueued
        meanwhile stay.

        Args:
            queue: its name.
            dry_run: change nothing, and count.

        Raises:
            UsageError: that is no name of a queue.
            LogError: the log could not be opened or written.
        """
        check_name("queue name", queue)
        wanted = WaitingFilter(queue=queue)
        return await self._withdraw(wanted, None, Cause.PURGE, dry_run=dry_run)

    purge_sync = blocking(purge)

    async def cancel_many(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        before: Duration | datetime | None = None,
        state: Literal["scheduled", "ready"] | State | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Swept:
        """Cancel the waiting jobs that fit; those that run are left and counted.

        It is done in slices of some hundreds, of which each is all or none. Jobs that are enqueued
        meanwhile stay.

        Args:
            queue: name of their queue.
            task: name of their task.
            before: enqueued before a datetime with a time zone, or so long ago.
            state: "scheduled" or "ready"; None for both.
            limit: at most so many, the oldest first.
            dry_run: change nothing, and count.

        Raises:
            UsageError: an argument is wrong, or there is none: that would cancel everything.
            LogError: the log could not be opened or written.
        """
        if queue is None and task is None and before is None and state is None:
            raise UsageError(
                "cancel_many() takes a queue, task, before or state: give at least one"
            )
        if limit is not None:
            limit = checked_limit(limit)
        wanted = WaitingFilter(
            queue=queue,
            task=task,
            before_ns=None if before is None else moment_before(before, "before"),
            states=_states(state),
        )
        return await self._withdraw(wanted, limit, Cause.CALLER, dry_run=dry_run)

    cancel_many_sync = blocking(cancel_many)

    async def _set_paused(self, queue: str, *, paused: bool) -> bool:
        check_name("queue name", queue)
        port = await self._connection.port()
        changed: bool = await port.pause(queue, paused=paused)
        return changed

    async def _withdraw(
        self, wanted: WaitingFilter, limit: int | None, cause: Cause, *, dry_run: bool
    ) -> Swept:
        port = await self._connection.port()
        end: int = await port.look(lambda one: one.journal.next_lsn)
        sweeping = Sweeping(self._connection.tag)
        start, left = 1, limit
        while start and left != 0:
            count = WITHDRAWN_MAX if left is None else min(left, WITHDRAWN_MAX)
            look = partial(waiting_page, wanted=wanted, start=start, end=end, limit=count)
            port = await self._connection.port()
            page: Page[int] = await port.look(look)
            jobs = page.items
            if jobs and not dry_run:
                port = await self._connection.port()
                jobs = await port.withdraw(jobs, cause)
            sweeping.count += len(jobs)
            left = None if left is None else left - len(jobs)
            start = page.following
        port = await self._connection.port()
        running = partial(count_running, queue=wanted.queue, task=wanted.task)
        return sweeping.swept(await port.look(running))


def _states(state: Literal["scheduled", "ready"] | State | None) -> frozenset[State]:
    if state is None:
        return WAITING
    chosen = _STATES.get(state) if isinstance(state, str) else state
    if chosen not in WAITING:
        raise UsageError(f'state is {state!r:.60}, it must be "scheduled" or "ready"')
    return frozenset({chosen})
