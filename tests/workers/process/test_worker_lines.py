"""Lines of a worker on all kinds of streams, and notes to systemd."""

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.core.records import Kind
from taskq.core.views import Waiting
from taskq_workers import pool
from taskq_workers.events import JobEnd, JobFinished
from taskq_workers.process.reporting import (
    LINES_PER_SECOND_MAX,
    BannerFacts,
    LineReporter,
    Style,
    banner,
    drain_lines,
    job_line,
    overdue_lines,
    rest_of,
    stopped_line,
    style_for,
    summary_line,
)
from taskq_workers.process.supervisor import Notifier
from tests.processes.harness import SCRIPTS, Child
from tests.programs import run_python, run_taskq
from tests.workers.conftest import Listen

PLAIN = Style(colours=False)


def event(outcome: JobEnd = "succeeded", **changes: object) -> JobFinished:
    made = JobFinished("abcd-7", "mail.send", outcome, 0.1234, 1, 5)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def facts(**changes: object) -> BannerFacts:
    values: dict[str, object] = {
        "version": "0.1.0",
        "pid": 42,
        "directory": "/data",
        "durability": "fsync",
        "recovered": 3,
        "queues": None,
        "tasks": frozenset({"mail.send"}),
        "concurrency": 8,
        "ready_seconds": 0.0421,
    }
    return BannerFacts(**{**values, **changes})  # type: ignore[arg-type]


C_BUILD = "C (build 9-db3b0b53, 12.2.0)"
BANNERS: list[tuple[dict[str, object], tuple[str, ...]]] = [
    (
        {"tasks": frozenset(f"jobs.task_{n}" for n in range(100)), "queues": frozenset("ba")},
        ("0.1.0", "/data\n", "fsync", "3 in-flight jobs", "a, b", "94 more", "in 42 ms"),
    ),
    ({"is_empty": True}, ("  directory   /data (new, empty)\n",)),
    ({"plain_jobs": C_BUILD}, (f"  plain jobs  {C_BUILD}\n",)),
    ({"executor": "spark"}, ("  executor    spark\n",)),
    ({"settings": "/a/.env\x1b[31m"}, ("fsync; settings: /a/.env\\x1b[31m\n",)),
]


@pytest.mark.parametrize(("changes", "parts"), BANNERS)
def test_the_banner_has_at_most_8_lines_and_says_what_matters(
    changes: dict[str, object], parts: tuple[str, ...]
) -> None:
    lines = banner(facts(**changes), PLAIN)
    text = "".join(f"{line}\n" for line in lines)
    assert len(lines) <= 8
    assert all(part in text for part in parts), text
    assert "executor" not in changes or "plain jobs" not in text


JOB = "mail.send  abcd-7  123 ms"
JOB_LINES: list[tuple[JobFinished, Style, str]] = [
    (event(), PLAIN, f" ✓ {JOB}"),
    (event(), style_for("ascii", colours=False), f" ok {JOB}"),
    (event(), style_for("utf-8", colours=False), f" ✓ {JOB}"),
    (event(), Style(colours=True), f" \x1b[32m✓\x1b[0m {JOB}"),
    (
        *(event("dead", attempt=5, reason="ValueError: \x1bno\nFile ..."), PLAIN),
        f" ✗ {JOB}  attempt 5/5  ValueError: \\x1bno",
    ),
    (
        *(event("retried", delay_seconds=2.5, reason="X: y"), PLAIN),
        f" ↻ {JOB}  attempt 1/5  again in 2.5 s  X: y",
    ),
    (event("released", delay_seconds=0.0), PLAIN, f" ↻ {JOB}  given back"),
    (event("cancelled"), PLAIN, f" ✗ {JOB}  cancelled"),
]


@pytest.mark.parametrize(("event", "style", "line"), JOB_LINES)
def test_a_job_line_says_what_became_of_it(event: JobFinished, style: Style, line: str) -> None:
    assert job_line(event, 0.0, style).endswith(line)


def held(seconds: float | None, task: str = "mail.send", job: int = 7) -> Any:
    return SimpleNamespace(task=task, job_id=f"abcd-{job}"), seconds


def test_a_drain_names_what_it_waits_for_and_for_how_long() -> None:
    assert drain_lines([], 10.0) == ["stopping"]
    assert drain_lines([held(0.4), held(63.0, "x.y", 8)], 10.0) == [
        "draining: 2 running jobs get 10 s to finish; once more cancels",
        "  x.y  abcd-8  running for 63.0 s",
        "  mail.send  abcd-7  running for 400 ms",
    ]
    assert drain_lines([held(None)], inf, "process 9 ") == [
        "process 9 draining: 1 running job gets as long as it takes to finish; once more cancels",
        "  mail.send  abcd-7",
    ]
    assert drain_lines([held(1.0)] * 8, 10.0)[-1] == "  and 3 more"
    assert overdue_lines([held(12.0)], 10.0) == [
        "10 s are over: 1 running job cancelled and given back",
        "  mail.send  abcd-7  running for 12.0 s",
    ]


