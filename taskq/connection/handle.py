"""A handle on a job: its id, its state, its result."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from taskq.calls import call, habits, serialization
from taskq.connection.blocking import blocking, off_loop
from taskq.core import durations, errors, model
from taskq.core.parsing import Tag
from taskq.core.values import dataclass
from taskq.log.requests import Duplicate

if TYPE_CHECKING:
    from taskq.connection.connection import Connection
    from taskq.core import views
    from taskq.core.why import Reason
    from taskq.log.journal.journal import Journal
    from taskq.log.store.port import LoopPort

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The latest progress report of a running job.

    Attributes:
        fraction: the done part, 0 to 1.
        message: the job's current activity, "" without a message.
        at: when it was reported, in UTC.
    """

    fraction: float
    message: str
    at: datetime


class JobHandle(Generic[R]):
    """A handle on one job, usable in any process that opens its directory.

    Attributes:
        lsn: the job's position in the log.
        duplicate: the key was taken, and this is the earlier job that holds it.
    """

    __slots__ = ("_app", "_tag", "_task", "duplicate", "lsn")

    def __init__(
        self, app: call.AppPort[Connection], task: call.TaskPort[R] | None, tag: Tag, lsn: int,
        duplicate: bool = False,
    ) -> None:  # fmt: skip
        self._app, self._task, self._tag = app, task, tag
        self.lsn: int = lsn
        self.duplicate: bool = duplicate

    @property
    def id(self) -> str:
        """The job's id, unique for ever; ``app.job(id)`` makes a handle from it."""
        return self._tag.id(self.lsn)

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the job's end, as ``result()`` does."""
        return self.result().__await__()

    if not TYPE_CHECKING:  # a type checker would accept any name otherwise

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names taskq's counterpart of another library's attribute."""
            raise habits.no_attribute(self, "a job", name, habits.JOBS, "job")

    async def result(self, timeout: durations.Duration | None = None) -> R:  # noqa: ASYNC109 - part of the API
        """Wait until the job is settled, by any process, and return its task's return value.

        Args:
            timeout: how long to wait; None for ever. The job goes on after the timeout.

        Raises:
            JobFailed: the job is dead.
            JobCancelled: the job was cancelled.
            JobExpired: the job's ``expires`` passed before it ran.
            ResultGone: the job succeeded, but its task keeps no results.
            ResultTimeout: the job is not settled yet.
            JobNotFound: the log has no such job.
            LogDamaged: the result is damaged.
        """
        limit = None if timeout is None else durations.seconds(timeout, "timeout")
        import asyncio  # noqa: PLC0415 - whoever waits here has it

        from taskq.limits import Deadline  # noqa: PLC0415 - it needs asyncio

        begins = self._app._connection.wait_begins
        over = begins[0](self) if begins else None
        future = (await self._port()).outcome(self.lsn)
        try:
            await asyncio.wait((future,), timeout=limit)
            if not future.done():
                with self._late(limit):
                    async with Deadline(model.LATE_SECONDS_MAX):
                        now = await self._view()
                # If the job was settled meanwhile, its outcome arrives soon.
                if now.state in model.LIVE_STATES:
                    raise await off_loop(self._explained, limit or 0.0, now)
            outcome = await future
        finally:
            future.cancel()
            if over is not None:
                over()
        state, body, flags = outcome
        if flags:
            packer = self._app._connection.packer
            body = await packer.unpacked(body or b"", flags, self._result_name)
        view = await self._view() if self._needs_view(state) else None
        return self._value(state, body, view)

    result_sync: Final = blocking(result)

    async def view(self) -> views.JobView:
        """Return all data of the job in the log.

        Raises:
            JobNotFound: the log has no such job.
            LogDamaged: its payload or result is damaged.
        """
        return await self._app._connection.packer.opened_view(await self._view())

    view_sync: Final = blocking(view)

    async def status(self) -> model.State:
        """Return the current state of the job.

        Compare it with ``State.DEAD``, or its ``str()`` with "dead": a state is no text.

        Raises:
            JobNotFound: the log has no such job.
        """
        return (await self._view()).state

    status_sync: Final = blocking(status)

    async def cancel(self) -> bool:
        """Withdraw a waiting job, stop a running job; False if it is settled already.

        True means that the job does not run again, even if its worker dies. Its own process stops a
        running job, within 100 ms if it is not busy. An async task is cancelled and may clean up, a
        child process is killed; a function in a thread goes on, but its outcome is dropped.
        ``result()`` then raises ``JobCancelled``, or returns the result if the task finished first.

        Raises:
            JobNotFound: the log has no such job.
        """
        port = await self._port()
        return bool(await port.cancel(self.lsn))

    cancel_sync: Final = blocking(cancel)

    async def why(self) -> Reason:
        """Return the one reason why the job is not running, as a code and a sentence.

        Raises:
            JobNotFound: the log has no such job.
        """
        return await self._app.why(self.id)

    why_sync: Final = blocking(why)

    async def attempts(self) -> tuple[views.AttemptView, ...]:
        """Return its attempts, oldest first, with time, process and error.

        Raises:
            JobNotFound: the log has no such job.
        """
        return await self._app.attempts(self.id)

    attempts_sync: Final = blocking(attempts)

    async def requeue(self) -> None:
        """Make a dead job ready again; its attempts are counted from 0 again.

        Raises:
            NotDead: the job is no dead letter (any more).
            KeyHeld: another job holds its dedup key now.
            JobNotFound: the log has no such job.
        """
        await self._app.dead.requeue(self.id)

    requeue_sync: Final = blocking(requeue)

    async def progress(self) -> Progress | None:
        """Return the job's latest progress report; None if it does not run, or has not reported.

        Raises:
            JobNotFound: the log has no such job.
        """
        port = await self._port()
        progress: Progress | None = await port.look(
            lambda sight: _progress_of(sight.journal, self.lsn), needs_agenda=False
        )
        return progress

    progress_sync: Final = blocking(progress)

    async def watch(self, every: durations.Duration = 0.5) -> AsyncIterator[Progress]:
        """Yield the latest new report of the job at each look, until the job has ended.

        Reports between two looks are skipped, and so may be a report shortly before the end: await
        ``result()`` for the end. A worker writes at most ten reports a second.

        Args:
            every: interval of the looks.

        Raises:
            JobNotFound: the log has no such job.
        """
        import asyncio  # noqa: PLC0415 - as above

        latest, pause = None, durations.seconds(every, "every")
        while True:
            is_over = await self.status() not in model.LIVE_STATES
            now = None if is_over else await self.progress()
            if now is not None and now != latest:
                latest = now
                yield now
            if is_over:
                return
            await asyncio.sleep(pause)

    async def _view(self) -> views.JobView:
        """Return the view with payload and result as stored: decompression may take long."""
        port = await self._port()
        view: views.JobView | None = await port.view(self.lsn)
        if view is None:
            raise await port.not_found(self.lsn)
        return view

    async def _port(self) -> LoopPort:
        port = await self._app._connection.port()
        self._app._connection.check_tag(self._tag.of(self.lsn), self.lsn)
        return port

    @property
    def _result_name(self) -> str:
        return f"the result of job {self.id}"

    def _needs_view(self, state: model.State) -> bool:
        # A handle made from an id finds its task, and so the result's type, in the log.
        return self._task is None and state is model.State.SUCCEEDED

    def _value(self, state: model.State, body: bytes | None, view: views.JobView | None) -> R:
        if state is model.State.DEAD:
            raise errors.JobFailed(self.id, (body or b"").decode("utf-8", "replace"))
        if state is model.State.CANCELLED:
            raise errors.JobCancelled(self.id)
        if state is model.State.EXPIRED:
            raise errors.JobExpired(self.id)
        task: call.TaskPort[Any] | None = self._task
        if task is None and view is not None:
            task = self._app.tasks.get(view.task)
        if body is None:
            # The job's own flag counts, also if its task is not registered here.
            stores_result = view.stores_result if view is not None else True
            if not stores_result or (task is not None and not task.store_result):
                raise errors.ResultGone(self.id)
            return cast("R", None)
        return cast(
            "R", serialization.decode_loose(body) if task is None else task.decode_result(body)
        )

    @contextlib.contextmanager
    def _late(self, limit: float | None) -> Iterator[None]:
        """Raise ``ResultTimeout`` if the log does not answer in time, because of lock or disk."""
        try:
            yield
        except TimeoutError:
            path = self._app._connection.path
            raise errors.ResultTimeout(
                self.id, limit or 0.0, "unknown to be settled", "", path
            ) from None

    def _explained(self, seconds: float, view: views.JobView) -> errors.ResultTimeout:
        """Return the error for a job that is not settled in time. Reads the log."""
        from taskq.log.read.reader import explain  # noqa: PLC0415 - most are in time

        connection = self._app._connection
        why = explain(connection.path, self.lsn, seconds, connection.config.clock)
        return errors.ResultTimeout(self.id, seconds, view.state.name.lower(), why, connection.path)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobHandle):
            return NotImplemented
        return self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        name = "job" if self._task is None else self._task.name
        return f"<JobHandle {name} {self.id}{' duplicate' if self.duplicate else ''}>"


class PendingJob(Generic[R]):
    """A job enqueued by a task's success or another transaction; it has no id before that."""

    __slots__ = ("_handle", "_together_with", "call")

    def __init__(
        self, call: call.Call[R], together_with: str = "the success of the task that asked for it"
    ) -> None:
        self.call: Final = call
        self._together_with = together_with
        self._handle: JobHandle[R] | None = None

    @property
    def handle(self) -> JobHandle[R]:
        """The handle on the job.

        Raises:
            JobNotYetEnqueued: its transaction is not on disk yet.
        """
        if self._handle is None:
            raise errors.JobNotYetEnqueued(
                f"the {self.call.name} job has no id yet: it is enqueued together with "
                f"{self._together_with}"
            )
        return self._handle

    @property
    def id(self) -> str:
        """The job's id.

        Raises:
            JobNotYetEnqueued: as ``handle``.
        """
        return self.handle.id

    @property
    def duplicate(self) -> bool:
        """Return whether the key was taken.

        Raises:
            JobNotYetEnqueued: as ``handle``.
        """
        return self.handle.duplicate

    def __repr__(self) -> str:
        return f"<PendingJob {self.call.name} {self._handle.id if self._handle else 'no id yet'}>"


def make_handle(
    app: call.AppPort[Connection], task: call.TaskPort[R] | None, tag: Tag, answer: int | Duplicate
) -> JobHandle[R]:
    """Return the handle for the answer to an enqueue."""
    if isinstance(answer, int):
        return JobHandle(app, task, tag, answer)
    return JobHandle(app, task, tag, answer.lsn, duplicate=True)


def _progress_of(journal: Journal, job: int) -> Progress | None:
    """Return a running job's latest report; None if it does not run, or has not reported."""
    from taskq.log.read.diagnosis import find_progress  # noqa: PLC0415 - few ask

    noted = find_progress(journal, job)
    if noted is None:
        return None
    at = datetime.fromtimestamp(noted.at_ns / model.SECOND_NS, UTC)
    return Progress(fraction=noted.fraction, message=noted.message, at=at)
