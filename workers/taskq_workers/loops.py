"""Event loops of workers that have one to themselves: what jobs leave on them cannot keep them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine

_log: Final = logging.getLogger("taskq.worker")

#: How long what jobs have started may take to end, once the worker has stopped. With the time that
#: cancelled jobs get to clean up, a worker ends within a second after its drain.
END_SECONDS: Final = 0.2


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on a new loop, as ``asyncio.run`` does, and wait for nothing else.

    That one would wait for ever for a job that ignores its cancellation, or for a thread of the
    default executor that does not return.
    """
    loop = asyncio.new_event_loop()
    try:
        drive(loop, loop.create_task(main, name="taskq-main"))
    finally:
        end(loop)


def drive(loop: asyncio.AbstractEventLoop, main: asyncio.Task[None]) -> None:
    """Let the loop turn until the task is done, whatever happens to others."""
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            # Raised in a task that a job started: asyncio lets it through the loop itself.
            if main.done():
                raise
            _log.warning("%s raised in a task of a job: ignored", type(error).__name__)


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left and close; unlike ``asyncio.Runner``, wait for nobody for ever."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))
    closing = loop.create_task(loop.shutdown_asyncgens())
    loop.run_until_complete(asyncio.wait([closing], timeout=END_SECONDS))
    loop.close()
