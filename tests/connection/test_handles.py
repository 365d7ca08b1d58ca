from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, State, Task, TaskQ
from taskq.core.parsing import Tag
from taskq.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    ResultTimeout,
    UsageError,
)
from taskq.log.read import reader
from taskq.log.read.reader import LogReader
from tests.recorder import Recorder


@pytest.fixture
def task(app: TaskQ, recorder: Recorder) -> Task[..., set[int]]:
    @app.task(name="t")
    def task() -> set[int]:
        return {1}

    return task


async def test_a_result_comes_back_as_the_return_annotation_has_it(
    app: TaskQ, task: Any, recorder: Recorder
) -> None:
    job = await task.enqueue()
    recorder.settle(job.lsn, State.SUCCEEDED, b"[1,2]", "t")
    assert await job.result() == {1, 2}
    assert job.duplicate is False
    result = app.job(job.id)
    assert result == job
    assert await result.result(timeout="1s") == {1, 2}
    assert repr(result) == "<JobHandle job 0123abcd-1>"


async def test_a_result_of_a_task_not_known_here_is_plain_json(
    app: TaskQ, recorder: Recorder
) -> None:
    job = await app.enqueue_by_name("elsewhere")
    recorder.settle(job.lsn, State.SUCCEEDED, b'{"a":[1]}', "elsewhere")
    assert await job.result() == {"a": [1]}


@pytest.mark.parametrize(
    ("state", "body", "error", "message"),
    [
        (State.DEAD, b"ValueError: no", JobFailed, "job 0123abcd-1 failed: ValueError: no"),
        (State.DEAD, None, JobFailed, "failed: "),
        (State.CANCELLED, None, JobCancelled, "was cancelled"),
        (State.EXPIRED, None, JobExpired, "expired before a worker could run it"),
    ],
)
async def test_a_job_that_did_not_succeed_raises_what_became_of_it(
    task: Any, recorder: Recorder, state: State, body: bytes | None, error: Any, message: str
) -> None:
    job = await task.enqueue()
    recorder.settle(job.lsn, state, body)
    with pytest.raises(error, match=message) as raised:
        await job.result()
    assert raised.value.job_id == job.id


@pytest.mark.parametrize(
    "text", ["", "x", "-5", "0123abcd-", "0123abcd-x", "a--1", "a-²", "a-" + "9" * 30]
)
def test_what_is_no_job_id_is_refused(app: TaskQ, text: str) -> None:
    with pytest.raises(UsageError, match="is no job id"):
        app.job(text)


def test_a_handle_is_told_apart_from_anything_else(app: TaskQ) -> None:
    handle: JobHandle[Any] = JobHandle(app, None, Tag("0123abcd"), 1)
    assert handle != "0123abcd-1"
    assert handle != JobHandle(app, None, Tag("0123abcd"), 2)
    assert handle != JobHandle(app, None, Tag("ffffffff"), 1)


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "my data")


async def late(app: TaskQ, seconds: float = 0.01) -> ResultTimeout:
    job = await app.enqueue_by_name("proj.send")
    with pytest.raises(ResultTimeout) as info:
        await job.result(timeout=seconds)
    assert str(info.value).startswith(f"job {job.id} is still ready after {seconds:g} s")
    return info.value


async def test_nobody_runs_it(app: TaskQ) -> None:
    async with app:
        error = await late(app)
    start = f"taskq worker MODULE:APP -d {shlex.quote(str(app.data_dir))}"
    assert error.why == f"no worker runs; start one with: {start}"
    assert str(error).endswith(f"after 0.01 s: {error.why}")


async def test_nobody_knows_its_task_or_its_queue_is_paused(app: TaskQ) -> None:
    async with app, app.worker():
        await app.stats()
        assert (await late(app)).why.startswith("no worker of queue 'default' knows task")
        await app.pause("default")
        resume = f"taskq resume default -d {shlex.quote(str(app.data_dir))}"
        assert (await late(app)).why == f"queue 'default' is paused; let it go on with: {resume}"


async def test_what_would_take_longer_than_a_tenth_of_the_wait_is_left_to_who_asks(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES_MIN", 0)
    async with app:
        error = await late(app, 0.00001)
    assert error.why == ""
    see = f"taskq why {error.job_id} -d {shlex.quote(str(app.data_dir))}"
    assert str(error).endswith(f"after 1e-05 s; for the reason: {see}")


def test_what_a_question_reads_begins_at_the_newest_snapshot(app: TaskQ) -> None:
    with app:
        for _ in range(5):
            app.enqueue_by_name_sync("proj.send", "x" * 1_000_000)
        with LogReader.open(str(app.data_dir)) as before:
            assert before.unfolded_bytes() > 5_000_000
        app.stats_sync()  # folded, so that there is something to keep
    with LogReader.open(str(app.data_dir)) as after:
        assert list((app.data_dir / "snapshot").glob("*agenda*"))
        assert 0 <= after.unfolded_bytes() < 10_000
