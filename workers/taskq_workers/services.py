"""The background parts of a worker: what runs beside its slots, from the open log to the end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from taskq.log.store import Store

_log: Final = logging.getLogger("taskq.worker")

#: How long a part may take to leave before its worker goes on without it.
LEAVE_SECONDS: Final = 2.0


class Service(Protocol):
    """One part: a scheduler, probes of conditions, a listener for cancels, a writer of progress.

    Each call comes on the event loop, in the order below; ``leave`` comes in any case.
    """

    def start(self, store: Store) -> None:
        """Begin, with the open store; nothing was claimed yet. Returns at once."""
        ...

    def drain(self) -> None:
        """Make no new work: the worker claims no more, but its jobs still run. Returns at once."""
        ...

    async def leave(self) -> None:
        """Stop: nothing runs any more. Legal twice, and before the start."""
        ...


class Services:
    """A worker's parts, started in the order they were added and stopped in the opposite one.

    ::

        worker.services.add(Scheduler(app))     # before the start, or at any time later
    """

    def __init__(self) -> None:
        self._parts: list[Service] = []
        self._store: Store | None = None
        self._is_draining = False

    def add(self, part: Service) -> None:
        """Keep ``part``; it starts with the worker, at once if that runs already."""
        self._parts.append(part)
        if self._store is not None:
            part.start(self._store)
            if self._is_draining:
                part.drain()

    def start(self, store: Store) -> None:
        """Start each part, before the first claim.

        Raises:
            TaskqError: as a part raised it; the worker does not start then.
        """
        self._store = store
        for part in list(self._parts):
            part.start(store)

    def drain(self) -> None:
        """Tell each part that no new work is wanted; what one raises is logged."""
        self._is_draining = True
        for part in reversed(self._parts):
            try:
                part.drain()
            except Exception:  # noqa: BLE001 - whatever a part raises, the worker stops
                _log.exception("%s failed as the worker drained", type(part).__name__)

    async def leave(self) -> None:
        """Stop each part; what one raises is logged, and none is waited for any longer than 2 s."""
        while self._parts:
            part = self._parts.pop()
            try:
                async with asyncio.timeout(LEAVE_SECONDS):
                    await part.leave()
            except TimeoutError:
                _log.warning("%s did not stop within %g s", type(part).__name__, LEAVE_SECONDS)
            except Exception:  # noqa: BLE001 - whatever a part raises, the worker stops
                _log.exception("%s failed as the worker stopped", type(part).__name__)
