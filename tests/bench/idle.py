"""What a worker costs that has nothing to do.

Run: ``python -m tests.bench.idle``. See README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from taskq import TaskQ
from tests.bench.process import MIB, ROOT, cpu_seconds, rss_bytes
from tests.bench.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The worker's app; its directory comes from the command line.
app = TaskQ()


@app.task(name="idle.async")
async def nothing() -> None:
    """Wait to be called, in vain."""


@app.task(name="idle.sync")
def nothing_sync() -> None:
    """Likewise, in a thread."""


@contextlib.contextmanager
def program(*words: str, output: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """``taskq`` with these words, until the block is left."""
    command = (sys.executable, "-m", "taskq", *words)
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, text=True)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=10)


def shares(seconds: float, *children: subprocess.Popen[str]) -> list[float]:
    """Processor time of each, once they have come to rest, in hundredths of a core."""
    time.sleep(2)
    assert all(child.poll() is None for child in children), "one did not start"
    begin, before = time.perf_counter(), [cpu_seconds(child.pid) for child in children]
    time.sleep(seconds)
    took = time.perf_counter() - begin
    spent = [cpu_seconds(child.pid) for child in children]
    return [(now - then) / took * 100 for now, then in zip(spent, before, strict=True)]


def tell(table: Table, what: str, share: float) -> None:
    """A row of the table."""
    table.row(what, f"{share:.3f} % of a core", "< 1 %", "yes" if share < 1 else "NO")


def idle_worker(table: Table, directory: str, seconds: float) -> None:
    """A worker with an empty log, alone."""
    with program("worker", "tests.bench.idle:app", "-d", directory) as worker:
        (share,) = shares(seconds, worker)
        rss = rss_bytes(worker.pid) / MIB
    assert worker.returncode == 0, f"the worker ended with {worker.returncode}"
    tell(table, "idle worker", share)
    table.row("RSS of the idle worker", f"{rss:.1f} MiB", "", "")


def watched_worker(table: Table, directory: str, seconds: float) -> None:
    """The same while somebody looks: at a page every two seconds, at a terminal, by scrapes."""
    words = "worker", "tests.bench.idle:app", "-d", directory
    with program(*words) as worker, program("web", directory, output=subprocess.PIPE) as web:
        assert web.stdout is not None
        found = next(filter(None, (re.search(r"http://\S+", line) for line in web.stdout)))
        with looking(found[0], re.sub(r"(//[^/]+/).*", r"\1", found[0]), 2):
            share, _ = shares(seconds, worker, web)
    tell(table, "beside taskq web", share)
    controller, terminal = pty.openpty()
    command = (sys.executable, "-m", "taskq", "top", directory)
    with program(*words) as worker:
        top = subprocess.Popen(command, stdin=terminal, stdout=terminal, cwd=ROOT, text=True)
        threading.Thread(target=drain, args=(controller,), daemon=True).start()
        share, own = shares(seconds, worker, top)
        top.terminate()
        top.wait()
    tell(table, "beside taskq top", share)
    table.row("taskq top itself", f"{own:.3f} % of a core", "", "")
    with program(*words, "--metrics-port", "19751") as worker:
        time.sleep(2)
        with looking("http://127.0.0.1:19751/metrics", "http://127.0.0.1:19751/metrics", 5):
            (share,) = shares(seconds, worker)
    tell(table, "with --metrics-port", share)


@contextlib.contextmanager
def looking(first: str, then: str, seconds: float) -> Iterator[None]:
    """Ask for a page again and again, as a browser does that keeps its cookies."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    enough = threading.Event()

    def look() -> None:
        opener.open(first).read()
        while not enough.wait(seconds):
            opener.open(then).read()

    thread = threading.Thread(target=look)
    thread.start()
    yield
    enough.set()
    thread.join()


def drain(descriptor: int) -> None:
    """Read what is drawn on a terminal, and forget it."""
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65_536):
            """Go on."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.idle")
    parser.add_argument("--seconds", type=float, default=5, help="how long to watch the worker")
    given = parser.parse_args()
    table = Table("at rest", ("what", "value", "target", "holds"))
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        idle_worker(table, directory, given.seconds)
        watched_worker(table, directory, given.seconds)
    table.print()


if __name__ == "__main__":
    main()
