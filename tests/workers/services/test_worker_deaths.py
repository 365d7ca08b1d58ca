"""``on_dead``: a worker reports the jobs that it sends to the dead letters."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from taskq import DeadLetter, Discard, TaskLog, TaskQ, retry
from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.errors import JobFailed, TaskqError
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec, Op, Settlement
from taskq.log.state.job_history import records
from tests.log.world import World

ONCE = retry.exponential(attempts=1)


@pytest.fixture
def letters() -> list[DeadLetter]:
    return []


def add_tasks(app: TaskQ) -> None:
    @app.task(name="fail", queue="mail", priority=7, retry=ONCE)
    async def fail() -> None:
        raise ValueError("no good")

    @app.task(name="discard", retry=retry.exponential(attempts=3))
    async def discard() -> None:
        raise Discard("no such address")

    @app.task(name="work")
    async def work() -> int:
        return 42


async def end_of(app: TaskQ, *names: str) -> list[str]:
    jobs = [await app.enqueue_by_name(name) for name in names]
    await asyncio.gather(*(job.result(timeout=20) for job in jobs), return_exceptions=True)
    return [job.id for job in jobs]


async def test_each_death_is_told_once_with_its_reason(
    app: TaskQ, letters: list[DeadLetter]
) -> None:
    add_tasks(app)
    app.on_dead(letters.append)
    async with app, app.worker():
        failed, discarded, _ = await end_of(app, "fail", "discard", "work")
    assert [(letter.job_id, letter.cause, letter.attempt) for letter in letters] == [
        (failed, "exhausted", 1),
        (discarded, "rejected", 1),
    ]
    first = letters[0]
    assert (first.queue, first.task, first.priority) == ("mail", "fail", 7)
    assert first.reason.startswith("ValueError: no good")
    assert first.settled_ns > 0


async def test_the_letter_is_in_the_log_when_the_hook_is_called(app: TaskQ) -> None:
    add_tasks(app)
    states: list[State] = []
    done = asyncio.Event()

    @app.on_dead
    async def look(letter: DeadLetter) -> None:
        states.append(await app.job(letter.job_id).status())
        await app.dead.purge(letter.job_id)
        done.set()

    async with app, app.worker():
        await app.enqueue_by_name("fail")
        await asyncio.wait_for(done.wait(), 20)
        assert await app.dead.count() == 0
    assert states == [State.DEAD]


async def test_a_raising_hook_is_logged_and_stops_nothing(
    app: TaskQ, letters: list[DeadLetter], caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(app)

    @app.on_dead
    def broken(letter: DeadLetter) -> None:
        raise RuntimeError("the pager is broken")

    @app.on_dead
    async def broken_later(letter: DeadLetter) -> None:
        raise RuntimeError("the other one, too")

    with caplog.at_level(logging.ERROR):
        async with app, app.worker(on_dead=letters.append):
            (failed, _) = await end_of(app, "fail", "work")
    assert [letter.job_id for letter in letters] == [failed]
    assert sum("the on_dead hook failed" in line for line in caplog.messages) == 2


async def test_two_workers_of_one_process_call_an_apps_hook_once(
    app: TaskQ, letters: list[DeadLetter]
) -> None:
    add_tasks(app)
    app.on_dead(letters.append)
    async with app, app.worker(), app.worker():
        failed = await end_of(app, "fail", "fail")
    assert sorted(letter.job_id for letter in letters) == sorted(failed)


async def test_a_stopped_worker_hears_nothing(app: TaskQ, letters: list[DeadLetter]) -> None:
    add_tasks(app)
    app.on_dead(letters.append)
    async with app:
        async with app.worker():
            pass
        async with await TaskLog.open(app.data_dir, durability="os") as log:
            await log.put(b"x", attempts=1)
            (delivery,) = await log.claim()
            await log.nack(delivery)
    assert letters == []


async def test_a_slow_hook_gets_its_time_at_the_workers_end(app: TaskQ) -> None:
    add_tasks(app)
    ended = []

    @app.on_dead
    async def slow(letter: DeadLetter) -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        ended.append(letter.job_id)

    async with app:
        job = await app.enqueue_by_name("fail")
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
    assert ended == [job.id]


def test_jobs_of_killed_workers_that_are_taken_back_as_dead_are_told() -> None:
    """By the process that takes them back, once the record is as durable as an answer."""
    world = World()
    first, second = world.process(), world.process()
    job = first.enqueue(spec=EnqueueSpec(attempts=1, queue="mail"))
    first.claim()
    calls: list[tuple[Any, ...]] = []
    second.committer.operations.deaths.listen(None, "hook", lambda *given: calls.append(given))
    first.kill()
    world.clock.advance(1)
    second.commit([])
    second.claim()
    (letter, hook) = calls[0]
    assert hook == "hook"
    assert (letter.job_id, letter.cause) == (f"{second.journal.tag}-{job}", "worker lost")
    assert letter.reason.startswith("WorkerLost")


def test_a_death_in_a_batch_that_broke_is_told_once() -> None:
    world = World()
    process = world.process()
    process.enqueue(spec=EnqueueSpec(attempts=1))
    (delivery,) = process.claim()
    calls: list[tuple[Any, ...]] = []
    process.committer.operations.deaths.listen(None, "hook", lambda *given: calls.append(given))
    died = Settlement(Kind.DEAD, delivery, b"no", cause=Cause.REJECTED)
    nonsense: Future[Any] = Future()
    process.commit([
        (Op.SETTLE_NOWAIT, None, None, ([died], print)),
        (Op.PURGE, None, nonsense, ["no number"]),
    ])  # fmt: skip
    process.sync()
    assert isinstance(nonsense.exception(0), TaskqError)
    assert [letter.job_id for letter, _ in calls] == [delivery.job_id]


def test_a_failed_sync_tells_of_no_death() -> None:
    world = World()
    process = world.process()
    process.enqueue(spec=EnqueueSpec(attempts=1))
    (delivery,) = process.claim()
    calls: list[tuple[Any, ...]] = []
    process.committer.operations.deaths.listen(None, "hook", lambda *given: calls.append(given))
    world.machine.fail_next_syncs()
    with pytest.raises(Exception, match="fsync failed"):
        process.settle(delivery, Kind.DEAD, body=b"no")
    assert calls == []


def deaths_in(path: Path) -> int:
    journal = LogReader.open(str(path))._journal
    return sum(record.type == Kind.DEAD for record in records(journal, journal.start()))


async def test_without_hooks_nothing_is_noted(app: TaskQ) -> None:
    add_tasks(app)
    async with app, app.worker():
        job = await app.enqueue_by_name("fail")
        with pytest.raises(JobFailed):
            await job.result(timeout=20)
        assert app.store()._open.committer.operations.deaths.noted == []
    assert deaths_in(app.data_dir) == 1
