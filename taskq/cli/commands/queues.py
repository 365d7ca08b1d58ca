"""Commands that pause and resume queues, edit waiting jobs, signal and cancel jobs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import taskq.cli.render as render
from taskq import errors, text, values, views
from taskq.cli import many, options
from taskq.cli.errors import WrongUsage

if TYPE_CHECKING:
    from taskq import JobHandle, TaskQ


_paused_tasks_option = click.option(
    "--task", "tasks", multiple=True, metavar="NAME", help="A task, of all queues; repeatable."
)


@click.command()
@click.argument("queues", nargs=-1, metavar="QUEUE...")
@_paused_tasks_option
@options.data_dir_option
@options.json_option
def pause(
    queues: tuple[str, ...], tasks: tuple[str, ...], data_dir: Path | None, as_json: bool
) -> None:
    """Let no worker claim from these queues, or of these tasks, until they are resumed.

    Jobs can still be enqueued, and running jobs go on. It holds across restarts.
    """
    _set_paused(queues, tasks, data_dir, as_json, paused=True)


@click.command()
@click.argument("queues", nargs=-1, metavar="QUEUE...")
@_paused_tasks_option
@options.data_dir_option
@options.json_option
def resume(
    queues: tuple[str, ...], tasks: tuple[str, ...], data_dir: Path | None, as_json: bool
) -> None:
    """Let workers claim from these queues, or of these tasks, again."""
    _set_paused(queues, tasks, data_dir, as_json, paused=False)


def _set_paused(
    queues: tuple[str, ...],
    tasks: tuple[str, ...],
    data_dir: Path | None,
    as_json: bool,
    *,
    paused: bool,
) -> None:
    from taskq.values import check_name  # noqa: PLC0415 - help must not import the log

    if not (queues or tasks):
        raise WrongUsage("name a queue, or a task with --task")
    for queue in queues:
        check_name("queue name", queue)
    for task in tasks:
        check_name("task name", task)

    async def work(app: TaskQ) -> list[tuple[str, str, bool]]:
        act = app.pause if paused else app.resume
        done = [("queue", queue, await act(queue)) for queue in queues]
        return done + [("task", task, await act(task=task)) for task in tasks]

    changed = many.with_app(data_dir, work, queues=queues, tasks=tasks)
    if as_json:
        render.print_json(
            [{kind: name, "paused": paused, "changed": new} for kind, name, new in changed]
        )
        return
    state = "paused" if paused else "resumed"
    already = "was paused already" if paused else "was not paused"
    for _, name, new in changed:
        render.echo(f"{text.flat(name)}: {state if new else already}")


@click.command()
@click.argument("task")
@click.option("-c", "--concurrency", type=int, help="Jobs that run at a time; 0 for no limit.")
@click.option("-r", "--rate", metavar="RATE", help='Starts in a time: "10/s", "100/min"; "none".')
@click.option("--reset", is_flag=True, help="Let the limits of the code hold again.")
@options.data_dir_option
@options.json_option
def limit(
    task: str,
    concurrency: int | None,
    rate: str | None,
    reset: bool,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Limit a task at once in all processes, in place of the limits in its code.

    It holds until the next call, across restarts; for an option left out the code's limit holds.
    """
    if reset == (concurrency is not None or rate is not None):
        raise WrongUsage("give --concurrency or --rate, or --reset alone")
    changed = many.with_app(
        data_dir, lambda app: app.limit(task, concurrency=concurrency, rate=rate), tasks=[task]
    )
    parts = [f"concurrency {concurrency or 'none'}"] if concurrency is not None else []
    parts += [f"rate {rate}"] if rate is not None else []
    state = ", ".join(parts) or "as its code says"
    line = f"{text.flat(task)}: {state}{'' if changed else ', as before'}"
    document = {"task": task, "concurrency": concurrency, "rate": rate, "changed": changed}
    render.print_outcome(document, line, as_json=as_json)


