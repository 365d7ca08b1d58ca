"""``taskq pipeline run``: bring the tables of a lake up to date with the logs."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskq.cli import Failure, json_option, render
from taskq.errors import UsageError
from taskq.values import nanoseconds
from taskq_plugins.spark.cli import lake_option
from taskq_plugins.spark.errors import spelled
from taskq_plugins.spark.lake.store import DATED, Lake, LakeWriter
from taskq_plugins.spark.run.pipeline import RunOptions, Summary, update
from taskq_plugins.spark.session import spark_session
from taskq_plugins.spark.source.options import size_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from taskq_plugins.spark.run.batch import BatchResult


class RunReport:
    """Print a plain line on stderr for each step, and the summary on stdout.

    With ``as_json`` print a JSON object a line for each step; the last one is the summary.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json

    def _step(self, text: str, event: str, **details: object) -> None:
        if self._as_json:
            render.echo(json.dumps({"event": event, **details}))
            sys.stdout.flush()
        else:
            render.echo(text, err=True)

    def starting(self) -> None:
        self._step("starting Spark", "starting")

    def on_batch(self, number: int, folded: BatchResult, seconds: float) -> None:
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

    def done(self, summary: Summary, lake: Lake) -> None:
        last = lake.batch()
        batch = None if last < 0 else last
        batches, records, refreshed, seconds = summary[:4]
        if self._as_json:
            rows = {holding.table: holding.rows for holding in lake.holdings()}
            self._step(
                "", "done", batch=batch, records=records, batches=batches,
                seconds=round(seconds, 3), refreshed=list(refreshed), rows=rows,
            )  # fmt: skip
        elif not batches and not refreshed:
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


_EVERY_SECONDS: Final = 5
#: Without a limit Spark need not add up the bytes of each row for Python. Bodies of up to 64 KiB
#: need no limit.
_SMALL_BODIES: Final = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
}
_DAY_NS: Final = 86_400 * 1_000_000_000


def _size(_context: click.Context, _option: click.Parameter, text: str) -> int:
    try:
        size = size_of(text.strip())
    except ValueError:
        size = 0
    if size < 1:
        raise click.BadParameter(f"{text!r:.40} is no size: give one such as 64m or 1g")
    return size


class Keep(click.ParamType):  # type: ignore[type-arg] # no generic before click 8.4
    """Days to keep, by table: ``90d``, or ``records=30d``."""

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
@click.option(
    "--journals",
    required=True,
    type=click.Path(path_type=Path),
    help="The directory of the logs: one log, or one directory for each device.",
)
@lake_option
@click.option("--master", help="Spark's master.  [default: all cores of this machine]")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=_size,
    default="64m",
    show_default=True,
    help="Bytes of log in one micro-batch, at most; a larger frame is one alone.",
)
@click.option(
    "--corrupt",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="Damaged frames: hold their log back, or pass over them.",
)
@click.option(
    "--ignore-data-loss",
    is_flag=True,
    help="Go on where segments are gone that were not read yet, which else hold back their log.",
)
@click.option(
    "--payloads",
    type=click.Choice(["keep", "full"]),
    default="keep",
    show_default=True,
    help="Of payloads over 64 KiB the tables have hash and size, but with full.",
)
@click.option(
    "--keep",
    "keep_days",
    type=Keep(),
    multiple=True,
    help="Let days go that are older: 90d of all tables with days, or records=30d.",
)
@click.option(
    "--keep-open", is_flag=True, help="Go on until Ctrl-C, and look for new records every 5 s."
)
@json_option
def run(
    journals: Path,
    lake_path: Path | str,
    *,
    master: str | None,
    max_bytes: int,
    corrupt: str,
    ignore_data_loss: bool,
    payloads: str,
    keep_days: tuple[dict[str, int], ...],
    keep_open: bool,
    as_json: bool,
) -> None:
    """Read what is new in the logs, bring the tables up to date, and exit.

    A log that cannot be read is held where it stands, and named; the others go on, and the exit
    code is 1.
    """
    if not journals.is_dir():
        raise UsageError(f"{journals} is no directory: give the one of the logs with --journals")
    options = RunOptions(
        journals=journals,
        max_bytes=max_bytes,
        corrupt=corrupt,
        fail_on_data_loss=not ignore_data_loss,
        payloads=payloads,
        keep_days={table: days for keep_day in keep_days for table, days in keep_day.items()},
    )
    lake = Lake.open(lake_path, create=True)
    with lake.writer() as writer:
        report = RunReport(as_json=as_json)
        report.starting()
        conf = {} if payloads == "full" else _SMALL_BODIES
        with spark_session("taskq pipeline run", master=master, conf=conf) as session:
            # taskq reports failures in one line.
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            while True:
                summary = _turn(session, writer, options, report)
                if not keep_open:
                    break
                time.sleep(_EVERY_SECONDS)
    _raise_held(summary)


def _turn(
    session: SparkSession, writer: LakeWriter, options: RunOptions, report: RunReport
) -> Summary:
    summary = update(session, writer, options, report.on_batch, report.on_table)
    for line in summary.skipped:
        render.echo(f"skipped: {spelled(line)}", err=True)
    for line in summary.passed:
        render.echo(f"damaged copy: {spelled(line)}", err=True)
    report.done(summary, writer.lake)
    return summary


def _raise_held(summary: Summary) -> None:
    lines = sorted(map(spelled, summary.problems))
    if lines:
        count = f"{len(lines)} log{'' if len(lines) == 1 else 's'}"
        raise Failure("\n".join([f"{count} held back, all others were read:", *lines]))
