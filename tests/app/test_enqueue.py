"""Tasks and jobs on a real directory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from taskq import State, Task, TaskQ
from taskq.core.records import Kind
from taskq.errors import (
    JobCancelled,
    JobExpired,
    JobNotFound,
    LogClosed,
    LogError,
    ResultTimeout,
    WrongLog,
)
from taskq.log.requests import ClaimRequest, Delivery, Settlement


def add_task(app: TaskQ, **choices: Any) -> Task[..., Any]:
    def add(a: int, b: int = 0) -> int:
        return a + b

    task: Task[..., Any] = app.task(name="add", **choices)(add)
    return task


async def claim(app: TaskQ, count: int = 1) -> list[Delivery]:
    port = app.store().port()
    request = ClaimRequest(count, tasks=frozenset(app.tasks), wait_until_ns=0)
    deliveries: list[Delivery] = await port.claim(request)
    return deliveries


async def run_one(app: TaskQ) -> None:
    (delivery,) = await claim(app)
    task = app.tasks[delivery.task]
    args, kwargs = task.decode(delivery.payload)
    result = task.encode_result(task.fn(*args, **kwargs))
    await settle(app, Settlement(Kind.SUCCEEDED, delivery, result))


async def settle(app: TaskQ, settlement: Settlement) -> None:
    assert await app.store().port().settle([settlement]) == [None]


async def test_a_result_that_takes_too_long_can_be_asked_for_again(app: TaskQ) -> None:
    job = await add_task(app).enqueue(2, 3)
    with pytest.raises(ResultTimeout, match=r"is still ready after 0\.01 s"):
        await job.result(timeout="10ms")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(job.result_sync, 0.01)
    await run_one(app)
    assert await job.result(timeout=0) == 5


async def test_a_waiting_job_is_cancelled_once(app: TaskQ) -> None:
    job = await add_task(app).enqueue(1)
    assert await job.cancel() is True
    assert await job.cancel() is False
    assert await job.status() is State.CANCELLED
    with pytest.raises(JobCancelled):
        await job.result()
    assert await claim(app) == []


async def test_a_job_that_expires_is_told_to_who_waits(app: TaskQ) -> None:
    add = add_task(app)
    job = await add.options(delay="1h", expires="1ms").enqueue(1)
    waiter = asyncio.ensure_future(job.result(timeout=30))
    port = app.store().port()
    # A claimer is what notices the expiry; it gets nothing.
    claimer = port.claim(ClaimRequest(1, tasks=frozenset({"add"}), wait_until_ns=None))
    with pytest.raises(JobExpired):
        await waiter
    claimer.cancel()


async def test_a_key_with_a_window_outlives_its_job_and_the_process(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        async with TaskQ(tmp_path / "data", durability="os") as app:
            add = add_task(app, key=lambda a, b: f"{a}+{b}", window="1h")
            job = await add.enqueue(1)
            ids.append(job.id)
            if not job.duplicate:
                await run_one(app)
    assert ids[0] == ids[1]


async def test_many_jobs_are_enqueued_in_order_and_in_one_frame(app: TaskQ) -> None:
    add = add_task(app)
    await app.open()
    before = app.store().batches
    jobs = await add.enqueue_many([(n,) for n in range(100)])
    assert app.store().batches == before + 1
    deliveries = await claim(app, 100)
    assert [delivery.job for delivery in deliveries] == [job.lsn for job in jobs]


async def test_calls_of_several_tasks_are_one_transaction(app: TaskQ) -> None:
    add = add_task(app)

    @app.task(name="say")
    def say(text: str) -> str:
        return text

    first, second = await app.enqueue_many([add.call(1), say.call("x")])
    await run_one(app)
    await run_one(app)
    assert (await first.result(), await second.result()) == (1, "x")


def test_one_app_serves_many_event_loops(tmp_path: Path) -> None:
    """``async_to_sync`` makes a loop for every call."""
    app = TaskQ(tmp_path / "data", durability="os")
    add = add_task(app)

    async def enqueue() -> str:
        return (await add.enqueue(1)).id

    assert len({asyncio.run(enqueue()) for _ in range(5)}) == 5
    app.close_sync()


async def test_the_first_callers_open_the_directory_once(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")
    add = add_task(app)
    jobs = await asyncio.gather(*(add.enqueue(n) for n in range(200)))
    assert len({job.id for job in jobs}) == 200
    assert app.store().openers == 1
    await app.close()


async def test_an_open_that_fails_fails_all_who_wait_for_it_and_can_be_tried_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    path.write_text("in the way")
    app = TaskQ(path, durability="os")
    add = add_task(app)
    failed = await asyncio.gather(*(add.enqueue(n) for n in range(5)), return_exceptions=True)
    assert all(isinstance(error, LogError) for error in failed)
    path.unlink()
    assert (await add.enqueue(1)).lsn == 1
    await app.close()


async def test_a_close_during_the_opening_leaves_nothing_open(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")
    opening = asyncio.ensure_future(app.open())
    await asyncio.sleep(0)
    await app.close()
    with contextlib.suppress(LogClosed):
        await opening
    assert app._connection.current is None


async def test_two_apps_on_one_directory_share_it(tmp_path: Path) -> None:
    async with TaskQ(tmp_path / "data", durability="os") as first:
        async with TaskQ(tmp_path / "data", durability="os") as two:
            assert first.store() is two.store()
            job = await add_task(first).enqueue(1)
            add_task(two)
            await run_one(two)
            assert await job.result() == 1
        assert (await add_task(first, aliases=["again"]).enqueue(1)).duplicate is False


async def test_a_closed_app_says_so_until_it_is_opened_again(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")
    add = add_task(app)
    job = await add.enqueue(1)
    await app.close()
    await app.close()
    for use in (add.enqueue(2), job.status(), job.result(), app.enqueue(add.call(1))):
        with pytest.raises(LogClosed, match="closed; to go on, await open"):
            await use
    with pytest.raises(LogClosed):
        await asyncio.to_thread(add.enqueue_sync, 1)
    async with app:
        assert await job.status() is State.READY


async def test_a_handle_is_made_of_an_id_in_another_app(tmp_path: Path) -> None:
    async with TaskQ(tmp_path / "data", durability="os") as app:
        job = await add_task(app).enqueue(20, 22)
        await run_one(app)
    async with TaskQ(tmp_path / "data", durability="os") as app:
        assert await app.job(job.id).result() == 42
        with pytest.raises(JobNotFound):
            await app.job(f"{job.id}999").status()
    async with TaskQ(tmp_path / "other", durability="os") as other:
        with pytest.raises(WrongLog, match=f"job {job.id} belongs to log "):
            other.job(job.id)
        with pytest.raises(WrongLog):
            await job.__class__(other, None, app._connection.tag, job.lsn).result()


async def test_a_cancelled_enqueue_is_withdrawn_or_stands(app: TaskQ) -> None:
    add = add_task(app)
    running = [asyncio.ensure_future(add.enqueue(n)) for n in range(10)]
    await asyncio.sleep(0)
    for task in running:
        task.cancel()
    done = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in done)
    stands = await claim(app, 10)
    assert (await add.enqueue(99)).lsn > max([d.job for d in stands], default=0)
