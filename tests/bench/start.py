"""What a start costs: imports, commands, and a worker until its first job.

Run: ``python -m tests.bench.start``. See README.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.bench.process import cpu_seconds
from tests.bench.tables import Table, median

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Told at the end of a process: the most memory it had, in KiB, and its modules.
_PROBE: Final = """
import atexit, sys
def tell():
    with open("/proc/self/status") as status, open("told", "w") as told:
        most = next(line.split()[1] for line in status if line.startswith("VmHWM:"))
        print(most, len(sys.modules), file=told)
atexit.register(tell)
"""
_COMMAND: Final = """
import runpy
sys.argv = ["taskq", *{words!r}]
runpy.run_module("taskq", run_name="__main__")
"""
_APP: Final = """
from taskq import TaskQ

app = TaskQ("data")

@app.task
async def greet(name: str) -> None:
    print("the first line of", name, flush=True)
"""
_ENQUEUE: Final = "from start_app import greet; greet.enqueue_sync('Ada')"
_FIRST_LINE: Final = "the first line of Ada"
_LOG: Final = "data"
#: What is measured, and the most CPU milliseconds that it may take beyond a bare interpreter.
_STARTS: Final[dict[str, tuple[str, float | None]]] = {
    "bare python": ("", None),
    "import taskq": ("import taskq", None),
    "from taskq import TaskQ": ("from taskq import TaskQ", 120),
    "taskq --help": (_COMMAND.format(words=["--help"]), 150),
    "taskq ls": (_COMMAND.format(words=["ls", _LOG]), None),
}
_WORKER: Final = "worker to first job"
_WORKER_SECONDS: Final = 0.2


class Start(NamedTuple):
    """One start of a process."""

    cpu_seconds: float
    seconds: float
    rss_mib: float
    modules: int


def started(python: str, place: Path, program: str) -> Start:
    """Run a program to its end in a fresh interpreter."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        (python, "-c", _PROBE + program), cwd=place, env=environment(place),
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{program}: it ended with {process.returncode}"
    return Start(usage.ru_utime + usage.ru_stime, seconds, *_told(place))


def first_job(python: str, place: Path) -> Start:
    """Start a worker on a directory with one ready job, until the task's first line."""
    subprocess.run((python, "-c", _ENQUEUE), cwd=place, env=environment(place), check=True)
    program = _PROBE + _COMMAND.format(words=["worker", "start_app:app"])
    begin = time.perf_counter()
    worker = subprocess.Popen(
        (python, "-c", program), cwd=place, env=environment(place),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    with worker.stdout as lines:
        assert any(_FIRST_LINE in line for line in lines), "the job never ran"
        seconds, spent = time.perf_counter() - begin, cpu_seconds(worker.pid)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=20) == 0, "the worker did not end well"
    return Start(spent, seconds, *_told(place))


def _told(place: Path) -> tuple[float, int]:
    rss_kib, modules = (place / "told").read_text(encoding="ascii").split()
    return int(rss_kib) / 1024, int(modules)


def environment(place: Path) -> dict[str, str]:
    """With byte code as an installed package has it, whatever the sources' own folder has."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(place / "pyc")}


def measure(pythons: Sequence[str], rounds: int, place: Path) -> dict[tuple[str, str], list[Start]]:
    """All starts by interpreter and name, taken in turn; the first of each warms the caches."""
    found: dict[tuple[str, str], list[Start]] = {}
    (place / "start_app.py").write_text(_APP, encoding="utf-8")
    for number, python in itertools.product(range(rounds + 1), pythons):
        taken = {_WORKER: first_job(python, place)}
        taken |= {name: started(python, place, program) for name, (program, _) in _STARTS.items()}
        for name, start in taken.items() if number else ():
            found.setdefault((python, name), []).append(start)
    return found


def tell(table: Table, python: str, name: str, starts: list[Start], bare: float) -> None:
    """Add the medians of one kind of start, and whether they are within the target."""
    cpu, seconds, rss, modules = (median(values) for values in zip(*starts, strict=True))
    target, holds = "", ""
    if name == _WORKER:
        target, holds = f"≤ {_WORKER_SECONDS * 1e3:.0f} ms wall", _holds(seconds <= _WORKER_SECONDS)
    elif (most := _STARTS[name][1]) is not None:
        target, holds = f"≤ {most:.0f} ms CPU more", _holds((cpu - bare) * 1e3 <= most)
    figures = (f"{cpu * 1e3:.0f} ms", f"{seconds * 1e3:.0f} ms", f"{rss:.1f} MiB", f"{modules:.0f}")
    table.row(name, *figures, target, holds, python)


def _holds(does: bool) -> str:
    return "yes" if does else "NO"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start")
    parser.add_argument("--rounds", type=int, default=11, help="starts of each kind")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="PYTHON",
        help="an interpreter with another taskq, measured in turn with this one",
    )  # fmt: skip
    given = parser.parse_args()
    pythons = [sys.executable, *given.beside]
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        found = measure(pythons, given.rounds, Path(directory))
    columns = ("start", "CPU", "wall", "RSS", "modules", "target", "holds", "python")
    table = Table("medians of fresh processes, byte code cached", columns)
    bare = {
        python: median([one.cpu_seconds for one in found[python, "bare python"]])
        for python in pythons
    }
    for name, python in itertools.product((*_STARTS, _WORKER), pythons):
        tell(table, python, name, found[python, name], bare[python])
    table.print()


if __name__ == "__main__":
    main()
