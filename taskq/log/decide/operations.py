"""Table of deciders: each turns a request into records, and applies the change to the facets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from taskq.core import controls, kinds, model, records, sources
from taskq.core.errors import (
    KeyHeld,
    LogDamaged,
    NotDead,
    PayloadTooLarge,
    SourceMoved,
    TaskqError,
    UsageError,
    command,
)
from taskq.core.folds.agenda import forget_dead
from taskq.core.folds.dedup import UNTIL_SETTLED, key_hash
from taskq.core.kinds import ACT, PAUSE, REMOVAL, RESUME, REVIVAL
from taskq.core.schedules import (
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    ScheduleState,
    TickRecord,
    is_added,
)
from taskq.log.decide.carry import Edits, Rewrites
from taskq.log.decide.claim import Claims
from taskq.log.decide.context import Batch, Context, each
from taskq.log.decide.ends import Ends
from taskq.log.decide.enqueue import Enqueues, Keys
from taskq.log.decide.listeners import Asks, Deaths
from taskq.log.decide.settle import Cancels, Settles, Transactions
from taskq.log.decide.steps import Steps
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried, encode_queue
from taskq.log.format.flows import is_of_flow
from taskq.log.format.notes import encode_moved, encode_ticked
from taskq.log.format.options import enqueue_extras, queue_of, unexpiring
from taskq.log.journal.journal import Journal
from taskq.log.machine.ports import INTEREST_CANCEL, INTEREST_OUTCOME, INTEREST_READY
from taskq.log.requests import Act, Duplicate, Enrolment, Ingest, Letter, Op, Steer, Turn
from taskq.log.state.facets import Facets
from taskq.log.state.fold import fold_carried


class Queues:
    """The decisions of one process about whole queues."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def control(self, batch: Batch, change: controls.Change) -> bool:
        """Change a control; False if it has that value, or is not as the change expects."""
        agenda, name = self._context.agenda, change.name
        before = controls.value_of(agenda.controls, name)
        if change.expected is not None and before != change.expected:
            return False
        after = {**before, **change.changes}
        after = {field: value for field, value in after.items() if value is not None}
        if after == before:
            return False
        record = sources.SourceRecord(
            name, sources.SourceState(controls.encode(after), batch.time_ns)
        )
        self._check_room(record)
        batch.add(encode_moved(record, batch.lsn, records.Kind.STEERED))
        agenda.apply_steered(record)
        batch.interest |= INTEREST_READY | INTEREST_CANCEL
        return True

    def _check_room(self, control: sources.SourceRecord) -> None:
        name, (value, _) = control
        named = len(name.encode("utf-8", "surrogatepass"))
        if named > controls.CONTROL_NAME_BYTES_MAX:
            raise UsageError(
                f"the name of the control {name[:40]!r} has {named} bytes, the most is "
                f"{controls.CONTROL_NAME_BYTES_MAX}"
            )
        if len(value) > controls.VALUE_BYTES_MAX:
            raise PayloadTooLarge(f"the control {name!r}", len(value), controls.VALUE_BYTES_MAX)
        if value:
            known = self._context.agenda.controls
            size = sum(len(other) + len(state.position) for other, state in known.items())
            wanted = len(known.keys() | {name}), size + len(name) + len(value)
            most = controls.CONTROLS_MAX, controls.CONTROLS_BYTES_MAX
            advice = "take limits and pauses of tasks away that are not needed"
            _check_room(self._context, "controls", wanted, most, advice)

    def switch(self, kind: int, batch: Batch, queue: str) -> bool:
        """Pause or resume a queue; False if it is in that state."""
        queues = self._context.agenda.queues
        if (queue in queues.paused) == (kind == PAUSE):
            return False
        batch.add(encode_queue(kind, queue, batch.lsn))
        (queues.apply_paused if kind == PAUSE else queues.apply_resumed)(queue)
        batch.interest |= INTEREST_READY
        return True


def write_act(batch: Batch, act: Act) -> None:
    """Write an operator's request, with its name."""
    body = act.text.encode("utf-8", "surrogatepass")
    for job in act.jobs or (0,):
        batch.add(codec.encode(ACT, 0, job, 0, lsn=batch.lsn, body=body))


