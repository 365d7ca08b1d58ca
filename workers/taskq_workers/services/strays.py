"""The part of a worker that tells of jobs which wait for ever, and of queues that nobody uses."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from anyio import move_on_after, sleep

from taskq.errors import TaskqError
from taskq.hooks import off_loop
from taskq.values import nearest
from taskq.views import Serving

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskq import TaskQ
    from taskq.engine import Store

_log: Final = logging.getLogger("taskq.worker")

#: Time between two looks.
LOOK_SECONDS: Final = 60.0
#: The first look comes so late, as the first jobs are waited for more.
_BEGIN_SECONDS: Final = 0.1
#: So long a worker that has nothing to do stays for its first look, which a burst would outrun.
_FIRST_LOOK_SECONDS: Final = 0.5


class StrayWatch:
    """Warns at the start and each minute; a ``Service`` of its worker.

    Args:
        app: whose tasks the worker runs.
        queues: names that it was told to claim from; None for all.
        look_seconds: time between two looks, of real time.
    """

    def __init__(
        self,
        app: TaskQ,
        queues: frozenset[str] | None,
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._app = app
        self._queues = queues
        self._look_seconds = look_seconds

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        """Look soon, and then each minute, until cancelled."""
        task_status.started()
        has_looked = False
        try:
            await sleep(_BEGIN_SECONDS)
            while True:
                await self._warn(store)
                has_looked = True
                await sleep(self._look_seconds)
        finally:
            if not has_looked:
                with move_on_after(_FIRST_LOOK_SECONDS, shield=True):
                    await self._warn(store)

    async def _warn(self, store: Store) -> None:
        # A log that fails is told by those who cannot go on without it.
        with contextlib.suppress(TaskqError):
            for warning in await self._look(store):
                _log.warning("%s", warning)

    async def _look(self, store: Store) -> list[str]:
        waiting, known = await store.port().waiting_jobs()
        warnings = self._unused(known)
        if waiting:
            workers = await off_loop(store.live_workers)
            servings = [serving for worker in workers for serving in worker.serves]
            from taskq.engine import strays_of  # noqa: PLC0415 - the start loads it not

            # A full disk may have kept its own from being told to others.
            own = Serving(queues=self._queues, tasks=frozenset(self._app.tasks))
            warnings += strays_of(waiting, [own, *servings], due=True).told()
        return warnings

    def _unused(self, known: set[str]) -> list[str]:
        """Return what to say of queues that no job was ever put into, as far as is known."""
        if self._queues is None:
            return []
        known = known | {task.spec.queue for task in self._app.tasks.values()}
        return [_told(name, known) for name in sorted(self._queues - known)]


def _told(name: str, known: set[str]) -> str:
    near = nearest(name, sorted(known))
    known_as = f"known are {', '.join(sorted(known))}" if known else "there is none yet"
    hint = f"did you mean {near!r}?" if near else known_as
    return f"nobody uses queue {name!r}: no task puts into it, no job was ever in it; {hint}"
