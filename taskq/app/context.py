"""The context of a running job: ``current_job()``, its progress, and signals to jobs."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Never, Protocol, TypeAlias, TypeVar, overload

import taskq.telemetry as telemetry
from taskq.app.tasks import no_call
from taskq.calls import habits, serialization
from taskq.calls.call import Call, transaction_bytes
from taskq.connection.connection import Connection, JobId, split_job_id
from taskq.connection.handle import PendingJob, make_handle
from taskq.core import errors, model, parsing, schedules, views
from taskq.log.decide.steps import NewSignal
from taskq.log.requests import Delivery, Duplicate, EnqueueSpec

if TYPE_CHECKING:
    from taskq.app.app import TaskQ
    from taskq.flows.flow import Flow
    from taskq.flows.handle import PendingFlow

    #: A job that is enqueued with its parent's success.
    Child: TypeAlias = tuple[PendingJob[Any], EnqueueSpec, bytes, model.Extras | None]

#: Characters of a message.
MESSAGE_CHARACTERS_MAX: Final = 500


class _Relay:
    """Sends progress from a process that has no log open; see ``relay_to``."""

    send: Callable[[float, str], None] | None = None


def relay_to(send: Callable[[float, str], None]) -> None:
    """Send progress of all jobs of this process to ``send``: a child process has no log open.

    The child's worker passes the progress to ``report`` with the job's own context.
    """
    _Relay.send = send


def is_remote() -> bool:
    """Return whether this process runs jobs of a log that another process has open."""
    return _Relay.send is not None


def report(job: JobContext, fraction: float, message: object = "") -> None:
    """Publish a job's progress, from any thread; the storage thread writes it.

    Odd values do not fail the job. A fraction is clipped to 0 to 1, NaN counts as 0 (0 of 0 things
    are done), and a long message is cut.

    Raises:
        UsageError: the fraction is no number at all.
    """
    fraction, message = _clipped(fraction), _shortened(str(message))
    if _Relay.send is not None:
        _Relay.send(fraction, message)
        return
    store = job.app._connection.current
    if store is not None and store.usable:
        delivery = job.delivery
        progress = views.ProgressView(fraction, message, store.wall_ns())
        store.progress.report(job, delivery.job, delivery.token, progress)


def _clipped(fraction: Any) -> float:
    if isinstance(fraction, str | bytes) or not hasattr(type(fraction), "__float__"):
        raise errors.UsageError(
            f"the fraction is {fraction!r:.60}, it must be a number from 0 to 1"
        )
    if fraction != fraction:  # noqa: PLR0124 - only NaN differs from itself, whatever its type
        return 0.0
    # Compare before converting: not every number fits into a float.
    return 0.0 if fraction < 0 else 1.0 if fraction > 1 else float(fraction)


def _shortened(message: str) -> str:
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - 1] + "…"


R = TypeVar("R")

#: The job of the running code; set by its worker.
running_job: Final[ContextVar[JobContext]] = ContextVar("taskq_current_job")
_here: Final[ContextVar[TaskQ]] = ContextVar("taskq_app_here")


@contextmanager
def within(app: TaskQ) -> Iterator[None]:
    """Make code outside jobs use the log of ``app``, as a job of the app does."""
    before = _here.set(app)
    try:
        yield
    finally:
        _here.reset(before)


class Lines(Protocol):
    """Takes the lines that a job logs."""

    def add(self, line: str) -> None:
        """Keep a line; may be called from any thread."""


class JobContext:
    """The job that this code runs for. Workers make one for each attempt.

    Attributes:
        children: jobs to enqueue together with its success; None while there are none.
        durable: its steps; set only if ``taskq.durable`` is used.
        ends_at: the deadline by the monotonic clock; set only if there is a deadline.
        lines: collects the lines that the job logs; set only if its task keeps them.
        packs: payloads of its calls are to be compressed or written to files.
        printed: the incomplete last line of its output; set only if output is logged.
        spent_seconds: the time of middleware before the function; set only if there is some.
        until_seconds: the deadline by the wall clock; set only if there is a deadline.
    """

    __slots__ = (
        "__weakref__", "_cancel_asked", "_children_size", "app", "children", "delivery", "durable",
        "ends_at", "lines", "packs", "printed", "spent_seconds", "until_seconds",
    )  # fmt: skip
    until_seconds: float
    ends_at: float
    spent_seconds: float
    _cancel_asked: bool
    durable: Any
    lines: Lines
    printed: str

    def __init__(self, delivery: Delivery, app: TaskQ) -> None:
        self.delivery: Delivery = delivery
        self.app: TaskQ = app
        self.packs: bool = False
        self.children: list[Child] | None = None
        self._children_size = 0

    @property
    def id(self) -> str:
        """The job's id."""
        return self.delivery.job_id

    @property
    def attempt(self) -> int:
        """Number of this attempt; 1 is the first."""
        return self.delivery.attempt

    @property
    def attempts_max(self) -> int:
        """Return how often the job may run; 0 for no limit."""
        return self.delivery.attempts_max

    @property
    def task(self) -> str:
        """Name under which the job was enqueued."""
        return self.delivery.task

    @property
    def queue(self) -> str:
        """Name of the job's queue."""
        return self.delivery.queue

    @property
    def headers(self) -> dict[str, str]:
        """The job's headers."""
        return self.delivery.headers

    @property
    def deadline(self) -> datetime | None:
        """Return when the task's ``timeout`` ends this attempt, in UTC; None without a timeout."""
        seconds: float | None = getattr(self, "until_seconds", None)
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    @property
    def scheduled_at(self) -> datetime | None:
        """The schedule's moment that the job was enqueued for; None without a schedule.

        The moment does not change when the job runs late or the tick was missed; its time zone is
        the schedule's.
        """
        text = self.headers.get(schedules.MOMENT_HEADER)
        return None if text is None else datetime.fromisoformat(text)

    @property
    def cancel_asked(self) -> bool:
        """Return whether this job was cancelled: for functions in threads, which cannot be stopped.

        The result of a cancelled function is ignored, so the function may return at once.
        """
        # The attribute is set only by ask_cancel: most jobs are not cancelled and should not pay.
        return getattr(self, "_cancel_asked", False)

    def ask_cancel(self) -> None:
        """Make ``cancel_asked`` true from now on."""
        self._cancel_asked = True

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress of this job; ``job.progress()`` returns it in any process.

        A call takes some microseconds: another thread writes the latest report, ten times a second
        at most, and reports are not kept after the job's end. A fraction is clipped to 0 to 1, a
        message to 500 characters.

        Raises:
            UsageError: the fraction is no number.
        """
        report(self, fraction, message)

    @overload
    def enqueue(self, call: Call[R]) -> PendingJob[R]: ...

    @overload
    def enqueue(self, call: Flow[R]) -> PendingFlow[R]: ...

    def enqueue(self, call: Call[R] | Flow[R], *rest: Never) -> PendingJob[R] | PendingFlow[R]:
        """Enqueue a call or a flow together with this job's success: both are on disk, or neither.

        When this attempt fails, the call is dropped; the next attempt makes its own.

        Raises:
            PayloadTooLarge: this job's calls are over TRANSACTION_BYTES_MAX together, or the
                payload of this call is over its limit.
        """
        if rest:
            raise no_call(call, rest, "current_job().enqueue")
        if isinstance(call, Call):
            return self._add_child(call)
        from taskq.flows.flow import plan_of  # noqa: PLC0415 - loaded by whoever made the flow
        from taskq.flows.handle import PendingFlow  # noqa: PLC0415 - as above

        plan, size = plan_of(call), self._children_size
        before = len(self.children or ())
        try:
            pending = [self._add_child(call) for call in plan.calls]
        except BaseException:
            if self.children:  # a flow is enqueued as a whole
                del self.children[before:]
            self._children_size = size
            raise
        return PendingFlow(self.app, pending, plan.ends, plan.shape)

    def _add_child(self, call: Call[R]) -> PendingJob[R]:
        call = telemetry.created(call)
        item = (call.spec, call.body, call.extras)
        packer = self.app._connection.packer
        if packer.plain_item(call) is None:
            packer.loose(call)  # refuses a call that is too large
            self.packs = True
        size = self._children_size + transaction_bytes((item,))
        if size > model.TRANSACTION_BYTES_MAX:
            raise errors.PayloadTooLarge(
                f"the jobs enqueued by {self.task} {self.id}",
                size,
                model.TRANSACTION_BYTES_MAX,
                "enqueue some of them outside the job's own transaction",
            )
        self._children_size = size
        pending: PendingJob[R] = PendingJob(call)
        if self.children is None:
            self.children = []
        self.children.append((pending, *item))
        return pending

    def resolve(self, answers: list[int | Duplicate]) -> None:
        """Give the pending jobs their ids, in the order of their enqueueing.

        Further answers belong to jobs of a child process and are ignored: no caller waits for them.
        """
        for (pending, *_), answer in zip(self.children or (), answers, strict=False):
            task = pending.call.task
            pending._handle = make_handle(self.app, task, self.delivery.tag, answer)

    def __repr__(self) -> str:
        return f"<JobContext {self.task} {self.id} attempt {self.attempt}>"


class _Elsewhere:
    """An attribute of another library; its access raises an error with taskq's counterpart.

    A descriptor for each name, since ``__getattr__`` would slow every access to an attribute.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, job: JobContext | None, _kind: type[JobContext]) -> Never:
        raise habits.no_attribute(
            job, "the context of a job", self._name, habits.CONTEXTS, "current_job()"
        )


