"""The outbox as the hub's server has it: opened once there is one, and looked at on threads."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from taskq.core.errors import TaskqError
from taskq.log.machine.disk import PatientDisk, SystemClock
from taskq.log.segments.identity import FILE
from taskq_plugins.hub.outbox.handing import OUTBOX, Handing
from taskq_plugins.hub.outbox.lines import encode_given
from taskq_plugins.hub.outbox.sending import Outbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from taskq.log.requests import Op
    from taskq_plugins.hub.outbox.lines import Question

_log: Final = logging.getLogger("taskq")
#: Those who wait for something look so long after the outbox grew: many at a time, once.
_GATHER_SECONDS: Final = 0.25
_EXPIRE_SECONDS: Final = 30.0
#: Questions that wait for their answer at a time; one more is answered at once.
_WAITING_MAX: Final = 2_000


class Serving:
    """The outbox of a hub, for one event loop.

    Args:
        path: of the hub.
    """

    def __init__(self, path: Path) -> None:
        self._identity = path / OUTBOX / FILE
        self._connection = Outbox(path)._connection
        self._handing = Handing(PatientDisk, str(path), SystemClock(), self._ask)
        self._waiting = 0

    def _ask(self, op: Op, operand: Any) -> Any:
        return self._connection._thread_port()._send(op, operand).result()

    async def close(self) -> None:
        """Close it."""
        await self._connection.aclose()

    @property
    def is_there(self) -> bool:
        """Whether anything was ever enqueued."""
        return self._identity.exists()

    def arrived(self, device: str) -> None:
        """Something of a device has come; what is wrong with its jobs is not wrong with that."""
        try:
            if self.is_there:
                self._handing.arrived(device)
        except (OSError, TaskqError) as error:
            _log.warning("hub: jobs of %s wait a while: %s", device, error)

    async def answer(
        self,
        device: str,
        asked: Question,
        on_thread: Callable[..., Awaitable[Any]],
        turn: asyncio.Lock,
        is_current: Callable[[], bool],
    ) -> bytes | None:
        """The lines that a question is answered with, b"" for nothing; None: ask anew.

        Args:
            device: who asks.
            asked: the question.
            on_thread: runs a function on a thread.
            turn: of the device, taken for each look but not for the wait.
            is_current: on a thread, whether the session is the latest, and the copy as it says.

        Raises:
            OSError, TaskqError: it cannot be told just now.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (asked.wait_seconds if self._waiting < _WAITING_MAX else 0)
        self._waiting += 1
        try:
            while self.is_there:
                port = await self._connection.port()
                seen = await port.look(lambda one: one.journal.next_lsn, needs_agenda=False)
                async with turn:
                    if not await on_thread(is_current):
                        return None
                    given = await on_thread(self._handing.give, device, asked)
                if given.jobs or given.cancels or loop.time() >= until:
                    return encode_given(given)
                asked = asked._replace(refused=())
                grown = port.extent(seen)
                await asyncio.wait((grown,), timeout=max(until - loop.time(), 0))
                if grown.done():
                    await asyncio.sleep(_GATHER_SECONDS)
                else:
                    grown.cancel()
            return b""
        finally:
            self._waiting -= 1

    async def expire(self, on_thread: Callable[..., Awaitable[Any]]) -> None:
        """End jobs that no device took in time, for ever."""
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                if self.is_there:
                    await on_thread(self._handing.expire)
            except (OSError, TaskqError) as error:
                _log.warning("hub: jobs that expired wait a while: %s", error)
