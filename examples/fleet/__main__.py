"""``python -m examples.fleet``: fifty devices, their logs on Spark, and every figure checked."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from .check import SHOWN_MAX, check
from .devices import SPECIAL, Fleet, device_name, make_fleet


@click.command()
@click.option("--devices", default=50, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--hours", default=24, show_default=True, type=click.IntRange(6, 240))
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help="Keep all in this new directory.  [default: nothing is kept]",
)
def main(devices: int, hours: int, work: Path | None) -> None:
    """Make a fleet's logs, run the pipeline, print its tables, and check them."""
    began = time.monotonic()
    console = Console()
    root = Path(tempfile.mkdtemp(prefix="taskq-fleet-")) if work is None else work
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise click.UsageError(f"--work {root} is not empty: name a new directory")
    fleet = Fleet(devices=devices, hours=hours)
    journals, lake_path = root / "journals", root / "lake"
    for _ in track(make_fleet(journals, fleet), "devices at work", devices, console=console):
        pass
    for number, special in SPECIAL.items():
        if number < devices:
            console.print(f"  {device_name(number)}: {special.value}")
    wrong = _tables(console, journals, lake_path)
    if work is None:
        shutil.rmtree(root)
    console.print(f"done in {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong else 0)


def _tables(console: Console, journals: Path, lake_path: Path) -> int:
    """Run the pipeline and look at what it made; returns how many rows are wrong."""
    # Imported here, since they take a second: a wrong option is told at once.
    from taskq_plugins.spark.lake import Lake  # noqa: PLC0415
    from taskq_plugins.spark.run.command import run  # noqa: PLC0415

    from .report import report  # noqa: PLC0415

    run.main(["--journals", str(journals), "--lake", str(lake_path)], standalone_mode=False)
    lake = Lake.open(lake_path)
    report(lake_path, console)
    wrong = 0
    for found in check(lake, journals):
        wrong += len(found.differences)
        verdict = "equal to the Python fold" if not found.differences else "DIFFERENT"
        console.print(f"{found.table}: {found.rows} rows, {verdict}")
        for difference in found.differences[:SHOWN_MAX]:
            console.print(f"  {difference}", markup=False)
    return wrong


if __name__ == "__main__":
    main()
