"""What ``@task(...)`` takes, and how a function becomes a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from taskq.app.tasks import AsyncTask, RunsIn, SyncTask, Task
from taskq.calls.call import JobOptions, OptionChanges, Options
from taskq.calls.habits import option_instead
from taskq.calls.naming import check_function, check_importable, is_async, name_of
from taskq.calls.signature import Signature
from taskq.core.durations import Duration, seconds
from taskq.core.errors import UsageError
from taskq.core.model import LINES_BYTES_MAX
from taskq.core.parsing import Size, size_bytes, whole
from taskq.core.retry import DEFAULT, RetryPolicy, policy_of

if TYPE_CHECKING:
    from taskq.app.app import TaskQ
    from taskq.conditions.base import Check, Condition
    from taskq.core.rates import Limit
    from taskq.log.decide.listeners import DeadLetter


def limit_of(name: str, choices: TaskChoices) -> Limit | None:
    """Return what ``@task(concurrency=, rate=)`` says; None if it says nothing.

    Raises:
        UsageError: one of them is out of its range, or a key is given with none of the two.
    """
    concurrency = choices.get("concurrency")
    rate = choices.get("rate")
    if concurrency is None and rate is None:
        if choices.get("concurrency_key") is not None:
            raise UsageError(
                f"{name}: concurrency_key is given without concurrency or rate: add one of them"
            )
        return None
    from taskq.core.rates import CONCURRENCY_MAX, Limit, rate_of  # noqa: PLC0415 - few have limits

    if concurrency is not None:
        concurrency = whole(concurrency, f"{name}: concurrency")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise UsageError(
                f"{name}: concurrency is {concurrency}, it must be 1 to {CONCURRENCY_MAX}, or "
                f"left out for no limit"
            )
    return Limit(
        concurrency=concurrency or 0, rate=None if rate is None else rate_of(rate), scope=name
    )


P = ParamSpec("P")
R = TypeVar("R")


class TaskChoices(JobOptions, total=False):
    """The keywords of ``@task(...)``; all may be left out."""

    #: what jobs call the task; ``module.function`` unless given
    name: str
    #: earlier names, still run
    aliases: tuple[str, ...] | list[str]
    #: a policy, or just the number of attempts
    retry: RetryPolicy | int
    #: called with each ``DeadLetter`` of its jobs that a worker of the app makes; may be async, or
    #: a task, whose job is on disk together with the death
    on_dead: Callable[[DeadLetter], Any] | None
    #: how long one attempt may take: then an async function is cancelled, a process killed, and a
    #: thread, which cannot be stopped, given up
    timeout: Duration | None
    #: when ``SoftTimeout`` is raised in the task, so that it can end by itself
    soft_timeout: Duration | None
    #: makes a dedup key from the task's arguments
    key: Callable[..., str | bytes] | None
    #: give up unless a worker claims the job within this time of its enqueue
    expires: Duration | None
    #: False keeps no result
    store_result: bool
    #: how many of its jobs run at a time, over all processes on the log; None for no limit
    concurrency: int | None
    #: makes a key from the task's arguments: ``concurrency`` and ``rate`` hold for each one
    concurrency_key: Callable[..., str | bytes] | None
    #: how many of its jobs start in a time, over all processes: "10/s", "100/min", "5/30s"
    rate: str | None
    #: "thread" or "process"; None: sync functions in a thread, async ones in the event loop
    runs_in: RunsIn | None
    #: keep so much of what an attempt logs with its outcome, the latest of it: "64KB" at most
    keep_log: Size | None
    #: run only once the claim is on disk, so that a power loss cannot make it run twice
    durable_claim: bool
    #: what must hold before a job of it runs, see ``taskq.conditions``; until then it waits
    requires: Sequence[Condition | Check]
    #: with ``requires``: a job that runs when a condition is lost is stopped, and waits again
    while_running: bool


def with_choices(text: str | None) -> str:
    """Return a docstring that ends in the keywords of ``@task(...)``: what ``help`` shows."""
    names = (f"            {name}: {hint}" for name, hint in TaskChoices.__annotations__.items())
    head = f"{(text or '').rstrip()}\n\n        Keywords, all of which may be left out:"
    return "\n".join([head, *names])


class TaskDecorator(Protocol):
    """``@app.task(...)`` with its keywords given, waiting for the function."""

    # The overloads overlap on purpose: the first that fits is the closer one.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


def make_task(app: TaskQ, fn: Callable[..., Any], choices: TaskChoices) -> Task[..., Any]:
    """Return the function as a task, not registered yet.

    Raises:
        UsageError: the function or a choice is wrong.
    """
    check_function(fn)
    _check_choices(fn, choices)
    policy = policy_of(choices["retry"]) if "retry" in choices else DEFAULT
    timeout, soft = (_limit(choices, name) for name in ("timeout", "soft_timeout"))
    if timeout is not None and soft is not None and soft >= timeout:
        raise UsageError(
            f"soft_timeout is {soft:g} s and timeout {timeout:g} s: the soft one must be shorter"
        )
    changes = {k: v for k, v in choices.items() if k in OptionChanges.__annotations__}
    kind = AsyncTask if is_async(fn) else SyncTask
    task: Task[..., Any] = kind(
        app,
        fn,
        choices.get("name") or name_of(fn),
        Options(attempts=policy.attempts).changed(cast("OptionChanges", changes)),
        retry=policy,
        timeout=timeout,
        soft_timeout=soft,
        runs_in=choices.get("runs_in"),
        aliases=tuple(choices.get("aliases", ())),
        store_result=choices.get("store_result", True),
        durable_claim=choices.get("durable_claim", False),
        on_dead=choices.get("on_dead"),
    )
    _check_signature(task)
    task.limit = limit_of(task.name, choices)
    task.keep_log = _keep_log(task.name, choices)
    task.requires = _requires(task.name, choices)
    task.while_running = choices.get("while_running", False)
    if task.while_running:
        _check_while_running(task)
    return task


def _check_signature(task: Task[..., Any]) -> None:
    """Refuse parameters and results that no job could have; what is not sure a worker will."""
    try:
        signature = Signature(task.name, task.fn)
    except UsageError:
        raise
    except ValueError:  # some functions of the interpreter have none
        return
    if signature.check(with_result=task.store_result):
        task.signature = signature


def _requires(name: str, choices: TaskChoices) -> tuple[Condition, ...]:
    if "requires" not in choices:
        return ()
    from taskq.conditions.base import checked_conditions  # noqa: PLC0415 - few tasks wait for any

    return checked_conditions(name, choices["requires"])


def _keep_log(name: str, choices: TaskChoices) -> int:
    given = choices.get("keep_log")
    size = 0 if given is None else size_bytes(given, f"{name}: keep_log")
    if size > LINES_BYTES_MAX:
        raise UsageError(f'{name}: keep_log is {given!r}, it must be at most "64KiB"')
    return size


def _check_while_running(task: Task[..., Any]) -> None:
    if not task.requires:
        raise UsageError(
            f"{task.name}: while_running=True needs requires=[...]: it stops a job when one of "
            f"these is lost"
        )
    if task.runs_in == "thread":
        raise UsageError(
            f"{task.name}: while_running=True cannot stop a function that runs in a thread: "
            f'make it async, or give it runs_in="process"'
        )


def _check_choices(fn: Callable[..., Any], choices: TaskChoices) -> None:
    unknown = choices.keys() - TaskChoices.__annotations__.keys()
    if unknown:
        name, known = min(unknown), TaskChoices.__annotations__
        raise UsageError(f"@task has no option {name!r}: {option_instead(name, known)}")
    key = choices.get("key")
    on_dead: object = choices.get("on_dead")
    aliases: object = choices.get("aliases", ())
    if key is not None and not callable(key):
        raise UsageError(
            f"key is {key!r:.60}: give a function of the task's arguments, "
            f"or a fixed key with .options(key=...)"
        )
    limited_by = choices.get("concurrency_key")
    if limited_by is not None and not callable(limited_by):
        raise UsageError(
            f"concurrency_key is {limited_by!r:.60}: give a function of the task's arguments, "
            f"or a fixed key with .options(concurrency_key=...)"
        )
    if on_dead is not None and not callable(on_dead):
        raise UsageError(f"on_dead is {on_dead!r:.60}: give a function or a task of the DeadLetter")
    if isinstance(aliases, str):
        raise UsageError(f"aliases is {aliases!r}: give a list of names")
    runs_in = choices.get("runs_in")
    if runs_in not in {None, "thread", "process"}:
        raise UsageError(f'runs_in is {runs_in!r}, it must be "thread", "process" or left out')
    if runs_in == "process":
        check_importable(fn)


def _limit(choices: TaskChoices, name: Literal["timeout", "soft_timeout"]) -> float | None:
    value = choices.get(name)
    return None if value is None else seconds(value, name)


def tasks_with(tasks: dict[str, Task[..., Any]], task: Task[..., Any]) -> dict[str, Task[..., Any]]:
    """Return the tasks of an app by all of their names, with one more or another form of one.

    Raises:
        UsageError: a name of it is taken by another function.
    """
    names = (task.name, *task.aliases)
    replaced: list[Task[..., Any]] = []
    for name in names:
        taken = tasks.get(name)
        if taken is None:
            continue
        if not (task.origin.is_line_of(taken.origin) or task.origin.is_rerun_of(taken.origin)):
            raise UsageError(
                f"the task name {name!r} is taken by {taken.fn.__module__}."
                f"{taken.fn.__qualname__}: give one of the two another with name="
            )
        replaced.append(taken)
    # Jobs may wait under a name that its new form has no more.
    renewed = [name for name, known in tasks.items() if known in replaced]
    return tasks | dict.fromkeys((*renewed, *names), task)
