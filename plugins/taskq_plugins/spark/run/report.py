"""How a run goes on, and what it did: for people on a terminal, in a file, or as JSON lines."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from taskq.cli import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from taskq_plugins.spark.lake import Lake
    from taskq_plugins.spark.run.batch import Folded
    from taskq_plugins.spark.run.increment import Summary


@contextmanager
def open_report(*, as_json: bool) -> Iterator[Report]:
    """Yield the report that fits where it goes."""
    if as_json:
        yield JsonLines()
    elif not sys.stderr.isatty():
        yield Lines()
    else:
        from rich.console import Console  # noqa: PLC0415 - as in render
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Lines(progress)


class Lines:
    """A plain line on stderr for each step, or one on a terminal; the summary on stdout.

    Args:
        progress: the line on the terminal.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.records = 0
        self._progress = progress
        if progress is not None:
            self._task: TaskID = progress.add_task("looking at the logs", total=None)

    def step(self, text: str) -> None:
        """Tell a step."""
        if self._progress is None:
            render.echo(text, err=True)
        else:
            description = f"{self.records:,} records · {text}" if self.records else text
            self._progress.update(self._task, description=description)

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def starting(self) -> None:
        """Tell that Spark is about to start."""
        self.step("starting Spark")

    def on_batch(self, number: int, folded: Folded, seconds: float) -> None:
        """Tell of a micro-batch that was committed."""
        self.records += folded.records
        self.step(
            f"batch {number}: {folded.records:,} records, {folded.jobs_open:,} jobs open, "
            f"{seconds:.1f} s"
        )

    def on_table(self, name: str) -> None:
        """Tell of a derived table that is about to be computed."""
        self.step(f"computing {name}")

    def nothing_new(self, lake: Lake) -> None:
        """Tell that all was read before."""
        self._end()
        render.echo(f"nothing new; the tables stand at batch {_batch(lake)}")

    def done(self, summary: Summary, lake: Lake) -> None:
        """Print what was done, and what the tables hold."""
        self._end()
        rate = summary.records / summary.seconds if summary.seconds else 0.0
        render.echo(
            f"{summary.records:,} records in {summary.batches} "
            f"batch{'' if summary.batches == 1 else 'es'}, {summary.seconds:.1f} s "
            f"({rate:,.0f} records/s); batch {_batch(lake)}"
        )
        rows = [
            (holding.table, f"{holding.rows:,}", render.size(holding.size_bytes))
            for holding in lake.holdings()
        ]
        render.print_table(("table", ">rows", ">size"), rows)


class JsonLines:
    """One JSON object a line for each step; the last one is the summary."""

    def _write(self, event: str, **details: object) -> None:
        render.echo(json.dumps({"event": event, **details}))
        sys.stdout.flush()

    def starting(self) -> None:
        """Tell that Spark is about to start."""
        self._write("starting")

    def on_batch(self, number: int, folded: Folded, seconds: float) -> None:
        """Tell of a micro-batch that was committed."""
        self._write(
            "batch",
            batch=number,
            records=folded.records,
            jobs_over=folded.jobs_over,
            jobs_open=folded.jobs_open,
            seconds=round(seconds, 3),
        )

    def on_table(self, name: str) -> None:
        """Tell of a derived table that is about to be computed."""
        self._write("table", table=name)

    def nothing_new(self, lake: Lake) -> None:
        """Tell that all was read before."""
        self._end(lake, 0, 0, 0.0, ())

    def done(self, summary: Summary, lake: Lake) -> None:
        """Write the summary."""
        self._end(lake, summary.records, summary.batches, summary.seconds, summary.refreshed)

    def _end(
        self,
        lake: Lake,
        records: int,
        batches: int,
        seconds: float,
        refreshed: tuple[str, ...],
    ) -> None:
        self._write(
            "done",
            batch=_batch(lake),
            records=records,
            batches=batches,
            seconds=round(seconds, 3),
            refreshed=list(refreshed),
            rows={holding.table: holding.rows for holding in lake.holdings()},
        )


#: Who is told of a run.
Report: TypeAlias = Lines | JsonLines


def _batch(lake: Lake) -> int | None:
    last = lake.batch()
    return None if last is None else last.number
