"""Threads for what would stop an event loop: our own, as a program may fill those of its loop.

A worker whose task keeps all threads of asyncio's default executor busy must end all the same.
"""

from __future__ import annotations

import os
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from taskq.log.machine.forks import on_fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")

#: As many as asyncio's own has.
_THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
_pools: list[ThreadPoolExecutor] = []


def pool() -> ThreadPoolExecutor:
    """Return the threads of this process, begun when they are needed."""
    if not _pools:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few need it at once

        _pools.append(ThreadPoolExecutor(_THREADS_MAX, "taskq-aside"))
    return _pools[0]


async def on_thread(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do as ``asyncio.to_thread``, on threads of our own."""
    import asyncio  # noqa: PLC0415 - a program without a loop does not wait for it

    call = partial(copy_context().run, partial(work, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(pool(), call)


# A child has none of its parent's threads.
on_fork(_pools.clear)
