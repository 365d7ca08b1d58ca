"""Flows: refused where they are built, cancelled to their end, with the results of their parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskq import TaskQ, chain, chord, group
from taskq.errors import (
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    ResultGone,
    UsageError,
)
from taskq.flows import flow
from taskq.log.decide import ends
from tests.effort import turns_counted


class Parts:
    """Tasks of an app."""

    def __init__(self, app: TaskQ) -> None:
        self.app = app

        @app.task
        async def one(number: int) -> int:
            return number

        @app.task(store_result=False)
        async def silent(number: int) -> int:
            return number

        @app.task(retry=1)
        async def fails() -> None:
            raise ValueError("no")

        self.one, self.silent, self.fails = one, silent, fails


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(TaskQ(tmp_path / "data", durability="os"))


def keyed(parts: Parts) -> Any:
    return chain(parts.one.options(key="k").call(1), parts.one.step())


def delayed(parts: Parts) -> Any:
    return chain(parts.one.call(1), parts.one.options(delay=5).step())


def without_result(parts: Parts) -> Any:
    return chain(parts.silent.call(1), parts.one.step())


def many_to_many(parts: Parts) -> Any:
    many: Any = group(parts.one.step() for _ in range(5_000))
    return chain(group(parts.one.call(n) for n in range(2)), many)


def stepping(parts: Parts) -> Any:
    return chain(parts.one.step(), parts.one.step())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (keyed, "takes no dedup key"),
        (delayed, "takes no delay or eta"),
        (without_result, "keeps none"),
        (many_to_many, "at most 4096 may"),
        (stepping, "begin it with"),
    ],
)
async def test_a_flow_that_cannot_be_kept_is_refused(
    parts: Parts, make: Callable[[Parts], Any], words: str
) -> None:
    async with parts.app:
        with pytest.raises(UsageError, match=words):
            await parts.app.enqueue_flow(make(parts))
        assert not (await parts.app.stats()).queues


async def test_a_flow_over_the_limit_is_refused(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "TRANSACTION_BYTES_MAX", 100_000)
    with pytest.raises(PayloadTooLarge, match="the flow of 1500 jobs"):
        await parts.one.map(range(1_500)).enqueue()


def test_tasks_of_two_apps_are_a_flow_of_one_log_alone(parts: Parts, tmp_path: Path) -> None:
    """Two modules of a program may each make an app of its log; another log has other workers."""
    same, other = (Parts(TaskQ(tmp_path / name, durability="os")) for name in ("data", "other"))
    flow = chain(parts.one.call(1), same.one.step(), parts.one.step())
    assert flow.enqueue_sync().progress_sync().waiting == 3
    parts.app.close_sync()
    with pytest.raises(UsageError, match="tasks of two apps"):
        chain(parts.one.call(1), parts.one.step(), other.one.step()).enqueue_sync()
    assert not (tmp_path / "other").exists()


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


SECONDS = 30


async def test_a_member_that_keeps_no_result_is_none_in_its_place_and_waited_for(
    parts: Parts,
) -> None:
    silent, one = parts.silent, parts.one
    members = [one.call(1), chain(one.call(2), silent.step()), silent.call(3), one.call(4)]
    async with parts.app, parts.app.worker():
        flow = await group(members).enqueue()
        assert await flow.result(timeout=SECONDS) == [1, None, None, 4]
        assert await (await parts.app.flow(flow.id)).result(timeout=SECONDS) == [1, None, None, 4]
        chained: Any = await chain(one.call(2), silent.step()).enqueue()
        await chained.wait(timeout=SECONDS)
        assert (await chained.progress()).succeeded == 2
        with pytest.raises(ResultGone):
            await chained.result(timeout=SECONDS)
        with pytest.raises(JobFailed, match="no"):
            await (await group([one.call(1), parts.fails.call()]).enqueue()).wait(timeout=SECONDS)


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


def test_a_group_after_a_group_shares_what_its_members_wait_for(parts: Parts) -> None:
    """Else each of thousands of steps would look at thousands of inputs."""
    first: Any = group(parts.one.call(n) for n in range(300))
    second: Any = group(parts.one.step() for _ in range(200))
    plan = flow.plan_of(chain(first, second))
    links: Any = [call.extras and call.extras.flow for call in plan.calls]
    steps, inputs = links[:200], links[200:]
    assert {id(step.inputs) for step in steps} == {id(steps[0].inputs)}
    assert {id(job.unlocks) for job in inputs} == {id(inputs[0].unlocks)}
    assert steps[0].inputs == ((200, 300),)
    assert inputs[0].unlocks == tuple(range(200))