@click.command()
@click.argument("count", type=int, required=False)
@click.option("--worker", type=int, metavar="PID", help="One worker alone; else all of them.")
@click.option("--reset", is_flag=True, help="As they were started.")
@options.data_dir_option
@options.json_option
def slots(
    count: int | None, worker: int | None, reset: bool, data_dir: Path | None, as_json: bool
) -> None:
    """Let each worker run COUNT jobs at a time from now on, also workers that start later.

    Fewer slots end no job: a slot leaves once its job is over.
    """
    if reset == (count is not None):
        raise WrongUsage("give a number of slots, or --reset")
    changed = many.with_app(data_dir, lambda app: app.set_slots(count, worker=worker))
    which = "each worker" if worker is None else f"worker {worker}"
    state = "as it was started" if count is None else render.count_of(count, "slot")
    line = f"{which}: {state}{'' if changed else ', as before'}"
    document = {"slots": count, "worker": worker, "changed": changed}
    render.print_outcome(document, line, as_json=as_json)


@click.command()
@click.argument("job_id")
@click.argument("name")
@click.argument("value", default="null", metavar="[JSON]")
@click.option("--once", default="", metavar="TEXT", help="The job takes one signal of this text.")
@options.data_dir_option
@options.json_option
def signal(
    job_id: str, name: str, value: str, once: str, data_dir: Path | None, as_json: bool
) -> None:
    """Send a job a signal: durable.event(NAME) in it returns the value.

    The job need not wait for it yet. Text is JSON, too: '"paid"'.
    """
    try:
        told_value = values.parse_json(value, parse_constant=values.refuse_constant)
    except ValueError as error:
        raise WrongUsage(f"{value!r:.60} is no JSON ({error}); a text is '\"text\"'") from None

    new = many.with_app(data_dir, lambda app: app.signal(job_id, name, told_value, once=once))
    document = {"job_id": job_id, "signal": name, "new": new}
    line = f"{text.flat(job_id)}: {'signalled' if new else 'had that already'}"
    render.print_outcome(document, line, as_json=as_json)


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID]...")
@options.data_dir_option
@options.json_option
@options.queue_option
@options.task_option
@click.option("-s", "--state", type=click.Choice(["scheduled", "ready"]), help="Only these.")
@options.before_option
@options.limit_option
@options.dry_run_option
@options.yes_option
@click.pass_context
def cancel(
    context: click.Context,
    /,
    job_ids: tuple[str, ...],
    data_dir: Path | None,
    as_json: bool,
    before: str | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    **chosen: Any,
) -> None:
    """Cancel jobs: by id, also while they run; or waiting jobs by a filter.

    The worker of a running job stops it within moments, and it does not run again. Filters leave
    running jobs alone.
    """
    filters = {**chosen, "before": options.moment_of("--before", before)}
    is_filtered = any(value is not None for value in filters.values())
    if bool(job_ids) == is_filtered:
        raise WrongUsage(
            "name job ids, or choose jobs with --queue, --task, --state or --before; "
            "see taskq cancel --help"
        )
    if job_ids:
        if dry_run or limit is not None:
            raise WrongUsage("--dry-run and --limit are for filters, not for job ids")
        swept = many.with_app(data_dir, lambda app: _cancel_each(app, job_ids))
    else:

        async def act(app: TaskQ, dry: bool) -> views.Swept:
            return await app.cancel_many(limit=limit, dry_run=dry, **filters)

        swept = many.sweep(data_dir, act, "Cancel {jobs}?", dry_run=dry_run, yes=yes)
    many.print_swept(swept, "cancelled", dry_run=dry_run, as_json=as_json)
    many.exit_if_refused(context, swept)


