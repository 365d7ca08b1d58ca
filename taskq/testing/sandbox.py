"""An app for one test: its log in memory, its time moved by hand."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from taskq import Durability, extras
from taskq.hooks import blocking, elsewhere
from taskq.testing.asserts import EnqueuedJob, assert_enqueued, assert_not_enqueued, enqueued
from taskq.testing.clock import FakeClock, use_clock
from taskq.testing.draining import Drained, drain

if TYPE_CHECKING:
    from taskq import JobHandle, State, Task, TaskQ
    from taskq.values import Duration

#: A file system in memory, where the machine has one.
_MEMORY = Path("/dev/shm")  # noqa: S108 - a fresh directory of our own is made in it
#: Of the names of the directories that are made there.
PREFIX: Final = "taskq-test-"


def _new_directory() -> str:
    """Make a directory in memory, or else where temporary ones are."""
    try:
        return tempfile.mkdtemp(prefix=PREFIX, dir=_MEMORY)
    except OSError:  # there is none, or it is not for us: read-only, as in hardened containers
        return tempfile.mkdtemp(prefix=PREFIX)


class Sandbox:
    """Moves an app into a log of its own for the length of a ``with`` block.

    ::

        async with Sandbox(app) as box:
            await sign_up("a@b.c")
            box.assert_enqueued(send_welcome, "a@b.c")
            await box.drain()
            box.clock.advance("1h")
            await box.drain()

    The log is a real one, written by the same code, in a directory in memory (``/dev/shm``; where
    there is none, a temporary one), and never synced. So arguments and results always make the way
    through their encoding, and keys, retries and schedules are those of production. The clock
    stands still until it is moved.

    Args:
        app: closed, or not used yet; it goes back to its own directory afterwards.
        clock: what it tells the time by; a new ``FakeClock`` if None.

    Attributes:
        app: the app.
        clock: its clock.

    Raises:
        UsageError: the app is open.
    """

    def __init__(self, app: TaskQ, clock: FakeClock | None = None) -> None:
        self.app = app
        self.clock = clock or FakeClock()
        self._undo = contextlib.ExitStack()
        self._scheduler: Any = None

    def __enter__(self) -> Self:
        directory = _new_directory()
        config = replace(
            self.app.connection.config,
            durability=Durability.OS,
            min_free_bytes=0,
            reserve_bytes=0,
            upkeep=False,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, directory, ignore_errors=True)
            undo.enter_context(elsewhere(self.app, directory, config))
            use_clock(self.app, self.clock)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.app.close_sync()
        self._undo.close()

    async def __aenter__(self) -> Self:
        self.__enter__()
        await self.tick()  # schedules count from now on
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.app.close()
        self._undo.close()

    async def drain(
        self,
        queues: Iterable[str] | None = None,
        *,
        concurrency: int = 1,
        with_scheduled: bool = False,
        raises: bool = True,
    ) -> Drained:
        """Run what is ready to its end; see ``taskq.testing.drain``."""
        clock = self.clock if with_scheduled else None
        return await drain(self.app, queues, concurrency=concurrency, ahead=clock, raises=raises)

    drain_sync = blocking(drain)

    async def tick(self) -> None:
        """Let the app's schedules enqueue what has fallen due, each by its catch-up policy.

        They count from the start of an ``async with``, or else from the first call of this.
        """
        if not self.app.hooks.schedules.all:
            return
        if self._scheduler is None:
            self._scheduler = extras.workers().Scheduler(self.app)
        await self.app.open()
        await self._scheduler.look(self.app.store())

    tick_sync = blocking(tick)

    def advance(self, duration: Duration) -> None:
        """Let time pass, such as "1h"."""
        self.clock.advance(duration)

    async def signal(
        self, job: JobHandle[Any] | str, name: str, value: Any = None, *, once: str = ""
    ) -> bool:
        """Tell a job something that it waits for; see ``TaskQ.signal``."""
        return await self.app.signal(job, name, value, once=once)

    signal_sync = blocking(signal)

    def enqueued(
        self, task: Task[..., Any] | str | None = None, *, state: State | None = None
    ) -> list[EnqueuedJob]:
        """Return the jobs of a task, oldest first; see ``taskq.testing.enqueued``."""
        return enqueued(task, app=self.app, state=state)

    def assert_enqueued(self, task: Task[..., Any] | str, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """See ``taskq.testing.assert_enqueued``."""
        return assert_enqueued(task, *args, taskq_app=self.app, **kwargs)

    def assert_not_enqueued(self, task: Task[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """See ``taskq.testing.assert_not_enqueued``."""
        assert_not_enqueued(task, *args, taskq_app=self.app, **kwargs)
