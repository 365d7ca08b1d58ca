"""Flows: refused where they are built, cancelled to their end, with the results of their parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskq import Failed, State, TaskQ, chain, chord, current_job, group, retry
from taskq.errors import (
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    ResultGone,
    UsageError,
)
from taskq.flows import flow, inputs
from taskq.log.decide import ends
from tests.effort import turns_counted

SECONDS = 30


class Parts:
    def __init__(self, app: TaskQ) -> None:
        self.app = app
        self.ran: list[str] = []
        self.works = False

        @app.task
        async def one(number: int) -> int:
            self.ran.append(f"one {number}")
            return number

        @app.task(store_result=False)
        async def silent(number: int) -> int:
            return number

        @app.task
        async def double(number: int, times: int = 2) -> int:
            self.ran.append(f"double {number}")
            return number * times

        @app.task
        async def total(numbers: list[int], more: int = 0) -> int:
            return sum(numbers) + more

        @app.task
        async def anything(value: Any) -> Any:
            return value

        @app.task(retry=retry.fixed(1, delay=0))
        async def fail(number: int) -> int:
            if not self.works:
                raise ValueError(f"no {number}")
            return number

        @app.task
        async def kinds(values: list[int | Failed]) -> list[str]:
            return [type(value).__name__ for value in values]

        self.one, self.silent, self.double, self.total = one, silent, double, total
        self.anything, self.fail, self.kinds = anything, fail, kinds


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(TaskQ(tmp_path / "data", durability="os"))


def chained(parts: Parts) -> Any:
    return chain(parts.one.call(3), parts.double.step(), parts.double.step(times=10))


def nested(parts: Parts) -> Any:
    """A group in a chord's members is one value, a list; a step of a group takes what came."""
    first, double = parts.one, parts.double
    members = [
        group(first.call(1), first.call(2)),
        chain(first.call(3), double.step()),
        chain(group(first.call(4), first.call(5)), parts.total.step()),
        first.call(6),
    ]
    return chord(members, parts.anything.step())


def fanned(parts: Parts) -> Any:
    double = parts.double
    return chain(parts.one.call(2), group(double.step(), chain(double.step(), double.step())))


def failed_member(parts: Parts) -> Any:
    members = [parts.one.call(1), parts.fail.call(2)]
    return chord(members, parts.kinds.step(), on_failure="run")


FLOWS: dict[str, tuple[Callable[[Parts], Any], Any]] = {
    "chain": (chained, 60),
    "nested": (nested, [[1, 2], 6, 9, 6]),
    "fan": (fanned, [4, 8]),
    "a callback gets what failed": (failed_member, ["int", "Failed"]),
    "a map of values and tuples": (lambda p: p.double.map([1, (2, 5), 3]), [2, 10, 6]),
    "a call in a later place waits": (lambda p: chain(p.one.call(1), p.one.call(2)), 2),
    "no member": (lambda _: group([]), []),
    "a chord of none": (lambda p: chord([], p.anything.step()), []),
    "a chord of a group": (lambda p: chord(p.one.map([1, 2]), p.anything.step()), [1, 2]),
    "a chord of a chain": (
        lambda p: chord(chain(p.one.call(1)), p.anything.step()),  # type: ignore[arg-type]
        [1],
    ),
    "a chord of a group among others": (
        lambda p: chord([p.one.map([1, 2])], p.anything.step()),
        [[1, 2]],
    ),
    "a chord of one": (lambda p: chord([p.one.call(1)], p.anything.step()), [1]),
    "a chain of one": (lambda p: chain(p.one.call(1)), 1),
    "a call twice": (lambda p: group([p.one.call(1)] * 2), [1, 1]),
    "none between": (lambda p: chain(p.one.call(1), group([]), p.anything.step()), []),
}


@pytest.mark.parametrize("name", FLOWS)
async def test_a_flow_hands_each_result_on(parts: Parts, name: str) -> None:
    make, expected = FLOWS[name]
    async with parts.app, parts.app.worker():
        handle = await make(parts).enqueue()
        assert await handle.result(SECONDS) == expected
        progress = await handle.progress()
    assert progress.succeeded == progress.total - (name == "a callback gets what failed")
    if name == "a call in a later place waits":
        assert parts.ran == ["one 1", "one 2"]


