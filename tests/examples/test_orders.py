"""An order goes on after its finished steps, through failures and days of waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.orders.__main__ import main
from examples.orders.app import app, order
from examples.orders.world import world
from taskq.errors import JobCancelled, JobFailed
from taskq.testing import Sandbox


@pytest.fixture(autouse=True)
def _new_world() -> Iterator[None]:
    world.clear()
    yield
    world.clear()


async def test_it_is_charged_and_shipped_once_though_the_van_breaks_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await main()
    printed = capsys.readouterr().out
    assert "it is scheduled" in printed
    assert "it waits within its run for signal 'address' and signal 'regret' and a time" in printed
    assert "a box of tea and a box of coffee to 1 High Street, Kyoto" in printed
    assert printed.endswith("charged 1 time, shipped 1 time\n")
    assert sorted(world.packed) == ["coffee", "tea"]


@pytest.mark.parametrize("how", ["no address", "regret", "cancel"])
async def test_whatever_ends_it_before_it_is_shipped_it_is_refunded_once(how: str) -> None:
    async with Sandbox(app) as box:
        job = await order.enqueue("no. 8", 900, ["tea"])
        await box.drain()
        if how == "cancel":
            await job.cancel()
        elif how == "regret":
            await box.signal(job, "regret", "too dear")
        await box.drain(with_scheduled=True, raises=False)
        with pytest.raises((JobFailed, JobCancelled)):
            await job.result(5)
    assert (world.bank.refunds, world.packed) == (["no. 8"], [])
