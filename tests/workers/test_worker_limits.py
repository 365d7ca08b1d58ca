"""Limits and weights of a worker in its own process, and their messages."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.core.errors import UsageError
from taskq.core.model import State
from taskq.core.why import Why
from taskq_workers.pool import Worker


async def test_no_more_jobs_of_a_key_run_at_a_time_and_why_names_those_that_do(app: TaskQ) -> None:
    going, enough, full = Counter[str](), asyncio.Event(), asyncio.Event()

    @app.task(name="send", concurrency=2, concurrency_key=lambda account, _number: account)
    async def send(account: str, _number: int) -> None:
        going[account] += 1
        assert going[account] <= 2
        if going.total() == 4:
            full.set()
        await enough.wait()
        await asyncio.sleep(0)
        going[account] -= 1

    async with app:
        jobs = [await send.enqueue(account, number) for account in "ab" for number in range(5)]
        async with app.worker(concurrency=9):
            await full.wait()
            reason = await app.why(jobs[4].id)
            assert reason.code is Why.CONCURRENCY
            assert reason.text.startswith("concurrency 2 of send with key 'a' is used up by")
            assert jobs[0].id in reason.text
            enough.set()
            for job in jobs:
                await job.result(timeout=30)


async def test_a_burst_leaves_what_its_rate_does_not_let_through_and_why_says_when(
    app: TaskQ,
) -> None:
    @app.task(name="send", rate="3/h")
    async def send(_number: int) -> None: ...

    async with app:
        jobs = await send.enqueue_many([(number,) for number in range(5)])
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
        async with app.worker() as worker:
            states = [await job.status() for job in jobs]
            assert states == [State.SUCCEEDED] * 3 + [State.READY] * 2
            reason = await app.why(jobs[3].id)
        assert reason.code is Why.RATE
        assert reason.text.startswith("rate 3/h of send is used up: the next may start in 1h")
        assert reason.until_ns


async def test_a_worker_shares_its_claims_between_queues_by_weight(app: TaskQ) -> None:
    seen: list[str] = []

    @app.task(name="note")
    async def note(queue: str) -> None:
        seen.append(queue)

    async with app:
        for queue in ("bulk", "mail", "other"):
            await note.options(queue=queue).enqueue_many([(queue,)] * 100)
        async with app.worker(concurrency=1, queues={"mail": 3, "bulk": 1}, burst=True) as worker:
            await worker.stopped.wait()
    assert Counter(seen) == {"mail": 100, "bulk": 100}
    assert 20 <= Counter(seen[:40])["mail"] <= 36


def test_a_drain_takes_a_duration_as_all_else_does(app: TaskQ) -> None:
    for given, kept in (("2m", 120), (0, 0), (float("inf"), float("inf"))):
        assert Worker(app, drain_timeout=given).drain_seconds == kept
    for wrong in ("soon", -1, float("nan")):
        with pytest.raises(UsageError, match="drain_timeout is"):
            Worker(app, drain_timeout=wrong)


def test_weights_that_are_none_are_refused(app: TaskQ) -> None:
    with pytest.raises(UsageError, match="the weight of queue 'mail' is 0"):
        app.worker(queues={"mail": 0})
    for text in ("mail=", "=3", "mail=x"):
        result = CliRunner().invoke(main, ["worker", "nothing:app", "-Q", text])
        assert result.exit_code == 2
        assert "write -Q mail=3,bulk=1" in result.output
    result = CliRunner().invoke(main, ["worker", "nothing:app", "-Q", "mail=3,mail=1"])
    assert "-Q names the queue 'mail' twice" in result.output
