"""``python -m examples.fleet``: run Spark on the logs of fifty devices, and check every figure."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import track

from taskq_plugins.spark.sql import sql

from .check import check_tables, workplace
from .devices import make_fleet

#: Columns of the printed tables, as for ``taskq sql --lake``.
_SHOWN: Final = {
    "failures": "task,failed_attempts,dead_jobs,devices,poison",
    "duplicates": "queue,devices,jobs",
    "device_lag": "device,clock,logs_of_device,waiting,dead,missing_segments",
}


@click.command()
@click.option("--devices", default=50, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--hours", default=24, show_default=True, type=click.IntRange(6, 240))
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help="Keep all in this new directory.  [default: nothing is kept]",
)
def main(devices: int, hours: int, work: Path | None) -> None:
    """Make a fleet's logs, run the pipeline, and print and check its tables."""
    began = time.monotonic()
    console = Console()
    with workplace(work) as root:
        journals, lake_path = root / "journals", root / "lake"
        made = make_fleet(journals, devices, hours)
        for line in track(made, "devices at work", devices, console=console):
            console.print(line, end="")
        wrong = check_tables(console, journals, lake_path)
        for table, columns in _SHOWN.items():
            console.print(f"\n{table}")
            query = f"SELECT {columns} FROM {table}"  # noqa: S608 - constant names
            sql.main([query, "--lake", str(lake_path)], standalone_mode=False)
    console.print(f"done in {time.monotonic() - began:.0f} s")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
