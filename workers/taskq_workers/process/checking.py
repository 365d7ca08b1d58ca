"""What ``taskq check module:app`` finds in an app, before a worker starts with it."""

from __future__ import annotations

import platform
from functools import partial
from typing import TYPE_CHECKING, Any

import taskq
from taskq import _native as native
from taskq.engine import LogReader, strays_of
from taskq.errors import LogError, TaskqError, UsageError
from taskq.views import Check, Serving
from taskq_workers.runs.lifespans import bound_names
from taskq_workers.runs.loader import load_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from taskq import Task, TaskQ


def check_app(
    target: str, include: Iterable[str], data_dir: Path | None
) -> tuple[TaskQ | None, list[Check]]:
    """Import an app as a worker would, and look at all that a worker would need of it.

    Returns:
        The app, None if it cannot be had; and what was looked at.
    """
    try:
        app = load_app(target, include)
    except UsageError as error:
        return None, [Check(name="app", ok=False, detail=str(error))]
    if data_dir is not None:
        app.data_dir = data_dir
    detail = f"{target} has its log in {app.data_dir}"
    return app, [
        Check(name="app", ok=True, detail=detail),
        _tasks(target, app),
        _schedules(app),
        _waiting(app),
    ]


def check_versions() -> Check:
    """Return what runs here."""
    detail = (
        f"taskq {taskq.__version__}, Python {platform.python_version()} on {platform.system()}, "
        f"plain jobs in {native.language()}"
    )
    return Check(name="versions", ok=True, detail=detail)


def _tasks(target: str, app: TaskQ) -> Check:
    tasks = list({id(task): task for task in app.tasks.values()}.values())
    if not tasks:
        detail = f"{target} has no task: name the modules that define some with -I"
        return Check(name="tasks", ok=False, detail=detail)
    summary = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
    return _outcome("tasks", summary, _problems(partial(_look_at, app, task) for task in tasks))


def _look_at(app: TaskQ, task: Task[..., Any]) -> None:
    """Raise what each of its jobs would meet."""
    task.check()
    injected = bound_names(task)
    if injected and not app.hooks.lifespans:
        raise UsageError(
            f"{task.name} takes {', '.join(injected)} from a lifespan, and the app has none: "
            f"add one with @app.lifespan"
        )


def _schedules(app: TaskQ) -> Check:
    planned = list(app.hooks.schedules.all.values())
    summary = f"{len(planned)} schedule{'' if len(planned) == 1 else 's'}"
    return _outcome("schedules", summary, _problems(schedule.enrolment for schedule in planned))


def _waiting(app: TaskQ) -> Check:
    """Return jobs that are ready, and that neither this app nor a worker that runs would take."""
    try:
        with LogReader.open(str(app.data_dir)) as reader:
            ready = reader.ready_jobs()
            serving = [
                serves for owner in reader.owners() if owner.alive for serves in owner.serves
            ]
    except LogError:  # there is none yet, or what is wrong with it is told elsewhere
        return Check(name="jobs", ok=True, detail="none wait")
    strays = strays_of(ready, [*serving, Serving(tasks=frozenset(app.tasks))]).told()
    count = sum(ready.values())
    detail = "; ".join(strays) or f"{count:,} wait, all for tasks that are known"
    return Check(name="jobs", ok=not strays, detail=detail)


def _problems(looks: Iterable[Callable[[], object]]) -> Iterator[str]:
    for look in looks:
        try:
            look()
        except (TaskqError, ValueError) as error:
            yield str(error)


def _outcome(name: str, summary: str, problems: Iterable[str]) -> Check:
    faults = list(problems)
    return Check(name=name, ok=not faults, detail="; ".join(faults) or summary)