class Ticks:
    """The decisions of one process about schedules."""

    def __init__(self, context: Context, enqueues: Enqueues) -> None:
        self._context = context
        self._enqueues = enqueues

    def tick(self, batch: Batch, turn: Turn) -> list[int | Duplicate] | None:
        """Write ticks and enqueue their jobs; None if another process did, or it is paused."""
        state = self._schedules.get(turn.name)
        if state is None or state.is_paused or state.done_ns != turn.seen_ns:
            return None
        if not state.done_ns < turn.done_ns <= batch.time_ns:
            # The clock was set back since the schedule was read.
            return None
        prepared = self._enqueues.prepared(batch, turn.items)
        last_ns = turn.moments[-1] if turn.moments else state.last_ns
        state = state._replace(last_ns=last_ns, done_ns=turn.done_ns)
        self._write(batch, TickRecord(turn.name, state, has_rule=False))
        return self._enqueues.add(batch, turn.items, prepared)

    def enrol(self, batch: Batch, enrolments: list[Enrolment]) -> None:
        """Add schedules; ticks of a new schedule, or of a new rule, begin now.

        A schedule in code replaces a schedule added at run time, never the reverse.
        """
        for enrolment in enrolments:
            known = self._schedules.get(enrolment.name)
            if enrolment.added and known is not None and not is_added(known.details):
                raise UsageError(
                    f"the schedule {enrolment.name!r} is in the code of a worker: choose another "
                    f"name, change it there, or pause it here"
                )
        new = [enrolment for enrolment in enrolments if self._is_news(enrolment)]
        self._check_room(new)
        for enrolment in new:
            state = self._schedules.get(enrolment.name, ScheduleState())
            if state.rule != enrolment.rule:
                state = state._replace(done_ns=max(batch.time_ns, state.done_ns))
            state = state._replace(rule=enrolment.rule, details=enrolment.details)
            self._write(batch, TickRecord(enrolment.name, state))

    def steer(self, batch: Batch, wish: Steer) -> bool:
        """Pause, resume, reset or forget a schedule; False if that changes nothing."""
        state = self._schedules.get(wish.name)
        if state is None:
            known = ", ".join(sorted(self._schedules)[:5]) or "none"
            raise UsageError(
                f"this log knows no schedule {wish.name!r} (it knows {known}): a schedule is "
                f"known once a worker with it was started"
            )
        if wish.action == "forget":
            self._write(batch, TickRecord(wish.name, state, is_gone=True))
            return True
        if wish.action == "reset":
            state = state._replace(done_ns=batch.time_ns)
        elif state.is_paused == (wish.action == "pause"):
            return False
        else:
            # Ticks missed during a pause stay missed.
            done_ns = max(state.done_ns, batch.time_ns) if state.is_paused else state.done_ns
            state = state._replace(is_paused=not state.is_paused, done_ns=done_ns)
        self._write(batch, TickRecord(wish.name, state, has_rule=False))
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
        most = SCHEDULES_MAX, SCHEDULES_BYTES_MAX
        _check_room(self._context, "schedules", (len(after), size), most)

    def _write(self, batch: Batch, ticked: TickRecord) -> None:
        batch.add(encode_ticked(ticked, batch.lsn))
        before = self._context.agenda.steered
        self._context.agenda.apply_ticked(ticked)
        if self._context.agenda.steered != before:
            batch.interest |= INTEREST_CANCEL

    @property
    def _schedules(self) -> dict[str, ScheduleState]:
        return self._context.agenda.schedules


class Sources:
    """The decisions of one process about positions of sources."""

    def __init__(self, context: Context, enqueues: Enqueues) -> None:
        self._context = context
        self._enqueues = enqueues

    def ingest(self, batch: Batch, asked: Ingest) -> list[int | Duplicate]:
        (name, position, after), items = asked
        known = self._context.agenda.sources
        before = known[name].position if name in known else b""
        if after is not None and after != before:
            actual, expected = map(sources.decode_position, (before, after))
            raise SourceMoved(name, actual, expected)
        if len(position) > len(before):
            self._check_room(name, position)
        answers = self._enqueues.many(batch, items)
        if position or before:
            state = sources.SourceState(position, batch.time_ns)
            moved = sources.SourceRecord(name, state)
            batch.add(encode_moved(moved, batch.lsn))
            sources.apply_moved(known, moved)
        return answers

    def _check_room(self, name: str, position: bytes) -> None:
        after = self._context.agenda.sources | {name: sources.SourceState(position, 0)}
        size = sum(len(source) + len(state.position) for source, state in after.items())
        most = sources.SOURCES_MAX, sources.SOURCES_BYTES_MAX
        _check_room(self._context, "sources", (len(after), size), most)


