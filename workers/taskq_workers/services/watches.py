"""Watches of a worker: its loop and storage thread, jobs without a worker, stuck jobs."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Final

from anyio import move_on_after, sleep, sleep_forever
from anyio.abc import TaskStatus

import taskq
from taskq import Delivery, JobContext, JobHandle, TaskQ, engine, errors, hooks, values, views
from taskq_workers.runs.reasons import is_machinery

_log: Final = logging.getLogger("taskq.worker")

#: A loop that does not answer for this long is logged.
BLOCKED_SECONDS: Final = 0.5
#: A loop or a storage thread that does not answer is published after this time.
STALL_SECONDS: Final = 10.0
#: Longest time counted between two looks: a process that was stopped meanwhile is not stuck.
_LOOK_SECONDS_MAX: Final = 1.0
#: Time between two requests to the loop, while jobs run and while none does.
_ASK_SECONDS: Final = 0.25
_ASK_IDLE_SECONDS: Final = 0.4
#: One line of code is logged at most once in this time.
_AGAIN_SECONDS: Final = 60.0
_PLACES_MAX: Final = 1000
_TEXT_MAX: Final = 100


class LoopWatch:
    """Watches the loop and the storage threads; a ``Service``.

    A thread requests an answer of the loop a few times a second. If the loop does not answer, the
    thread finds the code that the loop's thread executes, and logs it. Jobs pay nothing.

    After ``STALL_SECONDS`` the process writes the reason into its owner's file: ``taskq health``
    fails, and ``taskq why`` and the page show it.

    Args:
        is_idle: whether no job runs; called on the loop.
        delivery_of: the job that an asyncio task runs, None for no job; called in a thread.
        surrender: gives waiting jobs to other workers; called in a thread, again and again while
            the loop is blocked.
        stores: returns the worker's logs; called in a thread.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        delivery_of: Callable[[asyncio.Task[object]], Delivery | None],
        surrender: Callable[[], None],
        stores: Callable[[], list[engine.Store]],
    ) -> None:
        self._stores = stores
        self._storage: dict[engine.Store, _StorageWatch] = {}
        #: the code that blocks the loop, once it must be published
        self._loop_stall = ""
        self._surrender = surrender
        self._is_idle = is_idle
        self._delivery_of = delivery_of
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._over = threading.Event()
        self._answered = threading.Event()
        self._pause_seconds = _ASK_SECONDS
        self._warned_at: dict[tuple[str, int], float] = {}

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Watch until cancelled: jobs may block the loop while the worker drains, too."""
        del store  # there may be several logs
        try:
            # A separate daemon thread works even if the loop has stopped.
            engine.start_thread(self._watch, "taskq-watch")
        except errors.LogError as error:
            _log.warning("no standstill of the event loop is logged: %s", error)
        try:
            task_status.started()
            await sleep_forever()
        finally:
            self._over.set()
            self._answered.set()

    def _watch(self) -> None:
        try:
            self._ask_again()
        finally:
            for watch in self._storage.values():
                watch.publish("")

    def _ask_again(self) -> None:
        while not self._over.wait(self._pause_seconds):
            self._look_at_stores()
            self._answered.clear()
            asked = monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop is closed
                return
            if self._answered.wait(BLOCKED_SECONDS) or self._over.is_set():
                continue
            what = self._look()
            if what:
                _log.warning("the event loop stands still since %.1f s: %s", BLOCKED_SECONDS, what)
            self._surrender()
            standstill = _Standstill()
            while not self._answered.wait(_ASK_SECONDS):
                self._surrender()
                if self._loop.is_closed():  # it will never answer
                    return
                if standstill.grow() >= STALL_SECONDS:
                    where = f": {what}" if what else ""
                    text = f"the event loop does not turn, so that no job begins{where}"
                    self._loop_stall = text
                self._look_at_stores()
            self._loop_stall = ""
            if what and not self._over.is_set():
                _log.warning("the event loop stood still for %.2f s: %s", monotonic() - asked, what)

    def _look_at_stores(self) -> None:
        for store in self._stores():
            watch = self._storage.get(store)
            if watch is None:
                watch = self._storage[store] = _StorageWatch(store)
            text = watch.look()
            watch.publish(text or self._loop_stall, is_engine=bool(text))

    def _answer(self) -> None:
        self._pause_seconds = _ASK_IDLE_SECONDS if self._is_idle() else _ASK_SECONDS
        self._answered.set()

    def _look(self) -> str:
        """Return a text about the code that blocks the loop; "" for none, or if just logged."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None or frame.f_code.co_name in {"select", "poll", "_poll"}:
            return ""  # the thread waits: the machine is only busy
        frames, is_jobs = _of_the_user(frame, _outermost(asyncio.current_task(self._loop)))
        if not frames:
            # The time is spent in taskq's own code, not in the task's function.
            place = _place(frame)
            return f"taskq works on a value or type of {self._who()}, at {place}. {_SMALLER}"
        # The innermost line in the task's own file is to be changed; name the called code after it.
        file = frames[-1].f_code.co_filename
        own = next(inner for inner in frames if inner.f_code.co_filename == file)
        if not self._is_news(own):
            return ""
        where = _place(own)
        if own is not frames[0]:
            where += f", within {frames[0].f_code.co_qualname}"
        if not is_jobs:
            return f"taskq checks a value of {self._who()}, and is at {where}. {_SMALLER}"
        return f"{self._who()} is at {where}. {_REMEDY}"

    def _who(self) -> str:
        task = asyncio.current_task(self._loop)
        delivery = None if task is None else self._delivery_of(task)
        if delivery is not None:
            return f"job {delivery.job_id} ({delivery.task})"
        return "a callback" if task is None else f"the asyncio task {task.get_name()!r}"

    def _is_news(self, frame: FrameType) -> bool:
        place, now = (frame.f_code.co_filename, frame.f_lineno), monotonic()
        if now - self._warned_at.get(place, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
            return False
        if len(self._warned_at) >= _PLACES_MAX:
            self._warned_at.clear()
        self._warned_at[place] = now
        return True


class _Standstill:
    """Measures how long something has not moved, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked = monotonic()

    def grow(self) -> float:
        now = monotonic()
        self.seconds += min(now - self._looked, _LOOK_SECONDS_MAX)
        self._looked = now
        return self.seconds


class _StorageWatch:
    """Checks whether the storage thread of a log moves, and publishes a stall."""

    def __init__(self, store: engine.Store) -> None:
        self._store = store
        self._turns = -1
        self._standstill = _Standstill()
        self._published = ""

    def look(self) -> str:
        """Return the thread's current work if it does not answer; "" if it moves."""
        turns, is_busy = self._store.pulse
        if turns != self._turns or not is_busy or not self._store.usable:
            self._turns, self._standstill = turns, _Standstill()
            return ""
        if self._standstill.grow() < STALL_SECONDS:
            return ""
        frame = sys._current_frames().get(self._store.thread_id or 0)
        text = "the storage thread answers no request"
        return text if frame is None else f"{text}, and is at {_place(frame)}"

    def publish(self, text: str, *, is_engine: bool = False) -> None:
        if bool(text) != bool(self._published):
            self._published = text
            self._store.publish_stall(text, STALL_SECONDS, is_engine=is_engine)


_REMEDY: Final = (
    "No other job moves meanwhile: make the function a plain def, which runs in a thread, or give "
    'it runs_in="process"'
)


_SMALLER: Final = (
    "No other job moves meanwhile: take and return less, such as the path of a file with it"
)
#: The loop's own files: their callers are the program that runs the loop, not a task on it.
_LOOP: Final = (asyncio.events.__file__, asyncio.base_events.__file__)
#: The codecs turn values into JSON, and types into codecs.
_VALUES: Final = str(Path(taskq.__file__).parent / "calls")


def _outermost(task: asyncio.Task[object] | None) -> FrameType | None:
    return None if task is None else getattr(task.get_coro(), "cr_frame", None)


def _of_the_user(frame: FrameType | None, last: FrameType | None) -> tuple[list[FrameType], bool]:
    """Return the user's frames, innermost first, and whether they are a job's own function.

    If machinery separates several stretches of user code, the last stretch is returned. If all are
    called by the codecs, they are a validator, or another method of a value's type. ``last`` is the
    outermost frame that the loop runs; None if only the loop's own files show it.
    """
    stretches: list[tuple[list[FrameType], bool]] = []
    frames: list[FrameType] = []
    while frame is not None and frame.f_code.co_filename not in _LOOP:
        file = frame.f_code.co_filename
        if not is_machinery(file):
            frames.append(frame)
        elif frames:
            stretches.append((frames, not file.startswith(_VALUES)))
            frames = []
        frame = None if frame is last else frame.f_back
    if frames:
        stretches.append((frames, True))
    own = next((stretch for stretch in stretches if stretch[1]), None)
    return own or (stretches[0] if stretches else ([], False))


def _place(frame: FrameType) -> str:
    code, line = frame.f_code, frame.f_lineno
    text = linecache.getline(code.co_filename, line).strip()[:_TEXT_MAX]
    said = f": {text}" if text else ""
    return f'"{code.co_filename}", line {line}, in {code.co_qualname}{said}'


#: Time between two looks.
LOOK_SECONDS: Final = 60.0
#: Delay of the first look, since the first jobs are more urgent.
_BEGIN_SECONDS: Final = 0.1
#: An idle burst worker waits this long for its first look.
_FIRST_LOOK_SECONDS: Final = 0.5


class StrayWatch:
    """Warns at the start and each minute; a ``Service`` of its worker.

    ``queues`` are the queues of the worker, None for all.
    """

    def __init__(self, app: TaskQ, queues: frozenset[str] | None) -> None:
        self._app = app
        self._queues = queues

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Look soon, then each minute, until cancelled."""
        task_status.started()
        has_looked = False
        try:
            await sleep(_BEGIN_SECONDS)
            while True:
                await self._warn(store)
                has_looked = True
                await sleep(LOOK_SECONDS)
        finally:
            if not has_looked:
                with move_on_after(_FIRST_LOOK_SECONDS, shield=True):
                    await self._warn(store)

    async def _warn(self, store: engine.Store) -> None:
        # Claims report a failed log.
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

            # On a full disk this worker's own entry may be missing.
            own = views.Serving(queues=self._queues, tasks=frozenset(self._app.tasks))
            warnings += strays_of(waiting, [own, *servings], due=True).sentences()
        return warnings

    def _unused(self, known: set[str]) -> list[str]:
        """Return a warning for each of the worker's queues that never had a known job."""
        if self._queues is None:
            return []
        known = known | {task.spec.queue for task in self._app.tasks.values()}
        return [_unused_text(name, known) for name in sorted(self._queues - known)]


#: Jobs of this process that wait in their runs for results: the awaited jobs, by log and job.
_waits: Final[dict[tuple[engine.Tag, int], list[JobHandle[Any]]]] = {}
_watches: Final[set[StuckWatch]] = set()
#: Time between two looks while jobs wait, and the time without any progress.
_STUCK_LOOK_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 4.0
_STRAYS_REMEDY: Final = (
    "let a chain, a chord or durable.call wait for it, which hold no slot, or give it a queue and "
    "a worker of its own"
)


class StuckWatch:
    """Notices when all slots run jobs that wait for other jobs; a ``Service``.

    It sleeps until a job of the worker waits for a result in its run. ``hold`` is published while
    no job can progress, and ``changed`` is called when it changes. ``port_of`` returns the port of
    a log by its tag, None if the log was left.
    """

    def __init__(
        self,
        app: TaskQ,
        queues: frozenset[str] | None,
        slots: Callable[[], int],
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
        """Warn of a wait for a job of this worker; may be called in any thread."""
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
                delivery.job_id, delivery.task, handle.id, task.name, _STRAYS_REMEDY,
            )  # fmt: skip

    async def _look_on(self, store: engine.Store) -> None:
        standstill, last = _Standstill(), frozenset[tuple[engine.Tag, int]]()
        try:
            while _waits:
                await sleep(_STUCK_LOOK_SECONDS)
                held = await self._stuck()
                if held != last or not held:
                    standstill, last = _Standstill(), held
                    self._set_hold(None)
                elif standstill.grow() >= STUCK_SECONDS and self.hold is None:
                    self._set_hold(self._new_hold(held, store))
        finally:
            self._set_hold(None)

    async def _stuck(self) -> frozenset[tuple[engine.Tag, int]]:
        running = {(delivery.tag, delivery.job) for delivery in self._held()}
        if len(running) < self._slots():
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

    def _new_hold(self, held: frozenset[tuple[engine.Tag, int]], store: engine.Store) -> views.Hold:
        tag, job = min(held)
        handle = next(iter(_waits.get((tag, job), ())), None)
        such = "" if handle is None else f", such as {tag.id(job)} for {handle.id}"
        count = "the one slot runs a job that waits" if len(held) == 1 else (
            f"all {len(held)} slots run jobs that wait"
        )  # fmt: skip
        text = f"{count} for others within the run{such}, which need a slot"
        _log.error("nothing moves here: %s; %s", text, _STRAYS_REMEDY)
        return views.Hold(is_breaker=False, is_stuck=True, text=text, since_ns=store.wall_ns())

    def _set_hold(self, hold: views.Hold | None) -> None:
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


def _states(sight: engine.LogView, jobs: list[int]) -> set[taskq.State]:
    table = sight.facets.need_agenda().table
    return {table.state(job) for job in jobs}


def _unused_text(name: str, known: set[str]) -> str:
    near = values.nearest(name, sorted(known))
    known_as = f"known are {', '.join(sorted(known))}" if known else "there is none yet"
    hint = f"did you mean {near!r}?" if near else known_as
    return f"nobody uses queue {name!r}: no task puts into it, no job was ever in it; {hint}"
