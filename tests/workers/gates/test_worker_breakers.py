"""A queue whose jobs meet one network failure after the other backs off as a whole."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from taskq import JobHandle, TaskQ
from taskq.conditions import online
from taskq.conditions.network import Online
from taskq.core.why import Why
from taskq.errors import JobFailed
from taskq_workers.gates.gate import Breaker, Mode
from taskq_workers.pool import Worker
from tests.workers.gates.switches import Switch, records


def _breaker(worker: Worker, queue: str = "mail") -> Breaker:
    assert worker._parts[0].gates is not None
    return worker._parts[0].gates._breakers[queue]


async def _until(worker: Worker, mode: Mode) -> None:
    gates = worker._parts[0].gates
    assert gates is not None
    while _breaker(worker).mode is not mode:
        gates.moved.clear()
        await gates.moved.wait()


async def _results(jobs: list[JobHandle[Any]]) -> None:
    await asyncio.gather(*(job.result(timeout=30) for job in jobs))


class Network:
    """Conditions of a test's jobs."""

    def __init__(self) -> None:
        self.up = False
        self.calls = 0

    async def call(self) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if not self.up:
            raise ConnectionRefusedError("no")


async def test_after_some_failures_in_a_row_no_job_burns_an_attempt_until_the_network_is_back(
    app: TaskQ,
) -> None:
    app.breaker("mail", failures=3, pause="20ms", pause_max="40ms")
    network = Network()

    @app.task(queue="mail", retry=2)
    async def send(number: int) -> int:
        await network.call()
        return number

    @app.task
    async def plain() -> int:
        return 1

    async with app:
        jobs = await send.enqueue_many([(number,) for number in range(200)])
        async with Worker(app, concurrency=8) as worker:
            await _until(worker, Mode.SHUT)
            assert await (await plain.enqueue()).result(timeout=30) == 1
            while network.calls < 14:
                await _until(worker, Mode.TRYING)
                await _until(worker, Mode.SHUT)
            reason = await app.why(jobs[-1].id)
            assert reason.code is Why.BREAKER
            assert reason.text.startswith(
                "queue 'mail' backs off after 3 network failures in a row "
                "(ConnectionRefusedError: no), for "
            )
            network.up = True
            await _results(jobs)
            await _until(worker, Mode.OPEN)
        counts = await records(app)
        # All but two of the failures were given back; one job is tried at a time.
        assert counts["retried"] == 2
        assert counts["claimed"] <= network.calls + 8
        assert counts["dead"] == 0


async def test_successes_and_other_failures_end_a_row(app: TaskQ) -> None:
    app.breaker("mail", failures=3)
    answers = iter([ConnectionError, ConnectionError, None] * 5 + [TimeoutError, ValueError] * 5)

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        error = next(answers)
        if error is not None:
            raise error

    async with app, Worker(app, concurrency=1) as worker:
        jobs = await send.enqueue_many([()] * 25)
        await asyncio.gather(*(job.result(timeout=30) for job in jobs), return_exceptions=True)
        assert _breaker(worker).mode is Mode.OPEN
        assert (await records(app))["released breaker"] == 0


async def test_a_queue_comes_back_at_once_when_its_probe_holds_again(app: TaskQ) -> None:
    switch, network = Switch(), Network()
    app.breaker("mail", failures=1, pause="1h", pause_max="1h", probe=switch.condition())

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        await network.call()

    async with app:
        async with Worker(app) as worker:
            jobs = await send.enqueue_many([()] * 20)
            await _until(worker, Mode.SHUT)
            await switch.probed(1)
            calls = network.calls
            switch.on = network.up = True
            await _results(jobs)
            assert calls <= 8
        assert (await records(app))["dead"] == 0


async def test_while_its_probe_does_not_hold_no_job_is_tried(app: TaskQ) -> None:
    switch, network = Switch(), Network()
    app.breaker("mail", failures=1, pause="1ms", pause_max="1ms", probe=switch.condition())

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        await network.call()

    async with app, Worker(app, concurrency=1) as worker:
        jobs = await send.enqueue_many([()] * 20)
        await _until(worker, Mode.SHUT)
        await switch.probed(2)
        assert network.calls == 1
        switch.on = network.up = True
        await _results(jobs)


@pytest.mark.parametrize("error", [
    RuntimeError("over quota"), ExceptionGroup("", [ValueError(), RuntimeError("over quota")]),
])  # fmt: skip
async def test_an_error_counts_if_the_app_says_so(app: TaskQ, error: Exception) -> None:
    app.breaker("mail", failures=1, pause="1h", pause_max="1h",
                is_failure=lambda error: "quota" in str(error))  # fmt: skip

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        raise error

    async with app, Worker(app) as worker:
        await send.enqueue()
        await _until(worker, Mode.SHUT)


async def test_an_is_failure_that_raises_counts_as_no_network_failure(app: TaskQ) -> None:
    app.breaker("mail", failures=1, is_failure=lambda _: sys.exit(3))

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        raise ValueError("the job's own")

    async with app, Worker(app):
        job = await send.enqueue()
        with pytest.raises(JobFailed, match="ValueError: the job's own"):
            await job.result(30)


async def test_a_queue_comes_back_at_once_when_there_is_a_route_again(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, network = asyncio.Event(), Network()
    app.breaker("mail", failures=1, pause="1h", pause_max="1h")

    def is_routed() -> bool:
        asked.set()
        return network.up

    monkeypatch.setattr("taskq_workers.gates.gate.is_anywhere_routed", is_routed)

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        await network.call()

    async with app, Worker(app):
        jobs = await send.enqueue_many([()] * 5)
        await asyncio.wait_for(asked.wait(), 30)
        network.up = True
        await _results(jobs)


async def test_a_queue_comes_back_at_once_when_a_host_that_its_tasks_need_does(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, asked = Network(), asyncio.Event()
    app.breaker("mail", failures=1, pause="1h", pause_max="1h")

    async def problem(_: Online) -> str:
        if not network.up:
            asked.set()
        return "" if network.up else "gone"

    monkeypatch.setattr(Online, "problem", problem)

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        await network.call()

    @app.task(queue="mail", requires=[online("smtp.example.com:25")])
    async def fetch() -> None: ...

    async with app, Worker(app):
        jobs = await send.enqueue_many([()] * 5)
        await asyncio.wait_for(asked.wait(), 30)
        network.up = True
        await _results(jobs)


async def test_a_burst_ends_while_a_queue_backs_off_and_its_jobs_stay(app: TaskQ) -> None:
    app.breaker("mail", failures=1, pause="1h", pause_max="1h")

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        raise ConnectionResetError

    async with app:
        jobs = await send.enqueue_many([()] * 20)
        await asyncio.wait_for(Worker(app, burst=True).run(), 20)
        assert {(await job.view()).state.name for job in jobs} == {"READY"}


async def test_a_burst_ends_when_a_queue_that_backed_off_has_no_jobs_left(app: TaskQ) -> None:
    app.breaker("mail", failures=1, pause="1ms", pause_max="1ms")
    fails = iter([True, False])

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        if next(fails):
            raise ConnectionResetError

    async with app:
        job = await send.enqueue()
        for _ in range(2):
            await asyncio.wait_for(Worker(app, burst=True).run(), 20)
        assert (await job.view()).state.name == "SUCCEEDED"
