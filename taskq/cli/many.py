"""Helpers of commands for many jobs: filters, confirmation, report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import taskq.cli.render as render
from taskq import text, values, views
from taskq.cli import errors, options
from taskq.errors import TaskqError

if TYPE_CHECKING:
    from taskq import TaskQ

Answer = TypeVar("Answer")

#: Most refusals that are shown one by one; further ones are counted.
_SHOWN_MAX: Final = 20


def with_app(
    data_dir: Path | None,
    work: Callable[[TaskQ], Awaitable[Answer]],
    *,
    queues: Iterable[str] = (),
    tasks: Iterable[str] = (),
) -> Answer:
    """Return the result of ``work`` on the existing log of a directory, or on its shards.

    Warn of queues and tasks without any job: such a name may be mistyped.
    """
    strange = list(_strange(options.resolve(data_dir), queues, tasks)) if queues or tasks else []

    async def run() -> Answer:
        async with _app_of(data_dir) as app:  # the app may keep more than the reader knows of
            with app.acting(f"{render.person()} (taskq)"):
                return await work(app)

    answer = asyncio.run(run())
    for line in strange:
        render.echo(line, err=True)
    return answer


def _strange(root: Path, queues: Iterable[str], tasks: Iterable[str]) -> Iterator[str]:
    from taskq.engine import LogReader  # noqa: PLC0415 - help must not import the log
    from taskq.reading.status import LogStatus  # noqa: PLC0415 - likewise

    known = {"queue": set[str](), "task": set[str]()}
    for path in options.logs_below(root):
        if not (path / "taskq.json").is_file():
            continue
        with LogReader.open(str(path)) as reader:
            status = LogStatus(reader)
            known["queue"].update(queue.queue for queue in status.stats.queues)
            known["task"].update(task for _, task in reader.lanes())
            known["task"].update(schedule.task for schedule in status.next_ticks(0))
            known["task"].update(name.removeprefix("task:") for name in status.controls)
            for _, serving in status.serving:
                known["queue"].update(serving.queues or ())
                known["task"].update(serving.tasks or ())
    for what, name in [("queue", it) for it in queues] + [("task", it) for it in tasks]:
        if name not in known[what]:
            near = values.nearest(name, known[what])
            hint = f": did you mean {near!r}?" if near else ""
            yield f"taskq: nothing in this log has the {what} {text.flat(repr(name))} yet{hint}"


def _app_of(data_dir: Path | None) -> TaskQ:
    root = options.resolve(data_dir)
    is_sharded = options.logs_below(root) != [root]
    if not is_sharded:
        options.open_reader(data_dir, warns=False).close()
    from taskq import TaskQ  # noqa: PLC0415 - loads pydantic, which help must not

    if not is_sharded:
        return TaskQ(data_dir, upkeep=False)
    from taskq import Shards  # noqa: PLC0415 - likewise

    app = TaskQ(root, shards=Shards.of(root), upkeep=False)
    try:
        options.refuse_shards(root)
    except errors.Failure as error:  # refuse options for one log, like commands that only read
        app.connection.refusal = str(error)
    return app


def sweep(
    data_dir: Path | None,
    act: Callable[[TaskQ, bool], Awaitable[views.Swept]],
    question: str,
    *,
    dry_run: bool,
    yes: bool,
) -> views.Swept:
    """Return the result of ``act``, once a person has confirmed the number of jobs.

    Args:
        data_dir: of the log.
        act: called with the app, and whether to change nothing.
        question: a text with ``{jobs}`` in it.
        dry_run: change nothing.
        yes: do not ask.

    Raises:
        WrongUsage: stdin is no terminal, so no person can be asked.
    """
    if not dry_run and not yes:
        if not _is_asked():
            raise errors.WrongUsage(
                "there is nobody to ask here: add --yes, or look first with --dry-run"
            )
        fitting = with_app(data_dir, lambda app: act(app, True))
        if not fitting.count:
            return fitting
        click.confirm(question.format(jobs=render.count_of(fitting.count)), abort=True)
    return with_app(data_dir, lambda app: act(app, dry_run))


def _is_asked() -> bool:
    return sys.stdin.isatty()


def print_swept(
    swept: views.Swept, verb: str, *, dry_run: bool, as_json: bool, noun: str = "job"
) -> None:
    if as_json:
        document: dict[str, Any] = {
            "dry_run": dry_run,
            verb: swept.count,
            "running": swept.running,
            "refused": swept.refused_count,
            "errors": [{"id": job, "error": str(error)} for job, error in swept.refused.items()],
        }
        render.print_json(document)
        return
    render.echo(f"{'would have ' if dry_run else ''}{verb} {render.count_of(swept.count, noun)}")
    if swept.running:
        render.echo(f"{render.count_of(swept.running)} that run now stay as they are")
    print_refused(swept.refused, swept.refused_count)


def print_refused(refused: Mapping[str, TaskqError], count: int) -> None:
    for error in list(refused.values())[:_SHOWN_MAX]:
        render.echo(f"taskq: {text.flat(str(error))}", err=True)
    if count > _SHOWN_MAX:
        render.echo(f"taskq: and {count - _SHOWN_MAX} more", err=True)


def exit_if_refused(context: click.Context, swept: views.Swept) -> None:
    if swept.refused_count:
        context.exit(errors.EXIT_FAILED)
