"""A caller cannot distinguish C from Python: each scenario of enqueues runs both ways."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest

from tests.native.twins import Scenario, See, compare, held, mark, outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from taskq import TaskQ
    from tests.native.conftest import Choose

SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def task_of(app: TaskQ, **options: Any) -> Any:
    @app.task(name="send", **options)
    async def send(to: str, count: int = 1) -> int:
        return count

    return send


@scenario
async def nothing_is_done_until_it_is_awaited(app: TaskQ, see: See) -> None:
    send = task_of(app)
    see([inspect.iscoroutinefunction(send.enqueue), str(inspect.signature(send.enqueue))])
    late = send.enqueue("never", "wrong")
    see([inspect.isawaitable(late), inspect.iscoroutine(late), asyncio.iscoroutine(late)])
    see(inspect.getcoroutinestate(late))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del late
        gc.collect()
    see([str(warning.message) for warning in caught])
    late = send.enqueue("closed")
    late.close()
    see(await outcome(late))


@scenario
async def wrong_calls_say_what_is_wrong(app: TaskQ, see: See) -> None:
    send = task_of(app)
    for args, kwargs in (
        ((), {}), (("a", "b"), {}), (("a", 1, 2), {}), (("a",), {"to": "b"}), (("a",), {"cc": 1}),
        ((1,), {}), (("a", 2.5), {}), ((), {"to": "a"}), ((), {"count": 3, "to": "a"}),
        (("a" * 200_000,), {}), (("\ud800",), {}), ((None,), {"count": None}),
    ):  # fmt: skip
        see(repr(await outcome(send.enqueue(*args, **kwargs)))[:400])


@scenario
async def a_crowd_gets_its_answers_in_order(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")
    with held(app):
        calls = [asyncio.ensure_future(send.enqueue(f"{n}", count=n)) for n in range(40)]
        await asyncio.sleep(0)
    jobs = await asyncio.gather(*calls)
    see([job.lsn - jobs[0].lsn for job in jobs])
    see([(type(job), job.duplicate, job._task is send, repr(job)[:10]) for job in jobs[:2]])


@scenario
async def who_gives_up_in_time_withdraws_the_job(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")
    with held(app):
        calls = [asyncio.create_task(send.enqueue(f"{n}")) for n in range(6)]
        await asyncio.sleep(0)
        see(calls[1].cancel("enough"))
        see(await outcome(asyncio.wait_for(asyncio.shield(calls[2]), 0)))
        see(await outcome(asyncio.wait_for(calls[3], 0)))
        see(await outcome(_within(send.enqueue("late"))))
    see([type(answer).__name__ for answer in await asyncio.gather(*calls, return_exceptions=True)])
    see([call.cancelled() for call in calls])


async def _within(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(0):
        return await awaitable


@scenario
async def callers_of_every_kind_are_served(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send.enqueue(f"group {n}")) for n in range(3)]
    see([type(task.result()).__name__ for task in tasks])
    async with anyio.create_task_group() as crowd:
        for n in range(3):
            crowd.start_soon(send.enqueue, f"anyio {n}")
    see([await outcome(_type_of(send.enqueue("alone")))])
    loop = asyncio.get_running_loop()
    both = await asyncio.gather(
        loop.run_in_executor(None, send.enqueue_sync, "thread"),
        loop.run_in_executor(None, lambda: asyncio.run(_several(send))),
    )
    see([type(both[0]).__name__, both[1]])


async def _several(send: Any) -> int:
    return len(await asyncio.gather(*(send.enqueue(f"loop {n}") for n in range(5))))


async def _type_of(awaitable: Awaitable[Any]) -> str:
    return type(await awaitable).__name__


@scenario
async def each_caller_keeps_its_context(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")

    async def caller(n: int) -> tuple[str, bool]:
        mark.set(f"caller {n}")
        before = asyncio.current_task()
        await send.enqueue(f"{n}")
        return mark.get(), asyncio.current_task() is before

    see(await asyncio.gather(*map(caller, range(5))))
    see(mark.get())


@scenario
async def options_keys_and_large_bodies_go_their_own_ways(app: TaskQ, see: See) -> None:
    send, keyed = task_of(app), app.task(name="keyed", key=lambda to: to)(_nothing)
    await send.enqueue("first")
    with held(app):
        calls = [
            send.enqueue("plain"),
            send.options(delay="1h").enqueue("late"),
            keyed.enqueue("a"),
            keyed.enqueue("a"),
            send.options(priority=9, compress="zlib").enqueue("b" * 9_000),
            send.enqueue("plain, too"),
        ]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
    see([job.duplicate for job in await asyncio.gather(*tasks)])


async def _nothing(to: str) -> None:
    return None


@scenario
async def a_full_mailbox_makes_callers_wait(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")
    with pytest.MonkeyPatch.context() as patch, held(app):
        patch.setattr("taskq.app.tasks.MAILBOX_MAX", 4)
        patch.setattr("taskq.log.store.port.MAILBOX_MAX", 4)
        calls = [asyncio.create_task(send.enqueue(f"{n}")) for n in range(12)]
        await asyncio.sleep(0)
        see([len(app.store().port()._line), app.store().port().full])
    see(len(await asyncio.gather(*calls)))


@scenario
async def a_log_that_was_closed_is_opened_again_or_refuses(app: TaskQ, see: See) -> None:
    send = task_of(app)
    await send.enqueue("first")
    with held(app):
        calls = [asyncio.create_task(send.enqueue(f"{n}")) for n in range(4)]
        await asyncio.sleep(0)
        store = app.store()
        store.mailbox.usable = False
        see(await outcome(send.enqueue("refused")))
        store.mailbox.usable = True
    await asyncio.gather(*calls)
    await app.close()
    see(await outcome(_type_of(send.enqueue("again"))))


@scenario
async def one_caller_that_ends_the_program_leaves_the_others_their_answers(
    app: TaskQ, see: See
) -> None:
    send = task_of(app)
    await send.enqueue("first")
    loop = asyncio.get_running_loop()
    problems: list[str] = []
    loop.set_exception_handler(lambda _, context: problems.append(str(context["message"])[:20]))

    async def stubborn(n: int) -> str:
        await send.enqueue(f"{n}")
        if n == 1:
            raise ValueError(f"{n}")
        return "answered"

    with held(app):
        calls = [asyncio.create_task(stubborn(n)) for n in range(4)]
        await asyncio.sleep(0)
    see([await outcome(call) for call in calls])
    see(problems)


@pytest.mark.usefixtures("own_settings")
@pytest.mark.parametrize("name", SCENARIOS)
def test_c_does_as_python_does(name: str, choose: Choose, tmp_path: Path) -> None:
    compare(SCENARIOS[name], choose, tmp_path)
