"""What a test asks of the log: which calls were enqueued."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import LogReader
from taskq.errors import InvalidCall, LogError, UsageError
from taskq.hooks import decode_call
from taskq.values import dataclass, rather

if TYPE_CHECKING:
    from taskq import State, Task, TaskQ
    from taskq.views import JobView

#: Jobs that a test is shown, the newest.
JOBS_MAX: Final = 10_000
_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedJob:
    """A job of the log, with its arguments as its function gets them.

    Attributes:
        view: state, queue, priority, headers, attempts and so on.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    view: JobView
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def id(self) -> str:
        """The job's id."""
        return self.view.job_id

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.view.task}({', '.join(given)}) in {self.view.queue}, {self.view.state.name}"


def enqueued(
    task: Task[..., Any] | str | None = None,
    *,
    app: TaskQ | None = None,
    state: State | None = None,
) -> list[EnqueuedJob]:
    """Return the jobs of a task, or all of them, oldest first; at most the newest 10 000.

    Args:
        task: the task or its name; None for all, which needs ``app``.
        app: whose log to look at; that of the task if None.
        state: only jobs in this state; None for any, settled ones included.

    Raises:
        UsageError: it cannot be told which app is meant.
    """
    name = task if isinstance(task, str) or task is None else task.name
    if app is None:
        if task is None or isinstance(task, str):
            raise UsageError("a task's name does not tell whose it is: give app= too")
        app = task.app
    clock = app.connection.config.clock
    try:
        with LogReader.open(str(app.data_dir), clock) as reader:
            views = reader.jobs(None if state is None else {state}, None, name, JOBS_MAX)
    except LogError:
        if (app.data_dir / "taskq.json").exists():
            raise
        return []  # nothing was ever enqueued
    return [_job(app, view) for view in reversed(views)]


def assert_enqueued(
    task: Task[..., Any] | str, *args: Any, taskq_app: TaskQ | None = None, **kwargs: Any
) -> EnqueuedJob:
    """The newest job of this task that was enqueued with these arguments, whatever became of it.

    Arguments that are not given may be anything: ``assert_enqueued(send)`` is content with any
    call of it, ``assert_enqueued(send, subject="hi")`` with any of that subject.

    Args:
        task: the task, or its name.
        args: positional arguments that it must have.
        taskq_app: whose log to look at; that of the task if None.
        kwargs: arguments by name.

    Raises:
        AssertionError: there is none; it lists those there are.
    """
    __tracebackhide__ = True
    known = _known(taskq_app, task, args, kwargs)
    jobs = enqueued(task, app=taskq_app)
    fitting = [job for job in jobs if _fits(known, job, args, kwargs)]
    if fitting:
        return fitting[-1]
    wanted = _call(task, args, kwargs)
    if not jobs:
        raise AssertionError(f"no job of {_name(task)} was enqueued, expected {wanted}")
    raise AssertionError(f"{wanted} was not enqueued; these were:\n{_listed(jobs)}")


def assert_not_enqueued(
    task: Task[..., Any] | str, *args: Any, taskq_app: TaskQ | None = None, **kwargs: Any
) -> None:
    """No job of this task was enqueued with these arguments; see ``assert_enqueued``.

    Raises:
        AssertionError: there is one; it lists those that fit.
    """
    __tracebackhide__ = True
    known = _known(taskq_app, task, args, kwargs)
    jobs = enqueued(task, app=taskq_app)
    fitting = [job for job in jobs if _fits(known, job, args, kwargs)]
    if fitting:
        raise AssertionError(f"{_call(task, args, kwargs)} was enqueued:\n{_listed(fitting)}")


def _job(app: TaskQ, view: JobView) -> EnqueuedJob:
    payload = app.connection.packer.bodies.open_view(view).payload
    task = app.tasks.get(view.task)
    if task is not None:
        try:
            args, kwargs = task.decode(payload)
        except InvalidCall:  # such as a step of a flow, whose first argument comes when it runs
            args, kwargs = decode_call(payload)
    elif view.task:
        args, kwargs = decode_call(payload)
    else:
        args, kwargs = (payload,), {}
    return EnqueuedJob(view=view, args=args, kwargs=kwargs)


def _known(
    app: TaskQ | None, task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.Signature | None:
    """The task's signature, to which the arguments must fit; None if it is not known here."""
    known = task if not isinstance(task, str) else app and app.tasks.get(task)
    if not known:
        if isinstance(task, str) and app is not None and not enqueued(task, app=app):
            raise UsageError(
                f"the app has no task {task!r}, and its log no job of one (for a task of another "
                f"program, say assert not enqueued({task!r}, app=app)): "
                f"{rather(task, app.tasks, 'tasks')}"
            )
        return None
    signature = inspect.signature(known.fn)
    try:
        signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{known.name}: {error}: such a call could not be enqueued") from None
    return signature


def _fits(
    known: inspect.Signature | None,
    job: EnqueuedJob,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    if not args and not kwargs:
        return True
    if known is None:
        return job.args[: len(args)] == args and kwargs.items() <= job.kwargs.items()
    wanted = known.bind_partial(*args, **kwargs).arguments
    there = known.bind_partial(*job.args, **job.kwargs)
    there.apply_defaults()
    return all(there.arguments.get(name) == value for name, value in wanted.items())


def _name(task: Task[..., Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _call(task: Task[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{_name(task)}({', '.join(given)})"


def _listed(jobs: list[EnqueuedJob]) -> str:
    lines = [f"  {job}" for job in jobs[-_SHOWN_MAX:]]
    if len(jobs) > _SHOWN_MAX:
        lines.insert(0, f"  … {len(jobs) - _SHOWN_MAX} earlier ones")
    return "\n".join(lines)