for _word in habits.CONTEXTS:
    setattr(JobContext, _word, _Elsewhere(_word))


def current_job() -> JobContext:
    """Return the job that this code runs for.

    Raises:
        UsageError: called outside a running task.
    """
    try:
        return running_job.get()
    except LookupError:
        raise errors.UsageError(
            "current_job() is for code that runs inside a task: no job runs here"
        ) from None


async def progress(fraction: float, message: str = "") -> None:
    """Report the running job's progress, from 0 to 1, with a message.

    ::

        await progress(0.4, "uploading")

    Raises:
        UsageError: called outside a running task; or as ``JobContext.progress``.
    """
    progress_sync(fraction, message)


def progress_sync(fraction: float, message: str = "") -> None:
    """Do as ``progress``, for functions that run in threads or child processes.

    Raises:
        UsageError: as ``progress``.
    """
    try:
        job = running_job.get()
    except LookupError:
        raise errors.UsageError(
            "progress() is for code that runs inside a task: no job runs here"
        ) from None
    job.progress(fraction, message)


class SoftTimeout(TimeoutError, CancelledError):
    """Raised inside a task once its ``soft_timeout`` is over, so that it can clean up and end.

    An error of the task then counts as any failure, and a returned value is its result. The hard
    ``timeout`` still applies.

    It is a ``CancelledError`` too, because ``asyncio.TaskGroup`` and ``asyncio.wait_for`` end
    their children only for that error; after any other error the children would keep running.
    """

    def __init__(self, message: str = "the task's soft_timeout is over") -> None:
        super().__init__(message)


