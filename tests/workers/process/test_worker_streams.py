"""Broken standard streams of a program change neither its jobs nor its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq.log.machine.forks import fill_standard

JOBS = """
import os, resource, signal, sys
from taskq import TaskQ, retry

app = TaskQ("data")

@app.task
async def here() -> int:
    print("said"); print("said", file=sys.stderr or open(os.devnull, "w")); return 1

@app.task
async def quiet() -> int:
    return 3

def crash() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)

@app.task
async def crash_here() -> None:
    crash()

@app.task(runs_in="process", retry=retry.never())
def crash_there() -> None:
    crash()

@app.task(runs_in="process")
def there() -> int:
    print("said"); os.write(1, b"written"); os.write(2, b"written"); return 2
"""
PROGRAM = """
import asyncio
from jobs import app, here, there

async def main():
    async with app, app.worker():
        jobs = [await here.enqueue(), await there.enqueue()]
        open("told", "w").write(str([await job.result(30) for job in jobs]))

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def jobs() -> None:
    Path("jobs.py").write_text(JOBS)


@pytest.fixture
def queue() -> Iterator[TaskQ]:
    with TaskQ("data") as app:
        yield app


def run(redirected: str, *words: str) -> tuple[int, str]:
    """(exit code, what was printed) of a Python program started by a shell like this."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, *words]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("redirected", "names", "results"),
    [(">&- 2>&- <&-", ["here", "there"], [1, 2]), (">/dev/full 2>/dev/full", ["quiet"], [3])],
)
def test_a_worker_that_cannot_print_runs_its_jobs_and_ends_well(
    queue: TaskQ, redirected: str, names: list[str], results: list[int]
) -> None:
    handles = [queue.enqueue_by_name_sync(f"jobs.{name}") for name in names]
    code, printed = run(redirected, "-m", "taskq", "worker", "jobs", "--burst")
    assert (code, printed) == (0, "")
    assert [handle.result_sync(0) for handle in handles] == results


@pytest.mark.parametrize(("place", "code"), [("here", -signal.SIGSEGV), ("there", 0)])
def test_a_crash_leaves_the_stack_of_the_job_on_stderr(queue: TaskQ, place: str, code: int) -> None:
    queue.enqueue_by_name_sync(f"jobs.crash_{place}")
    ended, printed = run("", "-m", "taskq", "worker", "jobs", "--burst")
    assert ended == code
    assert "Fatal Python error: Segmentation fault" in printed
    assert f"in crash_{place}\n" in printed


def test_a_worker_whose_reader_went_away_runs_its_jobs_and_ends_well(queue: TaskQ) -> None:
    handle = queue.enqueue_by_name_sync("jobs.here")
    reader, writer = os.pipe()
    os.close(reader)
    words = (sys.executable, "-m", "taskq", "worker", "jobs", "--burst", "--processes", "1")
    done = subprocess.run(
        words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=50, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "said\n")
    assert handle.result_sync(0) == 1


def test_a_program_without_streams_runs_jobs_in_children_that_print() -> None:
    Path("program.py").write_text(PROGRAM)
    assert run(">&- 2>&- <&-", "program.py") == (0, "")
    assert Path("told").read_text() == "[1, 2]"


@pytest.mark.parametrize(
    ("redirected", "words", "code", "printed"),
    [
        (">&-", ["stats", "-d", "data"], 0, ""),
        ("2>&-", ["stats", "-d", "nowhere"], 1, ""),
        ("2>/dev/full", ["statz"], 2, ""),
        (
            ">/dev/full",
            ["-d", "data", "stats"],
            1,
            "taskq: the output cannot be written (No space left on device)\n",
        ),
    ],
)
def test_a_command_that_cannot_print_still_tells_by_its_exit_code(
    queue: TaskQ, redirected: str, words: list[str], code: int, printed: str
) -> None:
    queue.enqueue_by_name_sync("jobs.here")
    assert run(redirected, "-m", "taskq", *words) == (code, printed)


def test_streams_that_a_windowed_program_has_not_are_no_trouble(queue: TaskQ) -> None:
    handle = queue.enqueue_by_name_sync("jobs.here")
    program = (
        "import sys; sys.stdin = sys.stdout = sys.stderr = None\n"
        "from taskq.cli.main import main; main(['worker', 'jobs', '--burst'])"
    )
    assert run("", "-c", program) == (0, "")
    assert handle.result_sync(0) == 1


def test_what_is_open_stays_as_it_is() -> None:
    before = [os.fstat(number).st_ino for number in range(3)]
    fill_standard()
    assert [os.fstat(number).st_ino for number in range(3)] == before
