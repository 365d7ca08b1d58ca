"""Queues and tasks whose conditions do not hold, or whose breaker is open, wait for them."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, TaskQ
from taskq.conditions import condition, online
from taskq.conditions.network import Online
from taskq.core.errors import JobCancelled
from taskq.core.model import State
from taskq.core.why import Why
from taskq.errors import JobFailed
from taskq.testing.sandbox import TravelClock, use_clock
from taskq_workers.gates import probes
from taskq_workers.gates.gate import Breaker, Mode
from taskq_workers.pool import Worker
from taskq_workers.runs.reasons import summary
from tests.effort import within
from tests.processes.harness import eventually
from tests.programs import free_port
from tests.workers.fakes import Held
from tests.workers.gates import switches
from tests.workers.gates.switches import Switch, records

_JOBS = 300
QUOTA = RuntimeError("over quota")


@pytest.mark.parametrize("runs_in", ["loop", "child"])
async def test_a_lost_condition_stops_jobs_that_asked_for_it_and_burns_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_in: str
) -> None:
    """Others go on."""
    monkeypatch.setattr("taskq_workers.gates.gate.TRIAL_SECONDS", 0.05)
    monkeypatch.setattr("taskq_workers.gates.gate.HELD_SECONDS", 0.05)
    app, switch, mark, go_on = switches.app, switches.SWITCH, tmp_path / "mark", tmp_path / "go"
    app.data_dir, switch.on = tmp_path / "data", True
    async with app:
        async with Worker(app) as worker:
            other = await switches.finish.enqueue(str(go_on))
            job = await switches.LASTING[runs_in].enqueue(str(mark))
            await asyncio.to_thread(eventually, mark.exists)
            switch.on = False
            await _held(worker, job)
            switch.on = True
            assert await job.result(timeout=30) == 2
            go_on.touch()
            assert await other.result(timeout=30) == 1
        assert (await records(app))["released condition"] == 1
        assert [(await each.view()).attempt for each in (job, other)] == [1, 1]


async def test_a_job_that_waited_for_a_slot_as_its_gate_opened_is_stopped_too(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq_workers.gates.gate.TRIAL_SECONDS", 0.05)
    monkeypatch.setattr("taskq_workers.gates.gate.HELD_SECONDS", 0.05)
    monkeypatch.setattr("taskq_workers.slots.feed.HOARD_SECONDS", 60)
    switch, first = Switch(on=True), Held(app)
    lasts = Held(app, name="lasts", requires=[switch.condition()], while_running=True)
    async with within(20), app, Worker(app, concurrency=1) as worker:
        await first.task.enqueue()
        await first.runs.wait()
        job = await lasts.task.enqueue()
        await switch.probed(4)
        first.end.set()
        await lasts.runs.wait()
        switch.on = False
        await _held(worker, job)


async def _held(worker: Worker, job: JobHandle[Any]) -> None:
    """Return once the worker keeps jobs back, and has told so."""
    gates = worker._parts[0].gates
    assert gates is not None
    while not gates.holds():
        gates.moved.clear()
        await gates.moved.wait()
    for _ in range(2):  # the answer comes between two batches
        await job.status()


async def _results(jobs: list[JobHandle[Any]]) -> None:
    await asyncio.gather(*(job.result(timeout=30) for job in jobs))


def _host(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=1_000)


async def test_jobs_wait_a_day_for_their_host_and_nothing_is_written_of_them(app: TaskQ) -> None:
    clock = TravelClock()
    use_clock(app, clock)
    port = free_port()
    running, most = 0, list[int]()

    @app.task(requires=[online(f"127.0.0.1:{port}")])
    async def upload(number: int) -> None:
        nonlocal running
        running += 1
        most.append(running)
        await asyncio.sleep(0.02)
        running -= 1

    async with app:
        jobs = await upload.enqueue_many([(number,) for number in range(_JOBS)])
        async with Worker(app, concurrency=16) as worker:
            await _held(worker, jobs[0])
            before = (await app.stats()).next_lsn
            clock.advance(24 * 3_600)
            reason = await app.why(jobs[-1].id)
            assert reason.code is Why.CONDITION
            assert f"it waits for online(127.0.0.1:{port}), which does not hold" in reason.text
            assert "for 1d now" in reason.text
            assert (await app.stats()).next_lsn == before
            with _host(port):
                await _results(jobs)
        # The first alone, and the next once it has ended.
        assert most[:3] == [1, 1, 2]
        assert max(most) == 16
        counts = await records(app)
        assert counts["claimed"] == _JOBS
        assert not [kind for kind in counts if kind.startswith("released")]
        assert {(await jobs[number].view()).attempt for number in (0, 150, -1)} == {1}


@pytest.mark.parametrize(
    "error",
    [
        KeyError("modem"), BaseException("modem"), GeneratorExit("modem"),
        BaseExceptionGroup("", [SystemExit("modem")]),
    ],
    ids=["error", "base", "generator", "group"],
)  # fmt: skip
async def test_a_probe_that_raises_counts_as_not_holding_and_is_logged_once(
    app: TaskQ, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    answers = iter([error] * 3 + [None])

    async def broken() -> bool:
        error = next(answers, None)
        if error is not None:
            raise error
        return True

    @app.task(requires=[condition(broken, name="the modem answers", every="10ms")])
    async def send() -> None: ...

    async with app, Worker(app):
        await (await send.enqueue()).result(timeout=30)
    (line,) = [message for message in caplog.messages if "modem" in message]
    assert line == (
        "the condition the modem answers counts as not holding, since its probe raised "
        f"{summary(error)}"
    )
    assert not list(answers)


async def test_a_probe_that_hangs_blocks_no_other_job_and_ends_at_its_limit(app: TaskQ) -> None:
    async def hangs() -> bool:
        await asyncio.Event().wait()
        return True

    @app.task(requires=[condition(hangs, every="10ms", timeout="50ms")])
    async def stuck() -> None: ...

    @app.task
    async def plain() -> int:
        return 1

    async with app, Worker(app, concurrency=1) as worker:
        job = await stuck.enqueue()
        assert await (await plain.enqueue()).result(timeout=30) == 1
        await _held(worker, job)
        assert "its probe took over 0.05 s" in (await app.why(job.id)).text


async def test_a_network_failure_burns_no_attempt_when_the_host_is_gone(app: TaskQ) -> None:
    port = free_port()
    host = _host(port)
    failed = asyncio.Event()

    @app.task(requires=[online(f"127.0.0.1:{port}")], retry=1)
    async def upload() -> int:
        if not failed.is_set():
            host.close()
            failed.set()
            raise ConnectionResetError("gone")
        return 1

    async with app:
        async with Worker(app) as worker:
            job = await upload.enqueue()
            await failed.wait()
            await _held(worker, job)
            with _host(port):
                assert await job.result(timeout=30) == 1
        assert (await records(app))["released condition"] >= 1
        assert (await job.view()).attempt == 1


async def test_a_burst_runs_what_may_run_and_leaves_what_waits(app: TaskQ) -> None:
    there, away = Switch(on=True), Switch()

    async def run() -> int:
        return 1

    runs = app.task(name="runs", requires=[there.condition()])(run)
    waits = app.task(name="waits", requires=[away.condition("away")])(run)
    async with app:
        able = await runs.enqueue_many([()] * 30)
        kept = await waits.enqueue()
        await asyncio.wait_for(Worker(app, burst=True).run(), 20)
        assert [await job.result(timeout=1) for job in able] == [1] * 30
        assert (await kept.view()).attempt == 0


async def test_a_job_that_is_cancelled_while_its_condition_is_probed_never_runs(app: TaskQ) -> None:
    probed, go_on, ran = asyncio.Event(), asyncio.Event(), []

    async def holds() -> bool:
        probed.set()
        await go_on.wait()
        return True

    @app.task(requires=[condition(holds, timeout="1h")])
    async def work(number: int) -> int:
        ran.append(number)
        return number

    async with app, Worker(app) as worker:
        gates = worker._parts[0].gates
        assert gates is not None
        (gate,) = gates._all()
        for _ in range(3):  # until its gate waits for the first job
            await app.stats()
        assert gate.mode is Mode.IDLE
        first = await work.enqueue(1)
        await probed.wait()
        assert await first.status() is State.RUNNING
        assert await first.cancel()
        with pytest.raises(JobCancelled):
            await first.result(timeout=30)
        go_on.set()
        second = await work.enqueue(2)
        assert await second.result(timeout=30) == 2
    assert ran == [2]


@pytest.mark.parametrize("way", ["stop", "burst"])
async def test_a_worker_ends_while_a_probe_ignores_its_cancellation(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """At a stop, and when the probe's own time is over, which counts as failed."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def deaf() -> bool:
        begun.set()
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()
        return True

    monkeypatch.setattr(probes, "DEAF_SECONDS", 0.05)

    @app.task(requires=[condition(deaf, timeout=0.05 if way == "burst" else "1h")])
    async def work() -> None: ...

    async with app:
        job = await work.enqueue()
        worker = Worker(app, burst=way == "burst", drain_timeout=0)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        if way == "stop":
            worker.request_stop()
        done, _ = await asyncio.wait({running}, timeout=30)
        go_on.set()  # else a failure here would keep the loop of all tests from its end
        await running
        assert done
        view = await job.view()
        assert (view.state, view.attempt) == (State.READY, 0)


