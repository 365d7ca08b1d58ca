"""Many jobs through C leave no object."""

from __future__ import annotations

import asyncio
import gc
import sys
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskq import TaskQ, retry
from tests.effort import grows, some

if TYPE_CHECKING:
    from pathlib import Path

    from tests.native.conftest import Choose

JOBS: Final = some(5_000, 200_000)
CALLERS: Final = 50


async def none(number: int) -> None:
    return None


async def value(number: int) -> tuple[int, str]:
    return number, "x"


async def suspends(number: int) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_result, None)
    await future


async def fails(number: int) -> None:
    raise ValueError(number)


async def fails_late(number: int) -> None:
    await asyncio.sleep(0)
    raise ValueError(number)


async def cycled(app: TaskQ, tasks: list[Any], jobs: int) -> None:
    kinds = cycle(tasks)

    async def caller() -> None:
        for number in range(jobs // CALLERS):
            task = next(kinds)
            job = await task.enqueue(number)
            assert job.lsn
            if number % 7 == 0:
                with pytest.raises(ValueError, match="number"):
                    await task.enqueue("wrong")

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    async with app.worker(burst=True, concurrency=10) as worker:
        await worker.stopped.wait()


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


async def grown(path: Path) -> int:
    async with TaskQ(path, durability="os") as app:
        tasks = [
            app.task(retry=retry.never())(function)
            for function in (none, none, value, suspends, fails, fails_late)
        ]
        await cycled(app, tasks, JOBS // 4)
        before = blocks()
        await cycled(app, tasks, JOBS)
        return blocks() - before


@grows
@pytest.mark.usefixtures("own_settings")
def test_no_more_objects_are_left_than_python_leaves(choose: Choose, tmp_path: Path) -> None:
    """The log remembers some thousand ends.

    Their number is chance, so the test looks again: a leak grows each time.
    """

    def left(language: str, attempt: int) -> int:
        choose(language == "C")
        return asyncio.run(grown(tmp_path / f"{language}{attempt}"))

    assert any(left("C", attempt) - left("Python", attempt) < JOBS / 10 for attempt in range(3))
