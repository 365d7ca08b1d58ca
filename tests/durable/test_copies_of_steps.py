"""Wherever a log goes, its steps go along: to a hub, into a backup, into shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq import Shards, TaskQ, durable
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.records import STEPS_FEATURE, Cause, Kind
from taskq.engine import back_up, restore
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.requests import Op
from taskq.log.state.facets import Facets
from tests.hub.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


def tasks_of(app: TaskQ) -> tuple[Any, list[str]]:
    done: list[str] = []

    def note(what: str) -> str:
        done.append(what)
        return what

    @app.task(name="order")
    async def order(name: str) -> str:
        await durable.step("charge", note, f"charge {name}")
        address = await durable.event("address", str)
        return await durable.step("ship", note, f"ship {name} to {address}")

    return order, done


async def until_idle(app: TaskQ) -> None:
    await app.worker(burst=True).run()


async def test_a_restored_backup_goes_on_behind_the_steps(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log", durability="os")
    order, _ = tasks_of(app)
    async with app:
        job = await order.enqueue("tea")
        await until_idle(app)
        back_up(str(app.data_dir), str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    again = TaskQ(tmp_path / "again", durability="os")
    _, done = tasks_of(again)
    async with again:
        assert await again.signal(job.id, "address", "Kyoto")
        await until_idle(again)
        assert await again.job(job.id).result(5) == "ship tea to Kyoto"
    assert done == ["ship tea to Kyoto"]


@pytest.mark.parametrize("by", [lambda job: job, lambda job: job.id])
async def test_a_signal_finds_the_shard_of_its_job(tmp_path: Path, by: Callable[..., Any]) -> None:
    app = TaskQ(shards=Shards(tmp_path, bits=1), durability="os")
    order, done = tasks_of(app)
    async with app:
        jobs = [await order.options(key=f"k{number}").enqueue(str(number)) for number in range(8)]
        await until_idle(app)
        assert len({job.id.partition("-")[0] for job in jobs}) == 2
        for job in jobs:
            assert await app.signal(by(job), "address", "Kyoto")
        await until_idle(app)
        results = [await job.result(5) for job in jobs]
    assert results == [f"ship {number} to Kyoto" for number in range(8)]
    assert sorted(done) == sorted([f"charge {number}" for number in range(8)] + results)
