"""Flows as workers run them: each part after its inputs, with their results, and never twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Failed, State, TaskQ, chain, chord, current_job, group, retry
from taskq.errors import JobCancelled, JobFailed
from taskq.flows import inputs
from taskq.views import FlowProgress

SECONDS: Final = 30


class Parts:
    """Tasks to make flows of."""

    def __init__(self, app: TaskQ) -> None:
        self.app = app
        self.ran: list[str] = []

        @app.task
        async def one(number: int) -> int:
            self.ran.append(f"one {number}")
            return number

        @app.task
        async def double(number: int, times: int = 2) -> int:
            self.ran.append(f"double {number}")
            return number * times

        @app.task
        async def total(numbers: list[int], more: int = 0) -> int:
            self.ran.append(f"total {numbers}")
            return sum(numbers) + more

        @app.task
        async def anything(value: Any) -> Any:
            return value

        @app.task(retry=retry.fixed(1, delay=0))
        async def fail(number: int) -> int:
            raise ValueError(f"no {number}")

        @app.task
        async def kinds(values: list[int | Failed]) -> list[str]:
            return [type(value).__name__ for value in values]

        self.one, self.double, self.total = one, double, total
        self.anything, self.fail, self.kinds = anything, fail, kinds


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(TaskQ(tmp_path / "data", durability="os"))


async def test_a_chain_hands_each_result_on(parts: Parts) -> None:
    async with parts.app, parts.app.worker():
        flow = chain(parts.one.call(3), parts.double.step(), parts.double.step(times=10))
        handle = await flow.enqueue()
        assert await handle.result(SECONDS) == 60
        assert parts.ran == ["one 3", "double 3", "double 6"]
        assert await handle.progress() == FlowProgress(
            total=3, waiting=0, running=0, succeeded=3, dead=0, cancelled=0, expired=0
        )


@pytest.mark.parametrize("room", [0, -1], ids=["fits", "too large"])
async def test_what_a_step_takes_in_has_a_limit_commas_and_brackets_included(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(inputs, "INPUT_BYTES_MAX", len("[10,11,12]") - 1 + room)
    async with parts.app, parts.app.worker():
        flow = chord([parts.one.call(n) for n in (10, 11, 12)], parts.total.step())
        handle = await flow.enqueue()
        if not room:
            assert await handle.result(SECONDS) == 33
            return
        with pytest.raises(JobFailed, match="of 3 jobs has 9 bytes, the limit is 8"):
            await handle.result(SECONDS)


async def test_a_map_takes_values_and_tuples(parts: Parts) -> None:
    async with parts.app, parts.app.worker():
        handle = await parts.double.map([1, (2, 5), 3]).enqueue()
        assert await handle.result(SECONDS) == [2, 10, 6]


async def test_flows_nest(parts: Parts) -> None:
    """A group in a chord's members is one value, a list; a step of a group takes what came."""
    first, double, anything = parts.one, parts.double, parts.anything
    async with parts.app, parts.app.worker():
        flow = chord(
            [
                group(first.call(1), first.call(2)),
                chain(first.call(3), double.step()),
                chain(group(first.call(4), first.call(5)), parts.total.step()),
                first.call(6),
            ],
            anything.step(),
        )
        assert await (await flow.enqueue()).result(SECONDS) == [[1, 2], 6, 9, 6]
        fan = chain(first.call(2), group(double.step(), chain(double.step(), double.step())))
        assert await (await fan.enqueue()).result(SECONDS) == [4, 8]


@pytest.mark.parametrize("case", range(6))
async def test_flows_of_nothing_and_of_one(parts: Parts, case: int) -> None:
    first, anything = parts.one, parts.anything
    call = first.call(1)
    flow, wanted = [
        (group([]), []),
        (chord([], anything.step()), []),
        (chord([call], anything.step()), [1]),
        (chain(call), 1),
        (group([call, call]), [1, 1]),
        (chain(call, group([]), anything.step()), []),
    ][case]
    async with parts.app, parts.app.worker():
        assert await (await flow.enqueue()).result(SECONDS) == wanted


async def test_a_call_in_a_later_place_waits_and_takes_nothing(parts: Parts) -> None:
    async with parts.app, parts.app.worker():
        handle = await chain(parts.one.call(1), parts.one.call(2)).enqueue()
        assert await handle.result(SECONDS) == 2
        assert parts.ran == ["one 1", "one 2"]


async def test_what_waits_for_a_job_that_died_is_cancelled(parts: Parts) -> None:
    async with parts.app, parts.app.worker():
        flow = chain(parts.fail.call(1), parts.double.step(), parts.double.step())
        handle = await flow.enqueue()
        with pytest.raises(JobFailed, match="no 1"):
            await handle.result(SECONDS)
        assert [await job.status() for job in handle.jobs] == [
            State.CANCELLED, State.CANCELLED, State.DEAD,
        ]  # fmt: skip
        progress = await handle.progress()
        assert (progress.dead, progress.cancelled, progress.expired) == (1, 2, 0)


async def test_a_callback_that_is_to_run_gets_what_failed(parts: Parts) -> None:
    async with parts.app, parts.app.worker():
        flow = chord([parts.one.call(1), parts.fail.call(2)], parts.kinds.step(), on_failure="run")
        assert await (await flow.enqueue()).result(SECONDS) == ["int", "Failed"]


async def test_a_flow_that_waits_goes_on_with_the_dead_letter(parts: Parts) -> None:
    app, works = parts.app, False

    @app.task(retry=retry.fixed(1, delay=0))
    async def moody(number: int) -> int:
        if not works:
            raise ValueError("not now")
        return number

    async with app, app.worker():
        flow = chord([parts.one.call(1), moody.call(2)], parts.total.step(), on_failure="wait")
        handle = await flow.enqueue()
        with pytest.raises(JobFailed):
            await handle.jobs[2].result(SECONDS)
        assert (await handle.progress()).waiting == 1
        works = True
        await handle.jobs[2].requeue()
        assert await handle.result(SECONDS) == 3


async def test_a_flow_is_cancelled_as_a_whole(parts: Parts) -> None:
    async with parts.app:
        flow = chord([parts.one.call(n) for n in range(5)], parts.total.step())
        handle = await flow.enqueue()
        assert await handle.cancel() == 6
        assert (await handle.progress()).cancelled == 6
        with pytest.raises(JobCancelled):
            await handle.result(SECONDS)


async def test_a_flow_joins_the_success_of_the_task_that_asks_for_it(parts: Parts) -> None:
    app = parts.app
    pending: list[Any] = []

    @app.task
    async def parent() -> None:
        pending.append(
            current_job().enqueue(chord([parts.one.call(1), parts.one.call(2)], parts.total.step()))
        )

    async with app, app.worker():
        await (await parent.enqueue()).result(SECONDS)
        handle = await app.flow(pending[0].id)
        assert await handle.result(SECONDS) == 3


async def test_why_names_what_a_job_waits_for(parts: Parts) -> None:
    async with parts.app:
        flow = chord([parts.one.call(n) for n in range(7)], parts.total.step())
        handle = await flow.enqueue()
        reason = await parts.app.why(handle.id)
        assert reason.code == "inputs"
        first = handle.jobs[1].id
        assert reason.text.startswith(f"it waits for 7 of 7 inputs: {first} (ready), ")
