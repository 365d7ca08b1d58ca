"""Middleware around each attempt: ``@app.middleware``."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from taskq import Inject, JobContext, PendingJob, Snooze, TaskQ, current_job, injected, retry
from taskq.errors import JobCancelled, JobFailed, UsageError
from taskq_workers.slots import middleware
from tests.workers import afar_jobs
from tests.workers.fakes import Held

SECONDS = 30
_who: ContextVar[str] = ContextVar("who", default="nobody")


async def test_it_stands_around_each_attempt_the_first_declared_outermost(app: TaskQ) -> None:
    events: list[str] = []

    @app.middleware
    async def outer(job: JobContext) -> AsyncIterator[None]:
        events.append(f"outer before {job.task} {job.attempt}")
        try:
            yield
        except ValueError:
            events.append("outer failed")
            raise
        events.append("outer after")

    @app.middleware
    async def inner() -> AsyncIterator[None]:
        events.append("inner before")
        yield
        events.append("inner after")

    @app.task(name="work", retry=retry.fixed(2, 0))
    async def work() -> int:
        events.append("run")
        if events.count("run") == 1:
            raise ValueError
        return 7

    async with app.worker():
        assert await (await work.enqueue()).result(timeout=SECONDS) == 7
    first = ["outer before work 1", "inner before", "run", "outer failed"]
    again = ["outer before work 2", "inner before", "run", "inner after", "outer after"]
    assert events == first + again


async def test_a_task_gets_what_middleware_sets_and_the_time_that_it_leaves(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = itertools.count(0, 60)
    monkeypatch.setattr(middleware, "monotonic", lambda: next(minutes))

    @app.middleware
    async def signed_in(job: JobContext) -> AsyncIterator[None]:
        token = _who.set(job.headers["who"])
        yield
        _who.reset(token)

    def asks() -> tuple[str, float]:
        left = current_job().deadline - datetime.now(UTC)  # type: ignore[operator]
        return _who.get(), left.total_seconds()

    tasks = afar_jobs.on_all(app, "asks", asks, places=afar_jobs.HERE, timeout="1h")
    async with app.worker():
        for task in tasks.values():
            job = await task.options(headers={"who": "ada"}).enqueue()
            who, left = await job.result(timeout=SECONDS)
            assert who == "ada"
            # Three looks at the clock, of a minute each.
            assert 57 * 60 - SECONDS < left <= 57 * 60


async def test_it_takes_what_lifespans_yield_and_a_missing_one_stops_the_start(app: TaskQ) -> None:
    @app.lifespan
    async def numbers() -> AsyncIterator[list[int]]:
        yield [1]

    @app.middleware
    async def counts(job: JobContext, seen: Inject[list[int]] = injected()) -> AsyncIterator[None]:
        seen.append(job.attempt)
        yield

    @app.task
    async def reads(seen: Inject[list[int]] = injected()) -> list[int]:
        return seen

    async with app.worker():
        assert await (await reads.enqueue()).result(timeout=SECONDS) == [1, 1]

    @app.middleware
    async def wants(text: Inject[str] = injected()) -> AsyncIterator[None]:
        yield

    with pytest.raises(UsageError, match=r"wants.*text.*str"):
        await app.worker().start()


async def test_its_own_error_fails_the_attempt(app: TaskQ) -> None:
    @app.middleware
    async def strict(job: JobContext) -> AsyncIterator[None]:
        if job.id:
            raise RuntimeError("not today")
        yield

    ran = []

    @app.task(retry=1)
    async def never() -> None:
        ran.append(1)

    async with app.worker():
        with pytest.raises(JobFailed, match="not today"):
            await (await never.enqueue()).result(timeout=SECONDS)
    assert ran == []


@pytest.mark.parametrize("place", afar_jobs.RAISERS)
async def test_a_forgotten_error_gives_none_whatever_the_task_returns(
    afar: TaskQ, place: str
) -> None:
    @afar.middleware
    async def forgiving() -> AsyncIterator[None]:
        with contextlib.suppress(ValueError):
            yield

    async with afar, afar.worker():
        job = await afar_jobs.RAISERS[place].enqueue("circle", "")
        assert await job.result(timeout=SECONDS) is None


async def test_a_cancelled_job_and_a_wish_pass_through_it(app: TaskQ) -> None:
    errors: list[type[BaseException]] = []

    @app.middleware
    async def sees(_job: JobContext) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            errors.append(type(error))
            raise

    held = Held(app)

    @app.task
    async def waits() -> None:
        if not errors:
            raise Snooze(0)

    async with app.worker():
        await (await waits.enqueue()).result(timeout=SECONDS)
        job = await held.task.enqueue()
        await held.runs.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=SECONDS)
    assert errors == [Snooze, asyncio.CancelledError]


async def test_what_it_enqueues_joins_the_success_wherever_the_task_ran(afar: TaskQ) -> None:
    pending: list[PendingJob[str]] = []

    @afar.middleware
    async def follows(job: JobContext) -> AsyncIterator[None]:
        yield
        if job.task == afar_jobs.parent.name:
            pending.append(job.enqueue(afar_jobs.child.call("of the middleware")))

    async with afar, afar.worker():
        job = await afar_jobs.parent.enqueue(fails=False)
        assert await job.result(timeout=SECONDS)
        assert await afar.job(pending[0].id).result(timeout=SECONDS) == "of the middleware"
        stats = await afar.stats()
    assert sum(queue.succeeded for queue in stats.queues) == 3


@pytest.fixture
def afar(tmp_path: Path) -> Iterator[TaskQ]:
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    tasks = app.hooks.tasks
    yield app
    app.hooks.tasks = tasks
    app.hooks.middleware.clear()
    app.close_sync()


async def end_of(afar: TaskQ, task: Any) -> str:
    async with afar, afar.worker(concurrency=1):
        if "child" in task.name:  # to import the tasks may take longer than their timeout
            await (await afar_jobs.where.enqueue("there")).result(timeout=SECONDS)
        job = await task.options(headers={"hangs": "yes"}).enqueue()
        with pytest.raises(JobFailed) as failed:
            await job.result(timeout=SECONDS)
        assert await (await afar_jobs.BRIEF["loop"].enqueue()).result(timeout=SECONDS) == 1
    return str(failed.value)


def late(afar: TaskQ) -> Any:
    @afar.task(name="late", timeout=0.3, retry=1)
    async def waits() -> None:
        await asyncio.Event().wait()

    return waits


@pytest.mark.parametrize("kind", [*afar_jobs.BRIEF][:4])
@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_middleware_that_hangs_fails_the_attempt_and_frees_its_slot(
    afar: TaskQ, kind: str, where: str
) -> None:
    @afar.middleware
    async def slow(job: JobContext) -> AsyncIterator[None]:
        if where == "before" and job.headers:
            await asyncio.Event().wait()
        yield
        if job.headers:
            await asyncio.Event().wait()

    reason = await end_of(afar, afar_jobs.BRIEF[kind])
    assert "TimeoutError: not done within its timeout of 0.3 s: " in reason
    assert ".slow stands still" in reason


@pytest.mark.parametrize("kind", ["loop", "late"])
async def test_several_that_hang_as_they_are_left_are_cancelled_one_by_one(
    afar: TaskQ, kind: str
) -> None:
    """The timeout of the task itself is seen in them as its error."""
    left: list[tuple[str, str]] = []

    def hanging(name: str) -> None:
        @afar.middleware
        async def hangs(job: JobContext) -> AsyncIterator[None]:
            error = ""
            try:
                yield
            except TimeoutError as timeout:
                error = str(timeout)
                raise
            finally:
                if job.headers:
                    left.append((name, error))
                    await asyncio.Event().wait()

    hanging("outer")
    hanging("inner")
    task = late(afar) if kind == "late" else afar_jobs.BRIEF[kind]
    assert (said := "not done within its timeout of 0.3 s") in await end_of(afar, task)
    assert [name for name, _ in left] == ["inner", "outer"]
    assert left[0][1] == (said if kind == "late" else "")
