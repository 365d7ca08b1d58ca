"""The outbox as the hub's server has it: opened once there is one, and looked at on threads."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import LogConfig, PatientDisk, SystemClock
from taskq.errors import TaskqError
from taskq.hooks import Connection
from taskq_plugins.hub.aside import IDENTITY
from taskq_plugins.hub.outbox.handing import Handing
from taskq_plugins.hub.registry import OUTBOX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from taskq.engine import LoopPort
    from taskq_plugins.hub.registry import Registry

_log: Final = logging.getLogger("taskq")
_EXPIRE_SECONDS: Final = 30.0


class Serving:
    """The outbox of a hub, for one event loop.

    Args:
        path: of the hub.
        registry: of its devices.
        spend: told which device makes the outbox grow, and by how many bytes.

    Attributes:
        handing: decides what a device is given.
    """

    def __init__(self, path: Path, registry: Registry, spend: Callable[[str, int], None]) -> None:
        self._identity: Path = path / OUTBOX / IDENTITY
        self._connection = Connection(str(path / OUTBOX), LogConfig())
        self.handing = Handing(PatientDisk, str(path), SystemClock(), registry, self._ask, spend)

    def _ask(self, what: Callable[[Any], Any]) -> Any:
        return what(self._connection.thread_port()).result()

    async def close(self) -> None:
        """Close it."""
        await self._connection.aclose()

    @property
    def is_there(self) -> bool:
        """Return whether anything was ever enqueued."""
        return self._identity.is_file()

    def arrived(self, device: str) -> None:
        """Settle what came of a device; what is wrong with its jobs is not wrong with that."""
        try:
            if self.is_there:
                self.handing.arrived(device)
        except (OSError, TaskqError) as error:
            _log.warning("hub: jobs of %s wait a while: %s", device, error)

    async def end(self) -> tuple[LoopPort, int]:
        """Return where it ends, and what tells once it has grown."""
        port = await self._connection.port()
        return port, await port.look(lambda sight: sight.journal.next_lsn, needs_agenda=False)

    async def expire(self, on_thread: Callable[..., Awaitable[Any]]) -> None:
        """End jobs that no device took in time, for ever."""
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                if self.is_there:
                    await on_thread(self.handing.expire)
            except (OSError, TaskqError) as error:
                _log.warning("hub: jobs that expired wait a while: %s", error)
