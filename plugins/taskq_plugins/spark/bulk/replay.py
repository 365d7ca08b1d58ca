"""``taskq pipeline replay --lake DIR --where SQL --to DIR``: past jobs once more, and no Java."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskq.cli import Failure, count_of, json_option, render, yes_option
from taskq_plugins.spark.bulk.telling import progress, tell_rest, where_to
from taskq_plugins.spark.lake.command import lake_option

if TYPE_CHECKING:
    from taskq_plugins.spark.bulk.past import Counted, PastJobs
    from taskq_plugins.spark.sink.uploads import Published

_SAMPLE_ROWS: Final = 10
_RUN_DIGITS: Final = 16
_PROBLEMS_SHOWN_MAX: Final = 20


@click.command()
@lake_option
@click.option("--where", required=True, metavar="SQL", help="Which rows of jobs, those over only.")
@where_to
@click.option("--run", "run_name", metavar="NAME", help="What is done once under a name only.")
@yes_option
@json_option
@click.pass_context
def replay(
    context: click.Context,
    /,
    lake_path: Path | str,
    where: str,
    data_dir: Path,
    run_name: str | None,
    no_adopt: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Enqueue past jobs of a lake once more, each with a header replay_of.

    Tells what would be done; --yes does it. A run is done once: its name is made from the lake and
    the condition unless --run gives another. The old jobs stay as they are. For example
    --where "state = 'dead' AND task = 'mail.send' AND settled_at > now() - INTERVAL 1 DAY".
    """
    from taskq.connection.uploads import check_upload_name  # noqa: PLC0415 - help needs no log
    from taskq_plugins.spark.bulk.past import past_jobs  # noqa: PLC0415 - loads duckdb
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - likewise pyarrow
    from taskq_plugins.spark.sink.uploads import upload  # noqa: PLC0415 - help needs no log

    run = check_upload_name(run_name, "run") if run_name else _run_of(lake_path, where)
    with past_jobs(Lake.open(lake_path), where) as past:
        chosen = past.counted(_SAMPLE_ROWS)
        if not yes:
            _tell_plan(chosen, _command(lake_path, where, data_dir, run), run, as_json=as_json)
            return
        with progress(chosen.jobs, "reading jobs") as advance:
            name, adopts = f"replay-{run}", not no_adopt
            done = upload(data_dir, name, past.entries(), adopts=adopts, on_rows=advance)
    _tell(chosen, past, done, run, as_json=as_json)
    if past.problem_count:
        context.exit(Failure.exit_code)


def _run_of(lake: Path | str, where: str) -> str:
    text = f"{lake if isinstance(lake, str) else lake.resolve()}\0{' '.join(where.split())}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_RUN_DIGITS]


def _command(lake: Path | str, where: str, data_dir: Path, run: str) -> str:
    words = ["--lake", str(lake), "--where", where, "--to", str(data_dir), "--run", run, "--yes"]
    return f"taskq pipeline replay {shlex.join(words)}"


def _tell_plan(chosen: Counted, command: str, run: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "dry_run": True,
                "run": run,
                "count": chosen.jobs,
                "states": chosen.over,
                "not_over": chosen.live,
                "jobs": chosen.sample.column("job_id").to_pylist(),
            }
        )
        return
    from taskq_plugins.spark.sql import print_rows  # noqa: PLC0415

    if not chosen.jobs:
        render.echo("no job that is over fits: nothing to replay")
    else:
        print_rows(chosen.sample)
        if chosen.jobs > chosen.sample.num_rows:
            render.echo(f"and {chosen.jobs - chosen.sample.num_rows} more")
        states = ", ".join(f"{count} {state}" for state, count in chosen.over.items())
        render.echo(f"would enqueue {count_of(chosen.jobs)} once more ({states}), enqueued nothing")
    _tell_live(chosen)
    if chosen.jobs:
        render.echo(f"to do it:\n  {command}")


def _tell_live(chosen: Counted) -> None:
    if chosen.live:
        render.echo(f"{count_of(chosen.live)} that fit are not over yet, and are left alone")


def _tell(chosen: Counted, past: PastJobs, done: Published, run: str, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "dry_run": False,
                "run": run,
                "count": done.jobs if done.is_new else 0,
                "done_before": bool(done.jobs) and not done.is_new,
                "problems": past.problem_count,
                "errors": [
                    {"id": problem.job_id, "error": problem.reason} for problem in past.problems
                ],
            }
        )
        return
    if not done.jobs:
        render.echo("no job that is over fits: enqueued nothing")
    elif done.is_new:
        render.echo(f"enqueued {count_of(done.jobs)} once more (run {run})")
        tell_rest(done)
    else:
        render.echo(f"run {run} was done before, so nothing was enqueued; name another with --run")
    _tell_live(chosen)
    for problem in past.problems[:_PROBLEMS_SHOWN_MAX]:
        render.echo(f"taskq: {problem.job_id}: {problem.reason}", err=True)
    if past.problem_count > _PROBLEMS_SHOWN_MAX:
        render.echo(f"taskq: and {past.problem_count - _PROBLEMS_SHOWN_MAX} more", err=True)
