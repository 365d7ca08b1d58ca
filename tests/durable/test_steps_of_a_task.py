"""Tasks that go on where they were: what is kept, what is waited for, what a user meets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from taskq import Failed, State, TaskQ, durable, retry
from taskq.app.context import _Relay
from taskq.connection.connection import Packer
from taskq.durable.waits import DurableRun
from taskq.errors import JobFailed, JobSettled, UsageError
from taskq.testing import Sandbox
from tests.effort import turns_counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from taskq import JobHandle


@dataclass
class Payment:
    """An outside effect."""

    sum: int


class Shop:
    """An app whose steps note what they did."""

    def __init__(self, path: Path) -> None:
        self.app = TaskQ(path / "log")
        self.done: list[Any] = []
        self.fails = 0

    async def charge(self, order: str) -> str:
        self.done.append(("charge", order))
        return f"receipt of {order}"

    def ship(self, order: str) -> str:
        if self.fails:
            self.fails -= 1
            raise OSError("no truck")
        self.done.append(("ship", order))
        return f"{order} is on its way"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
async def box(shop: Shop) -> AsyncIterator[Sandbox]:
    async with Sandbox(shop.app) as sandbox:
        yield sandbox


async def reason(job: JobHandle[Any]) -> str:
    with pytest.raises(JobFailed) as failed:
        await job.result(5)
    return str(failed.value)


async def changed(
    shop: Shop,
    box: Sandbox,
    before: Callable[[], Awaitable[object]],
    after: Callable[[], Awaitable[object]],
) -> JobHandle[None]:
    attempts = 0

    @shop.app.task(retry=2)
    async def order() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await before()
            raise OSError("again")
        await after()

    job = await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    return job


async def test_a_finished_step_is_not_done_again_by_the_next_attempt(
    shop: Shop, box: Sandbox
) -> None:
    @shop.app.task(retry=3)
    async def order(name: str) -> str:
        receipt = await durable.step("charge", shop.charge, name)
        return receipt + ", " + await durable.step("ship", shop.ship, name)

    shop.fails = 1
    job = await order.enqueue("a")
    await box.drain(with_scheduled=True, raises=False)
    assert await job.result(5) == "receipt of a, a is on its way"
    assert shop.done == [("charge", "a"), ("ship", "a")]


async def test_waits_hold_no_slot_and_burn_no_attempt(shop: Shop, box: Sandbox) -> None:
    @shop.app.task(retry=1)
    async def order(name: str) -> int:
        await durable.sleep("2h")
        paid = await durable.event("paid", Payment, timeout="7d")
        await durable.step("ship", shop.ship, name)
        return paid.sum

    job = await order.enqueue("a")
    drained = await box.drain()
    assert drained.outcomes == {"released": 1}
    assert await job.status() is State.SCHEDULED
    box.advance("1h")
    assert (await box.drain()).count == 0
    box.advance("1h")
    await box.drain()
    assert await shop.app.signal(job, "paid", Payment(5), once="evt")
    assert not await shop.app.signal(job, "paid", Payment(5), once="evt")
    await box.drain()
    assert await job.result(5) == 5
    assert (await job.view()).attempt == 1


async def test_a_signal_that_does_not_come_is_an_error_that_stays(shop: Shop, box: Sandbox) -> None:
    @shop.app.task
    async def order() -> str:
        try:
            await durable.event("paid", timeout="1h")
        except durable.EventTimeout as error:
            shop.done.append(error.name)
        await durable.sleep("1h")
        return "given up"

    job = await order.enqueue()
    await box.drain()
    box.advance("1h")
    await box.drain()
    await shop.app.signal(job, "paid", 1)
    box.advance("1h")
    await box.drain()
    assert await job.result(5) == "given up"
    assert shop.done == ["paid", "paid"]


async def test_children_are_enqueued_once_and_their_results_come_in_order(
    shop: Shop, box: Sandbox
) -> None:
    runs: list[int] = []

    @shop.app.task
    async def part(number: int) -> int:
        runs.append(number)
        if number < 0:
            raise ValueError("below")
        return number * number

    @shop.app.task(retry=1)
    async def whole() -> list[int | Failed]:
        squares: list[Any] = await durable.call([part.call(number) for number in range(3)])
        single = await durable.call(part.options(attempts=1).call(9))
        bad = [part.options(attempts=1).call(-1), part.call(2)]
        return [*squares, single, *await durable.call(bad, on_failure="run")]

    job = await whole.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    *good, failed, last = await job.result(5)
    assert (good, last) == ([0, 1, 4, 81], 4)
    assert isinstance(failed, Failed)
    assert "ValueError: below" in failed.reason
    assert sorted(runs) == [-1, 0, 1, 2, 2, 9]


async def test_the_loop_turns_while_a_run_calls_thousands(
    shop: Shop, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    @shop.app.task
    async def part(number: int) -> int:
        return number

    @shop.app.task
    async def whole() -> int:
        return sum(await durable.call([part.call(1) for _ in range(3_000)]))

    with (
        turns_counted(monkeypatch, Packer, "loose") as sent,
        turns_counted(monkeypatch, DurableRun, "_result") as read,
    ):
        job = await whole.enqueue()
        await box.drain(with_scheduled=True)
    assert await job.result() == 3_000
    assert max(sent) <= 1_000
    assert max(read) <= 1_000


async def test_calls_side_by_side_wake_their_parent_at_most_twice_a_call(
    shop: Shop, box: Sandbox
) -> None:
    runs: list[int] = []

    @shop.app.task
    async def part(number: int) -> int:
        return number

    @shop.app.task
    async def whole() -> list[int]:
        runs.append(1)
        groups = (range(30), range(100), range(60))
        calls = [durable.call([part.call(at) for at in group]) for group in groups]
        return [sum(results) for results in await asyncio.gather(*calls)]

    job = await whole.enqueue()
    await box.drain(concurrency=4)
    assert await job.result(5) == [435, 4950, 1770]
    assert len(runs) <= 1 + 2 * 3


async def test_a_child_that_died_raises_in_its_parent(shop: Shop, box: Sandbox) -> None:
    @shop.app.task(retry=1)
    async def part() -> None:
        raise ValueError("broken")

    @shop.app.task(retry=1)
    async def whole() -> None:
        await durable.call([part.call()])

    job = await whole.enqueue()
    await box.drain(raises=False)
    assert "ValueError: broken" in await reason(job)


@pytest.mark.parametrize("seed", range(3))
async def test_steps_side_by_side_are_the_same_whichever_ends_first(
    shop: Shop, box: Sandbox, seed: int
) -> None:
    """Each attempt ends its steps in another order, and fails once more after each."""
    pages: list[int] = []
    attempts = 0

    async def page(number: int) -> int:
        for _ in range((number * 7 + seed + attempts) % 5):
            await asyncio.sleep(0)
        if number == attempts % 4 and attempts < 3:
            raise OSError("not now")
        pages.append(number)
        return number

    @shop.app.task(retry=5)
    async def crawl() -> list[int]:
        nonlocal attempts
        attempts += 1
        if seed % 2:
            return list(await asyncio.gather(*(durable.step("page", page, at) for at in range(4))))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(durable.step("page", page, at)) for at in range(4)]
        return [task.result() for task in tasks]

    job = await crawl.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert await job.result(5) == [0, 1, 2, 3]
    assert all(pages.count(number) <= attempts for number in range(4))


async def test_several_waits_of_one_run_are_waited_for_together(shop: Shop, box: Sandbox) -> None:
    @shop.app.task
    async def order() -> list[Any]:
        async def paid_and_shipped() -> str:
            await durable.event("paid")
            return await durable.step("ship", shop.ship, "a")

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(paid_and_shipped()),
                group.create_task(durable.event("seen", str)),
                group.create_task(durable.step("charge", shop.charge, "a")),
            ]
        return [task.result() for task in tasks]

    job = await order.enqueue()
    assert (await box.drain()).outcomes == {"released": 1}
    assert shop.done == [("charge", "a")]
    await shop.app.signal(job, "paid")
    await box.drain()
    assert shop.done == [("charge", "a"), ("ship", "a")]
    await shop.app.signal(job, "seen", "yes")
    await box.drain()
    assert await job.result(5) == ["a is on its way", "yes", "receipt of a"]


async def test_a_key_is_the_same_in_every_attempt_and_in_no_other_step(
    shop: Shop, box: Sandbox
) -> None:
    keys: list[str] = []

    def pay() -> None:
        keys.append(durable.key())
        if len(keys) == 1:
            raise OSError("no line")

    @shop.app.task(retry=3)
    async def order() -> None:
        await durable.step("pay", pay)
        await durable.step("pay", pay)

    job = await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert keys == [f"{job.id}:pay#1", f"{job.id}:pay#1", f"{job.id}:pay#2"]


async def test_tasks_in_threads_have_twins(shop: Shop, box: Sandbox) -> None:
    @shop.app.task
    def part(number: int) -> int:
        return number + 1

    @shop.app.task
    def order(name: str) -> list[Any]:
        shipped = durable.step_sync("ship", shop.ship, name)
        durable.sleep_sync("1h")
        return [shipped, durable.event_sync("paid", int), *durable.call_sync([part.call(1)])]

    job = await order.enqueue("a")
    await box.drain()
    box.advance("1h")
    await box.drain()
    await shop.app.signal(job, "paid", 5)
    await box.drain()
    assert await job.result(5) == ["a is on its way", 5, 2]
    assert shop.done == [("ship", "a")]


# -- what a user meets -----------------------------------------------------------------------------


@pytest.mark.parametrize("waits_before", [True, False])
async def test_an_error_of_the_task_in_place_of_a_wait_fails_its_attempt(
    shop: Shop, box: Sandbox, *, waits_before: bool
) -> None:
    @shop.app.task(retry=1)
    async def order() -> None:
        try:
            if waits_before:
                await durable.sleep("1h")
        finally:
            raise LookupError("a mistake while it is cleaned up")

    job = await order.enqueue()
    await box.drain(raises=False)
    assert (await job.view()).state is State.DEAD
    assert "a mistake while it is cleaned up" in await reason(job)


async def test_a_task_that_swallows_the_end_of_its_run_fails_and_says_so(
    shop: Shop, box: Sandbox
) -> None:
    @shop.app.task(retry=1)
    async def order() -> str:
        try:
            await durable.sleep("1h")
        except BaseException:  # noqa: BLE001 - that is the mistake
            return "gone on"
        return "fine"

    job = await order.enqueue()
    await box.drain(raises=False)
    assert "caught durable.Suspended and went on" in await reason(job)


async def test_finally_runs_when_a_run_ends_to_wait(shop: Shop, box: Sandbox) -> None:
    @shop.app.task
    async def order() -> None:
        try:
            await durable.sleep("1h")
        finally:
            shop.done.append("cleaned")

    await order.enqueue()
    await box.drain()
    assert shop.done == ["cleaned"]


async def test_outside_of_a_task_there_are_no_steps(shop: Shop) -> None:
    with pytest.raises(UsageError, match=r"durable\.step\(\) is for code that runs inside a task"):
        await durable.step("x", shop.charge, "a")
    with pytest.raises(UsageError, match=r"durable\.key\(\) is for code that runs within a step"):
        durable.key()


async def test_a_step_within_a_step_is_refused(shop: Shop, box: Sandbox) -> None:
    async def outer() -> None:
        await durable.sleep(60)

    @shop.app.task(retry=1)
    async def order() -> None:
        await durable.step("outer", outer)

    job = await order.enqueue()
    await box.drain(raises=False)
    assert "durable.sleep() was called within step outer#1: steps do not nest" in await reason(job)


async def test_a_signal_of_another_type_is_passed_over_and_stays(
    shop: Shop, box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    @shop.app.task(retry=1)
    async def order() -> list[Any]:
        return [await durable.event("paid", int), await durable.event("paid")]

    job = await order.enqueue()
    await shop.app.signal(job, "paid", "five")
    await box.drain()
    assert await job.status() is State.SCHEDULED
    await shop.app.signal(job, "paid", 5)
    await box.drain()
    assert await job.result(5) == [5, "five"]
    assert caplog.text.count("passed over, since it does not fit int") == 1


async def test_who_sends_a_signal_of_a_wrong_type_and_who_asks_why_hear_of_it(
    shop: Shop, box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """At once where the type is known; and it spoils nothing, not for a requeue either."""

    @shop.app.task(retry=1)
    async def order() -> int:
        return await durable.event("paid", int)

    job = await order.enqueue()
    await box.drain()
    await shop.app.signal(job, "paid", "five")
    assert f"'paid' does not fit what job {job.id} waits for" in caplog.text
    await box.drain()
    assert "signal 'paid' (what came so far does not fit)" in (await job.why()).text
    assert "(what came so far does not fit)" in str(await shop.app.timeline(job))
    caplog.clear()
    await shop.app.signal(job, "paid", 5)
    assert "does not fit" not in caplog.text
    await box.drain()
    assert await job.result(5) == 5


async def test_a_step_without_a_function_is_refused_by_name(shop: Shop, box: Sandbox) -> None:
    step: Any = durable.step

    @shop.app.task(retry=1)
    async def order() -> None:
        await step("pay", 5)

    job = await order.enqueue()
    await box.drain(raises=False)
    assert "step 'pay' takes a function and its arguments, got 5" in await reason(job)


async def test_a_name_that_was_something_else_is_refused(shop: Shop, box: Sandbox) -> None:
    charge = partial(durable.step, "paid", shop.charge, "a")
    job = await changed(shop, box, charge, lambda: durable.event("paid"))
    assert "step paid#1" in (text := await reason(job))
    assert "was a step before, and is an event now: give it another name" in text


async def test_a_value_that_no_longer_fits_names_job_step_and_type(
    shop: Shop, box: Sandbox
) -> None:
    def text() -> str:
        return "five"

    def number() -> int:
        return 5

    count = partial(durable.step, "count")
    job = await changed(shop, box, lambda: count(text), lambda: count(number))
    why = await reason(job)
    assert f"step count#1 of job {job.id}" in why
    assert "does not fit the return annotation int" in why


async def test_a_signal_for_a_settled_job_says_how_that_ended(shop: Shop, box: Sandbox) -> None:
    @shop.app.task
    async def order() -> None:
        """Do nothing."""

    job = await order.enqueue()
    await box.drain()
    with pytest.raises(JobSettled, match="it is succeeded") as refused:
        await shop.app.signal(job, "paid")
    assert refused.value.state == "succeeded"


async def test_steps_that_nobody_asks_for_are_passed_over_and_told_once(
    shop: Shop, box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    charge = shop.charge
    before = partial(durable.step, "old", charge, "a")
    for _ in range(2):
        await changed(shop, box, before, partial(durable.step, "new", charge, "b"))
    assert shop.done == [("charge", "a"), ("charge", "b")] * 2
    assert caplog.text.count("did not ask for step old#1, which was done") == 1


async def test_a_child_process_says_where_steps_belong(shop: Shop, box: Sandbox) -> None:
    @shop.app.task(retry=1)
    async def order() -> None:
        await durable.sleep(60)

    job = await order.enqueue()
    _Relay.send = lambda *_: None
    try:
        await box.drain(raises=False)
    finally:
        _Relay.send = None
    assert "which a child process has not open" in await reason(job)


async def test_a_thousand_finished_steps_are_back_at_once(shop: Shop, box: Sandbox) -> None:
    spent: list[float] = []

    async def add(number: int) -> int:
        return number

    @shop.app.task(retry=2)
    async def order() -> int:
        began = time.process_time()
        total = sum([await durable.step("add", add, at) for at in range(1_000)])
        spent.append(time.process_time() - began)
        if len(spent) == 1:
            raise OSError("again")
        return total

    job = await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert await job.result(5) == sum(range(1_000))
    assert spent[1] < spent[0] / 3


async def test_a_job_that_was_handed_over_as_failed_stays_so(shop: Shop, box: Sandbox) -> None:
    """It is requeued, and succeeds, before the next attempt asks again."""
    broken = True

    @shop.app.task(retry=1)
    async def part(number: int) -> int:
        if broken and number:
            raise ValueError("below")
        return number

    @shop.app.task(retry=3)
    async def whole() -> list[int | Failed]:
        parts: list[int | Failed] = await durable.call(
            [part.call(0), part.call(1)], on_failure="run"
        )
        await durable.step("ship", shop.ship, "a")
        return parts

    shop.fails = 1
    job = await whole.enqueue()
    await box.drain(raises=False)
    broken = False
    (letter,) = await shop.app.dead.list()
    await shop.app.dead.requeue(letter.job_id)
    await box.drain(with_scheduled=True, raises=False)
    first, failed = await job.result(5)
    assert first == 0
    assert isinstance(failed, Failed)
    assert (failed.job_id, "ValueError: below" in failed.reason) == (letter.job_id, True)


async def test_an_attempt_that_fails_does_not_start_a_timer_anew(shop: Shop, box: Sandbox) -> None:
    shop.fails = 2

    @shop.app.task(retry=retry.fixed(attempts=3, delay="30m"))
    async def order() -> None:
        await asyncio.gather(durable.sleep("1h"), durable.step("ship", shop.ship, "a"))

    job = await order.enqueue()
    await box.drain(raises=False)
    for _ in range(2):
        box.advance("30m")
        await box.drain(raises=False)
    assert await job.status() is State.SUCCEEDED
