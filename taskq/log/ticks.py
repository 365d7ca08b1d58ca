"""Ticks of schedules: each is written once, together with its jobs, whoever comes first with it.

A TICKED record holds the whole state of its schedule, so that compaction can write it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError, UsageError
from taskq.core.hints import command
from taskq.core.model import NAME_BYTES_MAX
from taskq.core.records import Flag, Kind, Option
from taskq.core.schedules import (
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    ScheduleState,
    Ticked,
    apply_ticked,
)
from taskq.log import codec
from taskq.log.codec import CRC_SIZE, option
from taskq.log.options import each_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq.log.batch import Batch
    from taskq.log.context import Context
    from taskq.log.enqueues import Enqueues
    from taskq.log.requests import Duplicate, Enrolment, Steer, Turn

_PAUSED: Final = 1
_GONE: Final = 2


def encode_ticked(ticked: Ticked, lsn: int) -> bytes:
    """A TICKED record."""
    state = ticked.state
    options = b""
    if ticked.has_rule and not ticked.is_gone:
        for tag, value in ((Option.RULE, state.rule), (Option.DETAILS, state.details)):
            options += option(tag, value)
    byte = (_PAUSED if state.is_paused else 0) | (_GONE if ticked.is_gone else 0)
    fixed = codec.TICKED.pack(
        0, Kind.TICKED, byte, len(options), Flag.CHECKED, 0, state.last_ns, state.done_ns
    )
    name = ticked.name.encode("utf-8", "surrogatepass")
    return codec.encode_checked(fixed[4:] + options, name, lsn)


def decode_ticked(record: bytes) -> Ticked:
    """What a TICKED record says.

    Raises:
        FormatError: its name is longer than any can be.
    """
    _, _, byte, options_size, _, _, last_ns, done_ns = codec.TICKED.unpack_from(record)
    name = record[codec.TICKED.size + options_size : -CRC_SIZE]
    if len(name) > NAME_BYTES_MAX:
        raise FormatError(f"the name of a schedule has {len(name)} bytes")
    rule = details = b""
    for tag, value in each_option(record, codec.TICKED.size, options_size):
        if tag == Option.RULE:
            rule = value
        elif tag == Option.DETAILS:
            details = value
    state = ScheduleState(last_ns, done_ns, bool(byte & _PAUSED), rule, details)
    return Ticked(
        name=name.decode("utf-8", "replace"),
        state=state,
        is_gone=bool(byte & _GONE),
        has_rule=bool(options_size),
    )


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
        """Take up schedules; those that are new, or tick by another rule, count from now on.

        Raises:
            UsageError: they are too many for one log.
        """
        new = [one for one in enrolments if self._is_news(one)]
        self._check_room(new)
        for one in new:
            state = self._schedules.get(one.name, ScheduleState())
            if state.rule != one.rule:
                state = state._replace(done_ns=max(batch.time_ns, state.done_ns))
            state = state._replace(rule=one.rule, details=one.details)
            self._write(batch, Ticked(one.name, state))

    def steer(self, batch: Batch, wish: Steer) -> bool:
        """Pause, resume, reset or remove a schedule; False if it is so already.

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
        if wish.action == "remove":
            self._write(batch, Ticked(wish.name, state, is_gone=True))
            return True
        if wish.action == "reset":
            state = state._replace(done_ns=batch.time_ns)
        elif state.is_paused == (wish.action == "pause"):
            return False
        else:
            # What it missed while it was paused stays missed.
            done_ns = max(state.done_ns, batch.time_ns) if state.is_paused else state.done_ns
            state = state._replace(is_paused=not state.is_paused, done_ns=done_ns)
        self._write(batch, Ticked(wish.name, state, has_rule=False))
        return True

    def _is_news(self, one: Enrolment) -> bool:
        state = self._schedules.get(one.name)
        return state is None or (state.rule, state.details) != (one.rule, one.details)

    def _check_room(self, new: list[Enrolment]) -> None:
        if not new:
            return
        after = {name: (state.rule, state.details) for name, state in self._schedules.items()}
        after |= {one.name: (one.rule, one.details) for one in new}
        size = sum(len(name) + len(rule) + len(other) for name, (rule, other) in after.items())
        if len(after) > SCHEDULES_MAX or size > SCHEDULES_BYTES_MAX:
            raise UsageError(
                f"this log would know {len(after)} schedules of {size} bytes, the most is "
                f"{SCHEDULES_MAX} of {SCHEDULES_BYTES_MAX} bytes: forget old ones with "
                f"{command(self._context.facets.path, 'schedules', 'remove', 'NAME')}"
            )

    def _write(self, batch: Batch, ticked: Ticked) -> None:
        batch.add(encode_ticked(ticked, batch.lsn))
        apply_ticked(self._schedules, ticked)

    @property
    def _schedules(self) -> dict[str, ScheduleState]:
        return self._context.agenda.schedules
