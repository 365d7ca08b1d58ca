"""``taskq dead``: look at dead letters, give them another try, or forget them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import taskq.cli.render as render
import taskq.views as documents
from taskq import State, values
from taskq.cli import errors, many, options

if TYPE_CHECKING:
    from taskq.reading.dead import DeadFilters

_LIMIT_DEFAULT: Final = 20


@click.group()
def dead() -> None:
    """Look at dead letters, give them another try, or forget them.

    These are jobs that used up their attempts or were rejected. Every command takes -d/--data-dir
    and --json.
    """


_filter_options = options.together(
    options.queue_option,
    options.task_option,
    click.option("--error", help="Only those whose reason holds this text."),
    click.option("--match", help="Only those whose reason this regular expression finds."),
    click.option("--since", metavar="MOMENT", help='Died then or later: "2h" ago, or a time.'),
    click.option("--before", metavar="MOMENT", help="Died before then."),
)
_many_options = options.together(
    click.argument("job_ids", nargs=-1, metavar="[JOB_ID]..."),
    options.data_dir_option,
    options.json_option,
    _filter_options,
    options.limit_option,
    click.option("--all", "everything", is_flag=True, help="Every dead letter there is."),
    options.dry_run_option,
    options.yes_option,
)


@dead.command("ls")
@options.log_argument
@options.json_option
@_filter_options
@options.newest_option(_LIMIT_DEFAULT)
@options.over_shards
def ls(data_dir: Path | None, as_json: bool, limit: int, **filters: str | None) -> None:
    """List dead letters with their reasons, the latest death first."""
    from taskq.reading.dead import dead_filter  # noqa: PLC0415 - help must not import the log

    wanted = dead_filter(_filters(filters))
    with options.open_reader(data_dir) as reader:
        jobs = reader.dead(wanted, limit)
    now_ns = time.time_ns()
    render.print_list(
        jobs,
        documents.job_head,
        ("ID", "QUEUE~?", "TASK~", ">ATTEMPT??", ">SETTLED?", "REASON~"),
        lambda job: (
            job.job_id,
            job.queue,
            job.task or "-",
            render.attempts(job),
            render.when(job.settled_ns, now_ns),
            job.reason.partition("\n")[0],
        ),
        nothing="No dead letter matches." if any(filters.values()) else "No dead letters.",
        as_json=as_json,
    )


@dead.command("show")
@click.argument("job_id")
@options.data_dir_option
@options.json_option
@options.over_shards
def show(job_id: str, data_dir: Path | None, as_json: bool) -> None:
    """Show everything about one dead letter: its attempts, reason and payload."""
    from taskq.cli.commands.jobs import show_job  # noqa: PLC0415 - help must not import the log
    from taskq.reading.status import JobStatus  # noqa: PLC0415 - as above

    with options.open_reader(data_dir) as reader:
        status = JobStatus(reader, job_id)
        if status.view.state is not State.DEAD:
            listed = values.command(reader.journal.path, "dead", "ls")
            raise errors.Failure(
                f"job {job_id} is no dead letter: it is {status.view.state}; they are listed by: "
                f"{listed}"
            )
        if as_json:
            render.print_json(status.as_dict())
        else:
            show_job(status.job, reader.now_ns)


@dead.command("requeue")
@_many_options
@click.pass_context
def requeue(context: click.Context, /, **chosen: Any) -> None:
    """Make dead letters ready again: by id, by a filter, or --all.

    They keep id, payload and options; attempts count from 0 again, and they do not expire.
    """
    _act(context, "requeue", **chosen)


@dead.command("purge")
@_many_options
@click.pass_context
def purge(context: click.Context, /, **chosen: Any) -> None:
    """Delete dead letters for good: by id, by a filter, or --all."""
    _act(context, "purge", **chosen)


def _act(
    context: click.Context,
    verb: str,
    *,
    job_ids: tuple[str, ...],
    data_dir: Path | None,
    as_json: bool,
    limit: int | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    **filters: str | None,
) -> None:
    is_filtered = any(value is not None for value in filters.values())
    if bool(job_ids) + is_filtered + everything != 1:
        raise errors.WrongUsage(
            f"name job ids, or choose dead letters with --queue, --task, --error, --match, --since "
            f"or --before, or say --all; see taskq dead {verb} --help"
        )
    if job_ids and (dry_run or limit is not None):
        raise errors.WrongUsage("--dry-run and --limit are for filters and --all, not for job ids")
    wanted = _filters(filters)
    if job_ids:
        swept = many.with_app(data_dir, lambda app: getattr(app.dead, f"{verb}_many")(job_ids))
    else:
        swept = many.sweep(
            data_dir,
            lambda app, dry: getattr(app.dead, f"{verb}_all")(limit=limit, dry_run=dry, **wanted),
            f"{verb.capitalize()} {{jobs}}?",
            dry_run=dry_run,
            yes=yes,
        )
    many.print_swept(swept, f"{verb}d", dry_run=dry_run, as_json=as_json, noun="dead letter")
    many.exit_if_refused(context, swept)


def _filters(given: dict[str, str | None]) -> DeadFilters:
    error, match = given["error"], given["match"]
    if error is not None and match is not None:
        raise errors.WrongUsage("give either --error or --match")
    try:
        pattern = None if match is None else re.compile(match)
    except re.error as problem:
        raise errors.WrongUsage(
            f"--match {match!r:.60} is no regular expression: {problem}"
        ) from None
    return {
        "queue": given["queue"],
        "task": given["task"],
        "error": error if pattern is None else pattern,
        "since": options.moment_of("--since", given["since"]),
        "before": options.moment_of("--before", given["before"]),
    }
