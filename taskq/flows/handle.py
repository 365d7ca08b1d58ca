"""Handles of flows: result, progress, cancellation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from taskq.calls.call import AppPort
from taskq.connection.blocking import blocking
from taskq.connection.connection import Connection, split_job_id
from taskq.connection.handle import JobHandle, PendingJob
from taskq.core import durations, errors, flows, model
from taskq.core.values import dataclass
from taskq.log.requests import WITHDRAWN_MAX

if TYPE_CHECKING:
    from taskq.log.format.flows import Takes

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """Progress of a flow, in jobs.

    Attributes:
        total: all jobs.
        waiting: jobs that wait for their inputs, their time, or a worker.
        running: running jobs.
        succeeded: succeeded jobs, including jobs that compaction has removed.
        dead, cancelled, expired: jobs with that end.
    """

    total: int
    waiting: int
    running: int
    succeeded: int
    dead: int
    cancelled: int
    expired: int


class FlowHandle(Generic[R]):
    """A flow in the log, usable in any process that opens its directory.

    Attributes:
        jobs: its jobs; the last jobs to run come first.
    """

    __slots__ = ("_app", "_ends", "_shape", "jobs")

    def __init__(
        self,
        app: AppPort[Connection] | None,
        jobs: tuple[JobHandle[Any], ...],
        ends: int,
        shape: bytes,
    ) -> None:
        self._app = app  # None if there are no jobs
        self.jobs: tuple[JobHandle[Any], ...] = jobs
        self._ends = ends
        self._shape = shape

    @property
    def id(self) -> str:
        """Id of its first job: ``app.flow(id)`` makes a handle from it.

        The result of that job is the flow's result, or the first value in it.

        Raises:
            UsageError: the flow is an empty group, which has no job.
        """
        if not self.jobs:
            raise errors.UsageError("an empty group is no job, so it has no id")
        return self.jobs[0].id

    def __await__(self) -> Generator[Any, None, R]:
        """Wait until the flow has ended, like ``result()``."""
        return self.result().__await__()

    async def result(self, timeout: durations.Duration | None = None) -> R:  # noqa: ASYNC109 - part of the API
        """Wait until the flow has ended, and return its result.

        Args:
            timeout: how long to wait; None for ever. The flow goes on after the timeout.

        Raises:
            JobFailed: one of its jobs is dead, so there will be no result.
            JobCancelled: the flow was cancelled.
            JobExpired: the ``expires`` of a job passed before it ran.
            ResultGone: its last job keeps no result; within a group such a result is None.
            ResultTimeout: the flow has not ended yet.
        """
        values, gone = await self._values(timeout)
        value = flows.nested(self._shape, values)
        if gone is not None and value is None:
            raise gone
        return cast("R", value)

    async def wait(self, timeout: durations.Duration | None = None) -> None:  # noqa: ASYNC109 - as above
        """Wait until the flow has ended, whether its jobs keep results or not.

        Raises:
            JobError: as ``result``, except ``ResultGone``.
        """
        await self._values(timeout)

    async def _values(
        self,
        timeout: durations.Duration | None,  # noqa: ASYNC109 - as above
    ) -> tuple[list[Any], errors.ResultGone | None]:
        """Return the results of its last jobs, None for a missing one, and that job's error."""
        limit = None if timeout is None else durations.seconds(timeout, "timeout")
        until = None if limit is None else time.monotonic() + limit
        values: list[Any] = []
        gone: errors.ResultGone | None = None
        for job in self.jobs[: self._ends]:
            left = None if until is None else max(until - time.monotonic(), 0.0)
            try:
                values.append(await job.result(left))
            except errors.ResultGone as error:
                gone = error
                values.append(None)
            except errors.JobCancelled:
                await self._raise_cause()
                raise
        return values, gone

    async def progress(self) -> FlowProgress:
        """Count its jobs by their current state."""
        counts = Counter(await self._states())
        return FlowProgress(
            total=len(self.jobs),
            waiting=sum(counts[state] for state in model.WAITING_STATES),
            running=counts[model.State.RUNNING],
            succeeded=counts[model.State.SUCCEEDED] + counts[model.State.ABSENT],
            dead=counts[model.State.DEAD],
            cancelled=counts[model.State.CANCELLED],
            expired=counts[model.State.EXPIRED],
        )

    async def cancel(self) -> int:
        """Cancel its waiting jobs, ask running jobs to stop; return their number.

        Later parts are cancelled first, so that no job starts meanwhile.
        """
        withdrawn = 0
        for start in range(0, len(self.jobs), WITHDRAWN_MAX):
            port = await self._connection.port()
            lsns = [job.lsn for job in self.jobs[start : start + WITHDRAWN_MAX]]
            withdrawn += len(await port.withdraw(lsns))
        stopped = 0
        for job, state in zip(self.jobs, await self._live_states(), strict=True):
            if state is not model.State.ABSENT and await job.cancel():
                stopped += 1
        return withdrawn + stopped

    result_sync: Final = blocking(result)
    wait_sync: Final = blocking(wait)
    progress_sync: Final = blocking(progress)
    cancel_sync: Final = blocking(cancel)

    @property
    def _connection(self) -> Connection:
        assert self._app is not None
        return self._app._connection

    async def _live_states(self) -> list[model.State]:
        """Return the states of its jobs; ABSENT for a job that has ended."""
        from taskq.log.read.flows import STATES_MAX, look_at_states  # noqa: PLC0415 - the log is open

        states: list[model.State] = []
        for start in range(0, len(self.jobs), STATES_MAX):
            port = await self._connection.port()
            count = min(len(self.jobs) - start, STATES_MAX)
            first = self.jobs[start].lsn
            states += await port.look(partial(look_at_states, first=first, count=count))
        return states

    async def _states(self) -> list[model.State]:
        """Return the states of its jobs; ABSENT for a job that the log has removed."""
        from taskq.log.read.flows import ENDS_MAX, look_at_ends  # noqa: PLC0415 - as above

        states = await self._live_states()
        ended = [number for number, state in enumerate(states) if state is model.State.ABSENT]
        for start in range(0, len(ended), ENDS_MAX):
            some = ended[start : start + ENDS_MAX]
            port = await self._connection.port()
            jobs = [self.jobs[number].lsn for number in some]
            ends = await port.look(partial(look_at_ends, jobs=jobs))
            for number, end in zip(some, ends, strict=True):
                states[number] = end.state
        return states

    async def _raise_cause(self) -> None:
        """Raise the failure that caused a job's cancellation, if there is one."""
        states = await self._states()
        for job, state in reversed(list(zip(self.jobs, states, strict=True))):
            if state is model.State.DEAD:
                view = await job.view()
                raise errors.JobFailed(job.id, view.reason)
            if state is model.State.EXPIRED:
                raise errors.JobExpired(job.id)

    def __repr__(self) -> str:
        return f"<FlowHandle {self.jobs[0].id if self.jobs else 'empty'} {len(self.jobs)} jobs>"


