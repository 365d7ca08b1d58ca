"""How a run goes on, and what it did: for people on a terminal, in a file, or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskq.cli import render

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from taskq_plugins.spark.lake.store import Lake
    from taskq_plugins.spark.run.batch import Folded
    from taskq_plugins.spark.run.increment import Summary


@contextmanager
def open_report(*, as_json: bool) -> Iterator[Report]:
    if as_json or not sys.stderr.isatty():
        yield Report(as_json=as_json)
        return
    from rich.console import Console  # noqa: PLC0415 - as in render
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Report(progress)


class Report:
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

    def on_batch(self, number: int, folded: Folded, seconds: float) -> None:
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
