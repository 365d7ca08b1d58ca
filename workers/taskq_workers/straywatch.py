"""The part of a worker that tells of jobs which wait for ever, and of queues that nobody uses."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
from typing import TYPE_CHECKING, Final

from taskq.core.errors import TaskqError
from taskq.core.model import Serving
from taskq.core.strays import ready_jobs, strays_of
from taskq.log.why import live_workers

if TYPE_CHECKING:
    from taskq.app import TaskQ
    from taskq.log.committer import Committer
    from taskq.log.port import LoopPort
    from taskq.log.store import Store

_log: Final = logging.getLogger("taskq.worker")

#: Time between two looks.
LOOK_SECONDS: Final = 60.0
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
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()

    def start(self, store: Store) -> None:
        """Look now, and then each minute."""
        self._task = asyncio.create_task(self._work(store), name="taskq-strays")

    def drain(self) -> None:
        """Look no more, but once."""
        if self._task is not None and self._looked.is_set():
            self._task.cancel()

    async def leave(self) -> None:
        """Look no more; the first look is waited for a little."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), _FIRST_LOOK_SECONDS)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work(self, store: Store) -> None:
        while True:
            # A log that fails is told by those who cannot go on without it.
            with contextlib.suppress(TaskqError):
                for warning in await self._look(store):
                    _log.warning("%s", warning)
            self._looked.set()
            await asyncio.sleep(self._look_seconds)

    async def _look(self, store: Store) -> list[str]:
        port: LoopPort = store.port()
        ready: dict[tuple[str, str], int]
        known: set[str]
        ready, known = await port.look(_counts)
        warnings = self._unused(known)
        if ready:
            workers = await asyncio.to_thread(live_workers, store.path)
            servings = [serving for one in workers for serving in one.serves]
            # A full disk may have kept its own from being told to others.
            own = Serving(queues=self._queues, tasks=frozenset(self._app._tasks))
            warnings += strays_of(ready, [own, *servings]).told()
        return warnings

    def _unused(self, known: set[str]) -> list[str]:
        """What to say of queues that no job was ever put into, as far as the log goes back."""
        if self._queues is None:
            return []
        known = known | {task.spec.queue for task in self._app._tasks.values()}
        return [_told(name, known) for name in sorted(self._queues - known)]


def _counts(committer: Committer) -> tuple[dict[tuple[str, str], int], set[str]]:
    agenda = committer.facets.need_agenda()
    return ready_jobs(agenda), {stats.queue for stats in agenda.queues.stats()}


def _told(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    known_as = f"known are {', '.join(sorted(known))}" if known else "there is none yet"
    hint = f"did you mean {near[0]!r}?" if near else known_as
    return f"nobody uses queue {name!r}: no task puts into it, no job was ever in it; {hint}"