@pytest.mark.parametrize("room", [0, -1], ids=["fits", "too large"])
async def test_a_step_fails_if_its_inputs_are_over_the_limit(
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


async def test_a_flow_that_waits_goes_on_with_the_dead_letter(parts: Parts) -> None:
    async with parts.app, parts.app.worker():
        members = [parts.one.call(1), parts.fail.call(2)]
        handle = await chord(members, parts.total.step(), on_failure="wait").enqueue()
        with pytest.raises(JobFailed):
            await handle.jobs[2].result(SECONDS)
        assert (await handle.progress()).waiting == 1
        parts.works = True
        await handle.jobs[2].requeue()
        assert await handle.result(SECONDS) == 3


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


async def test_a_flow_is_cancelled_as_a_whole_and_why_names_its_inputs(parts: Parts) -> None:
    async with parts.app:
        flow = chord([parts.one.call(n) for n in range(5)], parts.total.step())
        handle = await flow.enqueue()
        reason = await parts.app.why(handle.id)
        assert reason.code == "inputs"
        first = handle.jobs[1].id
        assert reason.text.startswith(f"it waits for 5 of 5 inputs: {first} (ready), ")
        assert await handle.cancel() == 6
        assert (await handle.progress()).cancelled == 6
        with pytest.raises(JobCancelled):
            await handle.result(SECONDS)


async def test_a_flow_over_the_limit_is_refused(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "TRANSACTION_BYTES_MAX", 100_000)
    with pytest.raises(PayloadTooLarge, match="the flow of 1500 jobs"):
        await parts.one.map(range(1_500)).enqueue()


async def test_only_flows_have_ids_of_flows(parts: Parts) -> None:
    async with parts.app:
        job = await parts.one.enqueue(1)
        with pytest.raises(UsageError, match="is no flow's id"):
            await parts.app.flow(job.id)
        with pytest.raises(JobNotFound):
            await parts.app.flow(job.id + "0")


def test_flows_are_enqueued_without_an_event_loop(parts: Parts) -> None:
    flow = chord([parts.one.call(n) for n in range(3)], parts.one.call(5))
    handle = flow.enqueue_sync()
    assert handle.progress_sync().waiting == 4
    assert parts.app.flow_sync(handle.id).cancel_sync() == 4
    parts.app.close_sync()


async def test_a_member_that_keeps_no_result_is_none_in_its_place_and_waited_for(
    parts: Parts,
) -> None:
    silent, first = parts.silent, parts.one
    members = [first.call(1), chain(first.call(2), silent.step()), silent.call(3), first.call(4)]
    async with parts.app, parts.app.worker():
        flow = await group(members).enqueue()
        assert await flow.result(timeout=SECONDS) == [1, None, None, 4]
        assert await (await parts.app.flow(flow.id)).result(timeout=SECONDS) == [1, None, None, 4]
        last: Any = await chain(first.call(2), silent.step()).enqueue()
        await last.wait(timeout=SECONDS)
        assert (await last.progress()).succeeded == 2
        with pytest.raises(ResultGone):
            await last.result(timeout=SECONDS)
        with pytest.raises(JobFailed, match="no 1"):
            await (await group([first.call(1), parts.fail.call(1)]).enqueue()).wait(timeout=SECONDS)


async def test_a_flow_is_cancelled_to_its_end_where_nobody_works(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "FOLLOWED_MAX", 1)
    async with parts.app:
        handle = await chain(parts.one.call(1), *[parts.one.step()] * 3).enqueue()
        await handle.jobs[-1].cancel()
        with pytest.raises(JobCancelled):
            await handle.result(timeout=30)


async def test_the_loop_turns_while_a_flow_of_ten_thousand_is_enqueued(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = group(parts.one.call(number) for number in range(10_000))
    async with parts.app:
        with turns_counted(monkeypatch, flow, "_linked_call") as counts:
            handle = await many.enqueue()
    assert len(handle.jobs) == sum(counts) == 10_000
    assert max(counts) <= 1_000
