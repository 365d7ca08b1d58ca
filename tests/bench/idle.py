"""What a worker costs that has nothing to do.

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

from taskq import TaskQ
from tests.bench.process import MIB, ROOT, cpu_seconds, rss_bytes
from tests.bench.tables import Table

#: The worker's app; its directory comes from the command line.
app = TaskQ()


@app.task(name="idle.async")
async def nothing() -> None:
    """Wait to be called, in vain."""


@app.task(name="idle.sync")
def nothing_sync() -> None:
    """Likewise, in a thread."""


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
    parser.add_argument("--seconds", type=float, default=5, help="how long to watch the worker")
    given = parser.parse_args()
    table = Table("at rest", ("what", "value", "target", "holds"))
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        idle_worker(table, directory, given.seconds)
    table.print()


if __name__ == "__main__":
    main()
