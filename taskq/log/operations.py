"""Deciding what a request becomes: records in the batch, and the same change applied to the facets.

The writer lock is held and the facets are caught up, so every decision is made on the whole truth.
A method either raises before it has added anything, or adds all that belongs to its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskq.core.dedup import key_hash
from taskq.core.errors import LogDamaged, TaskqError, refusal
from taskq.core.jobtable import META_DURABLE_CLAIM, META_FLOW, META_KEYED
from taskq.core.model import REASON_BYTES_MAX
from taskq.core.records import Cause, Flag, Kind
from taskq.log import codec
from taskq.log.adopts import Adopts
from taskq.log.cancelling import Cancelling
from taskq.log.carries import Carries
from taskq.log.carrying import encode_lease
from taskq.log.deadletters import DeadLetters
from taskq.log.deaths import Deaths
from taskq.log.enqueues import Enqueues
from taskq.log.flows import FLOW_FLAG, Following
from taskq.log.keys import Keys
from taskq.log.leasing import Leasing, check_claim
from taskq.log.options import encode_key_hash, enqueue_extras
from taskq.log.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.queues import Queues
from taskq.log.rating import mark_rated
from taskq.log.recent import Recent
from taskq.log.requests import ClaimRequest, Delivery, Duplicate, Op, Settlement
from taskq.log.ticks import Ticks
from taskq.log.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.agenda import Agenda, Taken
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.journal import Journal

#: Expired jobs that are recorded in one batch.
EXPIRED_MAX: Final = 2_048
#: Most jobs that one claim gets, however many it asks for.
CLAIMED_MAX: Final = 4_096
_PLAIN_JOB: Final = codec.JOB.size
_SUCCEEDED: Final = Kind.SUCCEEDED
_SUCCEEDED_CODE: Final = int(Kind.SUCCEEDED)
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
#: What others have to do with the end of a job of these flags.
_TIED: Final = int(Flag.KEY_UNTIL_SETTLED | Flag.FLOW)
_FLAGS_AT: Final = 8
#: Causes of a release that burns no attempt.
_KEEPS_ATTEMPT: Final = frozenset({Cause.DRAIN, Cause.SNOOZE, Cause.CONDITION, Cause.BREAKER})


class Operations:
    """The decisions of one process."""

    def __init__(self, journal: Journal, facets: Facets, owner: int, description: bytes) -> None:
        self._journal = journal
        self._facets = facets
        self._owner = owner
        self._description = description
        self._introduced = False
        self._tag = journal.tag
        self.leasing = Leasing(self, facets)
        self.flows = Following(self, facets)
        self.cancels = Cancelling(self, facets, owner, self._tag)
        carries = Carries(journal, facets)
        self.deaths = Deaths(self._tag)
        self.recent = Recent(journal.files)
        self.enqueues = Enqueues(journal, facets, self.recent, Keys(self, journal.config.keys_max))
        letters = DeadLetters(facets, self.recent, self._tag, journal.config.keys_max, self.flows)
        queues = Queues(facets, self._withdraw)
        ticks = Ticks(facets, self.enqueues)
        self._others: dict[int, Callable[[Batch, Any], object]] = {
            Op.ADOPT: Adopts(journal, facets, self.enqueues).adopt,
            Op.CANCEL: self.cancels.cancel,
            Op.EXTEND: self.leasing.extend,
            Op.TRANSACT: Transactions(self, facets, self._tag).run,
            Op.CARRY: carries.carry,
            Op.TALLY: carries.tally,
            Op.COMPACTED: carries.finish,
            Op.DROP: lambda _, segment: carries.drop(segment),
            Op.COLLECT: lambda _, files: carries.collect(files),
            Op.REQUEUE: letters.requeue,
            Op.PURGE: letters.purge,
            Op.PAUSE: queues.pause,
            Op.RESUME: queues.resume,
            Op.WITHDRAW: queues.withdraw,
            Op.TICK: ticks.tick,
            Op.ENROL: ticks.enrol,
            Op.STEER: ticks.steer,
        }

    def forget(self) -> None:
        """The batch was not written: nothing of it may be taken for said."""
        self.recent.clear()
        self.deaths.forget()
        self._introduced = False

    def decide(self, batch: Batch, op: int, operand: Any) -> object:
        """Carry out a request that is neither an enqueue of one job nor a claim."""
        if op == Op.ENQUEUE_MANY:
            return self.enqueues.many(batch, operand)
        if op == Op.SETTLE:
            return [self._settle_one(batch, item) for item in operand]
        if op in self._others:
            return self._others[op](batch, operand)
        raise AssertionError(f"unknown operation {op}")

    def close(self, batch: Batch) -> None:
        """Everything of the batch was decided: add what stands at its end, and say whom to wake."""
        agenda = self._facets.agenda
        if agenda is not None and agenda.groups.freed and agenda.groups.is_freed():
            batch.interest |= INTEREST_READY  # a place is free that nobody here takes
        batch.close()

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, batch: Batch, request: ClaimRequest) -> tuple[list[Delivery], bool]:
        """Deliveries, and whether their claims must be on disk before they run."""
        agenda = self._facets.agenda
        assert agenda is not None
        taken = _take(agenda, request)
        if not taken:
            return [], False
        if not self._introduced:
            batch.add(codec.encode_owner(self._owner, self._description, batch.lsn))
            self._introduced = True
        deliveries: list[Delivery] = []
        must_sync = False
        pack, claimed, owner = codec.JOB.pack, int(Kind.CLAIMED), self._owner
        tag, epoch, recent, running = self._tag, batch.epoch, self.recent.records, agenda.running
        parts, lsn, new = batch.parts, batch.lsn, tuple.__new__
        lease = encode_lease(batch.time_ns + request.lease_ns) if request.lease_ns else b""
        lease_size = len(lease)
        size = _PLAIN_JOB + lease_size
        damaged: list[tuple[Taken, int]] = []
        for one in taken:
            job, location, attempt, lane, meta = one
            record = recent.pop(job, None)
            if record is None:
                try:
                    record = self._journal.files.record(location, job)
                except LogDamaged:
                    damaged.append((one, lsn))
                    record = b""
            parts.append(pack(size, claimed, 0, lease_size, 0, attempt, job, owner))
            running[job] = (lsn, epoch, owner)
            if record:
                deliveries.append(new(Delivery, (tag, job, lsn, epoch, attempt, lane, record)))
            must_sync = must_sync or meta & META_DURABLE_CLAIM != 0
            lsn += 1
        batch.lsn = lsn
        batch.size += size * len(taken)
        if lease:
            parts[-len(taken) :] = [part + lease for part in parts[-len(taken) :]]
            for job, *_ in taken:
                agenda.leases.apply_until(job, batch.time_ns + request.lease_ns)
        mark_rated(batch, taken, request.limits)
        for (job, _, attempt, _, _), token in damaged:
            self._end(
                batch, Kind.DIED, Cause.REJECTED, job, token, attempt, b"its record is damaged"
            )
        return deliveries, must_sync

    # -- settle -----------------------------------------------------------------------------------

    def settle_run(
        self, batch: Batch, items: list[Settlement]
    ) -> list[tuple[Settlement, TaskqError]]:
        """End many deliveries, the plain successes among them in one go; returns the refused."""
        agenda = self._facets.agenda
        assert agenda is not None
        refused: list[tuple[Settlement, TaskqError]] = []
        jobs: list[int] = []
        first_location = batch.where + batch.size
        running, pack, parts = agenda.running, codec.JOB.pack, batch.parts
        others: list[Settlement] = []
        other_jobs: set[int] = set()
        for item in items:
            kind, delivery, body, _, _, children, _ = item
            job = delivery.job
            claim = running.get(job)
            if (
                kind is not _SUCCEEDED
                or body is not None
                or children
                or claim is None
                or claim[0] != delivery.token
                or claim[1] != delivery.epoch
                or delivery.record[_FLAGS_AT] & _TIED
                or job in other_jobs
            ):
                others.append(item)
                other_jobs.add(job)
                continue
            del running[job]  # a second settlement of the same delivery is stale
            parts.append(
                pack(_PLAIN_JOB, _SUCCEEDED_CODE, 0, 0, 0, delivery.attempt, job, delivery.token)
            )
            jobs.append(job)
        if jobs:
            batch.size += _PLAIN_JOB * len(jobs)
            batch.lsn += len(jobs)
            batch.interest |= INTEREST_OUTCOME
            agenda.apply_succeeded(jobs)
            self._facets.note_ends(jobs, first_location, _PLAIN_JOB)
        for item in others:
            try:
                self.settle(batch, item)
            except TaskqError as error:
                refused.append((item, error))
        return refused

    def _settle_one(self, batch: Batch, item: Settlement) -> Any:
        """None, what its children became, or the error that it met."""
        try:
            return self.settle(batch, item) or None
        except TaskqError as error:
            return error

    def settle(self, batch: Batch, item: Settlement) -> list[int | Duplicate]:
        """End a delivery; returns what its children became.

        Raises:
            StaleDelivery: its claim is over.
        """
        kind, delivery, body, delay_ns, cause, children, flags = item
        agenda = self._facets.agenda
        assert agenda is not None
        check_claim(agenda, delivery)
        job = delivery.job
        attempt = delivery.attempt
        tied = delivery.record[_FLAGS_AT] & _TIED
        if kind is not _SUCCEEDED and job in agenda.leases.asked:
            kind, cause = Kind.CANCELLED, Cause.ASKED
        if flags:
            self.enqueues.check_packed(flags, body or b"", f"the result of {delivery!r}")
        is_end = kind is _SUCCEEDED or kind is Kind.DIED or kind is Kind.CANCELLED
        prepared = self.enqueues.prepared(batch, children, frozenset((job,) if is_end else ()))
        if is_end:
            options = b""
            if tied:
                options = self._untie(batch, kind, delivery.record, job)
            location = batch.where + batch.size
            if kind is Kind.DIED:
                body, flags = (body or b"")[:REASON_BYTES_MAX], 0
                self.deaths.note(delivery.lane, job, attempt, cause, body, batch.time_ns)
            elif kind is Kind.CANCELLED:
                body, flags = (body or b"")[:REASON_BYTES_MAX] or None, 0
            batch.add(
                codec.encode_job(
                    kind, cause, attempt, job, delivery.token, body, batch.lsn, options, flags
                )
            )
            agenda.apply_ended(kind, job, batch.time_ns)
            self._facets.note_end(job, location)
            batch.interest |= INTEREST_OUTCOME
        else:
            keeps = cause in _KEEPS_ATTEMPT or (kind is Kind.RELEASED and cause is Cause.CALLER)
            counted = max(attempt - 1, 0) if keeps else attempt
            self._back(batch, kind, cause, job, delivery.token, counted, delay_ns, body)
        return self.enqueues.add(batch, children, prepared)

    def _back(
        self,
        batch: Batch,
        kind: Kind,
        cause: Cause,
        job: int,
        token: int,
        attempt: int,
        delay_ns: int,
        body: bytes | None,
    ) -> None:
        agenda = self._facets.agenda
        assert agenda is not None
        due = batch.time_ns + delay_ns if delay_ns > 0 else 0
        reason = (body or b"")[:REASON_BYTES_MAX]
        batch.add(codec.encode_back(kind, cause, attempt, job, token, due, reason, batch.lsn))
        agenda.apply_back(kind, job, attempt, due, batch.time_ns)
        batch.interest |= INTEREST_READY

    def _end(
        self,
        batch: Batch,
        kind: Kind,
        cause: Cause,
        job: int,
        token: int,
        attempt: int,
        reason: bytes | None,
    ) -> None:
        """End a job that no delivery of ours holds."""
        agenda = self._facets.agenda
        assert agenda is not None
        options = b""
        chunk = agenda.table.find(job)
        if chunk is not None and chunk.metas[agenda.table.index] & (META_KEYED | META_FLOW):
            try:
                record = self.recent.record(job, agenda.location(job))
                options = self._untie(batch, kind, record, job)
            except LogDamaged:
                options = b""
            chunk = agenda.table.find(job)
        if chunk is not None and kind is Kind.DIED:
            lane = agenda.lanes[chunk.lanes[agenda.table.index]]
            self.deaths.note(lane, job, attempt, cause, reason, batch.time_ns)
        location = batch.where + batch.size
        batch.add(codec.encode_job(kind, cause, attempt, job, token, reason, batch.lsn, options))
        agenda.apply_ended(kind, job, batch.time_ns)
        self._facets.note_end(job, location)
        batch.interest |= INTEREST_OUTCOME

    def _untie(self, batch: Batch, kind: Kind, record: bytes, job: int) -> bytes:
        """Let go of what the job's end lets go of; returns the options that tell so."""
        flags, options = record[_FLAGS_AT], b""
        if flags & FLOW_FLAG:
            options = self.flows.ending(batch, kind, job, record)
        if flags & _KEYED:
            options += self._free_key(batch, record, job)
        return options

    def _free_key(self, batch: Batch, record: bytes, job: int) -> bytes:
        key = enqueue_extras(record).key
        if key is None:
            return b""
        start = codec.ENQUEUED.size
        hashed = key_hash(record[start : start + record[14]], key)
        if self._facets.dedup is not None:
            self._facets.dedup.apply_free(hashed, job, batch.time_ns)
        return encode_key_hash(hashed)

    # -- the rest ---------------------------------------------------------------------------------

    def _withdraw(self, batch: Batch, job: int, cause: Cause) -> None:
        agenda = self._facets.agenda
        assert agenda is not None
        self._end(batch, Kind.CANCELLED, cause, job, 0, agenda.attempt(job), None)

    def expire(self, batch: Batch) -> bool:
        """Record jobs whose time has passed; True if more are left for the next batch."""
        agenda = self._facets.agenda
        assert agenda is not None
        for job in agenda.expired(batch.time_ns, EXPIRED_MAX):
            self._end(batch, Kind.EXPIRED, Cause.CALLER, job, 0, agenda.attempt(job), None)
        following = agenda.next_expiry_ns()
        return following is not None and following <= batch.time_ns


def _take(agenda: Agenda, request: ClaimRequest) -> list[Taken]:
    if request.limits is not None:
        agenda.groups.tell(request.limits, agenda.moment)
    count = min(request.count, CLAIMED_MAX)
    if request.weights is not None:
        return request.weights.take(agenda, count, request.queues, request.tasks)
    return agenda.take(count, request.queues, request.tasks)


def failure(error: BaseException) -> TaskqError:
    """An error as the caller gets it."""
    if isinstance(error, TaskqError):
        return error
    if isinstance(error, OSError):
        return refusal("the log", error)
    return TaskqError(f"{type(error).__name__}: {error}")
