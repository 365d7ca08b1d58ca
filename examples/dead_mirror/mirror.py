"""A plugin that mirrors the dead letters of several apps into one log.

A package declares it as an entry point, and the settings name it (``plugins = ["mirror"]``)::

    [project.entry-points."taskq.plugins"]
    mirror = "dead_mirror.mirror:mirror"

The plugin imports only public modules of taskq. Each letter is mirrored once, since the key of its
job in the mirror is the id of the dead job. If a worker is killed, the next one mirrors the rest.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq import TaskLog
from taskq.engine import failure_of
from taskq.errors import JobNotFound, TaskqError
from taskq.views import moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from taskq import DeadLetter, TaskQ
    from taskq.views import JobView

_log: Final = logging.getLogger("dead_mirror")

#: Environment variable with the mirror's directory; by default next to the app's log.
VARIABLE: Final = "DEAD_MIRROR"
#: The queue of the mirrored letters.
QUEUE: Final = "dead"
#: Latest letters that are checked at a start.
LETTERS_MAX: Final = 1_000


class Mirror:
    """Writes the dead letters of one app into another log.

    Args:
        app: the app with the letters.
        path: directory of the mirror.
    """

    def __init__(self, app: TaskQ, path: Path) -> None:
        self._app = app
        self._path = path
        self._log: TaskLog | None = None

    async def opened(self) -> AsyncIterator[None]:
        """Lifespan of the app: open the mirror while a worker runs, and catch up."""
        async with await TaskLog.open(self._path) as log:
            self._log = log
            for letter in await self._app.dead.list(limit=LETTERS_MAX):
                await self._put(letter)
            try:
                yield
            finally:
                self._log = None

    async def on_dead(self, letter: DeadLetter) -> None:
        try:
            await self._put(await self._app.job(letter.job_id).view())
        except JobNotFound:
            _log.info("job %s was purged before it was mirrored", letter.job_id)
        except TaskqError as error:
            _log.warning("job %s is not mirrored yet: %s", letter.job_id, error)

    async def _put(self, view: JobView) -> None:
        if self._log is not None:
            payload = json.dumps(told_of(view)).encode()
            await self._log.put(payload, queue=QUEUE, key=view.job_id)


def told_of(view: JobView) -> dict[str, Any]:
    error, message, _ = failure_of(view.task, "dead", view.reason)
    return {
        "job": view.job_id,
        "task": view.task,
        "queue": view.queue,
        "attempts": view.attempt,
        "died": moment(view.settled_ns),
        "error": error,
        "message": message,
        "payload": view.payload.decode("utf-8", "replace"),
    }


def mirror(app: TaskQ) -> None:
    given = os.environ.get(VARIABLE)
    path = Path(given) if given else app.data_dir.with_name(f"{app.data_dir.name}-dead")
    letters = Mirror(app, path)
    app.lifespan(letters.opened)
    app.on_dead(letters.on_dead)
