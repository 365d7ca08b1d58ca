from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from taskq import JobHandle, State, TaskQ
from taskq.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    UsageError,
)

if TYPE_CHECKING:
    from taskq import Task
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


async def test_waiting_for_a_result_can_be_cancelled(task: Any, recorder: Recorder) -> None:
    job = await task.enqueue()
    waiter = asyncio.ensure_future(job.result())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


@pytest.mark.parametrize(
    "text", ["", "x", "-5", "0123abcd-", "0123abcd-x", "a--1", "a-²", "a-" + "9" * 30]
)
def test_what_is_no_job_id_is_refused(app: TaskQ, text: str) -> None:
    with pytest.raises(UsageError, match="is no job id"):
        app.job(text)


def test_a_handle_is_told_apart_from_anything_else(app: TaskQ) -> None:
    handle: JobHandle[Any] = JobHandle(app, None, "0123abcd", 1)
    assert handle != "0123abcd-1"
    assert handle != JobHandle(app, None, "0123abcd", 2)
    assert handle != JobHandle(app, None, "ffffffff", 1)
