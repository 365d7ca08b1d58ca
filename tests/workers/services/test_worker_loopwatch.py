"""The thread that watches an event loop does not outlive it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from taskq_workers.services import loopwatch

if TYPE_CHECKING:
    import pytest


def test_the_thread_ends_with_a_loop_that_is_closed_while_it_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loopwatch, "BLOCKED_SECONDS", 0.01)
    monkeypatch.setattr(loopwatch, "_ASK_SECONDS", 0.01)
    surrendered = threading.Event()
    before = set(threading.enumerate())
    loop = asyncio.new_event_loop()
    main = loop.create_task(_watch_until_stopped(surrendered))
    loop.run_forever()
    assert surrendered.wait(10)  # the loop has been asked, and will not answer
    main.cancel()
    main._log_destroy_pending = False  # type: ignore[attr-defined]  # the loop ends beneath it
    loop.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


async def _watch_until_stopped(surrendered: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    watch = loopwatch.LoopWatch(lambda: False, lambda _task: None, surrendered.set)
    unused: Any = None

    class Started:
        def started(self, value: object = None) -> None:
            del value
            loop.stop()

    await watch.run(unused, task_status=Started())
