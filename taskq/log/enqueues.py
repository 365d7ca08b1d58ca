"""Deciding what an enqueue becomes: a record in the batch, applied to the facets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.flows import needs_of
from taskq.core.jobtable import META_EXPIRES
from taskq.core.records import PACKED, Flag
from taskq.log import codec
from taskq.log.flows import FLOW_FLAG, check_size, encode_part
from taskq.log.foldother import enqueued_meta
from taskq.log.keys import Wanted
from taskq.log.options import encode_extras, encode_replaces
from taskq.log.ports import INTEREST_READY
from taskq.log.requests import Duplicate, EnqueueSpec
from taskq.log.spill import renew

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskq.core.model import Extras
    from taskq.log.batch import Batch
    from taskq.log.context import Context
    from taskq.log.keys import Keys
    from taskq.log.requests import Item

_CHECKED: Final = int(Flag.CHECKED)
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
_SPILLED: Final = int(Flag.SPILLED)


class Prepared:
    """An enqueue that has been checked: what its record says besides the body."""

    __slots__ = (
        "_flow", "_options", "_spec", "concurrency_key", "due_ns", "expires_is_wall", "expires_ns",
        "flags", "is_wall", "wanted",
    )  # fmt: skip

    def __init__(self, spec: EnqueueSpec, extras: Extras, now_ns: int) -> None:
        self._spec = spec
        self._options = encode_extras(extras, now_ns)
        self.flags = int(spec.flags)
        self.wanted = None if extras.key is None else Wanted(spec, extras.key, extras)
        if self.wanted is not None and self.wanted.until_settled:
            self.flags |= _KEYED
        self.concurrency_key = extras.concurrency_key
        self.is_wall = extras.due_is_wall
        self.due_ns = extras.due_ns + (0 if self.is_wall or not extras.due_ns else now_ns)
        self.expires_is_wall = extras.expires_is_wall
        expires = extras.expires_ns
        self.expires_ns = expires + (now_ns if expires and not self.expires_is_wall else 0)
        self._flow = extras.flow
        if extras.flow is not None:
            self.flags |= FLOW_FLAG
            check_size(extras.flow.size + len(self._options))

    @property
    def needs(self) -> int | None:
        """What the job waits for, as ``core.flows`` has it; None if it is not held."""
        flow = self._flow
        return needs_of(flow.needs, flow.policy) if flow is not None and flow.inputs else None

    def tail(self, replaced: int, lsn: int) -> bytes:
        """The record from behind its length up to its body, as it is written at ``lsn``."""
        spec, options = self._spec, self._options
        if self._flow is not None:
            options += encode_part(self._flow, lsn)
        if replaced:
            options += encode_replaces(replaced)
        return codec.enqueue_tail(
            spec.priority, self.flags, spec.attempts, spec.lane_key[0], spec.lane_key[1],
            spec.route, options,
        )  # fmt: skip


class Enqueues:
    """The enqueues of one process."""

    def __init__(self, context: Context, keys: Keys) -> None:
        self._journal = context.journal
        self._facets = context.facets
        self._recent = context.recent
        self._keys = keys

    def one(self, batch: Batch, item: Item) -> int | Duplicate:
        """Enqueue a job: its lsn, or the job that holds its key.

        Raises:
            UsageError: an option is wrong, or there is no room for its key.
            DuplicateKey: its key is held, and it asked to be refused then.
        """
        spec, body, extras = item
        if extras is not None:
            return self.many(batch, [item])[0]
        if spec.flags & PACKED:
            self._check_job(item)
        return self._add(batch, spec, spec.tail, body)

    def many(self, batch: Batch, items: list[Item]) -> list[int | Duplicate]:
        """Enqueue jobs, all or none of them."""
        return self.add(batch, items, self.prepared(batch, items))

    def prepared(
        self, batch: Batch, items: Sequence[Item], ending: frozenset[int] = frozenset()
    ) -> list[Prepared | None]:
        """Check enqueues before anything is added; None for those that need no check.

        ``ending`` are jobs that will be settled before these are added.
        """
        for item in items:
            if item[0].flags & PACKED:
                self._check_job(item)
        now_ns = batch.time_ns
        found = [
            None if extras is None else Prepared(spec, extras, now_ns) for spec, _, extras in items
        ]
        wanted = [one.wanted for one in found if one is not None and one.wanted is not None]
        if wanted:
            self._keys.check(batch, wanted, ending)
        return found

    def check_packed(self, flags: int, body: bytes, what: str) -> None:
        """Check a body that is stored otherwise than it was given, before its record is added.

        Raises:
            SpillMissing: the file that it names is gone.
        """
        if flags & _SPILLED:
            renew(self._journal.disk, self._journal.path, body, what)

    def _check_job(self, item: Item) -> None:
        spec, body, _ = item
        self.check_packed(spec.flags, body, f"the payload of {spec.task or spec.queue}")

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
            lane = agenda.queues.lane(spec.priority, spec.lane_key)
            meta = enqueued_meta(spec.flags) if spec.flags != _CHECKED else 0
            agenda.apply_enqueued(lsn, batch.where + batch.size, lane, meta)
            self._recent.add(lsn, record)
        batch.parts.append(record)
        batch.size += len(record)
        batch.payload_size += len(body)
        batch.lsn = lsn + 1
        batch.interest |= INTEREST_READY
        return lsn

    def enqueue_run(self, batch: Batch, spec: EnqueueSpec, bodies: list[bytes]) -> int:
        """Enqueue plain jobs of one spec in one go; returns the first one's lsn.

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
            lane = agenda.queues.lane(spec.priority, spec.lane_key)
            agenda.apply_enqueued_run(first, locations, lane, enqueued_meta(spec.flags))
            self._recent.records.update(zip(range(first, lsn), records, strict=True))
            self._recent.size += size
        batch.parts += records
        batch.size += size
        batch.payload_size += size - extra * len(bodies)
        batch.lsn = lsn
        batch.interest |= INTEREST_READY
        return first

    def _add_prepared(
        self, batch: Batch, spec: EnqueueSpec, body: bytes, ready: Prepared
    ) -> int | Duplicate:
        wanted, replaced = ready.wanted, 0
        if wanted is not None:
            holder, replaced = self._keys.make_way(batch, wanted)
            if holder is not None:
                return Duplicate(holder)
        location = batch.where + batch.size
        record = codec.encode_checked(ready.tail(replaced, batch.lsn), body, batch.lsn)
        lsn = batch.add(record)
        batch.payload_size += len(body)
        if wanted is not None:
            self._keys.take(batch, wanted, lsn, location)
        agenda = self._facets.agenda
        if agenda is not None or wanted is not None:
            self._recent.add(lsn, record)
        if agenda is not None:
            lane = agenda.queues.lane(spec.priority, spec.lane_key + ready.concurrency_key)
            meta = enqueued_meta(ready.flags) | (META_EXPIRES if ready.expires_ns else 0)
            needs = ready.needs
            if needs is not None:
                agenda.apply_held(lsn, location, lane, meta, needs)
            elif ready.due_ns > batch.time_ns:
                agenda.apply_scheduled(lsn, location, lane, meta, ready.due_ns, ready.is_wall)
            else:
                agenda.apply_enqueued(lsn, location, lane, meta)
            if ready.expires_ns:
                agenda.apply_expiry(lsn, ready.expires_ns, ready.expires_is_wall)
        batch.interest |= INTEREST_READY
        return lsn
