"""Run what users wrote beside jobs, such as probes, lifespans and hooks, in tasks of asyncio's own.

A task group waits for all that it has started, and cancels it anew at each ``await``. Neither may
befall such code: if it ignores its cancellation it would keep the worker from its end, and if it
cleans up it must be let. So it is cancelled once, waited for in bounded time, and left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begin(code: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start the coroutine; whoever asked for it keeps the task, and sees to its end."""
    return asyncio.get_running_loop().create_task(code, name=name)


async def until_done(tasks: Collection[asyncio.Task[Any]], seconds: float) -> bool:
    """Wait so long for the tasks to end; whether all did. None is ended, whatever comes of it."""
    _, late = await asyncio.wait(tasks, timeout=seconds)
    return not late
