"""``taskq pipeline run``: the tables of a lake, brought up to date with the logs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskq.cli import Failure, WrongUsage, json_option, render
from taskq.errors import UsageError
from taskq.values import nanoseconds
from taskq_plugins.spark.cli import lake_option
from taskq_plugins.spark.java import ENGINES, takes_spark
from taskq_plugins.spark.lake.bucket import is_address
from taskq_plugins.spark.lake.store import DATED, DERIVED, TOMBSTONES, Lake, LakeWriter
from taskq_plugins.spark.run.errors import SourceGone, spelled
from taskq_plugins.spark.run.increment import RunOptions, Summary, keep_in_order
from taskq_plugins.spark.run.increment import run as run_increment
from taskq_plugins.spark.run.progress import BASE, held, reached, unread_bytes
from taskq_plugins.spark.source.options import size_of
from taskq_plugins.spark.source.positions import Offsets
from taskq_plugins.spark.source.snapshot import FleetSnapshot, look

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from taskq_plugins.spark.run.batch import BatchResult


@contextmanager
def open_report(*, as_json: bool) -> Iterator[RunReport]:
    if as_json or not sys.stderr.isatty():
        yield RunReport(as_json=as_json)
        return
    from rich.console import Console  # noqa: PLC0415 - as in render
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield RunReport(progress)


class RunReport:
    """A plain line on stderr for each step, or one on a terminal, and the summary on stdout.

    As JSON, an object a line for each step; the last one is the summary.

    Args:
        progress: the line on the terminal.
        as_json: whether it is for programs.
    """

    def __init__(self, progress: Progress | None = None, *, as_json: bool = False) -> None:
        self._records = 0
        self._as_json = as_json
        self._progress = progress
        if progress is not None:
            self._task: TaskID = progress.add_task("looking at the logs", total=None)

    def _step(self, text: str, event: str, **details: object) -> None:
        if self._as_json:
            render.echo(json.dumps({"event": event, **details}))
            sys.stdout.flush()
        elif self._progress is None:
            render.echo(text, err=True)
        else:
            done = f"{self._records:,} records · " if self._records else ""
            self._progress.update(self._task, description=done + text)

    def starting(self) -> None:
        self._step("starting Spark", "starting")

    def on_batch(self, number: int, folded: BatchResult, seconds: float) -> None:
        self._records += folded.records
        self._step(
            f"batch {number}: {folded.records:,} records, {folded.jobs_open:,} jobs open, "
            f"{seconds:.1f} s",
            "batch",
            batch=number,
            **folded._asdict(),
            seconds=round(seconds, 3),
        )

    def on_table(self, name: str) -> None:
        self._step(f"computing {name}", "table", table=name)

    def nothing_new(self, lake: Lake) -> None:
        self._end(None, lake)

    def done(self, summary: Summary, lake: Lake) -> None:
        self._end(summary, lake)

    def _end(self, summary: Summary | None, lake: Lake) -> None:
        if self._progress is not None:
            self._progress.stop()
        last = lake.batch()
        batch = None if last is None else last.number
        batches, records, refreshed, seconds = summary or (0, 0, (), 0.0)
        if self._as_json:
            rows = {holding.table: holding.rows for holding in lake.holdings()}
            self._step(
                "", "done", batch=batch, records=records, batches=batches,
                seconds=round(seconds, 3), refreshed=list(refreshed), rows=rows,
            )  # fmt: skip
        elif summary is None:
            render.echo(f"nothing new; the tables stand at batch {batch}")
        else:
            rate = records / seconds if seconds else 0.0
            render.echo(
                f"{records:,} records in {batches} batch{'' if batches == 1 else 'es'}, "
                f"{seconds:.1f} s ({rate:,.0f} records/s); batch {batch}"
            )
            lines = [
                (holding.table, f"{holding.rows:,}", render.size(holding.size_bytes))
                for holding in lake.holdings()
            ]
            render.print_table(("table", ">rows", ">size"), lines)


#: Java hands out work, and no record passes through it: its second compiler never pays.
_JAVA: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_EVERY_SECONDS: Final = 5
#: How often a batch is planned anew because something went before it was read.
_TRIES: Final = 5
_DAY_NS: Final = 86_400 * 1_000_000_000


def _size(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        size = size_of(text.strip())
    except ValueError:
        size = 0
    if size < 1:
        raise click.BadParameter(f"{text!r:.40} is no size: give one such as 64m or 1g")
    return size


class Keep(click.ParamType[dict[str, int]]):
    """How many days are kept, by table: ``90d``, or ``records=30d``."""

    name = "span"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        table, _, span = str(value).rpartition("=")
        if table and table not in DATED:
            self.fail(f"{table!r:.40} has no days: those of {', '.join(DATED)} can go", param, ctx)
        try:
            days = nanoseconds(span) // _DAY_NS
        except UsageError as error:
            self.fail(str(error), param, ctx)
        if days < 1:
            self.fail(f"{span!r:.40} is less than a day", param, ctx)
        return dict.fromkeys([table] if table else DATED, days)


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--journals",
    required=True,
    type=click.Path(path_type=Path),
    help="The directory of the logs: one log, or one directory for each device.",
)
@lake_option
@click.option("--master", help="Spark's master.  [default: all cores of this machine]")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="Who reads: Spark from the size on where it is no slower (see doctor), always, or never.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=_size,
    default="64m",
    show_default=True,
    help="Bytes of log in one micro-batch.",
)
@click.option(
    "--corrupt",
    type=click.Choice(["fail", "skip", "quarantine"]),
    default="fail",
    show_default=True,
    help="Damaged frames: stop, pass over them, or keep their bytes as records of kind damaged.",
)
@click.option(
    "--ignore-data-loss",
    is_flag=True,
    help="Go on where segments are gone that were not read yet, which else hold back their log.",
)
@click.option(
    "--payloads",
    type=click.Choice(["keep", "drop", "full"]),
    default="keep",
    show_default=True,
    help="Of those over 64 KiB the tables have hash and size, but with full; "
    "with drop, records has no payloads and results at all.",
)
@click.option(
    "--keep",
    "keep_days",
    type=Keep(),
    multiple=True,
    help="Let days go that are older: 90d of all tables with days, or records=30d.",
)
@click.option(
    "--rebuild",
    "anew",
    multiple=True,
    metavar="TABLE",
    type=click.Choice([*BASE, TOMBSTONES, *DERIVED]),
    help="Make a lost table anew from the logs, and say what is gone.",
)
@click.option(
    "--keep-open", is_flag=True, help="Go on until Ctrl-C, and look for what is new every 5 s."
)
@json_option
def run(
    tables: tuple[str, ...],
    journals: Path,
    lake_path: Path | str,
    *,
    master: str | None,
    engine: str,
    max_bytes: int,
    corrupt: str,
    ignore_data_loss: bool,
    payloads: str,
    keep_days: tuple[dict[str, int], ...],
    anew: tuple[str, ...],
    keep_open: bool,
    as_json: bool,
) -> None:
    """Read what is new in the logs, bring the tables up to date, and exit.

    Without --master, Java is started only where that is no slower: taskq pipeline doctor says when.

    The tables records, jobs and attempts are always brought up to date; TABLE limits which others
    are (all: rollup_hour failures duplicates device_lag breaks steps).
    """
    _check(tables, engine, master, lake_path)
    if not journals.is_dir():
        raise UsageError(f"{journals} is no directory: give the one of the logs with --journals")
    lake = Lake.open(lake_path, create=True)
    with lake.writer(anew) as writer, open_report(as_json=as_json) as report:
        options = RunOptions(
            journals=journals,
            max_bytes=max_bytes,
            tables=tables or DERIVED,
            corrupt=corrupt,
            fail_on_data_loss=not ignore_data_loss,
            payloads=payloads,
            keep_days={table: days for keep_day in keep_days for table, days in keep_day.items()},
        )
        if keep_open:
            from taskq_workers.process.supervisor import keep_heap_small  # noqa: PLC0415 - few do

            keep_heap_small()
        if anew:
            from taskq_plugins.spark.run.rebuild import rebuild  # noqa: PLC0415 - few do

            for line in rebuild(writer, anew, options):
                render.echo(line, err=True)
        sight = look(options.of_source())
        if not _turn(writer, options, report, engine, master, sight):
            report.nothing_new(lake)
        while keep_open:
            time.sleep(_EVERY_SECONDS)
            _turn(writer, options, report, engine, master, look(options.of_source()))
        _tell_held(lake, sight.twice)


def _check(tables: tuple[str, ...], engine: str, master: str | None, lake_path: Path | str) -> None:
    for table in tables:
        if table not in DERIVED:
            raise WrongUsage(f"there is no derived table {table!r}: there are {', '.join(DERIVED)}")
    if engine == "local" and master is not None:
        raise WrongUsage("--engine local starts no Spark: leave out --master")
    if is_address(lake_path) and master is not None and not master.startswith("local"):
        raise UsageError(
            f"--master {master}: its executors write where all of them see the lake's directory: "
            f"give one with --lake, not {lake_path}"
        )


def _turn(
    writer: LakeWriter,
    options: RunOptions,
    report: RunReport,
    engine: str,
    master: str | None,
    sight: FleetSnapshot,
) -> bool:
    before = reached(writer.lake)
    left_bytes = unread_bytes(before.offsets, options.of_source(), sight)
    if not left_bytes and before.begun is None and not writer.lake.stale(options.tables):
        if time.monotonic() >= writer.vacuum_due:  # days expire without new records, too
            keep_in_order(writer, options)
        return False
    started = time.monotonic()

    def read(sight: FleetSnapshot | None = None) -> Summary:
        if not takes_spark(engine, master, left_bytes):
            return run_increment(writer, options, report, sight=sight)
        return _run(writer, options, report, master)

    for turn in range(_TRIES):
        try:
            summary = read(None if turn else sight)
        except SourceGone:
            # Planned anew, the log is held where it is whole.
            if not options.fail_on_data_loss or reached(writer.lake).begun is not None:
                raise
        else:
            break
    else:
        summary = read()
    _tell_restored(before.offsets, reached(writer.lake).offsets)
    report.done(summary._replace(seconds=time.monotonic() - started), writer.lake)
    return True


def _tell_restored(before: Offsets, now: Offsets) -> None:
    devices = [
        at.device
        for log_id, at in now.items()
        if at.branch > (before[log_id].branch if log_id in before else 0)
    ]
    if devices:
        was, is_, other = ("1 log was", "is", "another branch")
        if len(devices) > 1:
            was, is_, other = (f"{len(devices)} logs were", "are", "other branches")
        names = ", ".join(sorted(devices))
        render.echo(f"{was} restored from a backup and {is_} read on as {other}: {names}", err=True)


def _tell_held(lake: Lake, twice: Mapping[str, str]) -> None:
    lines = sorted({*map(spelled, held(reached(lake).offsets)), *map(spelled, twice.values())})
    if lines:
        count = f"{len(lines)} log{'' if len(lines) == 1 else 's'}"
        raise Failure("\n".join([f"{count} held back, all others were read:", *lines]))


def _run(writer: LakeWriter, options: RunOptions, report: RunReport, master: str | None) -> Summary:
    from taskq_plugins.spark.run.spark_executor import SparkExecutor  # noqa: PLC0415 - needs pyspark
    from taskq_plugins.spark.session import spark_session  # noqa: PLC0415

    report.starting()
    with spark_session("taskq pipeline run", master=master, conf=_JAVA) as session:
        # Failures are reported by taskq in a line.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        session.sparkContext.setLogLevel("OFF")
        return run_increment(writer, options, report, SparkExecutor(session))