@click.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
@options.data_dir_option
@options.json_option
@click.option("--run-now", is_flag=True, help="Ready at once, without any delay.")
@click.option("--delay", help='Due after this time, for example "30s" or "2h".')
@click.option("--eta", help="Due then: a time; without a zone it is local.")
@click.option("--priority", type=click.IntRange(0, values.PRIORITY_MAX), help="Higher first.")
@click.option("-Q", "--queue", help="Move it to this queue, and its key with it.")
@click.pass_context
def edit(
    context: click.Context,
    /,
    job_ids: tuple[str, ...],
    data_dir: Path | None,
    as_json: bool,
    run_now: bool,
    delay: str | None,
    eta: str | None,
    priority: int | None,
    queue: str | None,
) -> None:
    """Change due time, priority or queue of waiting jobs.

    Running and finished jobs are refused. Payload, key, expiry and attempts stay as they are.
    """
    moment = None if eta is None else options.moment_of("--eta", eta)
    if isinstance(moment, str):
        raise WrongUsage(f'--eta {eta!r:.60}: give a time ("2024-05-01T12:00"), or use --delay')
    wish: dict[str, Any] = {
        "run_now": run_now,
        "delay": None if delay is None else options.span(delay),
        "eta": moment,
        "priority": priority,
        "queue": queue,
    }
    if all(value is None or value is False for value in wish.values()):
        raise WrongUsage("give at least one of --run-now, --delay, --eta, --priority and --queue")
    swept = many.with_app(data_dir, lambda app: _edit_each(app, job_ids, wish))
    many.print_swept(swept, "edited", dry_run=False, as_json=as_json)
    many.exit_if_refused(context, swept)


async def _edit_each(app: TaskQ, job_ids: tuple[str, ...], wish: dict[str, Any]) -> views.Swept:
    async def edit(job_id: str) -> errors.TaskqError | None:
        try:
            await app.edit(job_id, **wish)
        except errors.UsageError:
            raise
        except errors.TaskqError as error:
            return error
        return None

    return await _each(job_ids, edit)


async def _cancel_each(app: TaskQ, job_ids: tuple[str, ...]) -> views.Swept:
    async def cancel(job: JobHandle[Any]) -> errors.TaskqError | None:
        try:
            if await job.cancel():
                return None
            state = str(await job.status())
        except errors.JobNotFound as error:
            return error
        return errors.TaskqError(f"job {job.id} is {state}: it is too late to cancel it")

    jobs = {job_id: app.job(job_id) for job_id in job_ids}  # refuse a wrong id before any change
    return await _each(job_ids, lambda job_id: cancel(jobs[job_id]))


async def _each(
    job_ids: Iterable[str], act: Callable[[str], Awaitable[errors.TaskqError | None]]
) -> views.Swept:
    from taskq.views import Swept  # noqa: PLC0415

    answers = [(job_id, await act(job_id)) for job_id in job_ids]
    refused = {job_id: error for job_id, error in answers if error is not None}
    return Swept(count=len(answers) - len(refused), refused_count=len(refused), refused=refused)


_DONE = {
    "pause": "paused", "resume": "resumed", "reset": "counts from now", "forget": "forgotten",
    "remove": "removed",
}  # fmt: skip
_ALREADY = {"pause": "was paused already", "resume": "was not paused"}


