"""``taskq check module:app``: problems of an app, found before a worker starts with it."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import taskq
import taskq._native as native
from taskq import Task, TaskQ, engine, errors
from taskq.views import WAITING_STATES, Check, JobView, Serving, Waiting
from taskq_workers.runs import lifespans, loader

#: Jobs of each queue and task whose arguments are checked, and most bytes of all these jobs.
_TRIED_MAX: Final = 200
_TRIED_BYTES_MAX: Final = 16 * 1024 * 1024


def check_app(
    target: str, include: Iterable[str], data_dir: Path | None
) -> tuple[TaskQ | None, list[Check]]:
    """Import an app like a worker, and check its tasks, schedules and waiting jobs.

    Returns:
        The app, None if it cannot be loaded; and the checks.
    """
    try:
        app = loader.load_app(target, include)
    except errors.UsageError as error:
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
    """Return the versions of taskq and Python, and the language of plain jobs."""
    detail = (
        f"taskq {taskq.__version__}, Python {platform.python_version()} on {platform.system()}, "
        f"plain jobs in {native.label()}"
    )
    return Check(name="versions", ok=True, detail=detail)


def _tasks(target: str, app: TaskQ) -> Check:
    tasks = list({id(task): task for task in app.tasks.values()}.values())
    if not tasks:
        detail = f"{target} has no task: name the modules that define some with -I"
        return Check(name="tasks", ok=False, detail=detail)
    summary = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
    return _outcome(
        "tasks", summary, _problems(functools.partial(_look_at, app, task) for task in tasks)
    )


def _look_at(app: TaskQ, task: Task[..., Any]) -> None:
    task.check()
    injected = lifespans.resource_parameters(task)
    if injected and not app.hooks.lifespans:
        raise errors.UsageError(
            f"{task.name} takes {', '.join(injected)} from a lifespan, and the app has none: "
            f"add one with @app.lifespan"
        )


def _schedules(app: TaskQ) -> Check:
    planned = list(app.hooks.schedules.all.values())
    summary = f"{len(planned)} schedule{'' if len(planned) == 1 else 's'}"
    return _outcome("schedules", summary, _problems(schedule.enrolment for schedule in planned))


def _waiting(app: TaskQ) -> Check:
    """Return waiting jobs that neither this app nor a running worker would take."""
    try:
        with engine.LogReader.open(str(app.data_dir)) as reader:
            waiting = reader.waiting_jobs()
            serving = [
                serves for owner in reader.owners() if owner.alive for serves in owner.serves
            ]
            tried, misfits = _try_arguments(app, reader, waiting)
    except errors.LogError:  # no log yet, or another check reports its problem
        return Check(name="jobs", ok=True, detail="none wait")
    faults = engine.strays_of(waiting, [*serving, Serving(tasks=frozenset(app.tasks))]).sentences()
    faults += misfits
    total = functools.reduce(Waiting.plus, waiting.values(), Waiting())
    known = f"{total.text() or 'none wait'}, all for tasks that are known"
    tries = f"the arguments of {tried:,} were tried" if tried else ""
    detail = "; ".join([*(faults or [known]), *filter(None, [tries])])
    return Check(name="jobs", ok=not faults, detail=detail)


def _try_arguments(
    app: TaskQ, reader: engine.LogReader, waiting: Mapping[tuple[str, str], Waiting]
) -> tuple[int, list[str]]:
    """Decode arguments of waiting jobs as a worker would: the oldest ready, and the newest jobs.

    Returns:
        The number of checked jobs, and a sentence for each task with jobs that do not fit.
    """
    jobs: dict[int, JobView] = {}
    tasks = {task for _, task in waiting} & set(app.tasks)
    for views in (
        *(reader.peek(_TRIED_MAX, queue) for queue in {queue for queue, _ in waiting}),
        *(reader.jobs(set(WAITING_STATES), None, task, _TRIED_MAX) for task in tasks),
    ):
        jobs |= {view.lsn: view for view in views if view.task in tasks}
    tried, left = 0, _TRIED_BYTES_MAX
    wrong: dict[str, list[tuple[str, str]]] = {}
    for view in jobs.values():
        if view.problem or view.payload_flags & engine.Flag.FLOW or len(view.payload) > left:
            continue  # the first argument of a step of a flow is the result of another job
        tried, left = tried + 1, left - len(view.payload)
        try:
            app.tasks[view.task].decode(view.payload)
        except (errors.TaskqError, ValueError) as error:
            wrong.setdefault(view.task, []).append((view.job_id, str(error)))
    return tried, [
        f"{len(faults):,} of the {tried:,} that were tried do not fit {task}, such as "
        f"{faults[0][0]}: {faults[0][1]}"
        for task, faults in wrong.items()
    ]


def _problems(looks: Iterable[Callable[[], object]]) -> Iterator[str]:
    for look in looks:
        try:
            look()
        except (errors.TaskqError, ValueError) as error:
            yield str(error)


def _outcome(name: str, summary: str, problems: Iterable[str]) -> Check:
    faults = list(problems)
    return Check(name=name, ok=not faults, detail="; ".join(faults) or summary)
