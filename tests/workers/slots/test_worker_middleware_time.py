"""The timeout of an attempt covers what stands around it: no middleware holds a slot for ever."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskq import JobContext, TaskQ, current_job
from taskq.errors import JobFailed
from tests.workers import afar_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SECONDS = 30
ONCE: dict[str, Any] = {"timeout": 0.3, "retry": 1}
KINDS = ["on_loop", "in_thread", "on_own_loop", "in_process"]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[TaskQ]:
    """Yield the app whose tasks child processes import, and afterwards as it was."""
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    tasks = app.hooks.tasks
    yield app
    app.hooks.tasks = tasks
    app.hooks.middleware.clear()
    app.close_sync()


async def end_of(app: TaskQ, kind: str) -> str:
    """Run one job of its kind, then one whose middleware does not hang; how the first failed."""

    @app.task(name="on_loop", **ONCE)
    async def on_loop() -> int:
        return 1

    @app.task(name="in_thread", **ONCE)
    def in_thread() -> int:
        return 1

    @app.task(name="on_own_loop", runs_in="thread", **ONCE)
    async def on_own_loop() -> int:
        return 1

    @app.task(name="late", **ONCE)
    async def late() -> None:
        await asyncio.Event().wait()

    name = afar_jobs.brief.name if kind == "in_process" else kind
    async with app, app.worker(concurrency=1):
        job = await app.enqueue(app.call_by_name(name).options(headers={"hangs": "yes"}))
        with pytest.raises(JobFailed) as failed:
            await job.result(timeout=SECONDS)
        assert await (await on_loop.enqueue()).result(timeout=SECONDS) == 1
    return str(failed.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_middleware_that_hangs_fails_the_attempt_and_frees_its_slot(
    app: TaskQ, kind: str, where: str
) -> None:
    @app.middleware
    async def slow(job: JobContext) -> AsyncIterator[None]:
        if where == "before" and job.headers:
            await asyncio.Event().wait()
        yield
        if job.headers:
            await asyncio.Event().wait()

    reason = await end_of(app, kind)
    assert "TimeoutError: not done within its timeout of 0.3 s: " in reason
    assert ".slow stands still" in reason


@pytest.mark.parametrize("kind", ["on_loop", "late"])
async def test_several_that_hang_as_they_are_left_are_cancelled_one_by_one(
    app: TaskQ, kind: str
) -> None:
    left: list[str] = []

    def hanging(name: str) -> None:
        @app.middleware
        async def hangs(job: JobContext) -> AsyncIterator[None]:
            try:
                yield
            finally:
                if job.headers:
                    left.append(name)
                    await asyncio.Event().wait()

    hanging("outer")
    hanging("inner")
    assert "not done within its timeout of 0.3 s" in await end_of(app, kind)
    assert left == ["inner", "outer"]


async def test_a_middleware_sees_the_timeout_of_the_task_and_may_clean_up(app: TaskQ) -> None:
    reasons: list[object] = []

    @app.middleware
    async def sees(job: JobContext) -> AsyncIterator[None]:
        try:
            yield
        except TimeoutError as error:
            await asyncio.sleep(0.01)
            reasons.append(str(error))
            raise

    assert "not done within its timeout of 0.3 s" in await end_of(app, "late")
    assert reasons == ["not done within its timeout of 0.3 s"]


@pytest.mark.parametrize("kind", KINDS[:3])
async def test_what_middleware_takes_is_no_more_the_tasks(app: TaskQ, kind: str) -> None:
    """One deadline holds for both."""
    deadlines: list[datetime | None] = []

    @app.middleware
    async def slow(job: JobContext) -> AsyncIterator[None]:
        deadlines.append(job.deadline)
        await asyncio.sleep(0.05)
        yield

    async def asks() -> None:
        deadlines.append(current_job().deadline)

    options: Any = {"runs_in": "thread"} if kind == "on_own_loop" else {}
    function: Any = (
        (lambda: deadlines.append(current_job().deadline)) if kind == "in_thread" else asks
    )
    task = app.task(name="asks", timeout="1h", **options)(function)
    async with app, app.worker():
        await (await task.enqueue()).result(timeout=SECONDS)
    first, second = deadlines
    assert first is not None
    assert second is not None
    assert abs(second - first) < timedelta(seconds=0.04)
