"""Everything that can be awaited can also be called from code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from taskq import Flow, FlowHandle, JobHandle, State, Stream, Task, TaskLog, TaskQ
from taskq.connection.blocking import blocking
from taskq.errors import JobFailed, JobNotFound, ResultTimeout, UsageError
from taskq.reading.dead import DeadLetters
from taskq.schedules import LogSchedules


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = TaskQ(tmp_path / "data")

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="fail", retry=1)
    async def fail() -> None:
        raise ValueError("order 17 is bad")

    yield app
    app.close_sync()


KINDS = [TaskQ, TaskLog, Task, Flow, JobHandle, FlowHandle, DeadLetters, LogSchedules, Stream]


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_coroutine_has_a_blocking_twin_of_the_same_signature(kind: type) -> None:
    methods = {
        name: method
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert methods
    for name, method in methods.items():
        twin = getattr(kind, f"{name}_sync", None)
        assert twin is not None, f"{kind.__name__}.{name} has no twin"
        assert not inspect.iscoroutinefunction(twin)
        parameters = [inspect.signature(item).parameters.keys() for item in (method, twin)]
        assert parameters[0] == parameters[1], name
        assert twin.__doc__.startswith(f"Do as ``{name}``"), name


@pytest.mark.parametrize("kind", KINDS)
async def test_every_twin_refuses_to_run_in_the_thread_of_an_event_loop(kind: Any) -> None:
    twins = [name for name in dir(kind) if name.endswith("_sync")]
    assert twins
    for name in twins:
        twin = inspect.getattr_static(kind, name)
        missing = [
            parameter.name
            for parameter in inspect.signature(twin).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        with pytest.raises(UsageError, match=rf"{name}\(\) would stop this event loop: use await"):
            twin(*missing)


async def test_a_block_without_async_is_not_entered_in_the_thread_of_an_event_loop(
    app: TaskQ, tmp_path: Path
) -> None:
    log = TaskLog.open(tmp_path / "log")
    for block in (app, log, app.transaction(), log.transaction(), log.stream()):
        with pytest.raises(UsageError, match="would stop this event loop: use async with"), block:
            raise AssertionError("it was entered")


def test_a_program_without_a_loop_enqueues_runs_and_looks_after_its_jobs(app: TaskQ) -> None:
    good = app.enqueue_by_name_sync("add", 1, 2)
    bad = app.enqueue_by_name_sync("fail")
    assert good.status_sync() is State.READY
    with pytest.raises(ResultTimeout):
        good.result_sync(timeout=0)
    with app.worker_thread(concurrency=2):
        assert good.result_sync(timeout=20) == 3
        with pytest.raises(JobFailed, match="order 17 is bad"):
            bad.result_sync(timeout=20)
    assert app.dead.count_sync() == 1
    assert [view.job_id for view in app.dead.list_sync(task="fail")] == [bad.id]
    bad.requeue_sync()
    assert app.dead.count_sync() == 0
    assert bad.cancel_sync()
    assert app.stats_sync().queues[0].succeeded == 1
    assert app.pause_sync("default")
    waiting = app.enqueue_by_name_sync("add", 3, 4)
    assert "paused" in app.why_sync(waiting.id).text
    assert app.cancel_many_sync(queue="default").count == 1
    assert app.resume_sync("default")
    assert [event.kind for event in app.timeline_sync(good.id)][-1] == "succeeded"


def test_attempts_tell_who_ran_the_job_and_what_went_wrong(app: TaskQ) -> None:
    job = app.enqueue_by_name_sync("fail")
    with app.worker_thread():
        with pytest.raises(JobFailed):
            job.result_sync(timeout=20)
        (attempt,) = job.attempts_sync()
    assert (attempt.number, attempt.outcome, attempt.pid) == (1, "dead", os.getpid())
    assert attempt.worker
    assert attempt.host
    assert (attempt.error, attempt.message) == ("ValueError", "order 17 is bad")
    assert len(attempt.fingerprint) == 16
    assert attempt.ended_at is not None
    assert attempt.started_at < attempt.ended_at
    with pytest.raises(JobNotFound):
        app.attempts_sync(f"{job.id}9")


def test_calls_of_many_threads_share_one_loop(app: TaskQ) -> None:
    before = threading.active_count()
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(app.dead.count_sync())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [0] * 8
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("taskq-sync") == 1
    assert threading.active_count() - before <= 3


def test_an_interrupted_call_cancels_what_it_waits_for() -> None:
    class Interrupted(BaseException):
        pass

    cancelled = threading.Event()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt(*_: object) -> None:
        assert begun.wait(20)
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskq.log.machine.threads.Pending.result", interrupt)
        with pytest.raises(Interrupted):
            blocking(wait)()
    assert cancelled.wait(20)