def test_the_last_lines_sum_a_workers_life_up() -> None:
    assert summary_line({"succeeded": 12_345, "dead": 1}) == "… 12 345 jobs succeeded, 1 dead"
    assert summary_line({"retried": 1}) == "… 1 job retried"
    ended = {Kind.SUCCEEDED: 12_345, Kind.DEAD: 1, Kind.RETRIED: 2, Kind.RELEASED: 1}
    assert stopped_line(ended, 3_600.0, 0.25) == (
        "stopped after 60 min, drained in 250 ms: "
        "12 345 jobs succeeded, 1 dead, 2 retried, 1 given back"
    )
    assert stopped_line({Kind.DEAD: 1}, 2.0, None, "process 9 ") == (
        "process 9 stopped after 2.0 s: 1 job dead"
    )
    assert stopped_line({Kind.RELEASED: 0}, 2.0, None) == "stopped after 2.0 s: no job ran"
    assert rest_of(Waiting(), None, 0) == ""
    assert rest_of(Waiting(1, 2), None, 0) == "; 1 waits, 2 wait in a paused queue"
    left = rest_of(Waiting(later=3), 360 * 10**9, 60 * 10**9)
    assert left == "; 3 are due later, the first in 5m"


class Gate(io.StringIO):
    """An output that notes each write, and may block."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def write(self, text: str, /) -> int:
        self.entered.set()
        assert self.open.wait(30)
        return super().write(text)


def test_what_happens_before_the_banner_is_printed_after_it() -> None:
    output = io.StringIO()
    LineReporter(output, PLAIN).close()
    reporter = LineReporter(output, PLAIN)
    reporter(event())
    reporter.open(["the banner"])
    reporter.close()
    assert output.getvalue().startswith("the banner\n")
    assert "abcd-7" in output.getvalue()


def test_a_flood_is_summed_up_and_a_stuck_output_holds_nobody_up() -> None:
    """The thread is held within a write: ten thousand events must neither block nor pile up."""
    output = Gate()
    output.open.clear()
    reporter = LineReporter(output, PLAIN)
    reporter.open(["the banner"])
    assert output.entered.wait(30)
    for _ in range(10_000):
        reporter(event())
    assert len(reporter._lines) <= LINES_PER_SECOND_MAX
    output.open.set()
    reporter.close()
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + LINES_PER_SECOND_MAX + 1
    assert lines[-1] == "… 9 800 jobs succeeded"


def test_an_output_whose_reader_went_away_stops_nothing_and_is_written_to_once() -> None:
    tries: list[str] = []

    class Closed(io.StringIO):
        def write(self, text: str, /) -> int:
            tries.append(text)
            raise BrokenPipeError

    reporter = LineReporter(Closed(), PLAIN)
    reporter._write(["the banner"])
    reporter.open(["more"])
    reporter(event())
    reporter.close()
    assert not reporter._thread.is_alive()
    assert tries == ["the banner\n"]


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


@pytest.fixture
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


_BURST = "worker jobs --burst"


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("redirected", "words", "code", "printed", "results"),
    [
        (">&- 2>&- <&-", _BURST, 0, "", {"here": 1, "there": 2}),
        (">/dev/full 2>/dev/full", _BURST, 0, "", {"quiet": 3}),
        (">&-", "stats -d data", 0, "", {}),
        ("2>&-", "stats -d nowhere", 1, "", {}),
        ("2>/dev/full", "statz", 2, "", {}),
        (
            *(">/dev/full", "-d data stats", 1),
            *("taskq: the output cannot be written (No space left on device)\n", {}),
        ),
    ],
)
def test_a_command_that_cannot_print_does_its_work_and_keeps_its_exit_code(
    queue: TaskQ, redirected: str, words: str, code: int, printed: str, results: dict[str, int]
) -> None:
    handles = {name: queue.enqueue_by_name_sync(f"jobs.{name}") for name in results or ["here"]}
    assert run(redirected, "-m", "taskq", *words.split()) == (code, printed)
    for name, value in results.items():
        assert handles[name].result_sync(0) == value


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(("place", "code"), [("here", -signal.SIGSEGV), ("there", 0)])
def test_a_crash_leaves_the_stack_of_the_job_on_stderr(queue: TaskQ, place: str, code: int) -> None:
    queue.enqueue_by_name_sync(f"jobs.crash_{place}")
    ended, printed = run("", "-m", "taskq", "worker", "jobs", "--burst")
    assert ended == code
    assert "Fatal Python error: Segmentation fault" in printed
    assert f"in crash_{place}\n" in printed


@pytest.mark.posix("its script limits its own memory")
@pytest.mark.usefixtures("jobs")
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


SECONDS = 30


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield the manager's end of the socket."""
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(str(tmp_path / "notify"))
        first.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield first


