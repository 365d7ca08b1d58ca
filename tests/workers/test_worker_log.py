"""A worker on a real log, within this process."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from taskq import Discard, Snooze, State, TaskQ, current_job, retry
from taskq.errors import JobFailed, LogClosed
from taskq.log.requests import Delivery
from taskq_workers import JobFinished, Worker

if TYPE_CHECKING:
    from asyncio import Future
    from pathlib import Path

    from taskq.log.requests import Answer, ClaimRequest, Settlement

SECONDS = 20


async def test_results_come_back_from_async_and_sync_tasks(app: TaskQ) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def double(a: int) -> int:
        return 2 * a

    async with app, app.worker():
        assert await (await add.enqueue(1, 2)).result(SECONDS) == 3
        assert await (await double.enqueue(4)).result(SECONDS) == 8


async def test_a_failing_job_is_retried_then_dead_with_the_end_of_its_traceback(
    app: TaskQ,
) -> None:
    attempts = []

    @app.task(retry=retry.fixed(3, delay=0))
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError("no way")

    async with app, app.worker():
        job = await fail.enqueue()
        with pytest.raises(JobFailed) as info:
            await job.result(SECONDS)
        view = await job.view()
    assert attempts == [1, 2, 3]
    assert view.state is State.DEAD
    assert info.value.reason.startswith("ValueError: no way\n")
    assert 'raise ValueError("no way")' in info.value.reason
    assert view.reason == info.value.reason


async def test_a_snoozed_job_comes_again_without_a_burnt_attempt(app: TaskQ) -> None:
    calls = []

    @app.task(retry=retry.fixed(2))
    async def wait() -> int:
        calls.append(current_job().attempt)
        if len(calls) < 5:
            raise Snooze(0.001)
        return len(calls)

    async with app, app.worker():
        assert await (await wait.enqueue()).result(SECONDS) == 5
    assert calls == [1] * 5


async def test_a_discarded_job_is_dead_at_its_first_attempt(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(9))
    async def drop() -> None:
        raise Discard("nobody wants it")

    async with app, app.worker():
        job = await drop.enqueue()
        with pytest.raises(JobFailed, match="nobody wants it"):
            await job.result(SECONDS)
        assert (await job.view()).attempt == 1


async def test_children_join_the_success_of_their_parent(app: TaskQ) -> None:
    ended = asyncio.Event()
    ran = set()

    @app.task
    async def child(n: int) -> None:
        ran.add(n)
        if len(ran) == 3:
            ended.set()

    @app.task
    async def parent(count: int) -> int:
        for n in range(count):
            current_job().enqueue(child.call(n))
        return count

    async with app, app.worker():
        assert await (await parent.enqueue(3)).result(SECONDS) == 3
        async with asyncio.timeout(SECONDS):
            await ended.wait()


async def test_a_job_whose_log_hides_its_task_waits_for_a_worker_that_knows_it(
    app: TaskQ, tmp_path: Path
) -> None:
    @app.task
    async def known() -> None:
        pass

    async with app:
        unknown = await app.enqueue_by_name("elsewhere.task")
        await known.enqueue()
        await Worker(app, burst=True).run()
        assert await unknown.status() is State.READY


async def test_a_drained_job_goes_to_the_next_worker_with_its_attempts_whole(app: TaskQ) -> None:
    runs = asyncio.Event()
    attempts = []

    @app.task(retry=retry.fixed(2))
    async def hold() -> None:
        attempts.append(current_job().attempt)
        runs.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    async with app:
        job = await hold.enqueue()
        async with Worker(app, drain_timeout=0):
            await runs.wait()
        view = await job.view()
        assert (view.state, view.attempt) == (State.READY, 0)
        async with Worker(app):
            await job.result(SECONDS)
    assert attempts == [1, 1]


async def test_thousands_of_jobs_each_succeed_once_whatever_they_do(app: TaskQ) -> None:
    counts: dict[int, int] = {}
    lock = threading.Lock()

    def count(n: int) -> None:
        with lock:
            counts[n] = counts.get(n, 0) + 1

    @app.task
    async def plain(n: int) -> None:
        count(n)

    @app.task
    async def suspends(n: int) -> None:
        await asyncio.get_running_loop().run_in_executor(None, count, n)

    @app.task
    def threaded(n: int) -> None:
        count(n)

    tasks = [plain, plain, plain, suspends, threaded]
    async with app:
        calls = [tasks[n % 5].call(n) for n in range(2_000)]
        await app.enqueue_many(calls)
        await Worker(app, burst=True, concurrency=16).run()
        stats = await app.store().port().stats()
    assert counts == dict.fromkeys(range(2_000), 1)
    (queue,) = stats.queues
    assert (queue.succeeded, queue.ready, queue.running) == (2_000, 0, 0)


async def test_a_burst_runs_a_child_that_a_claim_took_while_it_was_withdrawn(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was faster than the loop: the job goes back, and the burst ends behind it."""
    ran = []
    worker = Worker(app, burst=True)

    @app.task
    async def child() -> None:
        ran.append("child")

    @app.task
    async def parent() -> None:
        assert worker._runner is not None
        port = app.store().port()
        while not worker._runner.feed.stands:
            await port.stats()
        await port.stats()  # answered behind the claim, which waits in the log from now on
        deliver, settle, claim = port.deliver, port.settle, port.claim
        taken, empty = threading.Event(), threading.Event()

        def deliver_and_tell(answers: list[Answer]) -> None:
            deliver(answers)
            for _, _, value in answers:
                if value == []:
                    empty.set()
                elif isinstance(value, list) and isinstance(value[0], Delivery):
                    taken.set()

        def settle_and_see(items: list[Settlement]) -> Future[Any]:
            settled: Future[Any] = settle(items)
            assert taken.wait(SECONDS)
            return settled

        def claim_and_see(request: ClaimRequest) -> Future[list[Delivery]]:
            claimed: Future[list[Delivery]] = claim(request)
            assert taken.is_set()
            assert ran or empty.wait(SECONDS)
            return claimed

        monkeypatch.setattr(port, "deliver", deliver_and_tell)
        monkeypatch.setattr(port, "settle", settle_and_see)
        monkeypatch.setattr(port, "claim", claim_and_see)
        current_job().enqueue(child.call())

    async with app:
        await parent.enqueue()
        await worker.run()
    assert ran == ["child"]


