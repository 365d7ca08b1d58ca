"""Commands that read the log in order: tail shows records, replay enqueues past jobs again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import sys
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import taskq.cli.render as render
import taskq.views as documents
from taskq import engine, text, values
from taskq.cli import errors, many, options

if TYPE_CHECKING:
    from taskq import Record, TaskQ

_COUNT_DEFAULT: Final = 20
_COUNT_MAX: Final = 100_000
_KIND_COLUMNS: Final = 9
_POLLERR: Final[int] = getattr(select, "POLLERR", 0)
_STATES: Final = ("succeeded", "dead", "cancelled", "expired")


@click.command()
@options.log_argument
@click.option("-f", "--follow", is_flag=True, help="Follow new records until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, _COUNT_MAX),
    help=f"Number of records: the latest ({_COUNT_DEFAULT}); with --reader at most this number.",
)
@click.option(
    "--reader", metavar="NAME", help="Go on where this named reader stopped, and move it along."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([row.name for row in engine.kinds.ROWS.values()]),
    help="Only these records.",
)
@click.option("-Q", "--queue", "queues", multiple=True, help="Only jobs of these queues.")
@click.option("-t", "--task", "tasks", multiple=True, help="Only jobs of these tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@options.utc_option
@options.over_shards
def tail(
    data_dir: Path | None,
    follow: bool,
    lines: int | None,
    reader: str | None,
    as_json: bool,
    **chosen: tuple[str, ...],
) -> None:
    """Show the latest records of the log, then new ones.

    Without --reader nothing is locked or written, and records show up before they are durable.
    """
    from taskq.reading.record import Choice  # noqa: PLC0415 - help must not import the log

    given: dict[str, Any] = {name: names or None for name, names in chosen.items()}
    show = (lambda record: render.echo(json.dumps(record.as_dict()))) if as_json else _show
    if render.on_terminal() and not as_json:
        render.echo(f"times in {render.zone()}", err=True)
    if reader is None:
        options.open_reader(data_dir).close()
        from taskq.reading.stream import look_at_records  # noqa: PLC0415 - likewise

        path = str(options.resolve(data_dir))
        shown = look_at_records(
            path,
            _COUNT_DEFAULT if lines is None else lines,
            Choice(**given, name_all=True),
            follow=follow,
            # A line for people shows no body.
            body_bytes_max=values.PAYLOAD_BYTES_MAX if as_json else 0,
            on_pause=_Pipe().check,
            on_damage=lambda: options.warn_of_damage(path),
        )
        asyncio.run(_look(shown, show))
    else:
        from taskq import TaskQ  # noqa: PLC0415 - loads pydantic

        options.open_reader(data_dir, warns=False).close()
        asyncio.run(_read(TaskQ(data_dir, upkeep=False), reader, lines, given, follow, show))


async def _look(shown: AsyncGenerator[Record, None], show: Any) -> None:
    async with contextlib.aclosing(shown) as records:
        async for record in records:
            show(record)


async def _read(
    app: TaskQ, reader: str, count: int | None, chosen: dict[str, Any], follow: bool, show: Any
) -> None:
    stream = app.stream(reader=reader, follow=follow, **chosen, name_all=True)
    async with app, stream as records:
        left = count
        while left is None or left > 0:
            record = await anext(records, None)
            if record is None:
                return
            show(record)
            left = None if left is None else left - 1
        await records.commit()


class _Pipe:
    """Notices when the reader of the output ends, even while there is nothing to print."""

    def __init__(self) -> None:
        # A standard output that is no file (in tests) never ends; a system without poll notices the
        # end at the next line.
        poll: Any = getattr(select, "poll", None)
        self._poll = poll and poll()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._poll.register(sys.stdout.fileno(), 0)

    def check(self) -> None:
        if self._poll and any(event & _POLLERR for _, event in self._poll.poll(0)):
            raise BrokenPipeError


def _show(record: Record) -> None:
    names = [record.job_id, record.queue, record.task]
    if render.on_terminal():
        time = render.moment(record.time_ns, "seconds")[5:]
    else:  # a line of a file contains its zone
        time = render.local(record.time).isoformat()
    words = [time, f"{record.kind:<{_KIND_COLUMNS}}"]
    words += [name for name in names if name]
    note = _note(record)
    line = "  ".join(words) + (f"  {note}" if note else "")
    render.echo(render.cut_line(text.printable(line.replace("\n", " "))))


def _note(record: Record) -> str:
    """Return further facts about a record, in a few words."""
    parts: list[str] = []
    if record.kind in ("claimed", "retried", "dead"):
        parts.append(f"attempt {record.attempt}")
    if record.owner:
        parts.append(f"by {documents.owner(record.owner)}")
    if record.lease_ns:
        parts.append(f"for {render.duration(record.lease_ns - record.time_ns)}")
    if record.kind in ("ticked", "steered"):
        parts.append(", ".join(record.headers.values()))
    if record.kind == "steered":
        parts.append((record.payload or b"").decode() or "as before")
    if record.due_ns > record.time_ns:
        parts.append(render.due(record.due_ns, record.time_ns))
    if record.state:
        parts.append(f"as {record.state}")
    if record.step_ns:
        parts.append(f"the clock was set {'forward' if record.step_ns > 0 else 'back'} by ")
        parts[-1] += render.precise(abs(record.step_ns))
    reason = record.reason.partition("\n")[0]
    return ": ".join(part for part in (", ".join(parts), reason) if part)


@click.command()
@click.argument("job_id", required=False)
@options.data_dir_option
@options.json_option
@options.since_option
@options.before_option
@options.task_option
@options.queue_option
@options.states_option(_STATES)
@options.limit_option
@click.option("--from-step", metavar="NAME#N", help="Keep the steps of JOB_ID before this step.")
@click.option("--all", "everything", is_flag=True, help="Every job there ever was.")
@click.option("--dry-run", is_flag=True, help="Show which, and enqueue nothing.")
@click.pass_context
def replay(
    context: click.Context,
    /,
    job_id: str | None,
    data_dir: Path | None,
    as_json: bool,
    since: str | None,
    before: str | None,
    states: tuple[str, ...],
    from_step: str | None,
    everything: bool,
    dry_run: bool,
    **chosen: Any,
) -> None:
    """Enqueue jobs that are over once more, each with a header replay_of.

    The old jobs stay as they are. To give dead letters another try, requeue them instead.
    With --from-step the new job has the steps of JOB_ID that were done before that one.
    """
    from taskq import TaskQ  # noqa: PLC0415 - loads pydantic, which help must not

    choices = (since, before, states or None, chosen["task"], chosen["queue"], everything or None)
    _check_choice(job_id, from_step, any(choice is not None for choice in choices))
    jobs: list[documents.Replayed] = []

    def note(job: documents.Replayed) -> None:
        jobs.append(job)
        if not as_json:
            _show_replayed(job)

    chosen["since"] = options.moment_of("--since", since)
    chosen["before"] = options.moment_of("--before", before)
    options.open_reader(data_dir, warns=dry_run).close()
    app = TaskQ(data_dir, upkeep=False)  # a dry run does not open it further
    try:
        if job_id is not None:
            note(_replay_job(app, job_id, from_step, dry_run))
        else:
            app.replay_sync(
                **chosen, state=states or None, dry_run=dry_run, everything=True, on_job=note
            )
    finally:
        app.close_sync()
    failed = sum(bool(job.problem) for job in jobs)
    count = len(jobs) - failed
    if as_json:
        shown = [_replayed_json(job) for job in jobs]
        render.print_json({"dry_run": dry_run, "count": count, "problems": failed, "jobs": shown})
    else:
        verb = "would replay" if dry_run else "replayed"
        render.echo(f"{verb} {render.count_of(count)}" + (", enqueued nothing" * dry_run))
    if failed:
        context.exit(errors.EXIT_FAILED)


def _check_choice(job_id: str | None, from_step: str | None, is_chosen: bool) -> None:
    if job_id is None and (from_step is not None or not is_chosen):
        raise errors.WrongUsage(
            "choose a job by its id, or jobs with --since, --before, --task, --queue or --state; "
            "--all means every job there ever was"
        )
    if job_id is not None and is_chosen:
        raise errors.WrongUsage(f"choose job {job_id}, or jobs by their properties, not both")


def _replay_job(
    app: TaskQ, job_id: str, from_step: str | None, dry_run: bool
) -> documents.Replayed:
    from taskq.connection.blocking import run  # noqa: PLC0415 - as above
    from taskq.reading.replay import replay_job  # noqa: PLC0415

    return run(replay_job(app.connection, job_id, from_step, dry_run=dry_run))


def _show_replayed(job: documents.Replayed) -> None:
    new = f"-> {job.new_id}" if job.new_id else ""
    words = (job.job_id, new, job.state.name.lower(), job.queue, job.task)
    line = "  ".join(word for word in words if word)
    render.echo(text.flat(f"{line}  NOT replayed: {job.problem}" if job.problem else line))


def _replayed_json(job: documents.Replayed) -> dict[str, str | None]:
    return {
        "id": job.job_id,
        "new_id": job.new_id or None,
        "state": job.state.name.lower(),
        "queue": job.queue,
        "task": job.task or None,
        "problem": job.problem or None,
    }


# ``taskq reader``: named readers, moved and forgotten by hand.

_PLACES = ("start", "end")


@click.group()
def reader() -> None:
    """Look at the named readers of the log, move them or forget them.

    A name comes into being with taskq tail --reader, or stream(reader=...). What it has not read is
    kept for it. Every command takes -d/--data-dir.
    """


@reader.command("ls")
@options.log_argument
@options.json_option
@options.over_shards
def ls(data_dir: Path | None, as_json: bool) -> None:
    """List the named readers, and the lag of each."""
    from taskq.reading.stream import look_at_readers  # noqa: PLC0415 - help must not import the log

    with options.open_reader(data_dir) as log:
        readers = look_at_readers(log.path)
    render.print_list(
        readers,
        _view_json,
        ("NAME~", ">NEXT LSN?", ">BEHIND", ">BYTES?", "STATE", "PROBLEM~"),
        lambda view: (
            view.name,
            str(view.lsn),
            str(view.lag_records),
            render.size(view.lag_bytes),
            "reads" if view.alive else "idle",
            view.problem,
        ),
        nothing="Nobody reads this log under a name.",
        as_json=as_json,
    )


def _view_json(view: documents.ReaderView) -> dict[str, str | int | bool | None]:
    return {
        "name": view.name,
        "lsn": view.lsn,
        "lag_records": view.lag_records,
        "lag_bytes": view.lag_bytes,
        "alive": view.alive,
        "problem": view.problem or None,
    }


@reader.command("seek")
@click.argument("name")
@click.argument("place")
@options.data_dir_option
@options.json_option
def seek(name: str, place: str, data_dir: Path | None, as_json: bool) -> None:
    """Let NAME, or a new reader, go on at PLACE.

    PLACE is start (the oldest record that is kept), end (what is still to come), an lsn, a span
    back from now ("2h") or a time.
    """
    from taskq.engine import Moment  # noqa: PLC0415 - help must not import the log

    at = None if place in _PLACES else Moment.parse(place, time.time_ns(), "PLACE")

    async def work(app: TaskQ) -> int:
        if at is None:
            return await app.seek(name, "start" if place == "start" else "end")
        if at.time_ns is None:
            return await app.seek(name, lsn=at.lsn)
        return await app.seek(name, time=datetime.fromtimestamp(at.time_ns / values.SECOND_NS, UTC))

    lsn = many.with_app(data_dir, work)
    line = f"{text.flat(name)}: goes on at lsn {lsn}"
    render.print_outcome({"name": name, "lsn": lsn}, line, as_json=as_json)


@reader.command("forget")
@click.argument("name")
@options.data_dir_option
def forget(name: str, data_dir: Path | None) -> None:
    """Forget NAME: nothing is kept for it any more."""
    many.with_app(data_dir, lambda app: app.forget_reader(name))
    render.echo(f"{text.flat(name)}: forgotten")
