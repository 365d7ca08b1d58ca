from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from taskq import JobHandle, PendingJob, State, TaskQ
from taskq.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobNotYetEnqueued,
    ResultGone,
    ResultTimeout,
    UsageError,
    WrongLog,
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
    found = app.job(job.id)
    assert found == job
    assert await found.result(timeout="1s") == {1, 2}
    assert repr(found) == "<JobHandle job 0123abcd-1>"


async def test_a_result_of_a_task_not_known_here_is_plain_json(
    app: TaskQ, recorder: Recorder
) -> None:
    job = await app.enqueue_by_name("elsewhere")
    recorder.settle(job.lsn, State.SUCCEEDED, b'{"a":[1]}', "elsewhere")
    assert await job.result() == {"a": [1]}


def test_a_result_reaches_a_thread_too(task: Any, recorder: Recorder) -> None:
    job = task.enqueue_sync()
    recorder.settle(job.lsn, State.SUCCEEDED, b"[3]", "t")
    assert job.result_sync() == {3}
    assert job.status_sync() is State.SUCCEEDED


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


async def test_a_none_result_is_told_apart_from_one_that_was_not_kept(
    app: TaskQ, recorder: Recorder
) -> None:
    @app.task
    def says_none() -> None: ...

    @app.task(store_result=False)
    def keeps_nothing() -> int:
        return 1

    first, second = await says_none.enqueue(), await keeps_nothing.enqueue()
    for job in (first, second):
        recorder.settle(job.lsn, State.SUCCEEDED, None, job._task.name)  # type: ignore[union-attr]
    assert await first.result() is None  # type: ignore[func-returns-value]
    for job in (second, app.job(second.id)):
        with pytest.raises(ResultGone, match="was not kept"):
            await job.result()


async def test_a_wait_that_is_too_long_names_the_state_and_is_a_timeout_error(
    task: Any, recorder: Recorder
) -> None:
    job = await task.enqueue()
    recorder.settle(job.lsn, State.READY)
    del recorder.outcomes[job.lsn]
    with pytest.raises(ResultTimeout, match=r"is still ready after 0.001 s.* taskq why ") as raised:
        await job.result(timeout="1ms")
    assert isinstance(raised.value, TimeoutError)
    with pytest.raises(ResultTimeout):
        await asyncio.to_thread(job.result_sync, 0)


async def test_waiting_for_a_result_can_be_cancelled(task: Any, recorder: Recorder) -> None:
    job = await task.enqueue()
    waiter = asyncio.ensure_future(job.result())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_an_id_of_another_log_is_refused(app: TaskQ, task: Any) -> None:
    with pytest.raises(WrongLog, match=r"job ffffffff-3 belongs to log ffffffff, but .*0123abcd"):
        app.job("ffffffff-3")
    handle: JobHandle[Any] = JobHandle(app, None, "ffffffff", 3)
    with pytest.raises(WrongLog):
        await handle.status()
    with pytest.raises(WrongLog):
        await asyncio.to_thread(handle.view_sync)


@pytest.mark.parametrize(
    "text", ["", "x", "-5", "0123abcd-", "0123abcd-x", "a--1", "a-²", "a-" + "9" * 30]
)
def test_what_is_no_job_id_is_refused(app: TaskQ, text: str) -> None:
    with pytest.raises(UsageError, match="is no job id"):
        app.job(text)


async def test_a_job_that_is_not_there_is_not_found(app: TaskQ, task: Any) -> None:
    with pytest.raises(JobNotFound, match="there is no job 0123abcd-77 in "):
        await app.job("0123abcd-77").status()
    with pytest.raises(JobNotFound):
        await asyncio.to_thread(app.job("0123abcd-77").status_sync)


def test_a_handle_is_told_apart_from_anything_else(app: TaskQ) -> None:
    handle: JobHandle[Any] = JobHandle(app, None, "0123abcd", 1)
    assert handle != "0123abcd-1"
    assert handle != JobHandle(app, None, "0123abcd", 2)
    assert handle != JobHandle(app, None, "ffffffff", 1)


def test_a_pending_job_has_no_id_yet(task: Any) -> None:
    pending: PendingJob[Any] = PendingJob(task.call())
    with pytest.raises(JobNotYetEnqueued, match="the t job has no id yet"):
        _ = pending.id
    with pytest.raises(JobNotYetEnqueued):
        _ = pending.duplicate
    assert repr(pending) == "<PendingJob t no id yet>"
