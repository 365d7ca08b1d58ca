"""Deciding what a request becomes: records in the batch, and the same change applied to the facets.

The writer lock is held and the facets are caught up, so every decision is made on the whole truth.
A method either raises before it has added anything, or adds all that belongs to its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.dedup import key_hash
from taskq.core.errors import LogDamaged, StaleDelivery, TaskqError
from taskq.core.jobtable import META_DURABLE_CLAIM, META_EXPIRES, META_KEYED, STATE_MASK
from taskq.core.model import REASON_BYTES_MAX, State
from taskq.core.records import Cause, Flag, Kind
from taskq.core.transitions import legal
from taskq.log import codec
from taskq.log.fold import enqueued_meta
from taskq.log.options import encode_extras, encode_key_hash, enqueue_extras
from taskq.log.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.requests import ClaimRequest, Delivery, Duplicate, EnqueueSpec, Settlement

if TYPE_CHECKING:
    from taskq.core.agenda import Taken
    from taskq.core.model import Extras
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.journal import Journal

#: Payloads of recent jobs that are kept at hand; beyond, they are read back from the segment.
RECENT_BYTES_MAX: Final = 4 * 1024 * 1024
#: Expired jobs that are recorded in one batch.
EXPIRED_MAX: Final = 2_048
_CHECKED: Final = int(Flag.CHECKED)
_PLAIN_JOB: Final = codec.JOB.size
_SUCCEEDED: Final = Kind.SUCCEEDED
_SUCCEEDED_CODE: Final = int(Kind.SUCCEEDED)
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
_FLAGS_AT: Final = 8

Item = tuple[EnqueueSpec, bytes, "Extras | None"]


class Prepared:
    """An enqueue that has been checked: what its record says besides the body."""

    __slots__ = ("due_ns", "expires_ns", "flags", "hashed", "is_wall", "key", "tail", "window_ns")

    def __init__(self, spec: EnqueueSpec, extras: Extras, now_ns: int) -> None:
        options = encode_extras(extras, now_ns)
        flags = int(spec.flags)
        if extras.key is not None and not extras.window_ns:
            flags |= _KEYED
        queue_size = spec.lane_key[0]
        self.flags = flags
        self.key = extras.key
        self.window_ns = extras.window_ns
        self.hashed = key_hash(spec.route[:queue_size], extras.key) if extras.key else 0
        self.is_wall = extras.due_is_wall
        self.due_ns = extras.due_ns + (0 if self.is_wall or not extras.due_ns else now_ns)
        expires = extras.expires_ns
        self.expires_ns = expires + (now_ns if expires and not extras.expires_is_wall else 0)
        self.tail = codec.enqueue_tail(
            spec.priority, flags, spec.attempts, queue_size, spec.lane_key[1], spec.route, options
        )


class Operations:
    """The decisions of one process."""

    def __init__(self, journal: Journal, facets: Facets, owner: int, description: bytes) -> None:
        self._journal = journal
        self._facets = facets
        self._owner = owner
        self._description: bytes | None = description
        self._tag = journal.tag
        #: enqueue records of recent jobs: all of this batch, and some before it
        self.recent: dict[int, bytes] = {}
        self._recent_bytes = 0

    def begin(self) -> None:
        """Before a batch."""
        if self._recent_bytes > RECENT_BYTES_MAX:
            self.recent.clear()
            self._recent_bytes = 0

    # -- enqueue ----------------------------------------------------------------------------------

    def enqueue(self, batch: Batch, item: Item) -> int | Duplicate:
        """A new job's lsn, or the job that holds its key."""
        spec, body, extras = item
        if extras is None:
            return self._add(batch, spec, spec.tail, body)
        return self._enqueue_prepared(batch, spec, body, self._prepare(batch, spec, extras))

    def enqueue_many(self, batch: Batch, items: list[Item]) -> list[int | Duplicate]:
        """All or none of them."""
        prepared = [
            None if extras is None else self._prepare(batch, spec, extras)
            for spec, _, extras in items
        ]
        return [
            self._add(batch, spec, spec.tail, body)
            if ready is None
            else self._enqueue_prepared(batch, spec, body, ready)
            for (spec, body, _), ready in zip(items, prepared, strict=True)
        ]

    def _add(self, batch: Batch, spec: EnqueueSpec, tail: bytes, body: bytes) -> int:
        """The hot path: a plain job that is ready at once."""
        lsn = batch.lsn
        record = codec.pack_length(len(tail) + len(body) + 8) + tail + body
        record += codec.pack_length(codec.crc32(record, lsn & 0xFFFFFFFF))
        agenda = self._facets.agenda
        if agenda is not None:
            lane = agenda.lane(spec.priority, spec.lane_key)
            meta = enqueued_meta(spec.flags) if spec.flags != _CHECKED else 0
            agenda.apply_enqueued(lsn, batch.where + batch.size, lane, meta)
            self.recent[lsn] = record
            self._recent_bytes += len(record)
        batch.parts.append(record)
        batch.size += len(record)
        batch.lsn = lsn + 1
        batch.interest |= INTEREST_READY
        return lsn

    def enqueue_run(self, batch: Batch, spec: EnqueueSpec, bodies: list[bytes]) -> int:
        """Plain jobs of one spec, in one go; returns the first one's lsn.

        Most batches are runs of one task's jobs, and the columns of the agenda take a run for a
        tenth of what single jobs cost.
        """
        first = lsn = batch.lsn
        tail, extra = spec.tail, len(spec.tail) + 8
        pack, crc32 = codec.pack_length, codec.crc32
        location = batch.where + batch.size
        records: list[bytes] = []
        locations: list[int] = []
        for body in bodies:
            record = pack(extra + len(body)) + tail + body
            record += pack(crc32(record, lsn & 0xFFFFFFFF))
            records.append(record)
            locations.append(location)
            location += len(record)
            lsn += 1
        size = location - batch.where - batch.size
        agenda = self._facets.agenda
        if agenda is not None:
            lane = agenda.lane(spec.priority, spec.lane_key)
            agenda.apply_enqueued_run(first, locations, lane, enqueued_meta(spec.flags))
            self.recent.update(zip(range(first, lsn), records, strict=True))
            self._recent_bytes += size
        batch.parts += records
        batch.size += size
        batch.lsn = lsn
        batch.interest |= INTEREST_READY
        return first

    def _prepare(self, batch: Batch, spec: EnqueueSpec, extras: Extras) -> Prepared:
        if extras.key is not None:
            self._facets.need_dedup().check_room(batch.time_ns)
        return Prepared(spec, extras, batch.time_ns)

    def _enqueue_prepared(
        self, batch: Batch, spec: EnqueueSpec, body: bytes, ready: Prepared
    ) -> int | Duplicate:
        if ready.key is not None:
            holder = self._holder(batch, spec, ready)
            if holder is not None:
                return Duplicate(holder)
        location = batch.where + batch.size
        record = codec.encode_checked(ready.tail, body, batch.lsn)
        lsn = batch.add(record)
        dedup = self._facets.dedup
        if ready.key is not None and dedup is not None:
            dedup.apply_taken(ready.hashed, lsn, location, ready.window_ns, batch.time_ns)
        agenda = self._facets.agenda
        if agenda is not None or ready.key is not None:
            self.recent[lsn] = record
            self._recent_bytes += len(record)
        if agenda is not None:
            lane = agenda.lane(spec.priority, spec.lane_key)
            meta = enqueued_meta(ready.flags) | (META_EXPIRES if ready.expires_ns else 0)
            if ready.due_ns > batch.time_ns:
                agenda.apply_scheduled(lsn, location, lane, meta, ready.due_ns, ready.is_wall)
            else:
                agenda.apply_enqueued(lsn, location, lane, meta)
            if ready.expires_ns:
                agenda.apply_expiry(lsn, ready.expires_ns)
        batch.interest |= INTEREST_READY
        return lsn

    def _holder(self, batch: Batch, spec: EnqueueSpec, ready: Prepared) -> int | None:
        """The job that holds the key, verified against its record."""
        dedup = self._facets.dedup
        assert dedup is not None
        queue = spec.route[: spec.lane_key[0]]
        for job, location in dedup.holders(ready.hashed, batch.time_ns):
            try:
                record = self._record(job, location)
            except LogDamaged:
                return job  # it cannot be verified; running it twice would be worse
            size = record[14]
            held_queue = record[codec.ENQUEUED.size : codec.ENQUEUED.size + size]
            if held_queue == queue and enqueue_extras(record).key == ready.key:
                return job
        return None

    # -- claim ------------------------------------------------------------------------------------

    def claim(self, batch: Batch, request: ClaimRequest) -> tuple[list[Delivery], bool]:
        """Deliveries, and whether their claims must be on disk before they run."""
        agenda = self._facets.agenda
        assert agenda is not None
        taken = agenda.take(request.count, request.queues, request.tasks)
        if not taken:
            return [], False
        if self._description is not None:
            batch.add(codec.encode_owner(self._owner, self._description, batch.lsn))
            self._description = None
        deliveries: list[Delivery] = []
        must_sync = False
        pack, claimed, owner = codec.JOB.pack, int(Kind.CLAIMED), self._owner
        tag, epoch, recent, running = self._tag, batch.epoch, self.recent, agenda.running
        parts, lsn, new = batch.parts, batch.lsn, tuple.__new__
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
            parts.append(pack(_PLAIN_JOB, claimed, 0, 0, 0, attempt, job, owner))
            running[job] = (lsn, epoch, owner)
            if record:
                deliveries.append(new(Delivery, (tag, job, lsn, epoch, attempt, lane, record)))
            must_sync = must_sync or meta & META_DURABLE_CLAIM != 0
            lsn += 1
        batch.lsn = lsn
        batch.size += _PLAIN_JOB * len(taken)
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
        for item in items:
            kind, delivery, body, _, _, children = item
            job = delivery.job
            claim = running.get(job)
            if (
                kind is not _SUCCEEDED
                or body is not None
                or children
                or claim is None
                or claim[0] != delivery.token
                or claim[1] != delivery.epoch
                or delivery.record[_FLAGS_AT] & _KEYED
            ):
                others.append(item)
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

    def settle(self, batch: Batch, item: Settlement) -> None:
        """End a delivery.

        Raises:
            StaleDelivery: its claim is over.
        """
        kind, delivery, body, delay_ns, cause, children = item
        agenda = self._facets.agenda
        assert agenda is not None
        job = delivery.job
        claim = agenda.running.get(job)
        if claim is None or claim[0] != delivery.token or claim[1] != delivery.epoch:
            raise StaleDelivery(
                f"{delivery!r} is over: the job was taken back or settled meanwhile"
            )
        attempt = delivery.attempt
        keyed = delivery.record[_FLAGS_AT] & _KEYED
        ready = [
            None if extras is None else self._prepare(batch, spec, extras)
            for spec, _, extras in children
        ]
        if kind is Kind.SUCCEEDED or kind is Kind.DIED:
            options = b""
            if keyed:
                options = self._free_key(delivery.record, job)
            location = batch.where + batch.size
            if kind is Kind.DIED:
                body = (body or b"")[:REASON_BYTES_MAX]
            batch.add(
                codec.encode_job(
                    kind, cause, attempt, job, delivery.token, body, batch.lsn, options
                )
            )
            agenda.apply_ended(kind, job)
            self._facets.note_end(job, location)
            batch.interest |= INTEREST_OUTCOME
        else:
            keeps = cause in (Cause.DRAIN, Cause.SNOOZE) or (
                kind is Kind.RELEASED and cause is Cause.CALLER
            )
            counted = max(attempt - 1, 0) if keeps else attempt
            self._back(batch, kind, cause, job, delivery.token, counted, delay_ns, body)
        for (spec, child, _), prepared in zip(children, ready, strict=True):
            if prepared is None:
                self._add(batch, spec, spec.tail, child)
            else:
                self._enqueue_prepared(batch, spec, child, prepared)

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
        if chunk is not None and chunk.metas[agenda.table.index] & META_KEYED:
            try:
                options = self._free_key(self._record(job, agenda.location(job)), job)
            except LogDamaged:
                options = b""
        location = batch.where + batch.size
        batch.add(codec.encode_job(kind, cause, attempt, job, token, reason, batch.lsn, options))
        agenda.apply_ended(kind, job)
        self._facets.note_end(job, location)
        batch.interest |= INTEREST_OUTCOME

    def _free_key(self, record: bytes, job: int) -> bytes:
        key = enqueue_extras(record).key
        if key is None:
            return b""
        start = codec.ENQUEUED.size
        hashed = key_hash(record[start : start + record[14]], key)
        if self._facets.dedup is not None:
            self._facets.dedup.apply_free(hashed, job)
        return encode_key_hash(hashed)

    # -- the rest ---------------------------------------------------------------------------------

    def cancel(self, batch: Batch, job: int) -> bool:
        """Withdraw a waiting job; False if it is running or settled."""
        agenda = self._facets.agenda
        assert agenda is not None
        if not legal(agenda.state(job), Kind.CANCELLED):
            return False
        self._end(batch, Kind.CANCELLED, Cause.CALLER, job, 0, agenda.attempt(job), None)
        return True

    def expire(self, batch: Batch) -> bool:
        """Record jobs whose time has passed; True if more are left for the next batch."""
        agenda = self._facets.agenda
        assert agenda is not None
        for job in agenda.expired(batch.time_ns, EXPIRED_MAX):
            self._end(batch, Kind.EXPIRED, Cause.CALLER, job, 0, agenda.attempt(job), None)
        following = agenda.next_expiry_ns()
        return following is not None and following <= batch.time_ns

    def take_back(self, batch: Batch, dead: set[int]) -> int:
        """Give back the jobs of dead owners, or end those whose attempts are spent; how many."""
        agenda = self._facets.agenda
        assert agenda is not None
        lost = [(job, claim[0]) for job, claim in agenda.running.items() if claim[2] in dead]
        for job, token in lost:
            attempt = agenda.attempt(job)
            if self._is_last(job, attempt):
                reason = f"WorkerLost: the worker process died while it ran attempt {attempt}"
                self._end(batch, Kind.DIED, Cause.OWNER_LOST, job, token, attempt, reason.encode())
            else:
                self._back(
                    batch, Kind.RELEASED, Cause.OWNER_LOST, job, token, attempt, 0,
                    b"WorkerLost: the worker process died",
                )  # fmt: skip
        return len(lost)

    def _is_last(self, job: int, attempt: int) -> bool:
        agenda = self._facets.agenda
        assert agenda is not None
        chunk = agenda.table.find(job)
        if chunk is None or chunk.metas[agenda.table.index] & STATE_MASK != State.RUNNING:
            return False
        try:
            record = self._record(job, chunk.locations[agenda.table.index])
        except LogDamaged:
            return False
        allowed = codec.ENQUEUED.unpack_from(record)[5]
        return bool(allowed) and attempt >= allowed

    def _record(self, job: int, location: int) -> bytes:
        record = self.recent.get(job)
        return record if record is not None else self._journal.files.record(location, job)


def failure(error: BaseException) -> TaskqError:
    """An error as the caller gets it."""
    return (
        error if isinstance(error, TaskqError) else TaskqError(f"{type(error).__name__}: {error}")
    )
