"""Warnings about jobs that wait for ever, and about queues that nobody uses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from anyio import move_on_after, sleep
from anyio.abc import TaskStatus

from taskq import (
    Delivery,
    JobContext,
    JobHandle,
    State,
    TaskQ,
    engine,
    errors,
    hooks,
    values,
    views,
)

_log: Final = logging.getLogger("taskq.worker")

#: Time between two looks.
LOOK_SECONDS: Final = 60.0
#: The first look comes so late, as the first jobs are waited for more.
_BEGIN_SECONDS: Final = 0.1
#: An idle worker stays this long for its first look, which a burst would outrun.
_FIRST_LOOK_SECONDS: Final = 0.5


class StrayWatch:
    """Warns at the start and each minute; a ``Service`` of its worker.

    ``queues`` are the worker's own, None for all; ``look_seconds`` are of real time.
    """

    def __init__(
        self, app: TaskQ, queues: frozenset[str] | None, *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._app = app
        self._queues = queues
        self._look_seconds = look_seconds

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
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

    async def _warn(self, store: engine.Store) -> None:
        # The claims report a failed log.
        with contextlib.suppress(errors.TaskqError):
            for warning in await self._look(store):
                _log.warning("%s", warning)

    async def _look(self, store: engine.Store) -> list[str]:
        waiting, known = await store.port().waiting_jobs()
        warnings = self._unused(known)
        if waiting:
            workers = await hooks.off_loop(store.live_workers)
            servings = [serving for worker in workers for serving in worker.serves]
            from taskq.engine import strays_of  # noqa: PLC0415 - the start loads it not

            # A full disk may have kept its own from being published.
            own = views.Serving(queues=self._queues, tasks=frozenset(self._app.tasks))
            warnings += strays_of(waiting, [own, *servings], due=True).told()
        return warnings

    def _unused(self, known: set[str]) -> list[str]:
        """Return a warning for each queue that no job was ever put into, as far as is known."""
        if self._queues is None:
            return []
        known = known | {task.spec.queue for task in self._app.tasks.values()}
        return [_told(name, known) for name in sorted(self._queues - known)]


#: Jobs of this process that wait, within their runs, for results of others: those, by log and job.
_waits: Final[dict[tuple[engine.Tag, int], list[JobHandle[Any]]]] = {}
_watches: Final[set[StuckWatch]] = set()
#: Between two looks while jobs wait, and how long nothing must have moved.
_STUCK_LOOK_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 4.0
_REMEDY: Final = (
    "let a chain, a chord or durable.call wait for it, which hold no slot, or give it a queue and "
    "a worker of its own"
)


class StuckWatch:
    """Notices when all slots run jobs that wait for other jobs; a ``Service``.

    It sleeps until a job of the worker waits for a result within its run. ``hold`` is published
    while nothing can move, and ``changed`` is called when it has changed. ``port_of`` returns the
    port of a log by its tag, None if it was left.
    """

    def __init__(
        self,
        app: TaskQ,
        queues: frozenset[str] | None,
        slots: int,
        held: Callable[[], list[Delivery]],
        port_of: Callable[[str], engine.LoopPort | None],
        changed: Callable[[], None],
    ) -> None:
        self.hold: views.Hold | None = None
        self._app, self._queues, self._slots = app, queues, slots
        self._held, self._port_of, self._changed = held, port_of, changed
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self._warned: set[str] = set()

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Look each second while jobs wait, until cancelled."""
        _watches.add(self)
        hooks.Connection.wait_begins[:] = [_begin]
        task_status.started()
        try:
            while True:
                await self._begun.wait()
                self._begun.clear()
                with contextlib.suppress(errors.TaskqError):
                    await self._look_on(store)
        finally:
            _watches.discard(self)

    def begins(self, job: JobContext, handle: JobHandle[Any]) -> None:
        """Warn of a wait for a job that this worker would run; from any thread."""
        delivery, task = job.delivery, handle._task
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begun.set)
        if task is None or delivery.task in self._warned or delivery not in self._held():
            return
        mine = self._app.tasks.get(task.name)
        if mine is not None and (self._queues is None or mine.spec.queue in self._queues):
            self._warned.add(delivery.task)
            _log.warning(
                "job %s (%s) waits within its run for job %s (%s), which this worker would run: "
                "its slot is taken meanwhile, and once all wait so, none runs. Instead %s",
                delivery.job_id, delivery.task, handle.id, task.name, _REMEDY,
            )  # fmt: skip

    async def _look_on(self, store: engine.Store) -> None:
        since, last = self._loop.time(), frozenset[tuple[engine.Tag, int]]()
        try:
            while _waits:
                await sleep(_STUCK_LOOK_SECONDS)
                held = await self._stuck()
                if held != last or not held:
                    since, last = self._loop.time(), held
                    self._tell(None)
                elif self.hold is None and self._loop.time() - since >= STUCK_SECONDS:
                    self._tell(self._told(held, store))
        finally:
            self._tell(None)

    async def _stuck(self) -> frozenset[tuple[engine.Tag, int]]:
        running = {(delivery.tag, delivery.job) for delivery in self._held()}
        if len(running) < self._slots:
            return frozenset()
        for tag, job in running:
            handles = _waits.get((tag, job), ())
            awaited = [handle.lsn for handle in handles if (tag, handle.lsn) not in running]
            port = self._port_of(tag)
            if not handles or port is None:
                return frozenset()
            states = await port.look(partial(_states, jobs=awaited))
            if not views.WAITING_STATES.issuperset(states):
                return frozenset()
        return frozenset(running)

    def _told(self, held: frozenset[tuple[engine.Tag, int]], store: engine.Store) -> views.Hold:
        tag, job = min(held)
        handle = next(iter(_waits.get((tag, job), ())), None)
        such = "" if handle is None else f", such as {tag.id(job)} for {handle.id}"
        count = "the one slot runs a job that waits" if len(held) == 1 else (
            f"all {len(held)} slots run jobs that wait"
        )  # fmt: skip
        text = f"{count} for others within the run{such}, which need a slot"
        _log.error("nothing moves here: %s; %s", text, _REMEDY)
        return views.Hold(is_breaker=False, is_stuck=True, text=text, since_ns=store.wall_ns())

    def _tell(self, hold: views.Hold | None) -> None:
        if hold is not self.hold:
            self.hold = hold
            self._changed()


def _begin(handle: JobHandle[Any]) -> Callable[[], object] | None:
    job = hooks.running_job.get(None)
    if job is None:
        return None
    handles = _waits.setdefault((job.delivery.tag, job.delivery.job), [])
    handles.append(handle)
    for watch in tuple(_watches):
        watch.begins(job, handle)

    def end() -> None:
        handles.remove(handle)
        if not handles:
            _waits.pop((job.delivery.tag, job.delivery.job), None)

    return end


def _states(sight: engine.LogView, jobs: list[int]) -> set[State]:
    table = sight.facets.need_agenda().table
    return {table.state(job) for job in jobs}


def _told(name: str, known: set[str]) -> str:
    near = values.nearest(name, sorted(known))
    known_as = f"known are {', '.join(sorted(known))}" if known else "there is none yet"
    hint = f"did you mean {near!r}?" if near else known_as
    return f"nobody uses queue {name!r}: no task puts into it, no job was ever in it; {hint}"