def _check_room(
    context: Context, what: str, wanted: tuple[int, int], most: tuple[int, int], advice: str = ""
) -> None:
    """Refuse a count or bytes over their limits."""
    if wanted[0] > most[0] or wanted[1] > most[1]:
        forget = command(context.facets.path, what, "forget", "NAME")
        raise UsageError(
            f"this log would know {wanted[0]} {what} of {wanted[1]} bytes, the most is "
            f"{most[0]} of {most[1]} bytes: {advice or f'forget old ones with {forget}'}"
        )


_KEYED: Final = int(records.Flag.KEY_UNTIL_SETTLED)
_AGAIN: Final = kinds.after(model.State.DEAD, REVIVAL)


class DeadLetters:
    """The decisions of one process about dead letters.

    Letters to requeue were read from the log without the lock (``letters``). So each is checked
    again: of several processes that requeue a letter, the first one succeeds.
    """

    def __init__(self, context: Context, ends: Ends, keys: Keys) -> None:
        self._context = context
        self._facets = context.facets
        self._recent = context.recent
        self._ends = ends
        self._keys = keys

    def requeue(self, batch: Batch, letters: list[Letter]) -> list[TaskqError | None]:
        """Make dead letters ready again; return for each None, or the reason against it."""
        return each(self._requeue, batch, letters)

    def purge(self, batch: Batch, jobs: list[int]) -> list[TaskqError | None]:
        """Purge dead letters; return for each None, or the reason against it."""
        return each(self._purge, batch, jobs)

    def _purge(self, batch: Batch, job: int) -> None:
        agenda = self._context.agenda
        if agenda.dead.find(job) is None:
            raise self._not_dead(job)
        options = self._purged(batch, job)
        batch.add(codec.encode_job(REMOVAL, 0, 0, job, 0, options=options))
        forget_dead(agenda, job)
        agenda.steps.drop(job)
        batch.interest |= INTEREST_OUTCOME

    def _requeue(self, batch: Batch, letter: Letter) -> None:
        """Make a dead letter ready again.

        Raises:
            TaskqError: it is no longer dead, or may not hold its key; nothing was added.
        """
        job = letter.job
        agenda = self._context.agenda
        if agenda.dead.find(job) is None:
            raise self._not_dead(job)
        key_until_ns = self._check_key(batch, letter) if letter.has_options else 0
        born = unexpiring(letter.born, job)
        location = batch.where + batch.size
        carried = Carried(
            job=job, state=_AGAIN, born=born, enqueued_ns=letter.enqueued_ns,
            history=letter.history, lines=letter.lines, key_until_ns=key_until_ns,
            waited=self._ends.again(born),
            awaiting=agenda.steps.awaiting(job, agenda.times.shift_ns),
        )  # fmt: skip
        batch.add(encode_carried(REVIVAL, carried, batch.lsn))
        fold_carried(REVIVAL, carried, location, batch.time_ns, agenda, self._facets.dedup)
        # It may be claimed in this very batch, before its record is in a file.
        self._recent.add(job, born)
        batch.interest |= INTEREST_READY

    def _purged(self, batch: Batch, job: int) -> bytes:
        flows, dead = self._context.agenda.flows, self._context.agenda.dead
        chunk = dead.find(job)
        if not flows.held or chunk is None:
            return b""
        try:
            record = self._recent.record(job, chunk.locations[dead.index])
        except LogDamaged:
            return b""
        return self._ends.ending(batch, REMOVAL, job, record) if is_of_flow(record) else b""

    def _check_key(self, batch: Batch, letter: Letter) -> int:
        """Check that the job may hold its key again, if it has one.

        Returns:
            Wall time at which its window for the key ends; 0 without a window.
        """
        key = enqueue_extras(letter.born).key
        if key is None:
            return 0
        dedup, queue = self._context.dedup, queue_of(letter.born)
        hashed = key_hash(queue, key)
        until_ns = dedup.until_ns(hashed, letter.job)
        if codec.PREFIX.unpack_from(letter.born)[4] & _KEYED:
            holder = self._keys.holder(queue, key, hashed, batch.time_ns, itself=letter.job)
            if holder is not None:
                tag = self._context.tag
                raise KeyHeld(tag.id(letter.job), tag.id(holder))
            if not until_ns:
                self._keys.check_room(batch, 1)
        # A window alone counts from the enqueue, so it does not forbid running the job again.
        return 0 if until_ns == UNTIL_SETTLED else until_ns

    def _not_dead(self, job: int) -> NotDead:
        state = self._context.agenda.table.state(job)
        return NotDead(
            self._context.tag.id(job), state.name.lower() if state else "", self._facets.path
        )


