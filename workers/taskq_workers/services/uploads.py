"""The uploads of a burst: none waits when it ends.

A log adopts what was published when it has time, which may be later than a burst finds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from taskq.engine import Store
    from taskq_workers.slots.hands import Runner

_log: Final = logging.getLogger("taskq.worker")


class LastUploads:
    """Has the logs of a burst that ran dry adopt what waits there."""

    def __init__(self) -> None:
        #: how many jobs had ended when it ran dry last
        self._ended = -1

    def look(self, runner: Runner | None, stores: Iterable[Store]) -> bool:
        """Adopt, and let the runner look again; False if that brought nothing the last time."""
        assert runner is not None
        before, self._ended = self._ended, sum(runner.settler.ended.values())
        if before == self._ended or runner.feed.allowed(1) <= 0:
            return False
        asked = [store.port().adopt() for store in stores]

        def on_adopted(done: asyncio.Future[list[Any]]) -> None:
            for answer in [] if done.cancelled() else done.result():
                if isinstance(answer, BaseException):
                    _log.error("not all uploads were adopted: %s", answer)
            runner.feed.look_anew()

        asyncio.gather(*asked, return_exceptions=True).add_done_callback(on_adopted)
        return True
