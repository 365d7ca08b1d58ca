"""Workers in processes under a guard, and in threads of a program."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskq import TaskQ, engine
from taskq.app.app import WorkerOptions
from taskq.errors import LogError, UsageError
from taskq_workers import Worker, WorkerThread
from taskq_workers.process import guard, supervisor
from taskq_workers.process.guard import Event, Guard, ProcessLife, WorkerProcess
from taskq_workers.process.supervisor import Notifier, run_to_the_end
from taskq_workers.runs import system
from tests.effort import ended
from tests.processes.harness import eventually
from tests.programs import run_python


class Started:
    refuses = False

    def __init__(self, number: int, _command: list[str], life: ProcessLife) -> None:
        if Started.refuses:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.number = number
        self.life = life
        self.pid = 1000 + number
        self.started = 0.0
        self.ready = life in {ProcessLife.SERVING, ProcessLife.LEAVING}
        self.error = ""
        self.stops = 0

    def stop(self, _drain_seconds: float) -> None:
        self.stops += 1


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def guarding(
    said: list[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    monkeypatch.setattr(guard, "WorkerProcess", Started)
    monkeypatch.setattr(Started, "refuses", False)
    result: Any = Guard(
        ["worker"], 2, burst=getattr(request, "param", False), drain_seconds=1, say=said.append,
        complain=said.append, notifier=Notifier(),
    )  # fmt: skip
    result._start_due()
    yield result
    result._alarm.close()
    result._poke.close()


def lives(guarding: Any) -> list[tuple[int, ProcessLife]]:
    return [(process.number, process.life) for process in guarding._processes]


def become_ready(guarding: Any, *processes: Any) -> None:
    for process in processes:
        process.ready = True
        guarding._happened(process, Event.READY)


def test_a_worker_that_cannot_be_started_is_tried_again_after_a_pause(
    guarding: Any, said: list[str]
) -> None:
    before = list(guarding._processes)
    Started.refuses = guarding._replace_asked = True
    guarding._act()
    assert guarding._processes == before
    assert not guarding._to_replace
    assert "the old ones stay" in said[-1]
    guarding._ended(guarding._processes[0], -9)
    guarding._places[0].start_at = 0.0
    guarding._start_due()
    assert guarding._places[0].start_at
    assert "worker 1 cannot be started (" in said[-1]
    assert said[-1].endswith("started again in 1 s")
    Started.refuses = False
    guarding._places[0].start_at = 0.0
    guarding._start_due()
    assert sorted(lives(guarding)) == [(1, ProcessLife.STARTING), (2, ProcessLife.STARTING)]


@pytest.mark.parametrize(
    ("is_ready", "code", "exit_code"),
    [
        pytest.param(False, -15, 0, marks=pytest.mark.posix("ends by no signal")),
        (True, -15, 1),
        (False, -9, 1),
    ],
)
def test_workers_that_are_stopped_while_they_start_are_no_failure(
    guarding: Any, is_ready: bool, code: int, exit_code: int
) -> None:
    guarding._stops_asked = 1
    guarding._act()
    for worker in list(guarding._processes):
        worker.ready = is_ready
        guarding._ended(worker, code)
    assert not guarding._processes
    assert [place.start_at for place in guarding._places] == [None, None]
    assert guarding._exit_code == exit_code


def test_a_drain_goes_on_after_the_guard_and_its_workers_were_stopped(
    guarding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, sent = [1_000.0], list[int | None]()
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: now[0]))
    process = guarding._processes[0]
    process.deadline, process.ended, process.send = None, lambda: None, sent.append
    WorkerProcess.stop(process, drain_seconds=25 - supervisor.GRACE_SECONDS)
    guarding._processes = [process]
    process.socket = guarding._alarm

    def stand(*_: object) -> tuple[list[object], ...]:
        now[0] += pauses.pop()
        return [], [], []

    monkeypatch.setattr(guard, "select", SimpleNamespace(select=stand))
    pauses = [*[1.0] * 24, 3_600.0]
    while pauses:
        assert sent == [signal.SIGTERM]
        guarding._wait()
        guarding._reap()
    assert sent == [signal.SIGTERM, system.SIGKILL]


def test_each_worker_is_replaced_once_its_successor_is_ready(guarding: Any) -> None:
    become_ready(guarding, *guarding._processes)
    guarding._replace_asked = True
    guarding._act()
    for number in (1, 2):
        coming = guarding._processes[-1]
        assert (coming.number, coming.life) == (number, ProcessLife.COMING)
        become_ready(guarding, coming)
    assert lives(guarding) == [
        *((1, ProcessLife.LEAVING), (2, ProcessLife.LEAVING)),
        *((1, ProcessLife.SERVING), (2, ProcessLife.SERVING)),
    ]
    # A replaced worker drains on at the first signal; a second cancels its jobs.
    for count in (1, 2):
        assert [process.stops for process in guarding._processes] == [max(1, count - 1)] * 2 + [
            count - 1
        ] * 2
        guarding._stops_asked = count
        guarding._act()
        assert {process.stops for process in guarding._processes} == {count}


def test_a_worker_that_died_before_its_successor_was_ready_is_not_started_as_well(
    guarding: Any,
) -> None:
    become_ready(guarding, *guarding._processes)
    guarding._to_replace.append(guarding._places[0])
    guarding._replace_next()
    guarding._ended(guarding._processes[0], -9)
    become_ready(guarding, guarding._processes[-1])
    guarding._ended(guarding._processes[-1], 0)
    guarding._start_due()
    assert sorted(lives(guarding)) == [(1, ProcessLife.STARTING), (2, ProcessLife.SERVING)]


AGAIN, OVER, PAUSED = "again", "over", "paused"


@pytest.mark.parametrize(
    ("guarding", "event", "then", "exit_code"),
    [
        (False, Event.DONE, AGAIN, 0),
        (False, Event.WRONG, OVER, 2),
        (False, Event.REFUSED, PAUSED, 0),
        (False, Event.DIED, PAUSED, 0),
        (True, Event.DONE, OVER, 0),
        (True, Event.WRONG, OVER, 2),
        (True, Event.REFUSED, OVER, 2),
        (True, Event.DIED, PAUSED, 0),
    ],
    indirect=["guarding"],
)
def test_the_end_of_a_worker_leads_to_another_or_to_the_end(
    guarding: Any, said: list[str], event: Event, then: str, exit_code: int
) -> None:
    code = 0 if event is Event.DONE else 1 if event is Event.DIED else 2
    process, place = guarding._processes[0], guarding._places[0]
    process.started = float("inf")
    guarding._happened(process, event, code)
    is_paused = bool(said) and said[-1].endswith("started again in 0.5 s")
    seen = OVER if place.start_at is None else PAUSED if is_paused else AGAIN
    assert (seen, guarding._exit_code) == (then, exit_code)
    assert guarding._processes[1].stops == (event is Event.WRONG)
    if then == OVER:  # the other one may end well
        guarding._happened(guarding._processes[1], Event.DONE)
        assert guarding._exit_code == exit_code


def test_a_worker_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = sorted(Path("/dev/fd").iterdir())
    with pytest.raises(FileNotFoundError) as refused:
        WorkerProcess(1, ["/there/is/no/such/command"], ProcessLife.STARTING)
    assert refused.tb is not None  # which has the process that never was, and its socket
    assert sorted(Path("/dev/fd").iterdir()) == before


@pytest.fixture
def app(tmp_path: Path) -> Iterator[TaskQ]:
    app = TaskQ(tmp_path / "data")

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    yield app
    app.close_sync()


def test_a_worker_on_a_thread_claims_when_its_block_begins_and_has_drained_when_it_ends(
    app: TaskQ,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task(name="wait")
    def wait() -> str:
        begun.set()
        assert go_on.wait(20)
        return "done"

    with app.worker_thread(concurrency=2) as thread:
        assert thread.worker.started.is_set()
        with pytest.raises(UsageError, match="was started before"):
            thread.start()
        job = app.enqueue_by_name_sync("wait")
        assert begun.wait(20)
        go_on.set()
    for ended_or_never_begun in (thread, WorkerThread(app)):
        for _ in range(2):
            ended_or_never_begun.stop()
    assert job.status_sync().name == "SUCCEEDED"
    # The app is open still, for a program that goes on.
    assert app.enqueue_by_name_sync("add", 1, 2).status_sync().name == "READY"


def test_a_worker_that_is_stopped_while_its_thread_starts_ends_at_once(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, worker = threading.Event(), WorkerThread(app)

    def late(main: Coroutine[Any, Any, None]) -> None:
        begun.set()
        eventually(lambda: worker._is_asked)
        run_to_the_end(main)

    monkeypatch.setattr(supervisor, "run_to_the_end", late)
    starting = threading.Thread(target=worker.start)
    starting.start()
    assert begun.wait(30)
    worker.stop()
    ended(starting)
    assert not worker.worker.started.is_set()


def test_errors_of_a_worker_thread_are_raised_at_its_start_and_hide_none_of_the_block(
    app: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError), TaskQ(tmp_path / "file").worker_thread():
        pass
    with pytest.raises(ZeroDivisionError), app.worker_thread():
        _ = 1 / 0


def test_run_worker_works_in_a_thread_too(app: TaskQ) -> None:
    job = app.enqueue_by_name_sync("add", 1, 2)
    thread = threading.Thread(target=lambda: app.run_worker(burst=True))
    thread.start()
    assert job.result_sync(timeout=20) == 3
    ended(thread)


@pytest.mark.parametrize("kind", ["deaf", "executor"])
def test_a_job_that_does_not_end_when_cancelled_does_not_keep_the_workers_thread(
    app: TaskQ, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task(name="lasts")
    async def lasts() -> None:
        begun.set()
        if kind == "executor":
            await asyncio.to_thread(go_on.wait)
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    thread: Any = app.worker_thread(drain_timeout=0)
    thread.start()
    job = app.enqueue_by_name_sync("lasts")
    assert begun.wait(20)
    stopping = threading.Thread(target=thread.stop, daemon=True)
    stopping.start()
    try:
        ended(stopping)
    finally:
        go_on.set()
    assert thread.worker.held == []
    assert job.status_sync().name == "READY"
    del thread, stopping
    gc.collect()  # else asyncio's complaint would stand among the lines of another test's job
    assert ("Task was destroyed but it is pending" in caplog.text) == (kind == "deaf")


PROGRAM = """
import sys
from taskq import TaskQ

