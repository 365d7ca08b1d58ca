"""Rewritten jobs: jobs still needed from a segment before its removal, and edited jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from taskq.core.errors import KeyHeld, NotWaiting, UsageError
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import UNTIL_SETTLED, Dedup
from taskq.core.folds.jobtable import (
    ATTEMPT_MASK,
    ATTEMPT_SHIFT,
    META_EXPIRES,
    META_STEPS,
    STATE_MASK,
)
from taskq.core.kinds import EDIT, PAUSE, REPEAT, after
from taskq.core.model import LIVE_STATES, TIME_NS_MAX, WAITING_STATES, State
from taskq.core.records import TABLE, Kind
from taskq.core.schedules import TickRecord
from taskq.core.sources import SourceRecord
from taskq.log.decide import context, enqueue, steps
from taskq.log.format.carried import (
    Carried,
    encode_carried,
    encode_compacted,
    encode_queue,
    encode_tally,
    key_hash_of,
)
from taskq.log.format.flows import again, fold_step
from taskq.log.format.notes import GroupKey, encode_moved, encode_rated, encode_ticked
from taskq.log.format.options import enqueue_extras, queue_of, rerouted, unexpiring
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import Edit, Floor, Rewrite
from taskq.log.state.fold import fold_carried

#: Possible states of a job after an edit.
_READY: Final = after(State.READY, EDIT)
_SCHEDULED: Final = after(State.READY, EDIT, waits=True)


class Rewrites:
    """The decisions of compaction.

    Its jobs were read without the lock. So each job is checked again here, under the lock, and
    written only if it has not changed; other jobs are left to the next pass.
    """

    def __init__(self, context: context.Context) -> None:
        self._context = context
        self._journal = context.journal

    def carry(self, batch: context.Batch, items: list[Rewrite | steps.Again]) -> int:
        """Rewrite these jobs and steps; return how many had changed and need another pass."""
        agenda, dedup = self._context.agenda, self._context.dedup
        missed = 0
        for item in items:
            if not isinstance(item, Rewrite):
                missed += self._write_again(batch, item)
                continue
            if item.state is State.ABSENT and _key_until(dedup, item) <= batch.time_ns:
                continue
            carried = self._carried(agenda, dedup, item)
            if carried is None:
                missed += 1
                continue
            location = batch.where + batch.size
            batch.add(encode_carried(REPEAT, carried, batch.lsn))
            fold_carried(REPEAT, carried, location, batch.time_ns, agenda, None)
            fold_carried(REPEAT, carried, location, batch.time_ns, None, dedup)
            # The job may be claimed, or end, in this very batch, before its record is in a file.
            self._context.recent.add(item.job, carried.born)
        return missed

    def _write_again(self, batch: context.Batch, item: steps.Again) -> bool:
        """Rewrite a step or signal that is still at its location; otherwise it is not needed.

        Return whether its job has ended since it was found.
        """
        agenda = self._context.agenda
        token: int | None = 0
        if not item.is_kept:
            number = agenda.steps.number_at(item.job, item.location)
            if number is None:
                return agenda.table.find(item.job) is None and agenda.dead.find(item.job) is None
            token = number or None
        record = again(item.record, token, item.time_ns, batch.lsn)
        location, lsn = batch.where + batch.size, batch.lsn
        batch.add(record)
        fold_step(record, lsn, location, agenda)
        return False

    def tally(self, batch: context.Batch, lanes: range | list[tuple[str, bytes]]) -> None:
        """Write totals of these lanes, paused queues, and all schedules, sources and controls.

        For a list of groups write the claim times of these groups instead.
        """
        agenda = self._context.agenda
        if isinstance(lanes, list):
            write_rated(batch, agenda, lanes)
            return
        for lane in agenda.lanes[lanes.start : lanes.stop]:
            if lane.succeeded or lane.dead or lane.cancelled or lane.expired:
                batch.add(encode_tally(lane, batch.lsn))
        if not lanes.start:
            for queue in sorted(agenda.queues.paused):
                batch.add(encode_queue(PAUSE, queue, batch.lsn))
            for name, state in sorted(agenda.schedules.items()):
                batch.add(encode_ticked(TickRecord(name, state), batch.lsn))
            for source, stand in sorted(agenda.sources.items()):
                batch.add(encode_moved(SourceRecord(source, stand), batch.lsn))
            for control in map(SourceRecord._make, sorted(agenda.controls.items())):
                batch.add(encode_moved(control, batch.lsn, Kind.STEERED))

    def finish(self, batch: context.Batch, floor: Floor) -> None:
        agenda = self._context.agenda
        batch.add(encode_compacted(floor.lsn, batch.lsn))
        agenda.floor_lsn = max(agenda.floor_lsn, floor.lsn)

    def drop(self, segment: int) -> bool | None:
        """Remove a segment from the log; False unless a record on disk allows it.

        None if another program has it open, on a system that cannot remove open files.

        Raises:
            OSError: the disk refused.
        """
        agenda = self._context.agenda
        files = self._journal.files
        files.refresh()
        if segment not in files.lsns[:-1] or segment != files.lsns[0]:
            return False
        if agenda.floor_lsn <= segment or files.lsns[1] > agenda.floor_lsn:
            return False
        try:
            files.remove(segment)
        except PermissionError:  # other requests of the batch are not affected
            return None
        return True

    def _carried(self, agenda: Agenda, dedup: Dedup, item: Rewrite) -> Carried | None:
        if item.state in LIVE_STATES:
            return carried_live(agenda, dedup, item)
        awaiting = b""
        if item.state is State.DEAD:
            awaiting = agenda.steps.awaiting(item.job, agenda.times.shift_ns)
            chunk = agenda.dead.find(item.job)
            if chunk is None or chunk.locations[agenda.dead.index] != item.location:
                return None
        return Carried(
            job=item.job, state=item.state, born=item.born, enqueued_ns=item.enqueued_ns,
            attempt=item.attempt, ended_ns=item.ended_ns, history=item.history, body=item.body,
            lines=item.lines, flags=item.flags,
            key_until_ns=_key_until(dedup, item), expires_ns=item.expires_ns, awaiting=awaiting,
        )  # fmt: skip


class Edits:
    """The decisions about edits of waiting jobs."""

    def __init__(self, context: context.Context, keys: enqueue.Keys) -> None:
        self._context = context
        self._keys = keys

    def edit(self, batch: context.Batch, wish: Edit) -> bool | None:
        """Edit a waiting job; False if it is as wished already, None if it changed meanwhile."""
        context = self._context
        agenda, dedup, job = context.agenda, context.dedup, wish.item.job
        state = agenda.table.state(job)
        if state not in WAITING_STATES:
            name = state.name.lower() if state else "settled"
            raise NotWaiting(context.tag.id(job), name, context.facets.path)
        before = carried_live(agenda, dedup, wish.item)
        if before is None:
            return None
        edited = self._moved(self._timed(before, wish, batch.time_ns), wish, batch.time_ns)
        if edited == before:
            return False
        location = batch.where + batch.size
        batch.add(encode_carried(EDIT, edited, batch.lsn))
        batch.features += (TABLE[EDIT].feature,)
        fold_carried(EDIT, edited, location, batch.time_ns, agenda, dedup)
        # Like above: before its record is in a file.
        context.recent.add(job, edited.born)
        batch.interest |= INTEREST_READY
        return True

    def _timed(self, carried: Carried, wish: Edit, now_ns: int) -> Carried:
        if wish.due is None:
            return carried
        if self._context.agenda.steps.is_waiting(carried.job):
            raise UsageError(
                f"job {self._context.tag.id(carried.job)} waits within its run, and no edit ends "
                f"that: signal it, or cancel it. Its priority and queue can be changed"
            )
        if carried.needs is not None:
            raise UsageError(
                f"job {self._context.tag.id(carried.job)} waits for other jobs, not for a moment: "
                f"it is ready once these are done. Its priority and queue can be changed"
            )
        due_ns, is_wall = wish.due
        due_ns += 0 if is_wall else now_ns
        if due_ns > now_ns:
            return carried._replace(state=_SCHEDULED, due_ns=due_ns, due_is_wall=is_wall)
        if carried.state is _READY:
            return carried
        return carried._replace(state=_READY, due_ns=now_ns, due_is_wall=False)

    def _moved(self, carried: Carried, wish: Edit, now_ns: int) -> Carried:
        born = rerouted(carried.born, carried.job, wish.priority, wish.queue)
        if wish.queue in (None, queue_of(carried.born)):
            return carried._replace(born=born)
        left_key, key = key_hash_of(carried.born), enqueue_extras(born).key
        if key is None or not self._context.dedup.until_ns(left_key, carried.job):
            return carried._replace(born=born)
        queue = queue_of(born)
        holder = self._keys.holder(queue, key, key_hash_of(born), now_ns, itself=carried.job)
        if holder is not None:
            tag = self._context.tag
            raise KeyHeld(tag.id(carried.job), tag.id(holder), f"moved to {queue.decode()!r}")
        return carried._replace(born=born, left_key=left_key)


def carried_live(agenda: Agenda, dedup: Dedup, item: Rewrite) -> Carried | None:
    """Return an unsettled job to rewrite; None if it is not as it was found."""
    job, table = item.job, agenda.table
    chunk = table.find(job)
    if chunk is None or chunk.locations[table.index] != item.location:
        return None
    meta = chunk.metas[table.index]
    attempt = (meta & ATTEMPT_MASK) >> ATTEMPT_SHIFT
    if meta & STATE_MASK != item.state or attempt != item.attempt:
        return None
    due_ns, due_is_wall = 0, item.due_is_wall
    needs = agenda.flows.held.get(job)
    awaiting = agenda.steps.awaiting(job, agenda.times.shift_ns) if meta & META_STEPS else b""
    if agenda.steps.is_waiting(job):
        moment = agenda.steps.moment(job)
        due_ns = moment + agenda.times.shift_ns if moment else TIME_NS_MAX
        due_is_wall = not moment
    elif needs is not None:
        due_ns, due_is_wall = TIME_NS_MAX, True
    elif item.state is State.SCHEDULED:
        if not agenda.times.waits(job, item.due_ns, item.due_is_wall):
            return None
        due_ns = item.due_ns + (0 if item.due_is_wall else agenda.times.shift_ns)
    elif item.state is State.READY:
        due_ns = agenda.ready_since_ns(job, item.enqueued_ns)
    born, expires_ns = item.born, 0
    if meta & META_EXPIRES and item.state is not State.RUNNING:
        expiry_ns = _expiry(agenda, item)
        if expiry_ns is None:
            return None
        expires_ns = expiry_ns
    else:
        born = unexpiring(born, job)
    token, epoch, owner = agenda.running.get(job, (0, 0, 0))
    return Carried(
        job=job, state=item.state, born=born, enqueued_ns=item.enqueued_ns,
        attempt=attempt, token=token, due_ns=due_ns, due_is_wall=due_is_wall,
        claim=(epoch, owner), lease_ns=agenda.leases.deadline_ns(job),
        key_until_ns=_key_until(dedup, item), expires_ns=expires_ns, history=item.history,
        lines=item.lines, cancel_wanted=job in agenda.leases.asked, needs=needs, awaiting=awaiting,
    )  # fmt: skip


def _expiry(agenda: Agenda, item: Rewrite) -> int | None:
    """Return the job's expiry by the present clock, 0 if it is wall time; None if it changed."""
    if enqueue_extras(item.born).expires_is_wall:
        return 0
    if not agenda.times.expires(item.job, item.expires_ns):
        return None
    return item.expires_ns + agenda.times.shift_ns


def _key_until(dedup: Dedup, item: Rewrite) -> int:
    """Return the wall time until which the job holds its key; 0 without a key or a window."""
    hashed = key_hash_of(item.born)
    if not hashed:
        return 0
    until = dedup.until_ns(hashed, item.job)
    return 0 if until == UNTIL_SETTLED else until


def write_rated(batch: context.Batch, agenda: Agenda, keys: Iterable[GroupKey]) -> None:
    shift_ns = agenda.times.shift_ns
    for key in keys:
        times = agenda.groups.times(key, agenda.moment)
        if times is not None:
            batch.add(encode_rated(key, times, shift_ns, batch.lsn))
