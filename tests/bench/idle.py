"""The cost of an idle worker.

Run: ``python -m tests.bench.idle``. See README.md.
"""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.bench.harness import MIB, ROOT, Table, cpu_seconds, options, rss_bytes, scratch

LOOK_SECONDS: Final = 0.1
#: A program with almost no imports.
APP: Final = "tests.bench.contenders:queue"


@contextlib.contextmanager
def program(
    *words: object, output: int = subprocess.DEVNULL, terminal: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        (sys.executable, "-m", "taskq", *map(str, words)),
        cwd=ROOT,
        stdin=subprocess.PIPE if terminal is None else terminal,
        stdout=output if terminal is None else terminal,
        text=True,
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=10)


def shares(seconds: float, *children: subprocess.Popen[str]) -> list[float]:
    """Return the processor time of each, once at rest, in hundredths of a core."""
    time.sleep(2)
    assert all(child.poll() is None for child in children), "one did not start"
    begin, before = time.perf_counter(), [cpu_seconds(child.pid) for child in children]
    time.sleep(seconds)
    took = time.perf_counter() - begin
    spent = [cpu_seconds(child.pid) for child in children]
    return [(now - then) / took * 100 for now, then in zip(spent, before, strict=True)]


def idle_worker(table: Table, directory: Path, seconds: float) -> None:
    with program("worker", APP, "-d", directory) as worker:
        (share,) = shares(seconds, worker)
        rss = rss_bytes(worker.pid) / MIB
    assert worker.returncode == 0, f"the worker ended with {worker.returncode}"
    table.figure("idle worker", share, "% of a core", 1)
    table.figure("RSS of the idle worker", rss, "MiB")


def watched_worker(table: Table, directory: Path, seconds: float) -> None:
    """Measure it while somebody looks: at a page, at a terminal, by scrapes."""
    words = "worker", APP, "-d", directory
    with program(*words) as worker, program("web", directory, output=subprocess.PIPE) as web:
        assert web.stdout is not None
        match = next(filter(None, (re.search(r"http://\S+", line) for line in web.stdout)))
        with looking(match[0], re.sub(r"(//[^/]+/).*", r"\1", match[0]), 2):
            share, _ = shares(seconds, worker, web)
    table.figure("beside taskq web", share, "% of a core", 1)
    controller, terminal = pty.openpty()
    threading.Thread(target=drain, args=(controller,), daemon=True).start()
    with program(*words) as worker, program("top", directory, terminal=terminal) as top:
        share, own = shares(seconds, worker, top)
    table.figure("beside taskq top", share, "% of a core", 1)
    table.figure("taskq top itself", own, "% of a core")
    address = "http://127.0.0.1:19751/metrics"
    with program(*words, "--metrics-port", "19751") as worker, looking(f"{address}?", address, 5):
        (share,) = shares(seconds, worker)
    table.figure("with --metrics-port", share, "% of a core", 1)


@contextlib.contextmanager
def looking(first: str, then: str, seconds: float) -> Iterator[None]:
    """Ask for a page again and again, as a browser does that keeps its cookies."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    enough = threading.Event()

    def look() -> None:
        address = first
        while not enough.wait(LOOK_SECONDS if address == first else seconds):
            with contextlib.suppress(urllib.error.URLError):  # it does not listen yet
                opener.open(address).read()
                address = then

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
    given = options(__doc__, seconds=5.0)
    table = Table("at rest", "what", "value", "unit", "target")
    with scratch(given.dir) as directory:
        idle_worker(table, directory, given.seconds)
        watched_worker(table, directory, given.seconds)
    table.print()


if __name__ == "__main__":
    main()
