"""A million waiting jobs: memory, claims, reopening; the first enqueue; many enqueuing processes.

Run: ``python -m tests.bench.memory [--jobs N]``. See README.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from taskq.log.config import LogConfig
from taskq.log.store.store import open_store
from tests.bench.memory_parts import CLAIM_COUNT, waiting
from tests.bench.process import MIB, answer, ask, start
from tests.bench.tables import Table, median

PARTS: Final = "tests.bench.memory_parts"
KINDS: Final = {"ready": 64, "scheduled": 64, "keyed": 104}


def against(value: float, limit: float) -> tuple[str, str]:
    """Return the limit, and whether the value keeps it."""
    return f"≤ {limit:g}", "yes" if value <= limit else "NO"


def waiting_jobs(table: Table, parent: Path, kind: str, jobs: int) -> Path:
    """Measure a claimer with many jobs of the kind against one with 1 000."""
    few, many, live = (parent / f"{kind}-{name}" for name in ("few", "many", "live"))
    ask(PARTS, "fill", few, kind, CLAIM_COUNT)
    filled = ask(PARTS, "fill", many, kind, jobs)
    small, large = (
        ask(PARTS, "reopen", directory, kind, count)
        for directory, count in ((few, CLAIM_COUNT), (many, jobs))
    )
    taken_in = ask(PARTS, "live", live, kind, jobs)

    def row(what: str, value: float, unit: str, limit: float | None = None) -> None:
        target = against(value, limit) if limit is not None else ("", "")
        table.row(f"{kind}: {what}", f"{value:,.2f}", unit, *target)

    more = jobs - CLAIM_COUNT
    row("growth on reopening", (large["growth"] - small["growth"]) / more, "B/job", KINDS[kind])
    row("growth on taking in", taken_in["growth"] / jobs, "B/job", KINDS[kind])
    row("enqueue_many, no claimer", filled["add_seconds"] * 1e6, "µs/job")
    row("enqueue_many in the claimer", taken_in["add_seconds"] * 1e6, "µs/job")
    row("reopen and claim one", large["open_seconds"], "s", 3)
    if large["claim_seconds"]:
        row("claim 1 000 of 1 000", small["claim_seconds"] * 1e3, "ms")
        row("claim 1 000 of all", large["claim_seconds"] * 1e3, "ms")
        row("claim, all against 1 000", large["claim_seconds"] / small["claim_seconds"], "times", 2)
    return many


def first_enqueue(table: Table, directory: Path) -> None:
    """A fresh process on the full directory, median of five."""
    for part, what in (
        ("first_bytes", "bytes, at the log"),
        ("first_call", "call, by enqueue_sync"),
    ):
        taken = [ask(PARTS, part, directory) for _ in range(5)]
        for value, unit, limit in (
            (median([one["seconds"] for one in taken]) * 1e3, "ms", 50),
            (median([one["growth"] for one in taken]) / MIB, "MiB", 5),
        ):
            table.row(f"first enqueue, {what}", f"{value:,.2f}", unit, *against(value, limit))


def enqueuers(directory: Path, processes: int, jobs: int) -> float:
    """Return jobs per second of so many processes together."""
    share = jobs // processes
    children = [start(PARTS, "enqueuer", directory, share) for _ in range(processes)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        answer(child)
    seconds = time.perf_counter() - begin
    store = open_store(str(directory), LogConfig())
    assert waiting(store) == share * processes
    store.close()
    return share * processes / seconds


def many_processes(table: Table, parent: Path, jobs: int) -> None:
    """4 against 16, in turn, median of three."""
    rates: dict[int, list[float]] = {4: [], 16: []}
    for turn in range(3):
        for processes, taken in rates.items():
            taken.append(enqueuers(parent / f"enqueuers-{processes}-{turn}", processes, jobs))
    for processes, taken in rates.items():
        table.row(f"{processes} enqueuing processes", f"{median(taken):,.0f}", "jobs/s", "", "")
    ratio = median(rates[4]) / median(rates[16])
    table.row("4 against 16 processes", f"{ratio:,.2f}", "times", *against(ratio, 1))


def options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs that wait")
    parser.add_argument("--enqueuer-jobs", type=int, default=64_000, help="jobs of all enqueuers")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="a directory of the disk")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    given: Any = options()
    table = Table(f"{given.jobs:,} waiting jobs", ("what", "value", "unit", "target", "holds"))
    with tempfile.TemporaryDirectory(dir=given.dir, prefix=".bench-") as name:
        parent = Path(name)
        full = [waiting_jobs(table, parent, kind, given.jobs) for kind in KINDS]
        first_enqueue(table, full[0])
        many_processes(table, parent, given.enqueuer_jobs)
    table.print()


if __name__ == "__main__":
    main()
