"""Deciding what an enqueue becomes: a record in the batch, applied to the facets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.dedup import key_hash
from taskq.core.errors import LogDamaged
from taskq.core.jobtable import META_EXPIRES
from taskq.core.records import PACKED, Flag
from taskq.log import codec
from taskq.log.foldother import enqueued_meta
from taskq.log.options import encode_extras, enqueue_extras
from taskq.log.ports import INTEREST_READY
from taskq.log.requests import Duplicate, EnqueueSpec
from taskq.log.spill import renew

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskq.core.model import Extras
    from taskq.log.batch import Batch
    from taskq.log.facets import Facets
    from taskq.log.journal import Journal
    from taskq.log.recent import Recent

_CHECKED: Final = int(Flag.CHECKED)
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
_SPILLED: Final = int(Flag.SPILLED)

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


class Enqueues:
    """The enqueues of one process."""

    def __init__(self, journal: Journal, facets: Facets, recent: Recent) -> None:
        self._journal = journal
        self._facets = facets
        self._recent = recent

    def one(self, batch: Batch, item: Item) -> int | Duplicate:
        """A new job's lsn, or the job that holds its key."""
        spec, body, extras = item
        if spec.flags & PACKED:
            self._check_job(batch, item)
        if extras is None:
            return self._add(batch, spec, spec.tail, body)
        return self._add_prepared(batch, spec, body, self._prepare(batch, spec, extras))

    def many(self, batch: Batch, items: list[Item]) -> list[int | Duplicate]:
        """All or none of them."""
        return self.add(batch, items, self.prepared(batch, items))

    def prepared(self, batch: Batch, items: Sequence[Item]) -> list[Prepared | None]:
        """Check enqueues before anything is added; None for those that need no check."""
        for item in items:
            if item[0].flags & PACKED:
                self._check_job(batch, item)
        return [
            None if extras is None else self._prepare(batch, spec, extras)
            for spec, _, extras in items
        ]

    def check_packed(self, batch: Batch, flags: int, body: bytes, what: str) -> None:
        """Check a body that is stored otherwise than it was given, before its record is added.

        Raises:
            SpillMissing: the file that it names is gone.
        """
        batch.is_newer = True
        if flags & _SPILLED:
            renew(self._journal.disk, self._journal.path, body, what)

    def _check_job(self, batch: Batch, item: Item) -> None:
        spec, body, _ = item
        self.check_packed(batch, spec.flags, body, f"the payload of {spec.task or spec.queue}")

    def add(
        self, batch: Batch, items: Iterable[Item], prepared: list[Prepared | None]
    ) -> list[int | Duplicate]:
        """Add what ``prepared`` has checked."""
        return [
            self._add(batch, spec, spec.tail, body)
            if ready is None
            else self._add_prepared(batch, spec, body, ready)
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
            self._recent.add(lsn, record)
        batch.parts.append(record)
        batch.size += len(record)
        batch.payload_size += len(body)
        batch.lsn = lsn + 1
        batch.interest |= INTEREST_READY
        return lsn

    def run(self, batch: Batch, spec: EnqueueSpec, bodies: list[bytes]) -> int:
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
            self._recent.records.update(zip(range(first, lsn), records, strict=True))
            self._recent.size += size
        batch.parts += records
        batch.size += size
        batch.payload_size += size - extra * len(bodies)
        batch.lsn = lsn
        batch.interest |= INTEREST_READY
        return first

    def _prepare(self, batch: Batch, spec: EnqueueSpec, extras: Extras) -> Prepared:
        if extras.key is not None:
            self._facets.need_dedup().check_room(batch.time_ns)
        return Prepared(spec, extras, batch.time_ns)

    def _add_prepared(
        self, batch: Batch, spec: EnqueueSpec, body: bytes, ready: Prepared
    ) -> int | Duplicate:
        if ready.key is not None:
            holder = self._holder(batch, spec, ready)
            if holder is not None:
                return Duplicate(holder)
        location = batch.where + batch.size
        record = codec.encode_checked(ready.tail, body, batch.lsn)
        lsn = batch.add(record)
        batch.payload_size += len(body)
        dedup = self._facets.dedup
        if ready.key is not None and dedup is not None:
            dedup.apply_taken(ready.hashed, lsn, location, ready.window_ns, batch.time_ns)
        agenda = self._facets.agenda
        if agenda is not None or ready.key is not None:
            self._recent.add(lsn, record)
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
                record = self._recent.record(job, location)
            except LogDamaged:
                return job  # it cannot be verified; running it twice would be worse
            size = record[14]
            held_queue = record[codec.ENQUEUED.size : codec.ENQUEUED.size + size]
            if held_queue == queue and enqueue_extras(record).key == ready.key:
                return job
        return None
