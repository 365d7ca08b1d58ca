"""What taskq costs before it does anything: the import, and a worker with nothing to do.

Run: ``python -m tests.bench.idle``. See README.md.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from taskq import TaskQ
from tests.bench.process import MIB, ROOT, cpu_seconds, rss_bytes
from tests.bench.tables import Table, median

IMPORT: Final = """
import time
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
with open("/proc/self/statm") as statm:
    pages = int(statm.read().split()[1])
print(seconds, pages)
"""
PAGE_BYTES: Final = 4_096

#: The worker's app; its directory comes from the command line.
app = TaskQ()


@app.task(name="idle.async")
async def nothing() -> None:
    """Wait to be called, in vain."""


@app.task(name="idle.sync")
def nothing_sync() -> None:
    """Likewise, in a thread."""


def fresh(statement: str) -> tuple[float, float]:
    """Seconds of the statement and RSS in MiB after it, in a new interpreter."""
    done = subprocess.run(
        (sys.executable, "-c", IMPORT.format(statement=statement)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, pages = done.stdout.split()
    return float(seconds), int(pages) * PAGE_BYTES / MIB


def imports(table: Table, rounds: int) -> None:
    """Import time and memory, each round a new process; the bare interpreter beside it."""
    bare = [fresh("pass") for _ in range(rounds)]
    taken = [fresh("import taskq") for _ in range(rounds)]
    seconds, mebibytes = (median(values) for values in zip(*taken, strict=True))
    table.row("import taskq", f"{seconds:.3f} s", "< 0.2 s", "yes" if seconds < 0.2 else "NO")
    held = f"{mebibytes:.1f} MiB"
    table.row("RSS after it", held, "≤ 40 MiB", "yes" if mebibytes <= 40 else "NO")
    table.row("RSS of a bare Python", f"{median([rss for _, rss in bare]):.1f} MiB", "", "")


def idle_worker(table: Table, directory: str, seconds: float) -> None:
    """Processor time of ``taskq worker`` with an empty log, once it has come to rest."""
    command = ("taskq", "worker", "tests.bench.idle:app", "-d", directory)
    worker = subprocess.Popen((sys.executable, "-m", *command), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        assert worker.poll() is None, "the worker did not start"
        begin, before = time.perf_counter(), cpu_seconds(worker.pid)
        time.sleep(seconds)
        share = (cpu_seconds(worker.pid) - before) / (time.perf_counter() - begin) * 100
        rss = rss_bytes(worker.pid) / MIB
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(timeout=10)
    assert code == 0, f"the worker ended with {code}"
    table.row("idle worker", f"{share:.3f} % of a core", "< 1 %", "yes" if share < 1 else "NO")
    table.row("RSS of the idle worker", f"{rss:.1f} MiB", "", "")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.idle")
    parser.add_argument("--rounds", type=int, default=9, help="processes that import")
    parser.add_argument("--seconds", type=float, default=5, help="how long to watch the worker")
    given = parser.parse_args()
    table = Table("at rest", ("what", "value", "target", "holds"))
    imports(table, given.rounds)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        idle_worker(table, directory, given.seconds)
    table.print()


if __name__ == "__main__":
    main()
