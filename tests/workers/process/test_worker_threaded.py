"""Workers of programs without an event loop."""

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
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskq import TaskQ
from taskq.app.app import WorkerOptions
from taskq.errors import LogError, UsageError
from taskq_workers import Worker, WorkerThread
from taskq_workers.process import supervisor
from taskq_workers.process.supervisor import run_to_the_end
from tests.effort import ended


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
        job = app.enqueue_by_name_sync("wait")
        assert begun.wait(20)
        go_on.set()
    assert job.status_sync().name == "SUCCEEDED"
    # The app is open still, for a program that goes on.
    assert app.enqueue_by_name_sync("add", 1, 2).status_sync().name == "READY"


def test_a_worker_on_a_thread_lives_once_and_stops_as_often_as_one_likes(app: TaskQ) -> None:
    thread: Any = app.worker_thread()
    thread.start()
    with pytest.raises(UsageError, match="was started before"):
        thread.start()
    thread.stop()
    thread.stop()
    never = WorkerThread(app)
    never.stop()
    never.stop()


def test_a_worker_that_is_stopped_while_its_thread_starts_ends_at_once(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopping = threading.Event(), threading.Event()

    def late(main: Coroutine[Any, Any, None]) -> None:
        begun.set()
        assert stopping.wait(30)
        run_to_the_end(main)

    monkeypatch.setattr(supervisor, "run_to_the_end", late)
    worker = WorkerThread(app)
    join = worker._thread.join

    def joined() -> None:
        stopping.set()
        join(30)

    monkeypatch.setattr(worker._thread, "join", joined)
    starting = threading.Thread(target=worker.start)
    starting.start()
    assert begun.wait(30)
    worker.stop()
    ended(starting)
    assert not worker._thread.is_alive()
    assert not worker.worker.started.is_set()


def test_what_is_wrong_is_told_where_the_worker_is_made_or_started(
    app: TaskQ, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="concurrency"):
        app.worker_thread(concurrency=0)
    (tmp_path / "file").write_text("")
    other = TaskQ(tmp_path / "file")
    with pytest.raises(LogError), other.worker_thread():
        pass


def test_an_error_of_the_block_is_not_hidden_by_the_workers_end(app: TaskQ) -> None:
    with pytest.raises(ZeroDivisionError), app.worker_thread():
        _ = 1 / 0


def test_run_worker_blocks_until_the_burst_is_over_and_leaves_the_process_as_it_was(
    app: TaskQ,
) -> None:
    job = app.enqueue_by_name_sync("add", 1, 2)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), gc.get_threshold()
    app.run_worker(burst=True)
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), gc.get_threshold()
    assert after == before
    assert job.result_sync(timeout=0) == 3


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
def test_what_a_program_forks_after_run_worker_keeps_the_programs_handlers(app: TaskQ) -> None:
    app.enqueue_by_name_sync("add", 1, 2)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakes = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        app.run_worker(burst=True)
        assert signal.set_wakeup_fd(-1) == writer
        signal.signal(signal.SIGTERM, handle)
        pid = os.fork()
        if not pid:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is handle else 1)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(wakes)
        os.close(reader)
        os.close(writer)


def handle(number: int, frame: object) -> None:
    del number, frame


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
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_run_worker_and_the_program_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ran\n"
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "stopped\n"), err


def test_an_app_takes_the_very_options_of_a_worker() -> None:
    """``app.worker`` is typed by names of its own, since it may not import the workers."""
    parameters = inspect.signature(Worker).parameters
    given = {"app", "concurrency", "queues"}
    assert set(WorkerOptions.__annotations__) == parameters.keys() - given
