"""Middleware around each attempt: ``@app.middleware``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from taskq import Inject, JobContext, PendingJob, Snooze, State, TaskQ, current_job, injected, retry
from taskq.errors import JobCancelled, JobFailed, UsageError
from taskq_workers import Worker
from taskq_workers.slots.slots import Slots
from tests.workers import afar_jobs

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


async def test_what_it_sets_is_seen_by_the_task_on_the_loop_and_in_threads(app: TaskQ) -> None:
    @app.middleware
    async def signed_in(job: JobContext) -> AsyncIterator[None]:
        token = _who.set(job.headers["who"])
        yield
        _who.reset(token)

    @app.task
    async def asks() -> str:
        return _who.get()

    @app.task(runs_in="thread")
    async def asks_on_own_loop() -> str:
        return _who.get()

    @app.task
    def asks_in_thread() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return _who.get()

    async with app.worker():
        for task in (asks, asks_on_own_loop, asks_in_thread):
            job = await task.options(headers={"who": "ada"}).enqueue()
            assert await job.result(timeout=SECONDS) == "ada"


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


async def test_its_own_error_fails_the_attempt_and_one_it_forgets_is_no_failure(
    app: TaskQ,
) -> None:
    @app.middleware
    async def strict(job: JobContext) -> AsyncIterator[None]:
        if job.task == "never":
            raise RuntimeError("not today")
        with contextlib.suppress(KeyError):
            yield

    ran = []

    @app.task(name="never", retry=1)
    async def never() -> None:
        ran.append(1)

    @app.task(name="forgiven", retry=1)
    async def forgiven() -> None:
        raise KeyError("x")

    async with app.worker():
        with pytest.raises(JobFailed, match="not today"):
            await (await never.enqueue()).result(timeout=SECONDS)
        job = await forgiven.enqueue()
        await job.result(timeout=SECONDS)
        assert await job.status() is State.SUCCEEDED
    assert ran == []


@pytest.mark.parametrize("runs_in", [None, "thread", "process"])
async def test_a_forgotten_error_gives_none_whatever_the_task_returns(
    afar: TaskQ, runs_in: Any
) -> None:
    errors: list[str] = []

    @afar.middleware
    async def forgiving() -> AsyncIterator[None]:
        try:
            yield
        except LookupError as error:
            errors.append(str(error))

    def fails() -> int:
        raise LookupError("no number")

    task: Any = afar_jobs.raises
    if runs_in != "process":
        task = afar.task(name="fails", retry=1, runs_in=runs_in)(fails)
    async with afar, afar.worker():
        assert await (await task.enqueue()).result(timeout=SECONDS) is None
    assert errors == ["in a process" if runs_in == "process" else "no number"]


async def test_a_cancelled_job_and_a_wish_pass_through_it(app: TaskQ) -> None:
    errors: list[type[BaseException]] = []

    @app.middleware
    async def sees(_job: JobContext) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            errors.append(type(error))
            raise

    begun = asyncio.Event()

    @app.task
    async def hangs() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.task
    async def waits() -> None:
        if not errors:
            raise Snooze(0)

    async with app.worker():
        await (await waits.enqueue()).result(timeout=SECONDS)
        job = await hangs.enqueue()
        await begun.wait()
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


async def test_sentry_hears_of_a_failure_with_the_job_it_befell(app: TaskQ) -> None:
    sent: list[Any] = []

    class Kept(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            sent.extend(item.payload.json for item in envelope.items)

    sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Kept, default_integrations=False)

    @app.middleware
    async def sentry(job: JobContext) -> AsyncIterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tag("task", job.task)
            scope.set_tag("job", job.id)
            try:
                yield
            except Exception as error:
                sentry_sdk.capture_exception(error)
                raise

    @app.task(name="work", retry=1)
    async def work() -> None:
        raise ValueError("broken")

    @app.task
    async def fine() -> None: ...

    try:
        async with app.worker():
            await (await fine.enqueue()).result(timeout=SECONDS)
            job = await work.enqueue()
            with pytest.raises(JobFailed):
                await job.result(timeout=SECONDS)
    finally:
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)
    (event,) = sent
    assert event["tags"] == {"task": "work", "job": job.id}
    assert event["exception"]["values"][0]["value"] == "broken"


async def test_a_worker_of_an_app_without_any_calls_its_tasks_directly(app: TaskQ) -> None:
    @app.task
    async def work() -> None: ...

    async with Worker(app) as worker:
        await (await work.enqueue()).result(timeout=SECONDS)
        assert isinstance(worker._runner, Slots)
        assert worker._runner.hot[5][work.name].call is work.fn


KINDS = ["on_loop", "in_thread", "on_own_loop", "in_process"]


@pytest.fixture
def afar(tmp_path: Path) -> Iterator[TaskQ]:
    """Yield the app whose tasks child processes import, and afterwards as it was."""
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    tasks = app.hooks.tasks
    yield app
    app.hooks.tasks = tasks
    app.hooks.middleware.clear()
    app.close_sync()


async def end_of(afar: TaskQ, kind: str) -> str:
    @afar.task(name="on_loop", timeout=0.3, retry=1)
    async def on_loop() -> int:
        return 1

    @afar.task(name="in_thread", timeout=0.3, retry=1)
    def in_thread() -> int:
        return 1

    @afar.task(name="on_own_loop", runs_in="thread", timeout=0.3, retry=1)
    async def on_own_loop() -> int:
        return 1

    @afar.task(name="late", timeout=0.3, retry=1)
    async def late() -> None:
        await asyncio.Event().wait()

    name = afar_jobs.brief.name if kind == "in_process" else kind
    async with afar, afar.worker(concurrency=1):
        job = await afar.enqueue(afar.call_by_name(name).options(headers={"hangs": "yes"}))
        with pytest.raises(JobFailed) as failed:
            await job.result(timeout=SECONDS)
        assert await (await on_loop.enqueue()).result(timeout=SECONDS) == 1
    return str(failed.value)


@pytest.mark.parametrize("kind", KINDS)
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

    reason = await end_of(afar, kind)
    assert "TimeoutError: not done within its timeout of 0.3 s: " in reason
    assert ".slow stands still" in reason


@pytest.mark.parametrize("kind", ["on_loop", "late"])
async def test_several_that_hang_as_they_are_left_are_cancelled_one_by_one(
    afar: TaskQ, kind: str
) -> None:
    left: list[str] = []

    def hanging(name: str) -> None:
        @afar.middleware
        async def hangs(job: JobContext) -> AsyncIterator[None]:
            try:
                yield
            finally:
                if job.headers:
                    left.append(name)
                    await asyncio.Event().wait()

    hanging("outer")
    hanging("inner")
    assert "not done within its timeout of 0.3 s" in await end_of(afar, kind)
    assert left == ["inner", "outer"]


async def test_a_middleware_sees_the_timeout_of_the_task_and_may_clean_up(afar: TaskQ) -> None:
    reasons: list[object] = []

    @afar.middleware
    async def sees(job: JobContext) -> AsyncIterator[None]:
        try:
            yield
        except TimeoutError as error:
            await asyncio.sleep(0.01)
            reasons.append(str(error))
            raise

    assert "not done within its timeout of 0.3 s" in await end_of(afar, "late")
    assert reasons == ["not done within its timeout of 0.3 s"]


@pytest.mark.parametrize("kind", KINDS[:3])
async def test_what_middleware_takes_is_no_more_the_tasks(afar: TaskQ, kind: str) -> None:
    deadlines: list[datetime | None] = []

    @afar.middleware
    async def slow(job: JobContext) -> AsyncIterator[None]:
        deadlines.append(job.deadline)
        await asyncio.sleep(1)
        yield

    async def asks() -> None:
        deadlines.append(current_job().deadline)

    options: Any = {"runs_in": "thread"} if kind == "on_own_loop" else {}
    function: Any = (
        (lambda: deadlines.append(current_job().deadline)) if kind == "in_thread" else asks
    )
    task = afar.task(name="asks", timeout="1h", **options)(function)
    async with afar, afar.worker():
        await (await task.enqueue()).result(timeout=SECONDS)
    first, second = deadlines
    assert first is not None
    assert second is not None
    assert abs(second - first) < timedelta(seconds=0.9)  # it is computed at each question
