"""How long a running job goes on after somebody in another process cancelled it.

``python -m tests.bench.cancel [JOBS]`` prints, for so many async tasks and a fifth as many tasks in
child processes, the time from the call of ``cancel()`` in this process to the CancelledError in a
worker of another one, and to ``JobCancelled`` here; the child process is gone by then. The goal is
100 ms.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from taskq import State, TaskQ
from taskq.errors import JobCancelled

if TYPE_CHECKING:
    from taskq import Task

#: Of this module, since child processes look for their tasks in it.
app: Final = TaskQ("cancel-bench")
_LIMIT_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.003


@app.task(name="bench.async")
async def sleep_long(mark: str) -> None:
    _note(mark, "began")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        _note(mark, "ended")
        raise


@app.task(name="bench.process", runs_in="process")
def block_long(mark: str) -> None:
    _note(mark, "began")
    time.sleep(600)


def _note(mark: str, what: str) -> None:
    """Say when it happened: the clocks of two processes of one machine are one."""
    path = Path(f"{mark}.{what}")
    path.with_suffix(".new").write_text(f"{time.monotonic()} {os.getpid()}", encoding="ascii")
    path.with_suffix(".new").rename(path)


def _noted(mark: str, what: str) -> tuple[float, int]:
    seconds, pid = Path(f"{mark}.{what}").read_text(encoding="ascii").split()
    return float(seconds), int(pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def _work(directory: str) -> None:
    app.data_dir = Path(directory)
    async with app.worker(concurrency=4) as worker:
        await worker.stopped.wait()


async def _measure(task: Task[[str], None], jobs: int) -> list[tuple[float, float]]:
    """(seconds to the CancelledError or 0, seconds to JobCancelled here) of each job."""
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as marks:
        for number in range(jobs):
            mark = f"{marks}/{number}"
            job = await task.enqueue(mark)
            while not Path(f"{mark}.began").exists():  # noqa: ASYNC110, ASYNC240 - a benchmark
                await asyncio.sleep(_PAUSE_SECONDS)
            await asyncio.sleep(_PAUSE_SECONDS * (number % 7))
            begin = time.monotonic()
            assert await job.cancel()
            try:
                await job.result(timeout=10)
            except JobCancelled:
                end = time.monotonic()
            else:
                raise AssertionError("it was not cancelled")
            if task.name == "bench.async":
                found.append((_noted(mark, "ended")[0] - begin, end - begin))
            else:
                assert not _lives(_noted(mark, "began")[1]), "the child process lives"
                found.append((0.0, end - begin))
            assert await job.status() is State.CANCELLED
    return found


def _row(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p90, p99 = (ordered[min(len(ordered) * n // 100, len(ordered) - 1)] for n in (90, 99))
    # The last percent is the machine's: each killed child is followed by one that starts up.
    assert p90 < _LIMIT_SECONDS, f"{name}: {p90 * 1e3:.1f} ms at the 90th percentile"
    times = (median(ordered), p99, ordered[-1])
    return f"{name:<36}" + "".join(f"{one * 1e3:>10.1f} ms" for one in times)


async def _run(jobs: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        worker = subprocess.Popen(  # noqa: ASYNC220 - this very program
            [sys.executable, "-m", "tests.bench.cancel", "--worker", directory]
        )
        try:
            app.data_dir = Path(directory)
            async with app:
                print(
                    f"{'from cancel() in another process to':<36}{'p50':>13}{'p99':>13}{'max':>13}"
                )
                found = await _measure(sleep_long, jobs)
                print(_row("async: its CancelledError", [one for one, _ in found]))
                print(_row("async: JobCancelled here", [one for _, one in found]))
                found = await _measure(block_long, jobs // 5)
                print(_row("child process: killed, JobCancelled", [one for _, one in found]))
                counts = (await app.stats()).queues
                assert [one.running for one in counts] == [0]
                assert sum(one.cancelled for one in counts) == jobs + jobs // 5
        finally:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(_work(sys.argv[2]))
    else:
        asyncio.run(_run(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
