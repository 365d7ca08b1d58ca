"""Groups and spans that the tasks of a worker are held by."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, NoReturn

import pytest

from taskq_workers.scopes import Group, Scope, Status, finished, sleep_forever

if TYPE_CHECKING:
    from collections.abc import Callable


async def serve(steps: list[str], *, task_status: Status) -> None:
    """Say that it works, until cancelled; its end takes a turn of the loop."""
    await asyncio.sleep(0)
    steps.append("works")
    task_status.started()
    try:
        await sleep_forever()
    finally:
        await asyncio.sleep(0)
        steps.append("ended")


async def test_who_starts_a_service_goes_on_when_it_works_and_a_cancel_lets_it_clean_up() -> None:
    steps: list[str] = []
    async with Group() as group:
        await group.start(serve, steps)
        assert steps == ["works"]
        group.cancel()
    assert steps == ["works", "ended"]


async def fail_at_once(*, task_status: Status) -> NoReturn:
    raise ValueError(f"no start: {task_status}")


async def fail_later(*, task_status: Status) -> NoReturn:
    task_status.started()
    await asyncio.sleep(0)
    raise ValueError("an end")


async def end_at_once(*, task_status: Status) -> None:
    del task_status


async def test_what_keeps_a_service_from_starting_is_raised_to_its_starter_alone() -> None:
    async with Group() as group:
        with pytest.raises(ValueError, match="no start"):
            await group.start(fail_at_once)
        await group.start(end_at_once)
        await asyncio.sleep(0)


async def test_what_ends_a_service_later_ends_the_group() -> None:
    steps: list[str] = []

    async def run() -> None:
        async with Group() as group:
            await group.start(serve, steps)
            await group.start(fail_later)
            await sleep_forever()

    with pytest.raises(ExceptionGroup) as ended:
        await run()
    assert str(ended.value.exceptions[0]) == "an end"
    assert steps == ["works", "ended"]


async def test_a_starter_that_is_cancelled_leaves_no_service_behind() -> None:
    begun, steps = asyncio.Event(), list[str]()

    async def hang(*, task_status: Status) -> None:
        del task_status
        begun.set()
        try:
            await sleep_forever()
        finally:
            steps.append("ended")

    async def start() -> None:
        async with Group() as group:
            await group.start(hang)

    starter = asyncio.create_task(start())
    await begun.wait()
    starter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starter
    assert steps == ["ended"]


@pytest.mark.parametrize("cancel", [lambda scope: scope.cancel(), lambda _: None], ids=["c", "t"])
async def test_a_scope_ends_by_its_time_or_a_cancel_and_its_task_goes_on(
    cancel: Callable[[Scope], None],
) -> None:
    scope = Scope(0.001)
    async with scope:
        cancel(scope)
        await sleep_forever()
    scope.cancel()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    await asyncio.sleep(0)


async def test_a_scope_that_was_cancelled_before_ends_at_its_first_wait() -> None:
    scope, reached = Scope(), list[int]()
    scope.cancel()
    async with scope:
        reached.append(1)
        await sleep_forever()
        reached.append(2)
    assert reached == [1]


async def test_what_is_raised_in_a_scope_passes_through_it() -> None:
    for error in (TimeoutError("mine"), ValueError("mine"), asyncio.CancelledError("mine")):
        with pytest.raises(type(error), match="mine"):
            async with Scope(60):
                raise error


async def test_a_cancel_of_the_task_itself_goes_through_a_scope_that_is_cancelled_as_well() -> None:
    scope, waiting = Scope(), asyncio.Event()

    async def wait() -> None:
        async with scope:
            waiting.set()
            await sleep_forever()

    task = asyncio.create_task(wait())
    await waiting.wait()
    task.cancel()
    scope.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_to_be_finished_is_before_the_cancel_takes_effect() -> None:
    begun, go, steps = asyncio.Event(), asyncio.Event(), list[str]()

    async def write() -> str:
        begun.set()
        await go.wait()
        steps.append("written")
        return "done"

    task = asyncio.create_task(finished(write()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["written"]
    assert await finished(write()) == "done"


async def stay(*, task_status: Status) -> None:
    task_status.started()
    await sleep_forever()


@pytest.mark.filterwarnings("error")
def test_a_group_whose_loop_is_gone_ends_in_silence() -> None:
    loop = asyncio.new_event_loop()

    async def live() -> None:
        async with Group() as outer, Group() as inner:
            await outer.start(stay)
            await inner.start(stay)
            loop.stop()
            await sleep_forever()

    task = loop.create_task(live())
    loop.run_forever()
    loop.close()
    del task
    gc.collect()