async def test_two_workers_share_a_log_and_priorities_come_first(app: TaskQ) -> None:
    order: list[int] = []

    @app.task
    async def note(priority: int) -> None:
        order.append(priority)

    async with app:
        for priority in (1, 9, 5, 9, 1):
            await note.options(priority=priority).enqueue(priority)
        await Worker(app, burst=True, concurrency=1).run()
        assert order == [9, 9, 5, 1, 1]
        await app.enqueue_many([note.call(5) for _ in range(500)])
        first, two = Worker(app, burst=True), Worker(app, burst=True)
        await asyncio.gather(first.run(), two.run())
        assert len(order) == 505


async def test_a_log_that_is_closed_under_a_worker_stops_it_with_that_error(app: TaskQ) -> None:
    runs, end = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        runs.set()
        await end.wait()

    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await hold.enqueue()
    await runs.wait()
    await app.close()
    end.set()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(LogClosed):
            await running
    assert worker.stopped.is_set()


async def test_events_tell_of_every_end(app: TaskQ) -> None:
    events: list[JobFinished] = []

    @app.task(retry=retry.fixed(2, delay=0))
    async def fail() -> None:
        raise ValueError("x")

    async with app, app.worker(on_event=events.append):
        job = await fail.enqueue()
        with pytest.raises(JobFailed):
            await job.result(SECONDS)
    assert [(event.outcome, event.attempt) for event in events] == [("retried", 1), ("dead", 2)]
    assert {event.job_id for event in events} == {job.id}