@click.group(invoke_without_command=True)
@options.data_dir_option
@options.json_option
@options.utc_option
@click.pass_context
def schedules(context: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """List the schedules, or add, remove, pause, resume, reset and forget one.

    The log knows a schedule of the code once a worker with it was started, and an added one at
    once. Every command takes -d/--data-dir.
    """
    if context.invoked_subcommand is None:
        context.invoke(ls, data_dir=data_dir, as_json=as_json)


@schedules.command("ls")
@options.log_argument
@options.json_option
@click.option(
    "-n", "--next", "count", type=click.IntRange(0, 1_000), default=3, show_default=True,
    help="Moments to come that are shown of each.",
)  # fmt: skip
@options.over_shards
def ls(data_dir: Path | None, as_json: bool, count: int) -> None:
    """List the schedules: task, rule, last tick and next ones."""
    from taskq.reading.status import LogStatus  # noqa: PLC0415 - help must not import the log

    with options.open_reader(data_dir) as reader:
        views = LogStatus(reader).next_ticks(count)
    render.print_list(
        views,
        lambda view: view.as_dict(),
        ("NAME~", "RULE", "ZONE??", "TASK~??", "LAST TICK???", "NEXT~", "STATE"),
        lambda view: (
            view.name,
            view.rule,
            view.tz,
            view.task,
            _time(view.last_tick),
            ", ".join(_time(moment) for moment in view.next_ticks),
            "paused" if view.paused else "active",
        ),
        nothing="This log knows no schedule: it does once a worker with one was started.",
        as_json=as_json,
    )


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else render.local(moment).strftime("%Y-%m-%d %H:%M:%S%z")


def _command(action: str, says: str) -> click.Command:
    @schedules.command(action, help=says)
    @click.argument("name")
    @options.data_dir_option
    @options.json_option
    def act(name: str, data_dir: Path | None, as_json: bool) -> None:
        changed = many.with_app(data_dir, lambda app: getattr(app.schedules, action)(name))
        document = {"name": name, "action": action, "changed": changed}
        line = f"{text.flat(name)}: {_DONE[action] if changed else _ALREADY[action]}"
        render.print_outcome(document, line, as_json=as_json)

    return act


@schedules.command("add")
@click.argument("name")
@click.argument("task")
@click.argument("arguments", default="{}", metavar="[JSON]")
@click.option("--every", metavar="SPAN", help='An interval, such as "10m".')
@click.option("--cron", metavar="EXPRESSION", help='Five fields, such as "0 4 * * *".')
@click.option("--tz", default="UTC", show_default=True, help="Time zone of --cron.")
@click.option("-Q", "--queue", help="Name of the queue.  [default: default]")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "last", "all"]),
    default="last",
    show_default=True,
    help="Which ticks to make up for if no worker ran.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    default="allow",
    show_default=True,
    help="While the job of an earlier tick waits or runs.",
)
@options.data_dir_option
@options.json_option
def add_schedule(
    name: str,
    task: str,
    arguments: str,
    data_dir: Path | None,
    as_json: bool,
    every: str | None,
    cron: str | None,
    tz: str,
    queue: str | None,
    **choices: Any,
) -> None:
    """Enqueue a call of TASK by the clock from now on, whichever worker ticks.

    The JSON holds its arguments by name. A schedule that was added before is replaced.
    """
    from taskq.cli.commands.put import task_call  # noqa: PLC0415 - help must not import the log

    async def work(app: TaskQ) -> None:
        call = task_call(app, task, arguments.encode("utf-8", "surrogateescape"))
        if queue is not None:
            call = call.options(queue=queue)
        span = None if every is None else options.span(every)
        await app.schedules.add(name, call, cron=cron, every=span, tz=tz, **choices)

    many.with_app(data_dir, work, tasks=[task])
    document = {"name": name, "action": "add", "changed": True}
    render.print_outcome(document, f"{text.flat(name)}: added", as_json=as_json)


for _action, _says in (
    ("remove", "Take away NAME, which was added at run time."),
    ("pause", "Let NAME tick no more, in any process, until it is resumed."),
    ("resume", "Let NAME tick again; what it missed is not made up for."),
    ("reset", "Let NAME count from now, if it waits because the clock was wrong."),
    ("forget", "Forget NAME, which the code has no more; a worker that has it brings it back."),
):
    _command(_action, _says)


@click.group(invoke_without_command=True)
@options.data_dir_option
@options.json_option
@click.pass_context
def sources(context: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """List the sources that jobs were ingested from and where they stand, or forget one.

    A program moves a source with app.ingest(). Every command takes -d/--data-dir.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_sources, data_dir=data_dir, as_json=as_json)


@sources.command("ls")
@options.log_argument
@options.json_option
@options.over_shards
def list_sources(data_dir: Path | None, as_json: bool) -> None:
    """List the sources: name, when it moved last, position."""
    with options.open_reader(data_dir) as reader:
        views = reader.sources()
    render.print_list(
        views,
        lambda view: view.as_dict(),
        ("NAME~", "MOVED", "POSITION~"),
        lambda view: (view.name, _time(view.moved), json.dumps(view.position)),
        nothing="No source was ingested into this log.",
        as_json=as_json,
    )


@sources.command("forget")
@click.argument("name")
@options.data_dir_option
@options.json_option
def forget_source(name: str, data_dir: Path | None, as_json: bool) -> None:
    """Forget where NAME stands: a program that ingests it begins at its start again."""
    if not many.with_app(data_dir, lambda app: app.forget_source(name)):
        listed = text.flat(values.command(str(options.resolve(data_dir)), "sources"))
        raise WrongUsage(f"this log knows no source {name!r}: they are listed by: {listed}")
    document = {"name": name, "forgotten": True}
    render.print_outcome(document, f"{text.flat(name)}: forgotten", as_json=as_json)
