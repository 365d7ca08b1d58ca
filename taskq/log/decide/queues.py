"""Queues that are paused and resumed, and schedules that tick."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from taskq.core.errors import UsageError, command
from taskq.core.kinds import PAUSE, RESUME
from taskq.core.schedules import (
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    ScheduleState,
    Ticked,
    apply_ticked,
)
from taskq.log.format.carried import encode_queue
from taskq.log.format.notes import encode_ticked
from taskq.log.machine.ports import INTEREST_READY

if TYPE_CHECKING:
    from taskq.log.decide.context import Batch, Context
    from taskq.log.decide.enqueue import Enqueues
    from taskq.log.requests import Duplicate, Enrolment, Steer, Turn


class Queues:
    """The decisions of one process about whole queues."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def pause(self, batch: Batch, queue: str) -> bool:
        """Let no job of the queue be claimed; False if it is paused already."""
        agenda = self._context.agenda
        if queue in agenda.queues.paused:
            return False
        batch.add(encode_queue(PAUSE, queue, batch.lsn))
        agenda.queues.apply_paused(queue)
        batch.interest |= INTEREST_READY
        return True

    def resume(self, batch: Batch, queue: str) -> bool:
        """Let its jobs be claimed again; False if it is not paused."""
        agenda = self._context.agenda
        if queue not in agenda.queues.paused:
            return False
        batch.add(encode_queue(RESUME, queue, batch.lsn))
        agenda.queues.apply_resumed(queue)
        batch.interest |= INTEREST_READY
        return True


class Ticks:
    """The decisions of one process about schedules."""

    def __init__(self, context: Context, enqueues: Enqueues) -> None:
        self._context = context
        self._enqueues = enqueues

    def tick(self, batch: Batch, turn: Turn) -> list[int | Duplicate] | None:
        """Write ticks and enqueue their jobs; None if another process did, or it is paused.

        Raises:
            UsageError: there is no room for a job's key.
        """
        state = self._schedules.get(turn.name)
        if state is None or state.is_paused or state.done_ns != turn.seen_ns:
            return None
        if not state.done_ns < turn.done_ns <= batch.time_ns:
            # The clock was set back between the look and this.
            return None
        prepared = self._enqueues.prepared(batch, turn.items)
        last_ns = turn.moments[-1] if turn.moments else state.last_ns
        state = state._replace(last_ns=last_ns, done_ns=turn.done_ns)
        self._write(batch, Ticked(turn.name, state, has_rule=False))
        return self._enqueues.add(batch, turn.items, prepared)

    def enrol(self, batch: Batch, enrolments: Iterable[Enrolment]) -> None:
        """Take up schedules; new ones, and ones with another rule, count from now on.

        Raises:
            UsageError: they are too many for one log.
        """
        new = [enrolment for enrolment in enrolments if self._is_news(enrolment)]
        self._check_room(new)
        for enrolment in new:
            state = self._schedules.get(enrolment.name, ScheduleState())
            if state.rule != enrolment.rule:
                state = state._replace(done_ns=max(batch.time_ns, state.done_ns))
            state = state._replace(rule=enrolment.rule, details=enrolment.details)
            self._write(batch, Ticked(enrolment.name, state))

    def steer(self, batch: Batch, wish: Steer) -> bool:
        """Pause, resume, reset or forget a schedule; False if it is so already.

        Raises:
            UsageError: the log knows no such schedule.
        """
        state = self._schedules.get(wish.name)
        if state is None:
            known = ", ".join(sorted(self._schedules)[:5]) or "none"
            raise UsageError(
                f"this log knows no schedule {wish.name!r} (it knows {known}): a schedule is "
                f"known once a worker with it was started"
            )
        if wish.action == "forget":
            self._write(batch, Ticked(wish.name, state, is_gone=True))
            return True
        if wish.action == "reset":
            state = state._replace(done_ns=batch.time_ns)
        elif state.is_paused == (wish.action == "pause"):
            return False
        else:
            # Ticks that it missed while it was paused stay missed.
            done_ns = max(state.done_ns, batch.time_ns) if state.is_paused else state.done_ns
            state = state._replace(is_paused=not state.is_paused, done_ns=done_ns)
        self._write(batch, Ticked(wish.name, state, has_rule=False))
        return True

    def _is_news(self, enrolment: Enrolment) -> bool:
        state = self._schedules.get(enrolment.name)
        return state is None or (state.rule, state.details) != (enrolment.rule, enrolment.details)

    def _check_room(self, new: list[Enrolment]) -> None:
        if not new:
            return
        after = {name: (state.rule, state.details) for name, state in self._schedules.items()}
        after |= {enrolment.name: (enrolment.rule, enrolment.details) for enrolment in new}
        size = sum(len(name) + len(rule) + len(other) for name, (rule, other) in after.items())
        if len(after) > SCHEDULES_MAX or size > SCHEDULES_BYTES_MAX:
            raise UsageError(
                f"this log would know {len(after)} schedules of {size} bytes, the most is "
                f"{SCHEDULES_MAX} of {SCHEDULES_BYTES_MAX} bytes: forget old ones with "
                f"{command(self._context.facets.path, 'schedules', 'forget', 'NAME')}"
            )

    def _write(self, batch: Batch, ticked: Ticked) -> None:
        batch.add(encode_ticked(ticked, batch.lsn))
        apply_ticked(self._schedules, ticked)

    @property
    def _schedules(self) -> dict[str, ScheduleState]:
        return self._context.agenda.schedules