class Operations:
    """The deciders of one process.

    The writer lock is held and the facets are caught up, so every decision sees the whole log. A
    decider either raises before it has added anything, or adds everything of its request. Each has
    the ``Context`` and the deciders above it in ``Operations.__init__``, and none below it. The
    deciders of queues, schedules and dead letters are here, too.

    Attributes:
        table: operation -> decider. Claims, settlements without an answer, and operations without a
            decision are missing.
    """

    def __init__(self, journal: Journal, facets: Facets, owner: int, description: bytes) -> None:
        self.context: Context = Context(journal, facets, owner)
        context = self.context
        self.deaths: Deaths = Deaths(context.tag)
        self.asks: Asks = Asks(context)
        self.ends: Ends = Ends(context, self.deaths)
        ends = self.ends
        keys = Keys(context, ends)
        self.enqueues: Enqueues = Enqueues(context, keys)
        enqueues = self.enqueues
        self.claims: Claims = Claims(context, ends, description)
        steps = Steps(context, ends, enqueues)
        self.settles: Settles = Settles(context, ends, enqueues, self.deaths, steps)
        self.cancels: Cancels = Cancels(context, ends)
        queues, ticks = Queues(context), Ticks(context, enqueues)
        letters, rewrites = DeadLetters(context, ends, keys), Rewrites(context)
        bundles = Transactions(context, enqueues, self.cancels, self.settles)
        self.table: dict[int, Callable[[Batch, Any], object]] = {
            Op.ENQUEUE: enqueues.one,
            Op.ENQUEUE_RUN: enqueues.run,
            Op.ENQUEUE_MANY: enqueues.many,
            Op.INGEST: Sources(context, enqueues).ingest,
            Op.EXTEND: self.claims.extend,
            Op.SETTLE: self.settles.settle_each,
            Op.SETTLE_PARENTS: self.settles.settle_each,
            Op.TRANSACT: bundles.transact,
            Op.CANCEL: self.cancels.cancel,
            Op.WITHDRAW: self.cancels.withdraw,
            Op.EDIT: Edits(context, keys).edit,
            Op.STEP: steps.step,
            Op.ASK: steps.step,
            Op.WAIT: steps.begin,
            Op.ROOM: lambda *_: None,
            Op.SIGNAL: steps.signal,
            Op.FORK: steps.fork,
            Op.PAUSE: partial(queues.switch, PAUSE),
            Op.RESUME: partial(queues.switch, RESUME),
            Op.ACT: write_act,
            Op.TICK: ticks.tick,
            Op.ENROL: ticks.enrol,
            Op.STEER: ticks.steer,
            Op.CONTROL: queues.control,
            Op.REQUEUE: letters.requeue,
            Op.PURGE: letters.purge,
            Op.CARRY: rewrites.carry,
            Op.TALLY: rewrites.tally,
            Op.COMPACTED: rewrites.finish,
            Op.DROP: lambda _, segment: rewrites.drop(segment),
        }

    @property
    def has_listeners(self) -> bool:
        return bool(self.asks) or self.deaths.has_listeners

    def forget(self) -> None:
        self.context.recent.clear()
        self.deaths.forget()
        self.claims.forget()

    def report_deaths(self, batch: Batch) -> None:
        if self.deaths:
            self.deaths.enqueue(batch, self.enqueues)

    def close(self, batch: Batch) -> None:
        """Add the last records of a batch, and the interest bits of processes to wake."""
        agenda = self.context.facets.agenda
        if agenda is not None and agenda.groups.freed and agenda.groups.is_freed():
            batch.interest |= INTEREST_READY  # a free place that no claim here takes
