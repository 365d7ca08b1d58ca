"""Tasks that go on where they were: what is kept, what is waited for, what a user meets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from taskq import Failed, JobHandle, State, TaskQ, current_job, durable, retry
from taskq.connection.connection import Packer
from taskq.durable import attempt
from taskq.durable.waits import DurableRun
from taskq.errors import JobFailed, UsageError
from taskq.testing import Sandbox
from tests.effort import turns_counted


async def ordered(box: Sandbox, function: Callable[..., Any], **options: Any) -> JobHandle[Any]:
    job: JobHandle[Any] = await box.app.task(name="order", **options)(function).enqueue()
    await box.drain(with_scheduled=True, raises=False)
    return job


async def changed(
    box: Sandbox, before: Callable[[], Awaitable[object]], after: Callable[[], Awaitable[object]],
    signal: str = "",
) -> JobHandle[None]:  # fmt: skip
    """Return a job whose first attempt fails after ``before``, and whose second does ``after``."""
    attempts = 0

    async def order() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await before()
            raise OSError("again")
        await after()

    job = await box.app.task(name="order", retry=2)(order).enqueue()
    if signal:
        await box.signal(job, signal)
    await box.drain(with_scheduled=True, raises=False)
    return job


@dataclass
class Payment:
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
def app(shop: Shop) -> TaskQ:
    return shop.app


@pytest.fixture
async def box(app: TaskQ) -> AsyncIterator[Sandbox]:
    async with Sandbox(app) as sandbox:
        yield sandbox


async def reason(job: JobHandle[Any]) -> str:
    with pytest.raises(JobFailed) as failed:
        await job.result(5)
    return str(failed.value)


async def test_a_finished_step_is_not_done_again_by_the_next_attempt(
    shop: Shop, box: Sandbox
) -> None:
    """Its key is the same in every attempt, and no other step has it."""
    keys: list[str] = []

    def ship(order: str) -> str:
        keys.append(durable.key())
        return shop.ship(order)

    async def order() -> str:
        receipt = await durable.step("charge", shop.charge, "a")
        first = await durable.step("ship", ship, "a")
        return ", ".join([receipt, first, await durable.step("ship", ship, "b")])

    shop.fails = 1
    job = await ordered(box, order, retry=3)
    assert await job.result(5) == "receipt of a, a is on its way, b is on its way"
    assert shop.done == [("charge", "a"), ("ship", "a"), ("ship", "b")]
    assert keys == [f"{job.id}:ship#1", f"{job.id}:ship#1", f"{job.id}:ship#2"]


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

    async def whole() -> list[int | Failed]:
        squares: list[Any] = await durable.call([part.call(number) for number in range(3)])
        single = await durable.call(part.options(attempts=1).call(9))
        bad = [part.options(attempts=1).call(-1), part.call(2)]
        return [*squares, single, *await durable.call(bad, on_failure="run")]

    async def fails() -> None:
        await durable.call([part.options(attempts=1).call(-2)])

    *good, failed, last = await (await ordered(box, whole, retry=1)).result(5)
    assert (good, last) == ([0, 1, 4, 81], 4)
    assert isinstance(failed, Failed)
    assert "ValueError: below" in failed.reason
    assert sorted(runs) == [-1, 0, 1, 2, 2, 9]
    job = await shop.app.task(name="fails", retry=1)(fails).enqueue()
    await box.drain(raises=False)
    assert "ValueError: below" in await reason(job)


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
    assert sum(sent) == 3_000
    assert sum(read) >= 3_000
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


@pytest.mark.parametrize("seed", range(3))
async def test_steps_side_by_side_are_the_same_whichever_ends_first(
    shop: Shop, box: Sandbox, seed: int
) -> None:
    """Each attempt ends its steps in another order, and fails once more after each."""
    attempts = 0

    async def page(number: int) -> int:
        for _ in range((number * 7 + seed + attempts) % 5):
            await asyncio.sleep(0)
        if number == attempts % 4 and attempts < 3:
            raise OSError("not now")
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
    done = [event.reason for event in await shop.app.timeline(job) if event.kind == "stepped"]
    assert sorted(done) == [f"page#{number}" for number in range(1, 5)]


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


@pytest.mark.parametrize("waits_before", [True, False])
async def test_an_error_of_the_task_in_place_of_a_wait_fails_its_attempt(
    box: Sandbox, *, waits_before: bool
) -> None:
    async def order() -> None:
        try:
            if waits_before:
                await durable.sleep("1h")
        finally:
            raise LookupError("a mistake while it is cleaned up")

    job = await ordered(box, order, retry=1)
    assert "a mistake while it is cleaned up" in await reason(job)


async def test_outside_of_a_task_there_are_no_steps(shop: Shop) -> None:
    with pytest.raises(UsageError, match=r"durable\.step\(\) is for code that runs inside a task"):
        await durable.step("x", shop.charge, "a")
    with pytest.raises(UsageError, match=r"durable\.key\(\) is for code that runs within a step"):
        durable.key()


async def test_a_signal_of_a_wrong_type_is_reported_to_the_sender_and_in_why(
    shop: Shop, box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """At once where the type is known; it is passed over, and stays for an event that it fits."""

    @shop.app.task(retry=1)
    async def order() -> list[Any]:
        return [await durable.event("paid", int), await durable.event("paid")]

    job = await order.enqueue()
    await box.drain()
    await shop.app.signal(job, "paid", "five")
    assert f"'paid' does not fit what job {job.id} waits for" in caplog.text
    await box.drain()
    assert "signal 'paid' (what came so far does not fit)" in (await job.why()).text
    assert "(what came so far does not fit)" in str(await shop.app.timeline(job))
    assert await job.status() is State.SCHEDULED
    assert caplog.text.count("passed over, since it does not fit int") == 1
    caplog.clear()
    with pytest.raises(UsageError, match="signal 'paid': the value cannot be written as JSON"):
        await shop.app.signal(job, "paid", object())
    await shop.app.signal(job, "paid", 5)
    assert "does not fit" not in caplog.text
    await box.drain()
    assert await job.result(5) == [5, "five"]


def as_text() -> str:
    return "five"


#: Act of the first attempt, act of the second, and its error.
CHANGED: list[tuple[Any, Any, list[str]]] = [
    (
        *(lambda: durable.step("paid", fine), lambda: durable.event("paid")),
        ["step paid#1", "was a step before, and is an event now: give it another name"],
    ),
    (
        *(lambda: durable.step("count", as_text), lambda: durable.step("count", fine)),
        ["step count#1 of job ", "does not fit the return annotation int"],
    ),
    (
        *(lambda: first_of("paid", "cancelled"), lambda: first_of("paid")),
        ["was decided for wait 2, and has 1 now"],
    ),
]


async def first_of(*names: str) -> None:
    await durable.first(*map(durable.event, names))


@pytest.mark.parametrize(("before", "after", "parts"), CHANGED)
async def test_a_run_that_differs_from_the_recorded_one_is_refused(
    box: Sandbox, before: Any, after: Any, parts: list[str]
) -> None:
    why = await reason(await changed(box, before, after, "cancelled"))
    assert all(part in why for part in parts), why


async def test_unused_recorded_steps_are_skipped_and_logged_once(
    shop: Shop, box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    charge = shop.charge
    before = partial(durable.step, "old", charge, "a")
    for _ in range(2):
        box.app.hooks.tasks.clear()
        await changed(box, before, partial(durable.step, "new", charge, "b"))
    assert shop.done == [("charge", "a"), ("charge", "b")] * 2
    assert caplog.text.count("did not ask for step old#1, which was done") == 1


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


async def wait_for_pay() -> None:
    await durable.event("pay")


async def nested() -> None:
    await durable.sleep("1h")


async def no_json() -> object:
    return object()


async def too_large() -> str:
    return "x" * (1 << 25)


async def of_no_form() -> Callable[[], None]:
    return lambda: None


async def fine() -> int:
    return 1


async def undone_in_loop() -> None:
    with durable.undo_sync("a", fine):
        await fine()


INVALID: dict[str, tuple[Callable[[], Awaitable[object]], str]] = {
    "no form in JSON": (lambda: durable.step("a", no_json), ""),
    "too large": (lambda: durable.step("a", too_large), ""),
    "an annotation without a form": (lambda: durable.step("a", of_no_form), ""),
    "nested": (
        lambda: durable.step("a", nested),
        "durable.sleep() was called within step a#1: steps do not nest",
    ),
    "no function": (
        lambda: durable.step("pay", cast("Any", 5)),
        "step 'pay' takes a function and its arguments, got 5",
    ),
    "a name with #": (lambda: durable.step("a#1", fine), ""),
    "no name": (lambda: durable.step("", fine), ""),
    "a name that does not print": (lambda: durable.event("a\nb"), ""),
    "no duration": (lambda: durable.sleep("soon"), ""),
    "no retries": (lambda: durable.step("a", fine, retry=-1), ""),
    "a sync twin in a loop": (lambda: durable.step_sync("a", fine), ""),
    "a sync undo in a loop": (undone_in_loop, ""),
    "nothing to wait for": (durable.first, ""),
}


@pytest.mark.parametrize("what", INVALID)
async def test_what_no_attempt_can_mend_is_dead_at_once(box: Sandbox, what: str) -> None:
    done: list[str] = []
    act, words = INVALID[what]

    async def order() -> None:
        done.append("begun")
        await act()

    text = await reason(await ordered(box, order, retry=5))
    assert done == ["begun"]
    assert "InvalidStep" in text
    assert words in text


async def test_a_name_that_is_two_things_is_refused_before_its_effect(box: Sandbox) -> None:
    done: list[int] = []

    async def order() -> None:
        await durable.event("paid")
        await durable.step("paid", done.append, 1)

    job = await ordered(box, order, retry=5)
    await box.signal(job, "paid")
    await box.drain(with_scheduled=True, raises=False)
    assert "'paid' is an event of job" in await reason(job)
    assert done == []


async def test_the_first_run_gets_the_value_that_every_other_gets(box: Sandbox) -> None:
    async def rate() -> float:
        return 1

    async def order() -> str:
        return repr(await durable.step("rate", rate))

    assert await (await ordered(box, order)).result(5) == "1.0"


async def test_a_step_may_be_called_like_what_durable_has(box: Sandbox) -> None:
    async def order() -> list[Any]:
        got = [await durable.step(name, fine) for name in ("first", "sleep", "call", "version")]
        await durable.version("2")
        await durable.sleep("1h")
        return [*got, await durable.first(durable.event("pay", int), durable.sleep("1h"))]

    assert await (await ordered(box, order)).result(5) == [1, 1, 1, 1, None]


async def in_timeout() -> None:
    async with asyncio.timeout(5):
        await wait_for_pay()


async def in_timeout_above() -> None:
    async with asyncio.timeout(5):
        await asyncio.gather(wait_for_pay(), durable.sleep("1h"))


async def in_move_on() -> None:
    with anyio.move_on_after(5):
        await wait_for_pay()


async def in_fail_after() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_pay)


async def in_wait_for() -> None:
    await asyncio.wait_for(wait_for_pay(), 5)


async def in_shield() -> None:
    await asyncio.shield(wait_for_pay())


async def in_wait() -> None:
    tasks = [asyncio.create_task(wait_for_pay()), asyncio.create_task(asyncio.sleep(3600))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        tasks[1].cancel()


async def in_wait_for_all() -> None:
    await asyncio.wait([asyncio.create_task(wait_for_pay())])


async def in_gather_of_exceptions() -> None:
    await asyncio.gather(wait_for_pay(), fine(), return_exceptions=True)


async def in_group_in_gather() -> None:
    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_pay())

    await asyncio.gather(group(), return_exceptions=True)


async def swallowed() -> None:
    with contextlib.suppress(BaseException):  # that is the mistake
        await wait_for_pay()
    await durable.step("after", fine)


async def swallowed_and_over() -> None:
    try:
        await wait_for_pay()
    except BaseException:  # noqa: BLE001 - that is the mistake
        return


async def as_they_come() -> None:
    tasks = [asyncio.create_task(wait_for_pay()), asyncio.create_task(durable.sleep("1h"))]
    for task in tasks:  # the error of the second one would be "never retrieved"
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    for coming in asyncio.as_completed(tasks):
        await coming


LOST: dict[Callable[[], Awaitable[None]], str] = {
    in_timeout: "durable.event(..., timeout=...)",
    in_timeout_above: "durable.event(..., timeout=...)",
    in_move_on: "durable.event(..., timeout=...)",
    in_fail_after: "durable.event(..., timeout=...)",
    in_wait_for: "durable.event(..., timeout=...)",
    in_shield: "leave it out",
    in_wait: "durable.first(",
    in_wait_for_all: "asyncio.gather(",
    as_they_come: "durable.first(",
    in_gather_of_exceptions: "leave return_exceptions out",
    in_group_in_gather: "leave return_exceptions out",
    swallowed: "Catch Exception, not BaseException",
    swallowed_and_over: "Catch Exception, not BaseException",
}


async def caught() -> None:
    try:
        await in_wait_for()
    except Exception:  # noqa: BLE001 - whatever it is
        await asyncio.sleep(0)


LOST[caught] = "asyncio.wait_for() around a wait never fires"


@pytest.mark.parametrize("wrong", LOST)
async def test_a_wait_that_would_be_lost_is_an_error_at_once_that_names_what_to_write(
    box: Sandbox, wrong: Callable[[], Awaitable[None]]
) -> None:
    runs: list[int] = []

    async def order() -> None:
        runs.append(1)
        await wrong()

    assert LOST[wrong] in await reason(await ordered(box, order, retry=5))
    assert runs == [1]


async def by_gather() -> None:
    await asyncio.gather(wait_for_pay(), durable.step("beside", fine))


async def by_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(wait_for_pay())


async def by_group_of_anyio() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(wait_for_pay)


async def with_cleaning() -> None:
    try:
        await wait_for_pay()
    finally:
        await durable.step("cleaned", fine)


async def limited_before() -> None:
    async with asyncio.timeout(5):
        await durable.step("beside", fine)
    await wait_for_pay()


GOOD = [by_gather, by_group, by_group_of_anyio, with_cleaning, limited_before]


@pytest.mark.parametrize("right", GOOD)
async def test_a_run_ends_well_however_else_its_waits_are_awaited(
    box: Sandbox, right: Callable[[], Awaitable[None]]
) -> None:
    async def order() -> str:
        await right()
        return "paid"

    job = await ordered(box, order, retry=1, timeout="1h", soft_timeout="30m")
    await box.signal(job, "pay")
    await box.drain()
    assert await job.result(5) == "paid"


@pytest.mark.parametrize("grace", [0.01, 0.0])
async def test_a_wait_that_is_cancelled_is_not_waited_for(
    app: TaskQ, box: Sandbox, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """The job waits for its second event alone: the first one does not wake it.

    A loop that stalls for longer than the grace, which is like none at all, changes nothing.
    """
    monkeypatch.setattr(attempt, "_GRACE_SECONDS", grace)

    @app.task
    async def order() -> Any:
        async def until_waited_for() -> None:
            while not current_job().durable._waiters:  # noqa: ASYNC110
                await asyncio.sleep(0)  # until the run waits, which nobody announces

        waits = asyncio.create_task(durable.event("dropped"))
        await durable.step("beside", until_waited_for)
        waits.cancel()
        return await durable.event("pay")

    job = await order.enqueue()
    await box.drain()
    assert "signal 'pay'" in (why := (await job.why()).text)
    assert "dropped" not in why
    await box.signal(job, "dropped")
    assert (await box.drain()).count == 0
    await box.signal(job, "pay", 5)
    await box.drain()
    assert await job.result(5) == 5


async def test_a_branch_with_work_left_goes_on_beside_a_wait_in_a_loop_that_stalls(
    app: TaskQ, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_GRACE_SECONDS", 0.0)  # all of it passes in a stall
    done: list[int] = []

    async def work() -> None:
        for number in range(5):
            await durable.step("work", done.append, number)
            for _ in range(3):
                await asyncio.sleep(0)

    @app.task
    async def order() -> None:
        await asyncio.gather(durable.event("pay"), work())

    job = await order.enqueue()
    await box.drain()
    assert done == [0, 1, 2, 3, 4]
    assert "signal 'pay'" in (await job.why()).text


class Bank:
    def __init__(self, fails: int) -> None:
        self.fails, self.asked = fails, 0

    def charge(self, name: str) -> str:
        self.asked += 1
        if self.asked <= self.fails:
            raise OSError(f"no line {self.asked}")
        return f"receipt of {name}"


POLICY = retry.fixed(attempts=4, delay="5m")


async def test_failed_tries_burn_no_attempt_and_wait_without_a_slot(
    app: TaskQ, box: Sandbox
) -> None:
    bank = Bank(3)

    @app.task(retry=1)
    async def order(name: str) -> str:
        return await durable.step("charge", bank.charge, name, retry=POLICY)

    job = await order.enqueue("a")
    for tries in (1, 2, 3):
        assert (await box.drain()).outcomes == {"released": 1}
        assert bank.asked == tries
        assert "the next try of step 'charge'" in (await job.why()).text
        box.advance("4m")
        assert (await box.drain()).count == 0
        box.advance("1m")
    await box.drain()
    assert await job.result(5) == "receipt of a"
    assert (await job.view()).attempt == 1


async def test_tries_that_are_used_up_fail_the_attempt_and_the_next_has_as_many(
    box: Sandbox,
) -> None:
    bank = Bank(100)

    async def order() -> str:
        return await durable.step("charge", bank.charge, "a", retry=POLICY)

    job = await ordered(box, order, retry=retry.fixed(2, delay=0))
    assert "OSError: no line 8" in await reason(job)
    assert bank.asked == 8


async def test_a_short_delay_waits_in_place(app: TaskQ, box: Sandbox) -> None:
    bank = Bank(2)
    policy = retry.fixed(attempts=3, delay=0.001)

    @app.task
    async def order() -> str:
        return await durable.step("charge", bank.charge, "a", retry=policy)

    job = await order.enqueue()
    assert (await box.drain()).outcomes == {"succeeded": 1}
    assert await job.result(5) == "receipt of a"


async def test_each_try_has_its_own_timeout(box: Sandbox) -> None:
    asked: list[int] = []

    @durable.as_step(retry=retry.fixed(attempts=2, delay="1h"), timeout=0.01)
    async def charge(name: str) -> str:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return f"receipt of {name}"

    @durable.as_step
    async def twice(text: str) -> str:
        return text * 2

    async def order() -> str:
        first = await twice(await charge("a"))
        try:
            return str(await durable.step("never", asyncio.Event().wait, timeout=0.02))
        except TimeoutError as error:
            return f"{first}: {error}"

    text = await (await ordered(box, order, retry=1)).result(5)
    assert text == "receipt of a" * 2 + ": step never#1 was not done within its timeout of 0.02 s"
    assert len(asked) == 2


@pytest.mark.parametrize(
    "error",
    [StopIteration(1), StopAsyncIteration(1), asyncio.CancelledError(), SystemExit(1)],
    ids=repr,
)
async def test_anything_that_a_plain_function_raises_fails_its_attempt(
    box: Sandbox, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    async def order() -> None:
        await durable.step("a", fail)

    assert type(error).__name__ in await reason(await ordered(box, order, retry=1))


async def test_tasks_in_threads_have_twins_of_all(app: TaskQ, box: Sandbox) -> None:
    bank = Bank(1)
    done: list[str] = []

    @durable.as_step(retry=POLICY, timeout="1m")
    def pack(name: str) -> str:
        return f"box of {name}"

    @app.task
    def part(number: int) -> int:
        return number + 1

    def order() -> None:
        done.append(durable.version_sync("2"))
        with durable.undo_sync("refund", done.append, "refunded"):
            done.append(durable.step_sync("charge", bank.charge, "a", retry=POLICY))
            durable.sleep_sync("1h")
            paid: Any = durable.first_sync(durable.event("paid", int), durable.sleep("9d"))
            more = durable.event_sync("more", int)
            raise OSError([paid, more, pack("a"), *durable.call_sync([part.call(1)])])

    job = await app.task(name="order", retry=1)(order).enqueue()
    await box.signal(job, "paid", 5)
    await box.signal(job, "more", 6)
    await box.drain(with_scheduled=True, raises=False)
    assert "OSError: [5, 6, 'box of a', 2]" in await reason(job)
    assert (done[:2], done[-1]) == (["2", "2"], "refunded")
    assert bank.asked == 2


async def test_the_first_that_comes_is_decided_once_and_others_are_not_waited_for(
    app: TaskQ, box: Sandbox
) -> None:
    runs: list[Any] = []

    @app.task
    async def order() -> list[Any]:
        got = await durable.first(
            durable.event("paid", int), durable.event("cancelled", str), durable.sleep("2d")
        )
        runs.append(got)
        await durable.sleep("1h")
        return [got, await durable.event("paid", int)]

    job = await order.enqueue()
    await box.drain()
    assert "signal 'paid' and signal 'cancelled' and a time" in (await job.why()).text
    await box.signal(job, "cancelled", "no")
    await box.signal(job, "paid", 5)
    await box.drain(with_scheduled=True)
    assert await job.result(5) == ["no", 5]
    assert runs == ["no", "no"]


async def test_a_time_comes_first_if_nothing_else_does(app: TaskQ, box: Sandbox) -> None:
    @app.task
    async def child() -> None:
        await durable.sleep("9d")

    async def order() -> bool:
        call = durable.call(child.call())
        return await durable.first(durable.event("paid", int), durable.sleep("2d"), call) is None

    assert await (await ordered(box, order)).result(5)


async def test_jobs_and_signals_come_by_the_order_of_the_log(app: TaskQ, box: Sandbox) -> None:
    @app.task
    async def child() -> str:
        return "child"

    @app.task(queue="later")
    async def order() -> str:
        event = durable.event("paid", str)
        return await durable.first(event, durable.call(child.call()))

    for is_paid in (True, False):
        job = await order.enqueue()
        await box.drain(["later"])
        if is_paid:
            await box.signal(job, "paid", "paid")
        await box.drain(["default"])
        if not is_paid:
            await box.signal(job, "paid", "paid")
        await box.drain()
        assert await job.result(5) == ("paid" if is_paid else "child")


async def test_a_signal_is_taken_by_the_event_that_it_fits(app: TaskQ, box: Sandbox) -> None:
    @app.task
    async def order() -> list[int]:
        large = durable.event("paid", int, where=lambda cents: cents > 100)
        return list(await asyncio.gather(large, durable.event("paid", int)))

    job = await order.enqueue()
    await box.drain()
    for cents in (5, 7, 500):
        await box.signal(job, "paid", cents)
        await box.drain()
    assert await job.result(5) == [500, 5]


@pytest.mark.parametrize("before", [None, "0"])
async def test_a_version_is_the_one_that_the_job_began_with(
    app: TaskQ, box: Sandbox, before: str | None
) -> None:
    current, asks = "1", True

    @app.task
    async def order() -> str:
        await durable.step("charge", fine)
        began = await durable.version(current, before=before) if asks else ""
        await durable.sleep("1h")
        return began or await durable.version(current, before=before)

    asked = await order.enqueue()
    await box.drain()
    asks = False
    did_not = await order.enqueue()
    await box.drain()
    current, asks = "2", True
    await box.drain(with_scheduled=True)
    assert await asked.result(5) == "1"
    assert await did_not.result(5) == (before or "2")
