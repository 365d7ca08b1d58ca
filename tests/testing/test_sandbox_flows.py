"""The testing kit beside flows, without an event loop, and with mistakes of who writes the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq import State, TaskQ, chain, chord, retry
from taskq.errors import UsageError
from taskq.testing import Sandbox

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "production")


async def test_a_step_is_found_by_the_arguments_that_it_was_given(app: TaskQ) -> None:
    @app.task
    async def start() -> int:
        return 1

    @app.task
    async def add(number: int, more: int = 0) -> int:
        return number + more

    async with Sandbox(app) as box:
        await chain(start.call(), add.step(more=2)).enqueue()
        assert box.assert_enqueued(add, more=2).kwargs == {"more": 2}
        box.assert_not_enqueued(add, more=3)
        assert (await box.drain()).succeeded == 2


async def test_a_drain_does_not_go_ahead_to_what_waits_for_a_dead_letter(app: TaskQ) -> None:
    """A held job is due at no time: the clock is not moved to one, again and again."""

    @app.task(retry=retry.fixed(attempts=2, delay="1h"))
    async def fail(number: int) -> int:
        raise ValueError(number)

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with Sandbox(app) as box:
        await chord([fail.call(1)], total.step(), on_failure="wait").enqueue()
        before_ns = box.clock.wall_ns()
        report = await box.drain(with_scheduled=True, raises=False)
        assert report.outcomes == {"retried": 1, "dead": 1}
        assert box.clock.wall_ns() - before_ns < 2 * 3_600 * 10**9
        assert [job.kwargs for job in box.enqueued(total, state=State.SCHEDULED)] == [{}]


def test_a_sandbox_is_drained_without_a_loop(app: TaskQ) -> None:
    @app.every("1h")
    def hourly() -> None: ...

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Sandbox(app) as box:
        box.tick_sync()
        job = double.enqueue_sync(4)
        assert box.drain_sync().succeeded == 1
        assert job.result_sync() == 8
        box.advance("1h")
        box.tick_sync()
        assert len(box.enqueued()) == 2


def test_arguments_that_no_call_can_have_are_told_though_nothing_was_enqueued(app: TaskQ) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Sandbox(app) as box:
        box.assert_not_enqueued(double, number=4)
        with pytest.raises(UsageError, match=r"'nubmer'.* such a call could not be enqueued"):
            box.assert_not_enqueued(double, nubmer=4)
        with pytest.raises(UsageError, match="such a call could not be enqueued"):
            box.assert_enqueued(double, 4, 5)
