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
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq_workers import pool
from taskq_workers.events import JobEnd, JobFinished
from taskq_workers.process.reporting import LINES_PER_SECOND_MAX, LineReporter, Style, style_for
from taskq_workers.process.supervisor import Notifier
from tests.processes.harness import start_worker
from tests.programs import run_python, run_taskq
from tests.workers.conftest import Listen

PLAIN = Style(colours=False)


def event(outcome: JobEnd = "succeeded", **changes: object) -> JobFinished:
    made = JobFinished("abcd-7", "mail.send", outcome, 0.1234, 1, 5)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


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


def test_a_flood_is_summed_up_and_a_stuck_output_holds_nobody_up() -> None:
    """The thread is held within a write: ten thousand events must neither block nor pile up."""
    output = Gate()
    output.open.clear()
    reporter = LineReporter(output, style_for("ascii", colours=False))
    reporter.open(["the banner"])
    assert output.entered.wait(30)
    for _ in range(10_000):
        reporter(event())
    assert len(reporter._lines) <= LINES_PER_SECOND_MAX
    output.open.set()
    reporter.close()
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + LINES_PER_SECOND_MAX + 1
    assert lines[1].endswith(" ok mail.send  abcd-7  123 ms"), "ASCII lacks the sign"
    assert lines[-1] == "… 9 800 jobs succeeded"


def test_a_line_of_a_job_is_printed_at_once() -> None:
    output = Gate()
    reporter = LineReporter(output, PLAIN)
    reporter.open(["the banner"])
    assert output.entered.wait(30)
    output.entered.clear()
    reporter(event())
    assert output.entered.wait(30)
    reporter.close()


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
    assert reporter._thread is not None
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
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=50,
        check=False,
    )  # fmt: skip
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


@pytest.mark.parametrize("options", [(), ("--processes", 1)])
def test_a_worker_notifies_systemd_of_ready_reloading_and_stopping(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
) -> None:  # fmt: skip
    """And that it lives, as often as the watchdog wants; a guard reloads, too."""
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    with start_worker(tmp_path / "data", *options) as worker:
        assert told(manager, "READY=1")[1].startswith("STATUS=")
        for _ in range(5):
            told(manager, "WATCHDOG=1")
        if options:
            worker.send(signal.SIGHUP)
            assert told(manager, "RELOADING=1")[1].startswith("MONOTONIC_USEC=")
            told(manager, "READY=1")
        worker.send(signal.SIGTERM)
        told(manager, "STOPPING=1")
        assert worker.wait() == 0


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    on_log: Listen,
) -> None:  # fmt: skip
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
