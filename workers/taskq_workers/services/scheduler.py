"""Tick an app's schedules: sleep, and enqueue due jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Any, Final

from anyio import CancelScope, move_on_after
from anyio.abc import TaskStatus

from taskq import TaskQ, engine, errors, hooks, values
from taskq_workers.slots.feed import Pause

_log: Final = logging.getLogger("taskq.worker")

#: The longest sleep: a changed clock, or a resumed schedule, is noticed after it.
LOOK_SECONDS: Final = 30.0


class Scheduler:
    """Ticks the schedules of an app; a ``Service`` of its worker.

    All workers try, and the log takes each tick from one of them. A late scheduler, after a sleep
    of the machine or without workers, catches up as each schedule's policy demands.
    """

    def __init__(self, app: TaskQ) -> None:
        self._app = app
        self._enrolled: set[hooks.Schedule] = set()
        #: schedules with a newer rule from another worker
        self._outdated: set[str] = set()
        #: schedules that cannot tick; each was logged
        self._failing: set[str] = set()
        #: schedules that are done with times to come, until then
        self._waiting: set[str] = set()
        #: schedules added at run time, by name, each with the state from which it was made
        self._added: dict[str, tuple[tuple[bytes, bytes], hooks.Schedule | None]] = {}
        #: by schedule: the moment up to which it was done, and when its next tick is due
        self._next: dict[str, tuple[int, int]] = {}

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Tick until cancelled; costs nothing while app and log have no schedule."""
        planned, wake, loop = self._app.hooks.schedules, asyncio.Event(), asyncio.get_running_loop()
        for schedule in planned.all.values():
            schedule.enrolment()

        def on_new() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake.set)

        unlisten = planned.listeners.listen(on_new)
        leave = store.on_steering(lambda *_: wake.set())
        try:
            task_status.started()
            await self._tick_on(store, wake)
        finally:
            leave()
            unlisten()

    async def _tick_on(self, store: engine.Store, wake: asyncio.Event) -> None:
        pause = Pause(asyncio.get_running_loop().time)
        while True:
            wake.clear()
            try:
                seconds = await self.look(store)
            except errors.LogClosed:
                return
            except errors.TaskqError as error:
                seconds = pause.next()
                if self._app.hooks.schedules.all or self._added:
                    _log.warning("no schedule ticks for %.1f s, because: %s", seconds, error)
            with move_on_after(seconds):
                await wake.wait()

    async def look(self, store: engine.Store) -> float:
        """Write due ticks; return how many seconds to sleep then, infinity without schedules."""
        port = store.port()
        planned = list(self._app.hooks.schedules.all.values())
        new = [entry for entry in planned if entry not in self._enrolled]
        if new:
            with CancelScope(shield=True):
                await asyncio.gather(*(self._enrol(port, entry) for entry in new))
        now_ns, states = await port.look(_states)
        planned += self._added_in(states, planned)
        if not planned:
            return math.inf
        turns: list[engine.Turn] = []
        sleeps_ns = [round(LOOK_SECONDS * values.SECOND_NS)]
        for schedule in planned:
            # A schedule that a user removed is enrolled again when the next worker starts.
            state = states.get(schedule.name)
            if state is not None and self._is_current(schedule, state):
                self._warn_if_ahead(schedule.name, state, now_ns)
                due_ns = self._due_ns(schedule, state, now_ns)
                if due_ns <= now_ns and not state.is_paused:
                    try:
                        turns += await self._turns(schedule, state, now_ns)
                    except BaseException as error:
                        if not _is_of_schedule(error):
                            raise
                        self._note(schedule.name, error)
                        continue
                    due_ns = now_ns
                sleeps_ns.append(due_ns - now_ns)
        if turns:
            # Ticks in progress are finished; the log's own waits are limited.
            with CancelScope(shield=True):
                await self._tick(port, turns)
        return max(min(sleeps_ns), 0) / values.SECOND_NS

    async def _enrol(self, port: engine.LoopPort, schedule: hooks.Schedule) -> None:
        try:
            await port.enrol([schedule.enrolment()])
        except BaseException as error:
            if not _is_of_schedule(error):
                raise
            self._note(schedule.name, error)
        else:
            self._enrolled.add(schedule)

    def _note(self, name: str, error: BaseException) -> None:
        """Log once that a schedule cannot tick; other schedules go on."""
        if name not in self._failing:
            self._failing.add(name)
            _log.warning("schedule %s does not tick: %s", name, error)

    def _warn_if_ahead(self, name: str, state: hooks.ScheduleState, now_ns: int) -> None:
        """Log once that the clock was set back, as ticks may be missing for years then."""
        if state.done_ns - now_ns <= LOOK_SECONDS * values.SECOND_NS or state.is_paused:
            self._waiting.discard(name)
        elif name not in self._waiting:
            self._waiting.add(name)
            _log.warning(
                "schedule %s waits for %s, since the clock was set back; to tick from now on: %s",
                name, values.spoken(state.done_ns - now_ns),
                values.command(str(self._app.data_dir), "schedules", "reset", name),
            )  # fmt: skip

    def _added_in(
        self, states: dict[str, hooks.ScheduleState], planned: list[hooks.Schedule]
    ) -> list[hooks.Schedule]:
        """Return the schedules that were added at run time and are not in the code."""
        before, self._added = self._added, {}
        for name in states.keys() - {schedule.name for schedule in planned}:
            state = states[name]
            made_of, schedule = before.get(name, ((b"", b""), None))
            if made_of != (state.rule, state.details):
                made_of = state.rule, state.details
                schedule = self._app.schedules.added(name, state, self._app.tasks)
                self._next.pop(name, None)
            self._added[name] = made_of, schedule
        return [schedule for _, schedule in self._added.values() if schedule is not None]

    def _is_current(self, schedule: hooks.Schedule, state: hooks.ScheduleState) -> bool:
        """Return whether no worker with another rule was started since."""
        name = schedule.name
        if state.rule == schedule.rule.rule:
            self._outdated.discard(name)
            return True
        if name not in self._outdated:
            self._outdated.add(name)
            _log.warning(
                "schedule %s is not ticked here (%s): a worker that was started later has another "
                "rule for it", name, schedule.rule,
            )  # fmt: skip
        return False

    def _due_ns(self, schedule: hooks.Schedule, state: hooks.ScheduleState, now_ns: int) -> int:
        # For a paused schedule: the next tick if it were resumed now.
        done_ns = max(state.done_ns, now_ns) if state.is_paused else state.done_ns
        known = self._next.get(schedule.name)
        if (
            known is not None
            and known[0] == state.done_ns
            and (not state.is_paused or known[1] > now_ns)
        ):
            return known[1]
        next_ns = schedule.next_due_ns(done_ns)
        due_ns = now_ns + round(LOOK_SECONDS * values.SECOND_NS) if next_ns is None else next_ns
        self._next[schedule.name] = state.done_ns, due_ns
        return due_ns

    async def _turns(
        self, schedule: hooks.Schedule, state: hooks.ScheduleState, now_ns: int
    ) -> list[engine.Turn]:
        due = schedule.due(state.done_ns, now_ns)
        if not due.done_ns:
            return []
        if due.is_cut:
            _log.warning(
                "schedule %s missed more than %d ticks: the latest %d are made up for, the "
                "earlier ones are left out", schedule.name, len(due.moments), len(due.moments),
            )  # fmt: skip
        if not due.moments:
            _log.info("schedule %s skips the ticks that it missed", schedule.name)
        items = [await self._item(schedule, at_ns) for at_ns in due.moments]
        return schedule.turns(state.done_ns, due, items)

    async def _item(self, schedule: hooks.Schedule, at_ns: int) -> engine.Item:
        call = schedule.call_at(at_ns)
        connection = self._app.connection
        packer = connection.packer
        return packer.plain_item(call) or await connection.pack(packer.loose(call))

    async def _tick(self, port: engine.LoopPort, turns: list[engine.Turn]) -> None:
        answers: list[Any] = await asyncio.gather(*map(port.tick, turns), return_exceptions=True)
        for turn, answer in zip(turns, answers, strict=True):
            if isinstance(answer, errors.UsageError):
                self._note(turn.name, answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None and turn.moments:
                _log.debug("schedule %s ticked %d times", turn.name, len(turn.moments))


def _is_of_schedule(error: BaseException) -> bool:
    """Return whether an error concerns one schedule: a user's codec or key may raise anything."""
    if isinstance(error, KeyboardInterrupt) or values.is_cancellation(error):
        return False
    return isinstance(error, errors.UsageError) or not isinstance(error, errors.TaskqError)


def _states(sight: engine.LogView) -> tuple[int, dict[str, hooks.ScheduleState]]:
    return sight.journal.clock.wall_ns(), dict(sight.facets.need_agenda().schedules)
