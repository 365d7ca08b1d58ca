"""Commands that show jobs and queues, without lock or writing, while workers run."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import taskq._native as native
import taskq.cli.render as render
import taskq.views as documents
from taskq import State, text, values
from taskq.cli import errors, options

if TYPE_CHECKING:
    from taskq import engine
    from taskq.reading.status import JobStatus

_LIMIT_DEFAULT: Final = 20
#: Most ids of a job's flow that are listed.
_NAMED_MAX: Final = 5


@click.command()
@options.log_argument
@options.json_option
@options.states_option(documents.STATES)
@options.queue_option
@options.task_option
@click.option(
    "-q",
    "--find",
    "query",
    default="",
    help="Only jobs that fit, as on the page: 'arg.to:ada header.tenant:=7 since:2h text'.",
)
@options.newest_option(_LIMIT_DEFAULT)
@options.at_option
@options.over_shards
def ls(
    data_dir: Path | None,
    as_json: bool,
    states: tuple[str, ...],
    queue: str | None,
    task: str | None,
    query: str,
    limit: int,
    at_text: str | None,
) -> None:
    """List the newest jobs, the newest first."""
    wanted = {documents.STATES[name] for name in states} or None
    with options.open_reader(data_dir, options.moment(at_text)) as reader:
        if query:
            jobs = _found(reader, query, wanted, queue, task, limit)
        else:
            jobs = reader.jobs(wanted, queue, task, limit)
        now_ns = reader.now_ns
    render.print_list(
        jobs,
        documents.job_head,
        ("ID", "STATE", "QUEUE~?", "TASK~", ">PRIO???", ">ATTEMPT??", ">ENQUEUED?", "NOTE~"),
        lambda job: (
            job.job_id,
            job.state.name.lower(),
            job.queue,
            job.task or "-",
            str(job.priority),
            render.attempts(job),
            render.when(job.enqueued_ns, now_ns),
            _note(job, now_ns),
        ),
        nothing="No job matches." if wanted or queue or task or query else "No jobs yet.",
        as_json=as_json,
    )


def _found(
    reader: engine.LogReader,
    query: str,
    states: set[State] | None,
    queue: str | None,
    task: str | None,
    limit: int,
) -> list[documents.JobView]:
    from taskq.reading.search import Search  # noqa: PLC0415 - help must not import it

    search = Search.parse(query, hides=False)
    # The log itself finds whole names; an option besides the query's own values is checked here.
    search = replace(
        search,
        queues=search.queues or ((f"={queue}",) if queue else ()),
        tasks=search.tasks or ((f"={task}",) if task else ()),
    )
    among = search.only(frozenset(states)) if states else search
    jobs, before = list[documents.JobView](), 0
    while among is not None and len(jobs) < limit:
        page = among.find(reader, limit - len(jobs), before)
        jobs += [
            job
            for job in page.jobs
            if job.queue == (queue or job.queue) and job.task == (task or job.task)
        ]
        before = page.following
        if not before:
            break
    return jobs


def _note(job: documents.JobView, now_ns: int) -> str:
    waits = job.state is State.SCHEDULED or job.due_ns >= values.TIME_NS_MAX
    due = render.due(job.due_ns, now_ns) if waits else ""
    reason = job.reason.partition("\n")[0]
    return ": ".join(part for part in (due, reason) if part)


@click.command()
@click.argument("job_id")
@options.data_dir_option
@options.json_option
@options.utc_option
@options.at_option
@options.latest_option("steps", 100)
@options.over_shards
def show(
    job_id: str, data_dir: Path | None, as_json: bool, at_text: str | None, count: int
) -> None:
    """Show everything about one job: its attempts, reason, payload, steps and result."""
    with options.open_reader(data_dir, options.moment(at_text)) as reader:
        status = _status(reader, job_id)
        if as_json:
            render.print_json(status.as_dict(count))
            return
        steps = status.steps[-count:]
        show_job(status.job, reader.now_ns, status.progress, status.flow, steps)
        if left := len(status.steps) - len(steps):
            render.echo(f"{left} earlier steps are not shown: -n 0 shows all")


def show_job(
    job: documents.JobView,
    now_ns: int,
    progress: documents.ProgressView | None = None,
    flow: Mapping[str, Sequence[str]] = {},
    steps: Sequence[engine.StepView] = (),
) -> None:
    """Print everything about a job, with its progress if it runs."""

    def at(moment_ns: int) -> str:
        text = render.moment(moment_ns)
        return f"{render.when(moment_ns, now_ns)} ({text})" if text else ""

    render.print_facts(
        [
            ("id", job.job_id),
            ("state", job.state.name.lower()),
            ("task", job.task),
            ("queue", job.queue),
            ("priority", str(job.priority)),
            ("attempt", render.attempts(job)),
            ("progress", render.progress(progress, now_ns)),
            ("enqueued", at(job.enqueued_ns)),
            ("due", at(job.due_ns % values.TIME_NS_MAX)),
            *(
                (name.replace("_", " "), values.listed(ids, _NAMED_MAX))
                for name, ids in flow.items()
            ),
            ("expires", at(job.expires_ns)),
            ("settled", at(job.settled_ns)),
            ("key", "" if job.key is None else job.key.decode(errors="backslashreplace")),
            *((f"header {name}", value) for name, value in job.headers.items()),
            ("problem", job.problem),
            ("times in", render.zone(job.settled_ns or job.enqueued_ns)),
        ]
    )
    if job.attempts:
        _print_attempts(job.attempts, now_ns)
    if steps:
        _print_steps(steps, now_ns)
    for attempt in job.attempts:
        if attempt.lines:
            render.echo(f"\nlogged by attempt {attempt.number}\n{render.indented(attempt.lines)}")
    for name, body in (("reason", job.reason.encode()), ("payload", job.payload)):
        if body:
            render.echo(f"\n{name}\n{render.body_block(body)}")
    if job.result is not None:
        render.echo(f"\nresult\n{render.body_block(job.result)}")


def _print_attempts(attempts: Sequence[documents.AttemptView], now_ns: int) -> None:
    render.echo("\nattempts")
    render.print_table(
        (">#", "OUTCOME", ">STARTED?", ">TOOK", "WORKER~?", "FINGERPRINT??", "REASON~"),
        [
            (
                str(attempt.number),
                attempt.outcome or "running",
                render.when(attempt.started_ns, now_ns),
                render.precise((attempt.ended_ns or now_ns) - attempt.started_ns),
                render.process(attempt.owner, attempt.pid, attempt.worker),
                attempt.fingerprint,
                attempt.reason.partition("\n")[0],
            )
            for attempt in attempts
        ],
    )


def _print_steps(steps: Sequence[engine.StepView], now_ns: int) -> None:
    render.echo("\nsteps")
    render.print_table(
        ("STEP", "WHAT", ">DONE?", ">TOOK", ">ATTEMPT", "VALUE~"),
        [
            (
                text.flat(step.title),
                step.form,
                render.when(step.ended_ns, now_ns),
                render.precise(step.ended_ns - step.began_ns) if step.began_ns else "",
                str(step.attempt),
                text.flat((step.value or b"").decode("utf-8", "replace")),
            )
            for step in steps
        ],
    )


@click.command()
@options.log_argument
@options.json_option
@options.at_option
@options.over_shards
def stats(data_dir: Path | None, as_json: bool, at_text: str | None) -> None:
    """Count the jobs of each queue by state, with the age of the oldest ready job."""
    from taskq.reading.status import LogStatus  # noqa: PLC0415 - help must not import the log

    with options.open_reader(data_dir, options.moment(at_text)) as reader:
        status = LogStatus(reader)
        counts = status.stats
    if as_json:
        plain = {"plain_jobs": native.language(), "plain_jobs_build": native.build_id()}
        render.print_json({**plain, **status.as_dict()})
        return
    rows = [
        _count_row(queue, f"{queue.queue} (paused)" if queue.paused else queue.queue)
        for queue in counts.queues
    ]
    if len(counts.queues) > 1:
        rows.append(_count_row(status.totals, "(all)"))
    if rows:
        # Columns without a value may be dropped on a narrow terminal.
        columns = (
            f">{name.upper()}~{'' if any(getattr(q, name) for q in counts.queues) else '?'}"
            for name in documents.STATES
        )
        render.print_table(("QUEUE~", *columns, ">OLDEST READY~"), rows)
        render.echo()
    render.echo(
        f"{render.count_of(counts.segments, 'segment')}, {render.size(counts.size)}, "
        f"next position {counts.next_lsn}, {reader.lineage}, plain jobs in {native.label()}"
        f"{'' if at_text is None else f', as of {at_text}'}"
    )


def _count_row(queue: documents.QueueStats, title: str) -> tuple[str, ...]:
    age = queue.oldest_ready_seconds
    waits = "-" if age is None else render.duration(round(age * values.SECOND_NS))
    return (title, *(str(getattr(queue, name)) for name in documents.STATES), waits)


@click.command()
@options.log_argument
@options.json_option
@options.over_shards
def workers(data_dir: Path | None, as_json: bool) -> None:
    """List the processes that have the task log open, workers and producers alike."""
    with options.open_reader(data_dir) as reader:
        owners, path, device = (
            reader.owners(),
            reader.journal.path,
            reader.copy_of and reader.device,
        )
    if device and not as_json:
        render.echo(f"The processes of this log run on {device}, and are known there alone")
        return
    now_ns, start = time.time_ns(), values.worker_command(path)
    render.print_list(
        owners,
        documents.OwnerView.as_dict,
        ("OWNER??", "NAME~", ">PID", "HOST~??", "STATE", ">STARTED?", ">RUNNING~", "SERVES~"),
        lambda owner: (
            documents.owner(owner.owner),
            owner.name or "-",
            str(owner.pid),
            owner.host,
            "alive" if owner.alive else "gone",
            render.when(owner.started_ns, now_ns),
            str(owner.running),
            render.served(owner) or "-",
        ),
        nothing=f"No process has this task log open; start one with: {start}",
        as_json=as_json,
    )


@click.command()
@options.log_argument
@options.json_option
@options.over_shards
@click.pass_context
def verify(context: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """Read the whole log and report damage; exit code 1 when there is some."""
    with options.open_reader(data_dir, warns=False) as reader:
        is_damaged = _verify(reader, as_json=as_json)
    if is_damaged:
        context.exit(errors.EXIT_FAILED)


def _verify(reader: engine.LogReader, *, as_json: bool) -> bool:
    report = reader.verify()
    if as_json:
        render.print_json(
            {
                "ok": not report.damage,
                "segments": report.segments,
                "frames": report.frames,
                "records": report.records,
                "torn_bytes": report.torn_bytes,
                "damage": [damage.as_dict() for damage in report.damage],
                "jobs": list(report.jobs),
                "accepted": [list(span) for span in report.accepted],
            }
        )
        return bool(report.damage)
    read = (
        f"{render.count_of(report.segments, 'segment')}, "
        f"{render.count_of(report.frames, 'frame')}, "
        f"{render.count_of(report.records, 'record')}"
    )
    is_damaged = bool(report.damage)
    if reader.parents:
        render.echo(reader.lineage)
    render.echo(f"{read}: {'DAMAGED' if is_damaged else 'no damage'}")
    if report.torn_bytes:
        render.echo(
            f"{render.count_of(report.torn_bytes, 'byte')} after the last whole frame: a write "
            f"under way, or one cut short by a crash; the next process that writes sets them aside"
        )
    if report.damage:
        again = reader.resend_command
        print_damage(report.damage, reader.journal.path, again)
        for job in report.jobs:
            render.echo(f"job {job}")
        repair = f"The rest is written anew by: {values.command(reader.journal.path, 'repair')}"
        cure = f"The rest comes again by: {again}" if again else repair
        render.echo(
            f"Copy the directory before anything else; whole frames are still served. {cure}"
        )
    for first, following in report.accepted:
        render.echo(
            f"{render.count_of(following - first, 'lsn')} were lost at lsn {first}: accepted"
        )
    return is_damaged


def print_damage(damages: Sequence[documents.Damage], directory: str, again: str = "") -> None:
    render.print_table(
        ("SEGMENT", ">OFFSET?", ">BYTES??", ">FIRST LSN~", ">NEXT LSN~", ">SALVAGED~"),
        [
            (d.segment, *map(str, (d.offset, d.size, d.first_lsn, d.next_lsn, d.salvaged)))
            for d in damages
        ],
    )
    for damage in damages:
        if not damage.size:
            render.echo(damage.explain(directory, again))


# ``taskq peek``: the next jobs to be claimed.

_PEEK_LIMIT_DEFAULT: Final = 10
_PAYLOAD_COLUMNS: Final = 60
#: Bytes of a payload that may be needed for its columns.
_PAYLOAD_BYTES: Final = 4 * _PAYLOAD_COLUMNS


@click.command()
@options.log_argument
@options.json_option
@options.queue_option
@options.newest_option(_PEEK_LIMIT_DEFAULT)
@options.at_option
@options.over_shards
def peek(
    data_dir: Path | None, as_json: bool, queue: str | None, limit: int, at_text: str | None
) -> None:
    """Show the next jobs to be claimed, in that order, with their payloads.

    Nothing is claimed. Jobs due later and jobs of paused queues are left out.
    """
    with options.open_reader(data_dir, options.moment(at_text)) as reader:
        jobs, now_ns = reader.peek(limit, queue), reader.now_ns
    render.print_list(
        jobs,
        lambda job: {
            **documents.job_head(job), "payload": documents.body_document(job.payload),
        },
        ("ID", "QUEUE~?", "TASK~", ">PRIO??", ">ENQUEUED?", "PAYLOAD~"),
        lambda job: (
            job.job_id,
            job.queue,
            job.task or "-",
            str(job.priority),
            render.when(job.enqueued_ns, now_ns),
            _payload(job),
        ),
        nothing="No job is ready." if queue is None else "No job of that queue is ready.",
        as_json=as_json,
    )  # fmt: skip


def _payload(job: documents.JobView) -> str:
    if job.problem:
        return job.problem
    text = job.payload[:_PAYLOAD_BYTES].decode(errors="backslashreplace").replace("\n", " ")
    if len(text) <= _PAYLOAD_COLUMNS and len(job.payload) <= _PAYLOAD_BYTES:
        return text
    return f"{text[:_PAYLOAD_COLUMNS]}…"


@click.command()
@click.argument("job_id")
@options.data_dir_option
@options.json_option
@options.over_shards
def why(job_id: str, data_dir: Path | None, as_json: bool) -> None:
    """Explain why a job is not running."""
    with options.open_reader(data_dir) as reader:
        status = _status(reader, job_id)
        reason = status.why
        assert reason is not None, "it is unknown of the past only"
    if as_json:
        render.print_json({"id": status.view.job_id, **reason.as_dict()})
        return
    render.echo(text.flat(f"{status.view.job_id}: {reason.text}"))


def _status(reader: engine.LogReader, job_id: str) -> JobStatus:
    """Return the status of a job; for a device's job, from the copy of the device's log."""
    from taskq.reading.status import JobStatus  # noqa: PLC0415 - help must not import the log

    status, outbox = JobStatus(reader, job_id), Path(reader.path).absolute()
    hub = outbox.parent.parent
    if outbox.parent.name == "outbox" and (hub / "devices").is_dir():
        client: Any = importlib.import_module("taskq_plugins.hub.client")
        app = client.Outbox(hub, outbox.name)
        status.view, status.why = app.look([status.view])[0]
    return status


@click.command()
@click.argument("job_id")
@options.data_dir_option
@options.json_option
@options.utc_option
@options.latest_option("events", 1_000)
@options.over_shards
def timeline(job_id: str, data_dir: Path | None, as_json: bool, count: int) -> None:
    """Show everything that happened to one job, in order."""
    with options.open_reader(data_dir) as reader:
        events = reader.timeline(reader.find_job(job_id))
    left, events = len(events), events[-count:]
    left -= len(events)
    if as_json:
        render.print_json([event.as_dict() for event in events])
        return
    rows = []
    before_ns = events[0].time_ns
    for event in events:
        rows.append(
            (
                render.moment(event.time_ns),
                f"+{render.precise(event.time_ns - before_ns)}",
                event.kind + (f" ({event.cause})" if event.cause not in ("", "caller") else ""),
                str(event.attempt or ""),
                render.process(event.owner, event.pid, event.worker),
                _history_note(event),
            )
        )
        before_ns = event.time_ns
    title = f"TIME ({render.zone(events[-1].time_ns)})"
    render.print_table((title, ">AFTER?", "KIND~", ">ATTEMPT~?", "WORKER~??", "NOTE~"), rows)
    if left:
        render.echo(f"{left} earlier events are not shown: -n 0 shows all")


def _history_note(event: documents.JobEvent) -> str:
    """Return in one line until when the job waits after the event, and why."""
    due = render.due(event.due_ns, event.time_ns) if event.due_ns else ""
    return ": ".join(part for part in (due, event.reason.partition("\n")[0]) if part)