class ChildDied(RuntimeError):
    """The child process of a job ended during the job: a crash, ``os._exit``, or no memory left.

    It costs the job one attempt; other jobs are not affected.
    """


_log: Final = logging.getLogger("taskq")
#: Event name -> task name -> type of the value -> its reader, for events met in this process.
event_readers: Final[dict[str, dict[str, dict[Any, Callable[[bytes], object]]]]] = {}
#: The prefix and suffix of a single value encoded by ``encode_loose``.
_HEAD, _TAIL = b'{"value":', b"}"


async def send_signal(connection: Connection, job: JobId, name: str, value: Any, once: str) -> bool:
    """Signal a job of this log; see ``LogHolder.signal``."""
    tag, lsn = split_job_id(job)
    parsing.check_name("the name of a signal", name)
    if len(str(once).encode()) > model.NAME_BYTES_MAX:
        raise errors.UsageError(
            f"once is {once!r:.60}: give a text of at most {model.NAME_BYTES_MAX} bytes"
        )
    try:
        body = serialization.encode_loose(f"signal {name!r}", (), {"value": value})[
            len(_HEAD) : -len(_TAIL)
        ]
    except errors.InvalidCall as error:
        raise errors.UsageError(str(error).replace("the arguments", "the value", 1)) from None
    port = await connection.port()
    connection.check_tag(tag, lsn)
    readers = event_readers.get(name)
    if readers:
        view = await port.view(lsn)
        problem = None if view is None else _unfit(readers.get(view.task), body)
        if problem is not None:
            _log.warning(
                "signal %r does not fit what job %s waits for, and is passed over there: %s",
                name, connection.tag.id(lsn), serialization.cause_of(problem),
            )  # fmt: skip
    try:
        return await port.signal(NewSignal(lsn, name, body, once))
    except errors.JobSettled as error:
        view = await port.view(lsn)
        if view is None:
            raise await port.not_found(lsn) from None
        raise errors.JobSettled(error.job_id, str(view.state), connection.path) from None


def _unfit(readers: dict[Any, Callable[[bytes], object]] | None, body: bytes) -> ValueError | None:
    """Return why no event of a task accepts a signal of this value; None if one does, or may."""
    problem = None
    for read in (readers or {}).values():
        try:
            read(body)
        except ValueError as error:
            problem = error
        else:
            return None
    return problem
