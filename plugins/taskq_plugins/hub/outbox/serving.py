"""The outbox as the hub's server has it: opened once there is one, and looked at on threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from anyio import CancelScope

from taskq.engine import LogConfig, PatientDisk, SystemClock
from taskq.errors import TaskqError
from taskq.hooks import Connection
from taskq_plugins.hub.kept import IDENTITY
from taskq_plugins.hub.messages import Answer, Given, Question
from taskq_plugins.hub.outbox.handing import Handing
from taskq_plugins.hub.registry import OUTBOX, Registry

_log: Final = logging.getLogger("taskq")
_EXPIRE_SECONDS: Final = 30.0
#: Those who wait for something look so long after the outbox grew: many at a time, once.
_GATHER_SECONDS: Final = 0.25
#: How often they look whether there is an outbox at all.
_THERE_SECONDS: Final = 1.0
#: Questions that wait for their answer at a time; one more is answered at once.
_ASKING_MAX: Final = 2_000


class Serving:
    """The outbox of a hub, for one event loop.

    Args:
        path: of the hub.
        registry: of its devices.
        spend: told which device makes the outbox grow, and by how many bytes.

    Attributes:
        handing: decides what a device is given.
        asking: the questions that wait, the latest of each log, and what ends its wait.
    """

    def __init__(self, path: Path, registry: Registry, spend: Callable[[str, int], None]) -> None:
        self._identity: Path = path / OUTBOX / IDENTITY
        self._connection = Connection(str(path / OUTBOX), LogConfig())
        self.handing = Handing(PatientDisk, str(path), SystemClock(), registry, self._ask, spend)
        self.asking: dict[tuple[str, UUID], CancelScope] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    def _ask(self, what: Callable[[Any], Any]) -> Any:
        return what(self._connection.thread_port()).result()

    async def close(self) -> None:
        await self._connection.aclose()

    @property
    def is_there(self) -> bool:
        return self._identity.is_file()

    def arrived(self, device: str) -> None:
        try:
            if self.is_there:
                self.handing.arrived(device)
        except (OSError, TaskqError) as error:
            _log.warning("hub: jobs of %s wait a while: %s", device, error)

    async def expire(self, on_thread: Callable[..., Awaitable[Any]]) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                if self.is_there:
                    await on_thread(self.handing.expire)
            except (OSError, TaskqError) as error:
                _log.warning("hub: jobs that expired wait a while: %s", error)

    # -- questions --------------------------------------------------------------------------------

    def asked_by(self, device: str) -> int:
        return sum(name == device for name, _ in self.asking)

    async def answer(
        self, device: str, asked: Question, look: Callable[[Question], Awaitable[Answer | None]]
    ) -> Answer | None:
        """Return what a question is answered, once there is something; None: nothing came.

        A question that its log asked before is over then. ``look`` says what is there now.
        """
        key, wait, self._loop = (device, asked.log_id), CancelScope(), asyncio.get_running_loop()
        if before := self.asking.get(key):
            before.cancel()
        if not asked.wait_seconds:
            return await look(asked) if self.is_there else None
        may_wait = len(self.asking) < _ASKING_MAX and not self._is_over
        until = self._loop.time() + (asked.wait_seconds if may_wait else 0)
        self.asking[key] = wait
        try:
            with wait:
                while True:
                    grown = await self._mark()
                    answer = await look(asked) if self.is_there else None
                    if answer and not (isinstance(answer, Given) and answer.is_empty):
                        return answer
                    wait.deadline = until  # not before it was looked once
                    await grown()
                    await asyncio.sleep(_GATHER_SECONDS)
                    asked = replace(asked, refused=())
        finally:
            if self.asking[key] is wait:
                del self.asking[key]
        return None

    async def _mark(self) -> Callable[[], Awaitable[Any]]:
        if not self.is_there:
            return partial(asyncio.sleep, _THERE_SECONDS)
        port = await self._connection.port()
        seen = await port.look(lambda sight: sight.journal.next_lsn, needs_agenda=False)
        return partial(port.extent, seen)

    def end(self) -> None:
        self._is_over = True
        for wait in tuple(self.asking.values()):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(wait.cancel)