def told(manager: socket.socket, word: str) -> list[str]:
    while True:
        lines = manager.recv(4_096).decode().splitlines()
        if lines[0].startswith(word):
            return lines


def start_worker(path: Path, *options: object) -> Child:
    command = ("-m", "taskq", "worker", "jobs:app", "-d", path / "data", *options)
    return Child(sys.executable, *command, cwd=SCRIPTS)


@pytest.mark.parametrize("options", [(), pytest.param(("--processes", 2), marks=pytest.mark.slow)])
def test_a_worker_notifies_systemd_of_ready_and_stopping(
    tmp_path: Path,
    manager: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
) -> None:
    """And that it lives, as often as the watchdog wants; a guard for all its processes."""
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    with start_worker(tmp_path, *options) as worker:
        assert told(manager, "READY=1")[1].startswith("STATUS=")
        for _ in range(5):
            told(manager, "WATCHDOG=1")
        worker.send(signal.SIGTERM)
        told(manager, "STOPPING=1")
        assert worker.wait() == 0


def test_a_reload_notifies_systemd_of_reloading_and_then_ready(
    tmp_path: Path, manager: socket.socket
) -> None:
    with start_worker(tmp_path, "--processes", 1) as guard:
        told(manager, "READY=1")
        guard.send(signal.SIGHUP)
        assert told(manager, "RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        told(manager, "READY=1")
        guard.send(signal.SIGTERM)
        assert guard.wait() == 0


def test_notes_go_to_an_abstract_address_and_a_watchdog_of_another_process_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        name = f"taskq-test-{os.getpid()}"
        first.bind(f"\0{name}")
        first.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", "2000000")
        for process, seconds in (("", 1.0), (str(os.getpid()), 1.0), ("1", 0)):
            monkeypatch.setenv("WATCHDOG_PID", process)
            assert Notifier().watchdog_seconds == seconds
        Notifier().ready("here")
        assert first.recv(100) == b"READY=1\nSTATUS=here"
    # A manager that is gone stops nothing.
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    Notifier().ready("here")
    monkeypatch.delenv("NOTIFY_SOCKET")
    Notifier().stopping()


#: Ends a process where Ctrl-C comes while the command is imported.
INTERRUPTED = """
import os, signal, sys, time
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "taskq.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
sys.meta_path.insert(0, Finder())
import taskq_start
taskq_start.main()
"""


@pytest.mark.posix("a signal from elsewhere is a kill")
def test_ctrl_c_while_the_command_is_imported_prints_nothing() -> None:
    done = run_python("-c", INTERRUPTED)
    assert (done.returncode, done.stderr, done.stdout) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_an_interruption_whatever_python_makes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> None:
        raise RuntimeError("Error calling __set_name__ on …") from KeyboardInterrupt()

    monkeypatch.setattr(main, "get_command", lambda *_: click.Command("ls", callback=interrupted))
    assert CliRunner().invoke(main, ["ls"]).exit_code == 130


@pytest.mark.parametrize("broken", ["sys.stdout = None", "sys.stdout.close(); sys.stderr = 3"])
def test_a_task_that_breaks_a_stream_costs_no_worker_its_end(tmp_path: Path, broken: str) -> None:
    (tmp_path / "shop.py").write_text(
        "import sys\nfrom taskq import TaskQ\napp = TaskQ('data')\n"
        f"@app.task\ndef work() -> None:\n    {broken}\n"
    )
    with TaskQ(tmp_path / "data") as app:
        app.enqueue_by_name_sync("shop.work")
    done = run_taskq("worker", "shop:app", "--burst", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


async def test_a_drain_that_takes_a_while_names_the_jobs_that_it_waits_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    on_log: Listen,
) -> None:
    """Somebody may have pressed Ctrl-C, and sit before a program that does nothing."""
    app = TaskQ(tmp_path / "data", durability="os")
    begun, was_told = asyncio.Event(), asyncio.Event()

    @app.task(name="shop.work")
    async def work() -> None:
        begun.set()
        await was_told.wait()

    monkeypatch.setattr(pool, "SILENCE_SECONDS", 0.0)
    on_log(lambda _: was_told.set())
    async with app, app.worker(drain_timeout=30):
        job = await work.enqueue()
        await begun.wait()
    line = "the worker stops; running jobs get 30 s to finish (drain_timeout): shop.work"
    assert caplog.messages == [f"{line} {job.id}"]


def test_levels_are_read_as_python_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_LOG_LEVEL", "INFO")
    assert TaskQ("data").settings.log_level == "info"
    monkeypatch.delenv("TASKQ_LOG_LEVEL")
    done = CliRunner().invoke(main, ["worker", "nowhere:app", "--log-level", "INFO"])
    assert "no module 'nowhere'" in done.output