def _breaker(worker: Worker, queue: str = "mail") -> Breaker:
    assert worker._parts[0].gates is not None
    return worker._parts[0].gates._breakers[queue]


async def _until(worker: Worker, mode: Mode) -> None:
    gates = worker._parts[0].gates
    assert gates is not None
    while _breaker(worker).mode is not mode:
        gates.moved.clear()
        await gates.moved.wait()


class Network:
    def __init__(self, app: TaskQ, attempts: int = 1) -> None:
        self.up = False
        self.calls = 0

        @app.task(queue="mail", name="send", retry=attempts)
        async def send() -> None:
            self.calls += 1
            await asyncio.sleep(0)
            if not self.up:
                raise ConnectionRefusedError("no")

        self.send = send


async def test_after_some_failures_in_a_row_no_job_burns_an_attempt_until_the_network_is_back(
    app: TaskQ,
) -> None:
    app.breaker("mail", failures=3, pause="20ms", pause_max="40ms")
    network = Network(app, attempts=2)

    @app.task
    async def plain() -> int:
        return 1

    async with app:
        jobs = await network.send.enqueue_many([()] * 200)
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


@pytest.mark.parametrize("by", ["probe", "route", "host"])
async def test_a_queue_comes_back_at_once_when_its_network_does(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A probe that does not hold lets no job be tried, however short the pause."""
    network, asked, looks = Network(app), asyncio.Event(), list[int]()

    def is_up() -> bool:
        looks.append(network.calls)
        if looks.count(1) > (by == "probe"):
            asked.set()
        return network.up

    async def problem(_: Online) -> str:
        return "" if is_up() else "gone"

    is_needed: Any = condition(is_up, every="10ms") if by == "probe" else None
    if by == "route":
        monkeypatch.setattr("taskq_workers.gates.gate.is_anywhere_routed", is_up)
    if by == "host":
        monkeypatch.setattr(Online, "problem", problem)
        app.task(name="other", queue="mail", requires=[online("smtp.example.com:25")])(print)
    pause = "1ms" if by == "probe" else "1h"
    app.breaker("mail", failures=1, pause=pause, pause_max=pause, probe=is_needed)
    async with app:
        async with Worker(app, concurrency=1):
            jobs = await network.send.enqueue_many([()] * 5)
            await asyncio.wait_for(asked.wait(), 30)
            assert network.calls == 1
            network.up = True
            await _results(jobs)
        assert (await records(app))["dead"] == 0


def is_over_quota(error: BaseException) -> bool:
    return "quota" in str(error)


@pytest.mark.parametrize(
    ("error", "is_failure", "mode"),
    [
        (QUOTA, is_over_quota, Mode.SHUT),
        (ExceptionGroup("", [ValueError(), QUOTA]), is_over_quota, Mode.SHUT),
        (QUOTA, lambda _: sys.exit(3), Mode.OPEN),
    ],
)
async def test_an_error_counts_if_the_app_says_so(
    app: TaskQ, error: Exception, is_failure: Any, mode: Mode
) -> None:
    app.breaker("mail", failures=1, pause="1h", pause_max="1h", is_failure=is_failure)

    @app.task(queue="mail", retry=1)
    async def send() -> None:
        raise error

    async with app, Worker(app) as worker:
        job = await send.enqueue()
        if mode is Mode.OPEN:
            with pytest.raises(JobFailed, match="RuntimeError: over quota"):
                await job.result(30)
        await _until(worker, mode)


async def test_a_burst_ends_while_a_queue_backs_off_and_its_jobs_stay(app: TaskQ) -> None:
    app.breaker("mail", failures=1, pause="1h", pause_max="1h")
    network = Network(app)
    async with app:
        jobs = await network.send.enqueue_many([()] * 20)
        await asyncio.wait_for(Worker(app, burst=True).run(), 20)
        assert {await job.status() for job in jobs} == {State.READY}
        network.up = True
        await asyncio.wait_for(Worker(app, burst=True).run(), 20)
        assert {await job.status() for job in jobs} == {State.SUCCEEDED}
