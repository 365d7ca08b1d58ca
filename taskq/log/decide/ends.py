"""The common part of every end of a job: its record, the freed key and the dependent jobs."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Final

from taskq.core.errors import LogDamaged, StaleDelivery
from taskq.core.flows import DOOM_BIT, Policy
from taskq.core.folds.agenda import Agenda, apply_step
from taskq.core.folds.jobtable import META_FLOW, META_KEYED
from taskq.core.folds.steps import Form
from taskq.core.kinds import CANCEL, DEATHS, RELEASE, REMOVALS, SUCCESS
from taskq.core.model import REASON_BYTES_MAX, State
from taskq.core.records import Cause, Flag
from taskq.log.format import codec
from taskq.log.format.carried import key_hash_of
from taskq.log.format.codec import FLAGS_AT
from taskq.log.format.flows import (
    FLOW_FLAG,
    Stepped,
    encode_step,
    encode_unlocks,
    is_of_flow,
    takes_of,
)
from taskq.log.format.options import UNREAD_KEY, encode_key_hash
from taskq.log.machine.ports import INTEREST_OUTCOME, INTEREST_READY

#: Kind of the record by which a job begins to undo its steps.
UNDO: Final = "undo"

if TYPE_CHECKING:
    from taskq.log.decide.context import Batch, Context
    from taskq.log.decide.listeners import Deaths
    from taskq.log.requests import Delivery

#: Most held jobs released or cancelled in one frame; the next frame has the rest.
FOLLOWED_MAX: Final = 4_096
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)


def check_claim(agenda: Agenda, delivery: Delivery) -> None:
    claim = agenda.running.get(delivery.job)
    if claim is None or claim[0] != delivery.token or claim[1] != delivery.epoch:
        raise StaleDelivery(f"{delivery!r} is over: the job was taken back or settled meanwhile")


class Ends:
    """The ends of jobs, of any kind.

    A job ends by its delivery (``settle``), or without a delivery: cancelled, expired, taken back
    for the last time, or replaced by another job of its key. An end frees the job's key, and the
    jobs of its flow that waited for it. Any other job is given back.
    """

    def __init__(self, context: Context, deaths: Deaths) -> None:
        self._context = context
        self._facets = context.facets
        self._recent = context.recent
        self._deaths = deaths

    def back(
        self,
        batch: Batch,
        kind: int,
        cause: Cause,
        job: int,
        token: int,
        attempt: int,
        delay_ns: int,
        body: bytes | None,
        options: bytes = b"",
    ) -> None:
        """Give a job back: it is ready again, or due after ``delay_ns``."""
        agenda = self._facets.agenda
        assert agenda is not None
        due = batch.time_ns + delay_ns if delay_ns > 0 else 0
        reason = (body or b"")[:REASON_BYTES_MAX]
        lsn = batch.lsn
        batch.add(codec.encode_back(kind, cause, attempt, job, token, due, reason, lsn, options))
        agenda.apply_back(job, attempt, due, batch.time_ns)
        batch.interest |= INTEREST_READY

    def end(
        self,
        batch: Batch,
        kind: int,
        cause: Cause,
        job: int,
        token: int,
        attempt: int,
        reason: bytes | None,
    ) -> bool:
        """End a job without a delivery of this process; False if its steps are undone first."""
        agenda = self._facets.agenda
        assert agenda is not None
        if job in agenda.steps.undos and self.unwind(batch, kind, cause, job, token, reason):
            return False
        options = b""
        chunk = agenda.table.find(job)
        meta = 0 if chunk is None else chunk.metas[agenda.table.index]
        if meta & (META_KEYED | META_FLOW):
            try:
                record = self._recent.record(job, agenda.location(job))
                options = self.untie(batch, kind, record, job)
            except LogDamaged:
                options = self._free_unread(batch, job) if meta & META_KEYED else b""
            chunk = agenda.table.find(job)
        if chunk is not None and kind in DEATHS:
            lane = agenda.lanes[chunk.lanes[agenda.table.index]]
            self._deaths.note(lane, job, attempt, cause, reason, batch.time_ns)
        location = batch.where + batch.size
        batch.add(codec.encode_job(kind, cause, attempt, job, token, reason, batch.lsn, options))
        agenda.apply_ended(kind, job, batch.time_ns)
        self._facets.note_end(job, location)
        batch.interest |= INTEREST_OUTCOME
        return True

    def unwind(
        self, batch: Batch, kind: int, cause: Cause, job: int, token: int, reason: bytes | None
    ) -> bool:
        """Let an ending job run once more to undo its steps; False if it ends now.

        The record holds its later end. A second cancel of a job that waits to undo its steps ends
        it.
        """
        agenda = self._context.agenda
        attempt = agenda.attempt(job)
        if agenda.steps.undos[job] != Form.UNDOING:
            text = (reason or b"").decode("utf-8", "replace")
            body = json.dumps({"kind": int(kind), "cause": int(cause), "reason": text}).encode()
            place = agenda.steps.count(job)
            step = Stepped(UNDO, 1, Form.UNDOING, place, body=body)
            location = batch.where + batch.size
            batch.add(encode_step(step, attempt, job, token or job, batch.lsn))
            apply_step(agenda, job, place, location, 0, b"", form=Form.UNDOING)
        elif not token:
            return False
        if token or agenda.table.state(job) is State.SCHEDULED:
            why = cause if token else Cause.INPUTS
            self.back(batch, RELEASE, why, job, token, attempt, 0, reason)
        batch.interest |= INTEREST_READY
        return True

    def untie(self, batch: Batch, kind: int, record: bytes, job: int) -> bytes:
        flags, options = record[FLAGS_AT], b""
        if flags & FLOW_FLAG:
            options = self.ending(batch, kind, job, record)
        if flags & _KEYED:
            options += self._free_key(batch, record, job)
        return options

    def _free_key(self, batch: Batch, record: bytes, job: int) -> bytes:
        hashed = key_hash_of(record)
        if not hashed:
            return b""
        if self._facets.dedup is not None:
            self._facets.dedup.apply_free(hashed, job, batch.time_ns)
        return encode_key_hash(hashed)

    def _free_unread(self, batch: Batch, job: int) -> bytes:
        if self._facets.dedup is not None:
            self._facets.dedup.apply_free_unread(job, batch.time_ns)
        return encode_key_hash(UNREAD_KEY)

    def ending(self, batch: Batch, kind: int, job: int, record: bytes) -> bytes:
        """Note that the batch's next record ends or purges a job of a flow.

        Return the option for that record, which comes first among its options.
        """
        agenda = self._context.agenda
        flows = agenda.flows
        names: list[int] = []
        for dependent in takes_of(record).unlocks:
            left = flows.remaining(dependent)
            if left is None:
                continue
            _, policy, _ = left
            if kind == SUCCESS or (policy == Policy.RUN and kind not in REMOVALS):
                names.append(dependent)
            elif policy == Policy.CANCEL or (policy == Policy.WAIT and kind not in DEATHS):
                # Unlike dead letters, cancelled, expired and purged jobs never become ready again.
                names.append(dependent | DOOM_BIT)
        flows.apply_end(job, batch.where + batch.size, names, agenda.jobs_left_of_call)
        return encode_unlocks(names)

    def again(self, record: bytes) -> tuple[int, ...]:
        """Return the held jobs for which a requeued dead letter had counted as done."""
        if not is_of_flow(record):
            return ()
        flows = self._context.agenda.flows
        return tuple(
            dependent
            for dependent in takes_of(record).unlocks
            if (left := flows.remaining(dependent)) is not None and left[1] == Policy.RUN
        )

    def follow(self, batch: Batch) -> None:
        """Release and cancel held jobs after their inputs, up to the limit of a frame."""
        agenda = self._context.agenda
        flows, left = agenda.flows, FOLLOWED_MAX
        while flows.todo and left:
            for job in list(islice(flows.todo, left)):
                left -= 1
                held = flows.remaining(job)
                chunk = agenda.table.find(job)
                if held is None or chunk is None:
                    flows.drop(job)
                    continue
                attempt = agenda.attempt(job)
                if held[2]:
                    self.end(batch, CANCEL, Cause.UPSTREAM, job, 0, attempt, None)
                else:
                    released = RELEASE, Cause.INPUTS
                    self.back(batch, *released, job, 0, attempt, 0, None)
