"""What a flow's handle gives where jobs keep no results, and a wait for nothing but the end."""

from __future__ import annotations

from typing import Any

import pytest

from taskq import TaskQ, chain, group
from taskq.errors import JobFailed, ResultGone

SECONDS = 20


def tasks_of(app: TaskQ) -> tuple[Any, Any, Any]:
    @app.task(store_result=False)
    async def silent(value: int = 0) -> int:
        return value

    @app.task
    async def tells(value: int) -> int:
        return value

    @app.task(retry=1)
    async def fails() -> None:
        raise ValueError("no")

    return silent, tells, fails


async def test_a_member_that_keeps_no_result_is_none_in_its_place(app: TaskQ) -> None:
    silent, tells, _ = tasks_of(app)
    nested = group(
        [tells.call(1), chain(tells.call(2), silent.step()), silent.call(), tells.call(4)]
    )
    async with app, app.worker():
        flow = await nested.enqueue()
        assert await flow.result(timeout=SECONDS) == [1, None, None, 4]
        assert await (await app.flow(flow.id)).result(timeout=SECONDS) == [1, None, None, 4]
        assert await (await group([silent.call()]).enqueue()).result(timeout=SECONDS) == [None]


async def test_the_end_of_a_flow_is_waited_for_whatever_it_keeps(app: TaskQ) -> None:
    silent, tells, fails = tasks_of(app)
    async with app, app.worker():
        flow = await chain(tells.call(2), silent.step()).enqueue()
        await flow.wait(timeout=SECONDS)
        assert (await flow.progress()).succeeded == 2
        with pytest.raises(ResultGone):
            await flow.result(timeout=SECONDS)
        with pytest.raises(JobFailed, match="no"):
            await (await group([tells.call(1), fails.call()]).enqueue()).wait(timeout=SECONDS)
