"""A job that fails for good or is cancelled is undone, newest effect first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from taskq import Discard, State, TaskQ, durable, retry
from taskq.testing import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from taskq import JobHandle


class Shop:
    """An app whose steps note what they did and undid."""

    def __init__(self, path: Path) -> None:
        self.app = TaskQ(path / "log")
        self.done: list[str] = []
        self.fails = 0

        @self.app.task(name="order", retry=retry.fixed(2, delay=1))
        async def order(end: str) -> str:
            receipt = await durable.step("charge", self.do, "charge")
            async with durable.undo("refund", self.undo, receipt):
                await durable.step("pack", self.do, "pack")
                async with durable.undo("unpack", self.undo, "pack", retry=retry.fixed(3, "1h")):
                    await durable.step("load", self.do, "load")
                    if end == "fail":
                        raise OSError("no truck")
                    if end == "discard":
                        raise Discard("no such place")
                    await durable.event("address", str)
                await durable.step("ship", self.do, "ship")
                if end == "fail late":
                    raise OSError("lost")
            return "shipped"

        self.order = order

    def do(self, what: str) -> str:
        self.done.append(what)
        return what

    async def undo(self, what: str) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("no line")
        self.done.append(f"un{what}")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
async def box(shop: Shop) -> AsyncIterator[Sandbox]:
    async with Sandbox(shop.app) as sandbox:
        yield sandbox


BEFORE = ["charge", "pack", "load"]


async def ended(job: JobHandle[Any]) -> tuple[State, str]:
    view = await job.view()
    return view.state, view.reason or ""


@pytest.mark.parametrize("end", ["fail", "discard"])
async def test_a_job_that_fails_for_good_undoes_what_it_did(
    shop: Shop, box: Sandbox, end: str
) -> None:
    job = await shop.order.enqueue(end)
    await box.drain(with_scheduled=True, raises=False)
    assert shop.done == [*BEFORE, "unpack", "uncharge"]
    state, reason = await ended(job)
    assert state is State.DEAD
    assert "undone: unpack#1\nundone: refund#1" in reason


async def test_a_job_that_waits_and_is_cancelled_undoes_what_it_did(
    shop: Shop, box: Sandbox
) -> None:
    job = await shop.order.enqueue("wait")
    await box.drain()
    assert await job.cancel()
    assert await job.status() is State.READY
    await box.drain()
    assert shop.done == [*BEFORE, "unpack", "uncharge"]
    assert (await ended(job))[0] is State.CANCELLED


async def test_a_block_that_is_over_is_not_undone(shop: Shop, box: Sandbox) -> None:
    job = await shop.order.enqueue("fail late")
    await box.drain()
    await box.signal(job, "address", "Kyoto")
    await box.drain(with_scheduled=True, raises=False)
    assert shop.done == [*BEFORE, "ship", "uncharge"]
    fine = await shop.order.enqueue("")
    await box.signal(fine, "address", "Kyoto")
    await box.drain()
    assert await fine.result(5) == "shipped"


async def test_a_step_that_undoes_has_tries_and_waits_without_a_slot(
    shop: Shop, box: Sandbox
) -> None:
    job = await shop.order.enqueue("wait")
    await box.drain()
    await job.cancel()
    shop.done.clear()
    shop.fails = 1
    await box.drain()
    assert "the next try of step 'unpack'" in (await job.why()).text
    await box.drain(with_scheduled=True)
    assert shop.done == ["unpack", "uncharge"]
    assert (await ended(job))[0] is State.CANCELLED


async def test_a_step_that_cannot_undo_is_named_and_the_others_go_on(
    shop: Shop, box: Sandbox
) -> None:
    @shop.app.task(retry=1)
    async def order() -> None:
        refund = durable.undo("refund", shop.undo, "charge")
        async with refund, durable.undo("unpack", fail, retry=1):
            raise OSError("no truck")

    def fail() -> None:
        raise ValueError("glued")

    job = await order.enqueue()
    await box.drain(raises=False)
    _, reason = await ended(job)
    assert "no truck" in reason
    assert "not undone: unpack#1 (ValueError: glued)\nundone: refund#1" in reason
    assert shop.done == ["uncharge"]


async def test_a_job_that_runs_and_is_cancelled_undoes_what_it_did(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    began = asyncio.Event()

    @shop.app.task(name="runs")
    async def runs() -> None:
        async with durable.undo("refund", shop.undo, "charge"):
            await durable.step("charge", shop.do, "charge")
            began.set()
            await asyncio.Event().wait()

    async with shop.app, shop.app.worker():
        job = await runs.enqueue()
        await began.wait()
        assert await job.cancel()
        with pytest.raises(Exception, match="cancelled"):
            await job.result(20)
    assert shop.done == ["charge", "uncharge"]


async def test_tasks_in_threads_undo_too(shop: Shop, box: Sandbox) -> None:
    @shop.app.task(retry=1)
    def order() -> None:
        with durable.undo_sync("refund", shop.undo, "charge"):
            durable.step_sync("charge", shop.do, "charge")
            durable.sleep_sync("1h")
            raise OSError("no truck")

    await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert shop.done == ["charge", "uncharge"]
