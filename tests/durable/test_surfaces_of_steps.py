"""Steps of a job show in commands, why, the timeline and streams."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskq import JobHandle, TaskQ, durable
from taskq.cli.main import main
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.records import STEPS_FEATURE, Cause, Kind
from taskq.errors import UsageError
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.requests import Op
from taskq.log.state.facets import Facets
from tests.hub.simulation import Simulation
from tests.workers.fakes import Held


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "log")


def tasks_of(app: TaskQ) -> tuple[Any, list[str]]:
    done: list[str] = []

    def note(what: str) -> str:
        done.append(what)
        return what

    @app.task(name="order")
    async def order(name: str = "a") -> str:
        await durable.step("charge", note, f"charge {name}")
        address = await durable.event("address", str, timeout="7d")
        return await durable.step("ship", note, f"ship {name} to {address}")

    return order, done


async def waiting(app: TaskQ) -> JobHandle[Any]:
    job: JobHandle[Any] = await tasks_of(app)[0].enqueue()
    await until_idle(app)
    return job


async def until_idle(app: TaskQ) -> None:
    await app.worker(burst=True).run()


async def run(app: TaskQ, *words: str, code: int = 0) -> str:
    command = [*words, "-d", str(app.data_dir)]
    done = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert done.exit_code == code, done.output
    return done.output


async def test_many_steps_are_shown_by_the_page(app: TaskQ) -> None:
    @app.task
    async def long() -> None:
        for _ in range(130):
            await durable.step("page", int)

    async with app:
        job = await long.enqueue()
        await until_idle(app)
    shown = await run(app, "show", job.id)
    assert "page#130" in shown
    assert "page#30 " not in shown
    assert "30 earlier steps are not shown: -n 0 shows all" in shown
    assert "page#1 " in await run(app, "show", job.id, "-n", "0")
    events = await run(app, "timeline", job.id, "-n", "5")
    assert events.count("stepped") == 4
    assert "earlier events are not shown" in events
    assert len(json.loads(await run(app, "show", job.id, "--json", "-n", "7"))["steps"]) == 7


async def test_a_replay_from_a_step_keeps_earlier_steps(app: TaskQ) -> None:
    done: list[str] = []

    def note(name: str) -> str:
        done.append(name)
        return name

    @app.task(name="order")
    async def order() -> list[str]:
        return [await durable.step(name, note, name) for name in ("charge", "pack", "ship")]

    async with app:
        job = await order.enqueue()
        await until_idle(app)
    replay = ("replay", job.id, "--from-step")
    out = json.loads(await run(app, *replay, "pack#1", "--json"))
    (new,) = [row["new_id"] for row in out["jobs"]]
    (step,) = json.loads(await run(app, "show", new, "--json"))["steps"]
    assert (step["step"], step["form"], step["value"]) == ("charge#1", "step", '"charge"')
    assert step["began_at"] <= step["ended_at"]
    done.clear()
    async with app:
        await until_idle(app)
        assert done == ["pack", "ship"]
        assert await app.job(new).result(5) == ["charge", "pack", "ship"]


async def test_a_hook_hears_of_each_step_once_and_fails_no_job(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[durable.StepDone] = []

    @app.on_step
    def fails(done: durable.StepDone) -> None:
        raise OSError(done.name)

    async def told(_: durable.StepDone) -> None: ...

    with pytest.raises(UsageError, match=r"on_step takes a plain function.*told is async"):
        app.on_step(told)
    app.on_step(heard.append)
    async with app:
        job = await waiting(app)
        await app.signal(job, "address", "Kyoto")
        await until_idle(app)
    assert [(done.name, done.number, done.form, done.attempt) for done in heard] == [
        ("charge", 1, "step", 1), ("address", 1, "event", 1), ("ship", 1, "step", 1),
    ]  # fmt: skip
    assert {(done.job_id, done.task, done.queue) for done in heard} == {
        (job.id, "order", "default")
    }
    assert heard[0].seconds > heard[1].seconds == 0
    assert caplog.text.count("an on_step hook failed on job") == len(heard)


async def test_why_says_of_a_stopped_worker_what_health_says(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(app)
    async with app, app.worker(concurrency=1):
        runs, waits = await held.task.enqueue(), await held.task.enqueue()
        await held.runs.wait()
        assert "stopped" not in (await runs.why()).text
        monkeypatch.setattr("taskq.log.read.diagnosis.process_state", lambda _: "stopped: python")
        for job in (runs, waits):
            text = (await job.why()).text
            assert f"stopped by a signal: {os.getpid()}. Let it go on with kill -CONT" in text
        held.end.set()
        await waits.result(5)


def test_a_hubs_copy_knows_the_steps_of_its_device() -> None:
    """``settle`` compares what the two logs mean, steps, signals and waits included."""
    simulation = Simulation(0)
    process = simulation._device()
    job = process.enqueue()
    (delivery,) = process.claim()
    process.ask(Op.STEP, NewStep(delivery, Form.STEP, "charge", 1, b'"receipt"'))
    process.ask(Op.SIGNAL, NewSignal(job, "paid", b"1", "evt"))
    waits = pack_waits([Wait(Form.EVENT, "address", 1)])
    process.settle(delivery, Kind.RELEASED, body=waits, cause=Cause.WAITS)
    simulation.settle()
    copy = simulation._reader(simulation._copy_path())
    assert STEPS_FEATURE in copy.identity.incompat
    steps = Facets(copy).need_agenda().steps
    assert steps.count(job) == 1
    assert steps.knows_once(job, b"evt")
    assert steps.awaits(job, "address")