class PendingFlow(Generic[R]):
    """A flow that is enqueued with the running job's success; it has no id before."""

    __slots__ = ("_app", "_ends", "_pending", "_shape")

    def __init__(
        self, app: AppPort[Connection], pending: list[PendingJob[Any]], ends: int, shape: bytes
    ) -> None:
        self._app = app
        self._pending = pending
        self._ends = ends
        self._shape = shape

    @property
    def handle(self) -> FlowHandle[R]:
        """The flow's handle.

        Raises:
            JobNotYetEnqueued: its transaction is not on disk yet.
        """
        jobs = tuple(pending.handle for pending in self._pending)
        return FlowHandle(self._app, jobs, self._ends, self._shape)

    @property
    def id(self) -> str:
        """The flow's id.

        Raises:
            JobNotYetEnqueued: as ``handle``.
        """
        return self.handle.id


async def find_flow(app: AppPort[Connection], flow_id: str) -> FlowHandle[Any]:
    """Find a flow by its id."""
    from taskq.log.read.flows import look_at_ties  # noqa: PLC0415 - as above

    connection = app._connection
    tag, lsn = split_job_id(flow_id)
    port = await connection.port()
    connection.check_tag(tag, lsn)
    ties: Takes | None = await port.look(partial(look_at_ties, job=lsn))
    if ties is None:
        raise await port.not_found(lsn)
    if ties.root is None:
        raise errors.UsageError(
            f"{flow_id} is no flow's id: a flow has that of its last job, which is handle.id"
        )
    jobs, ends, shape = ties.root
    tag = connection.tag
    handles = (JobHandle[Any](app, None, tag, lsn + number) for number in range(jobs))
    return FlowHandle(app, tuple(handles), ends, shape)