app = TaskQ(sys.argv[1])

@app.task(name="say")
def say() -> None:
    print("ran", flush=True)

say.enqueue_sync()
app.run_worker(concurrency=2)
print("stopped", flush=True)
input()
print("ended", flush=True)
"""


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(engine.system.ask_to_stop, id="SIGTERM"),
        pytest.param(
            lambda pid: os.kill(pid, signal.SIGINT),
            marks=pytest.mark.posix("a signal from elsewhere is a kill"),
            id="SIGINT",
        ),
    ],
)
def test_a_request_ends_run_worker_and_the_program_goes_on(
    tmp_path: Path, ask: Callable[[int], object]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ran\n"
        ask(process.pid)
        assert process.stdout.readline() == "stopped\n"
        if os.name == "nt":  # elsewhere a signal has its meaning for the program again
            assert not engine.system.ask_to_stop(process.pid), "nothing listens any more"
        out, err = process.communicate("\n", timeout=30)
    assert (process.returncode, out) == (0, "ended\n"), err


@pytest.mark.parametrize(
    ("program", "left"),
    [
        ("from taskq.cli.main import main; main(['worker', 'holds', '--burst'])", 0),
        ("from taskq.cli.main import main; main(['worker', 'holds', '--burst', '--below'])", 1),
        ("from taskq_workers.children import inside; inside._leave_signals_to_the_worker()", 1),
    ],
)
def test_workers_below_another_process_and_children_leave_the_console_to_it(
    tmp_path: Path, program: str, left: int
) -> None:
    text = "from taskq import TaskQ\napp = TaskQ('data')\n@app.task\ndef nop() -> None: ...\n"
    (tmp_path / "holds.py").write_text(text)
    noting = "from taskq import engine; engine.system.leave_console = lambda: print('left')\n"
    done = run_python("-c", noting + program, cwd=tmp_path, check=True)
    assert done.stdout.splitlines().count("left") == left


def test_an_app_takes_the_very_options_of_a_worker() -> None:
    """``app.worker`` is typed by names of its own, since it may not import the workers."""
    parameters = inspect.signature(Worker).parameters
    given = {"app", "concurrency", "queues"}
    assert set(WorkerOptions.__annotations__) == parameters.keys() - given
