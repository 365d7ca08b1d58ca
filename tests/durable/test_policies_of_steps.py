"""Steps with tries of their own, the first of several waits, and what no attempt can mend."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from taskq import TaskQ, durable, retry
from taskq.errors import JobFailed
from taskq.testing import Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from taskq import JobHandle


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "log")


@pytest.fixture
async def box(app: TaskQ) -> AsyncIterator[Sandbox]:
    async with Sandbox(app) as sandbox:
        yield sandbox


async def reason(job: JobHandle[Any]) -> str:
    with pytest.raises(JobFailed) as failed:
        await job.result(5)
    return str(failed.value)


async def wait_for_pay() -> None:
    await durable.event("pay")


# -- what no attempt can mend ----------------------------------------------------------------------


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


INVALID: dict[str, Callable[[], Awaitable[object]]] = {
    "no form in JSON": lambda: durable.step("a", no_json),
    "too large": lambda: durable.step("a", too_large),
    "an annotation without a form": lambda: durable.step("a", of_no_form),
    "nested": lambda: durable.step("a", nested),
    "a name with #": lambda: durable.step("a#1", fine),
    "no name": lambda: durable.step("", fine),
    "a name that does not print": lambda: durable.event("a\nb"),
    "no duration": lambda: durable.sleep("soon"),
    "no retries": lambda: durable.step("a", fine, retry=-1),
    "a sync twin in a loop": lambda: durable.step_sync("a", fine),
    "nothing to wait for": durable.first,
}


@pytest.mark.parametrize("what", INVALID)
async def test_what_no_attempt_can_mend_is_dead_at_once(
    app: TaskQ, box: Sandbox, what: str
) -> None:
    done: list[str] = []

    @app.task(retry=5)
    async def order() -> None:
        done.append("begun")
        await INVALID[what]()

    job = await order.enqueue()
    drained = await box.drain(with_scheduled=True, raises=False)
    assert drained.outcomes == {"dead": 1}
    assert done == ["begun"]
    assert "InvalidStep" in await reason(job)


async def test_a_name_that_is_two_things_is_refused_before_its_effect(
    app: TaskQ, box: Sandbox
) -> None:
    done: list[int] = []

    @app.task(retry=5)
    async def order() -> None:
        await durable.event("paid")
        await durable.step("paid", done.append, 1)

    job = await order.enqueue()
    await box.signal(job, "paid")
    await box.drain(with_scheduled=True, raises=False)
    assert "'paid' is an event of job" in await reason(job)
    assert done == []


async def test_a_step_may_be_called_like_what_durable_has(app: TaskQ, box: Sandbox) -> None:
    @app.task
    async def order() -> list[Any]:
        got = [await durable.step(name, fine) for name in ("first", "sleep", "call", "version")]
        await durable.version("2")
        await durable.sleep("1h")
        return [*got, await durable.first(durable.event("pay", int), durable.sleep("1h"))]

    job = await order.enqueue()
    await box.drain(with_scheduled=True)
    assert await job.result(5) == [1, 1, 1, 1, None]


async def test_the_first_run_gets_the_value_that_every_other_gets(app: TaskQ, box: Sandbox) -> None:
    async def rate() -> float:
        return 1

    @app.task
    async def order() -> str:
        return repr(await durable.step("rate", rate))

    job = await order.enqueue()
    await box.drain(with_scheduled=True)
    assert await job.result(5) == "1.0"


# -- how a wait is awaited -------------------------------------------------------------------------


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


@pytest.mark.parametrize("wrong", LOST)
async def test_a_wait_that_would_be_lost_is_an_error_at_once_that_names_what_to_write(
    app: TaskQ, box: Sandbox, wrong: Callable[[], Awaitable[None]]
) -> None:
    runs: list[int] = []

    @app.task(retry=5)
    async def order() -> None:
        runs.append(1)
        await wrong()

    job = await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert LOST[wrong] in await reason(job)
    assert runs == [1]


async def test_a_caught_error_of_a_wait_does_not_let_the_run_go_on(
    app: TaskQ, box: Sandbox
) -> None:
    @app.task(retry=5)
    async def order() -> None:
        try:
            await in_wait_for()
        except Exception:  # noqa: BLE001 - whatever it is
            await asyncio.sleep(0)

    job = await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert "asyncio.wait_for() of a wait never fires" in await reason(job)


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
    app: TaskQ, box: Sandbox, right: Callable[[], Awaitable[None]]
) -> None:
    @app.task(retry=1, timeout="1h", soft_timeout="30m")
    async def order() -> str:
        await right()
        return "paid"

    job = await order.enqueue()
    assert (await box.drain()).outcomes == {"released": 1}
    await box.signal(job, "pay")
    await box.drain()
    assert await job.result(5) == "paid"


async def test_a_wait_that_is_cancelled_is_not_waited_for(app: TaskQ, box: Sandbox) -> None:
    """The job waits for its second event alone: the first one does not wake it."""

    @app.task
    async def order() -> Any:
        async def slow() -> None:
            await asyncio.sleep(0.02)

        waits = asyncio.create_task(durable.event("dropped"))
        await asyncio.gather(durable.step("beside", slow), asyncio.sleep(0))
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


# -- tries of a step -------------------------------------------------------------------------------


class Bank:
    """Fail ``count`` times."""

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
    app: TaskQ, box: Sandbox
) -> None:
    bank = Bank(100)

    @app.task(retry=retry.fixed(2, delay=0))
    async def order() -> str:
        return await durable.step("charge", bank.charge, "a", retry=POLICY)

    job = await order.enqueue()
    await box.drain(with_scheduled=True, raises=False)
    assert "OSError: no line 8" in await reason(job)
    assert bank.asked == 8


async def test_a_short_delay_waits_in_place(app: TaskQ, box: Sandbox) -> None:
    bank = Bank(2)

    @app.task
    async def order() -> str:
        policy = retry.fixed(attempts=3, delay=0.001)
        return await durable.step("charge", bank.charge, "a", retry=policy)

    job = await order.enqueue()
    assert (await box.drain()).outcomes == {"succeeded": 1}
    assert await job.result(5) == "receipt of a"


async def test_each_try_has_its_own_timeout(app: TaskQ, box: Sandbox) -> None:
    asked: list[int] = []

    @durable.as_step(retry=retry.fixed(attempts=2, delay="1h"), timeout=0.01)
    async def charge(name: str) -> str:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return f"receipt of {name}"

    @app.task(retry=1)
    async def order() -> str:
        return await charge("a")

    job = await order.enqueue()
    await box.drain(with_scheduled=True)
    assert await job.result(5) == "receipt of a"
    assert len(asked) == 2


async def test_tasks_in_threads_have_tries_firsts_and_versions(app: TaskQ, box: Sandbox) -> None:
    bank = Bank(1)

    @durable.as_step(retry=POLICY, timeout="1m")
    def pack(name: str) -> str:
        return f"box of {name}"

    @app.task(retry=1)
    def order() -> list[Any]:
        version = durable.version_sync("2")
        receipt = durable.step_sync("charge", bank.charge, "a", retry=POLICY)
        paid = durable.first_sync(durable.event("paid", int), durable.sleep("1h"))
        return [version, receipt, paid, pack("a")]

    job = await order.enqueue()
    await box.drain()
    box.advance("5m")
    await box.drain()
    await box.signal(job, "paid", 5)
    await box.drain()
    assert await job.result(5) == ["2", "receipt of a", 5, "box of a"]


# -- the first of several --------------------------------------------------------------------------


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

    @app.task
    async def order() -> bool:
        got = await durable.first(
            durable.event("paid", int), durable.sleep("2d"), durable.call(child.call())
        )
        return got is None

    job = await order.enqueue()
    await box.drain()
    box.advance("2d")
    await box.drain()
    assert await job.result(5)


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


# -- versions --------------------------------------------------------------------------------------


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
