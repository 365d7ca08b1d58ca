"""Enqueues of one job, a run, and many jobs; and the rule which job holds a key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast

import taskq._native as native
from taskq.core.errors import DuplicateKey, LogDamaged, TaskqError
from taskq.core.flows import needs_of
from taskq.core.folds.dedup import key_hash
from taskq.core.folds.jobtable import META_EXPIRES
from taskq.core.kinds import CANCEL
from taskq.core.model import WAITING_STATES, Conflict, Extras
from taskq.core.records import PACKED, PACKED_MIN, Cause, Flag
from taskq.log.format import codec
from taskq.log.format.flows import FLOW_FLAG, check_size, encode_part
from taskq.log.format.options import encode_extras, encode_replaces, enqueue_extras, queue_of
from taskq.log.machine.ports import INTEREST_READY
from taskq.log.requests import Duplicate, EnqueueSpec, Item, Plain
from taskq.log.state.fold import enqueued_meta

if TYPE_CHECKING:
    from taskq.core.folds.lanes import Lane
    from taskq.log.decide import context, ends

#: Approximate bytes of a record besides its payload.
_RECORD_BYTES: Final = 48
#: Fields of a job in a line, one after the other: spec, body and future.
LINE_WIDTH: Final = 3


#: Spec of a job in a line, together with its options, if any.
Spec: TypeAlias = EnqueueSpec | tuple[EnqueueSpec, Extras]
_PAIRED_BYTES_MAX: Final = 256


def paired(spec: EnqueueSpec, extras: Extras | None) -> Spec | None:
    """Return the entry for a job in a line; None if the job must be a request of its own."""
    if spec.flags >= PACKED_MIN:
        return None
    if extras is None:
        return spec
    size = len(extras.key or b"") + len(extras.concurrency_key)
    is_small = not extras.headers and extras.flow is None and size <= _PAIRED_BYTES_MAX
    return (spec, extras) if is_small else None


class Run:
    """Jobs of one turn of an event loop, with their callers' futures; acts as a future itself.

    Most batches are the jobs of one task, from callers on one event loop who each await their
    answer. As columns they cost a tenth of single requests. So they stay together from the mailbox
    to the answers, and are split only if one of them may harm the others.

    Attributes:
        specs, bodies, futures: one of each per job; (spec, extras) for a job with options.
        size: approximate bytes that they add to the log.
        is_alike: whether all have one spec, and no options.
        extras: options of the jobs with options.
        steps_waiters: whether futures keep their callbacks in the attribute that ``answer`` reads.
    """

    steps_waiters: ClassVar[bool] = True

    __slots__ = ("bodies", "extras", "futures", "is_alike", "size", "specs")

    def __init__(self, specs: Sequence[Spec], bodies: list[bytes], futures: list[Any]) -> None:
        self.specs: Sequence[Spec] = specs
        self.bodies: list[bytes] = bodies
        self.futures: list[Any] = futures
        self.size: int = sum(map(len, bodies)) + _RECORD_BYTES * len(bodies)
        self.is_alike: bool = not specs or (
            type(specs[0]) is not tuple and specs.count(specs[0]) == len(specs)
        )
        self.extras: list[Extras] = (
            [] if self.is_alike else [spec[1] for spec in specs if isinstance(spec, tuple)]
        )

    def drop_withdrawn(self) -> None:
        """Leave out jobs whose callers cancelled in time."""
        left = [number for number, future in enumerate(self.futures) if not future.done()]
        self.specs = [self.specs[number] for number in left]
        self.bodies = [self.bodies[number] for number in left]
        self.futures = [self.futures[number] for number in left]

    def by_spec(self) -> Iterator[tuple[Spec, list[bytes]]]:
        """Yield runs of adjacent jobs with the same spec: (spec, bodies)."""
        start, specs = 0, self.specs
        for end in range(1, len(specs) + 1):
            if end == len(specs) or specs[end] is not specs[start]:
                yield specs[start], self.bodies[start:end]
                start = end

    def singles(self) -> Iterator[Run]:
        for spec, body, future in zip(self.specs, self.bodies, self.futures, strict=True):
            yield Run([spec], [body], [future])

    def done(self) -> bool:
        return all(future.done() for future in self.futures)

    def set_result(self, values: Iterable[int | Duplicate | TaskqError]) -> None:
        """Answer each caller, usually with its job's lsn, on a turn of the loop."""
        self._answer(zip(self.futures, values, strict=True))

    def set_exception(self, error: BaseException) -> None:
        self._answer(zip(self.futures, repeat(error)))

    def _answer(self, left: Iterator[tuple[Any, Any]]) -> None:
        try:
            if native.is_on and Run.steps_waiters:
                native.plain.answer_all(left)
            for future, value in left:
                if future.done():
                    continue
                if type(value) is int:
                    answer(future, value)
                elif isinstance(value, Exception):
                    future.set_exception(value)
                else:
                    future.set_result(value)
        except BaseException:
            # A task stepped here raised, SystemExit for example; the others still get their
            # answers.
            self.futures[0].get_loop().call_soon(self._answer, left)
            raise


def together(items: list[Item] | Plain) -> list[Item] | Plain:
    if isinstance(items, Plain) or not items:
        return items
    specs, bodies, extras = zip(*items, strict=True)
    spec, count = specs[0], len(items)
    alike = specs.count(spec) == count and extras.count(None) == count
    return Plain(spec, list(bodies)) if alike and not spec.flags & PACKED else items


def answer(future: Any, lsn: int) -> None:
    """Answer a future, and step the one task that awaits it right here.

    An asyncio future wakes its task through the loop: for every job one more handle is made, queued
    and run in Python. Answers come on a turn of the loop that belongs to no task, so the task can
    be stepped now. The task's callback must be the future's only one; otherwise another callback
    could expect the earlier turn. The step runs the caller's code here, which may enqueue and await
    again before this returns.
    """
    try:
        waiting = future._callbacks
    except AttributeError:  # another kind of future, of a thread without a loop
        waiting = None
    if waiting is None or len(waiting) != 1 or not Run.steps_waiters:
        future.set_result(lsn)
        return
    ((wake, context),) = waiting
    future.remove_done_callback(wake)
    future.set_result(lsn)
    context.run(wake, future)


def take(line: list[Any], room: int) -> Run:
    """Take the jobs at the head of a line, up to the first job beyond ``room`` bytes.

    A line is a list that its port's thread appends to. The caller whose job is first in the line
    sends a request for all of them. Another thread takes jobs, and then checks the line again: no
    other request is sent for the rest.
    """
    if native.is_on:
        taken = native.plain.take(line, room, _RECORD_BYTES)
        if taken is not None:
            return Run(*taken)
    part = line[:]
    sizes = list(accumulate(len(body) + _RECORD_BYTES for body in part[1::LINE_WIDTH]))
    if sizes and sizes[-1] > room:
        part = part[: LINE_WIDTH * (1 + bisect_right(sizes, room))]
    del line[: len(part)]
    return Run(part[0::LINE_WIDTH], part[1::LINE_WIDTH], part[2::LINE_WIDTH])


_NOBODY: Final[frozenset[int]] = frozenset()


class Wanted:
    """The key of a job to enqueue.

    Attributes:
        queue, key: queue and key in bytes.
        hashed: hash of both in the table of keys.
        window_ns, until_settled: how long it will be held.
        conflict: behaviour if another job holds it.
    """

    __slots__ = ("conflict", "hashed", "key", "queue", "until_settled", "window_ns")

    def __init__(self, spec: EnqueueSpec, key: bytes, extras: Extras) -> None:
        self.queue: bytes = spec.route[: spec.lane_key[0]]
        self.key: bytes = key
        self.hashed: int = key_hash(self.queue, key)
        self.window_ns: int = extras.window_ns
        self.until_settled: bool = extras.until_settled or not extras.window_ns
        self.conflict: Conflict = extras.on_conflict


class Keys:
    """Decide which of two jobs with the same dedup key keeps it."""

    def __init__(self, context: context.Context, ends: ends.Ends) -> None:
        self._context = context
        self._ends = ends
        self._keys_max = context.journal.config.keys_max

    def check(
        self, batch: context.Batch, wanted: Iterable[Wanted], ending: frozenset[int] = _NOBODY
    ) -> None:
        """Refuse jobs that are enqueued together, before any of them is added.

        ``ending`` are jobs that will be settled before these are added.
        """
        places: dict[tuple[bytes, bytes], Wanted] = {}
        for wish in wanted:
            place = wish.queue, wish.key
            if wish.conflict is Conflict.RAISE:
                holder = self._holder(batch, wish, ending)
                if holder is not None or place in places:
                    raise self._error(wish, holder)
            places[place] = wish
        count = len(places)
        if self._context.dedup.size + count > self._keys_max:
            # Only now count the keys that are in the table already and add no entry.
            count = sum(self._holder(batch, wish) is None for wish in places.values())
        if count:
            self.check_room(batch, count)

    def is_free(self, batch: context.Batch, wanted: Wanted) -> bool:
        """Return whether the key is surely free, and there is room for one more key."""
        dedup = self._context.dedup
        is_held = next(dedup.holders(wanted.hashed, batch.time_ns), None) is not None
        return not is_held and dedup.size < self._keys_max

    def check_room(self, batch: context.Batch, count: int) -> None:
        self._context.dedup.check_room(batch.time_ns, count, self._keys_max)

    def make_way(self, batch: context.Batch, wanted: Wanted) -> tuple[int | None, int]:
        """Return (the job that keeps the key, the job that gives it up); None and 0 for no job.

        With REPLACE a holder gives the key up unless it runs; a waiting holder is cancelled.
        """
        holder = self._holder(batch, wanted)
        if holder is None or wanted.conflict is not Conflict.REPLACE:
            return holder, 0
        agenda = self._context.agenda
        if agenda.table.find(holder) is not None:
            if agenda.table.state(holder) not in WAITING_STATES:
                return holder, 0
            attempt = agenda.attempt(holder)
            self._ends.end(batch, CANCEL, Cause.REPLACED, holder, 0, attempt, None)
        self._context.dedup.apply_dropped(wanted.hashed, holder)
        return None, holder

    def take(self, batch: context.Batch, wanted: Wanted, job: int, location: int) -> None:
        self._context.dedup.apply_taken(
            wanted.hashed, job, location, wanted.window_ns, batch.time_ns,
            until_settled=wanted.until_settled,
        )  # fmt: skip

    def _error(self, wanted: Wanted, holder: int | None) -> DuplicateKey:
        job_id = "" if holder is None else self._context.tag.id(holder)
        return DuplicateKey(wanted.queue.decode("utf-8", "replace"), wanted.key, job_id)

    def _holder(
        self, batch: context.Batch, wanted: Wanted, ending: frozenset[int] = _NOBODY
    ) -> int | None:
        return self.holder(wanted.queue, wanted.key, wanted.hashed, batch.time_ns, ending)

    def holder(
        self,
        queue: bytes,
        key: bytes,
        hashed: int,
        now_ns: int,
        ending: frozenset[int] = _NOBODY,
        itself: int = 0,
    ) -> int | None:
        """Return the holder of a key other than ``itself``, verified against its record.

        Jobs that are ``ending`` do not count, if their end frees the key.
        """
        dedup = self._context.dedup
        for job, location in dedup.holders(hashed, now_ns):
            if job == itself or (job in ending and dedup.would_free(hashed, job, now_ns)):
                continue
            try:
                record = self._context.recent.record(job, location)
            except LogDamaged:
                return job  # not verifiable; running the job twice would be worse
            if queue_of(record) == queue and enqueue_extras(record).key == key:
                return job
        return None


_CHECKED: Final = int(Flag.CHECKED)
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)


class Prepared:
    """A checked enqueue: the parts of its record besides the body."""

    __slots__ = (
        "_flow", "_options", "_spec", "concurrency_key", "due_ns", "expires_is_wall", "expires_ns",
        "flags", "is_wall", "wanted",
    )  # fmt: skip

    def __init__(self, spec: EnqueueSpec, extras: Extras, now_ns: int) -> None:
        self._spec = spec
        self._options = encode_extras(extras, now_ns)
        self.flags: int = int(spec.flags)
        self.wanted: Wanted | None = (
            None if extras.key is None else Wanted(spec, extras.key, extras)
        )
        if self.wanted is not None and self.wanted.until_settled:
            self.flags |= _KEYED
        self.concurrency_key: bytes = extras.concurrency_key
        self.is_wall: bool = extras.due_is_wall
        self.due_ns: int = extras.due_ns + (0 if self.is_wall or not extras.due_ns else now_ns)
        self.expires_is_wall: bool = extras.expires_is_wall
        expires = extras.expires_ns
        self.expires_ns: int = expires + (now_ns if expires and not self.expires_is_wall else 0)
        self._flow = extras.flow
        if extras.flow is not None:
            self.flags |= FLOW_FLAG
            check_size(extras.flow.size + len(self._options))

    @property
    def needs(self) -> int | None:
        """Return its count of inputs, packed as in ``core.flows``; None if it is not held."""
        flow = self._flow
        return needs_of(flow.needs, flow.policy) if flow is not None and flow.inputs else None

    def tail(self, replaced: int, lsn: int) -> bytes:
        """Return the record for ``lsn``, from after its length up to its body."""
        spec, options = self._spec, self._options
        if self._flow is not None:
            options += encode_part(self._flow, lsn)
        if replaced:
            options += encode_replaces(replaced)
        return codec.enqueue_tail(
            spec.priority, self.flags, spec.attempts, spec.lane_key[0], spec.lane_key[1],
            spec.route, options,
        )  # fmt: skip


class Rows:
    """New jobs of a batch before they are written, one after the other.

    Attributes:
        groups: adjacent jobs: (lane, meta, count, due time or 0, whether that is wall time).
        expiries: (job, moment, whether that is wall time).
        start, end: location of the first job, and of the next new job.
    """

    __slots__ = (
        "bodies", "end", "expiries", "groups", "has_keys", "lsn", "now_ns", "start", "tails",
    )  # fmt: skip

    def __init__(self, batch: context.Batch) -> None:
        self.tails: list[bytes] = []
        self.bodies: list[bytes] = []
        self.groups: list[tuple[Lane, int, int, int, bool]] = []
        self.expiries: list[tuple[int, int, bool]] = []
        self.has_keys: bool = False
        self.lsn: int = batch.lsn
        self.now_ns: int = batch.time_ns
        self.start: int = batch.where + batch.size
        self.end: int = self.start

    def add(self, tail: bytes, bodies: list[bytes]) -> None:
        count = len(bodies)
        self.tails += [tail] * count
        self.bodies += bodies
        self.lsn += count
        self.end += (len(tail) + codec.CRC_SIZE + codec.LENGTH.size) * count + sum(map(len, bodies))


class Enqueues:
    """The enqueues of one process."""

    def __init__(self, context: context.Context, keys: Keys) -> None:
        self._journal = context.journal
        self._facets = context.facets
        self._recent = context.recent
        self._keys = keys

    def one(self, batch: context.Batch, item: Item) -> int | Duplicate:
        """Enqueue a job; return its lsn, or the job that holds its key."""
        spec, body, extras = item
        if extras is not None:
            return self.many(batch, [item])[0]
        return self._add(batch, spec, spec.tail, body)

    def many(self, batch: context.Batch, items: list[Item] | Plain) -> list[int | Duplicate]:
        if isinstance(items, Plain):
            first = self.enqueue_run(batch, *items)
            return list(range(first, batch.lsn))
        return self.add(batch, items, self.prepared(batch, items))

    def prepared(
        self, batch: context.Batch, items: Sequence[Item], ending: frozenset[int] = frozenset()
    ) -> list[Prepared | None]:
        """Check enqueues before any is added; None for items without options.

        ``ending`` are jobs that will be settled before these are added.
        """
        now_ns = batch.time_ns
        checked = [
            None if extras is None else Prepared(spec, extras, now_ns) for spec, _, extras in items
        ]
        wanted = [job.wanted for job in checked if job is not None and job.wanted is not None]
        if wanted:
            self._keys.check(batch, wanted, ending)
        return checked

    def add(
        self, batch: context.Batch, items: Iterable[Item], prepared: list[Prepared | None]
    ) -> list[int | Duplicate]:
        return [
            self._add(batch, spec, spec.tail, body)
            if ready is None
            else self._add_prepared(batch, spec, body, ready)
            for (spec, body, _), ready in zip(items, prepared, strict=True)
        ]

    def _add(self, batch: context.Batch, spec: EnqueueSpec, tail: bytes, body: bytes) -> int:
        """Enqueue a plain job that is ready at once: the hot path."""
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

    def run(self, batch: context.Batch, run: Run) -> Sequence[int | Duplicate | TaskqError]:
        if any(future.done() for future in run.futures):
            run.drop_withdrawn()
        if not run.is_alike:
            return self._mixed(batch, run)
        first = batch.lsn
        if run.specs:
            self.enqueue_run(batch, cast("EnqueueSpec", run.specs[0]), run.bodies)
        return range(first, batch.lsn)

    def _mixed(self, batch: context.Batch, run: Run) -> list[int | Duplicate | TaskqError]:
        """Enqueue jobs of several specs, some with options, together as far as possible."""
        answers: list[int | Duplicate | TaskqError] = []
        rows = Rows(batch)
        for spec, bodies in run.by_spec():
            if not isinstance(spec, tuple):
                answers += self._row(rows, spec, bodies)
                continue
            plain, extras = spec
            try:
                ready = Prepared(plain, extras, batch.time_ns)
                wanted = ready.wanted
                if wanted is not None and not self._keys.is_free(batch, wanted):
                    # The holder may be one of these rows, or be cancelled.
                    self._write(batch, rows)
                    rows = Rows(batch)
                    answers += self.many(batch, [(plain, bodies[0], extras)])
                    rows = Rows(batch)
                    continue
            except TaskqError as error:
                answers.append(error)
                continue
            if wanted is not None:
                rows.has_keys = True
                self._keys.take(batch, wanted, rows.lsn, rows.end)
            answers += self._row(rows, plain, bodies, ready)
        self._write(batch, rows)
        return answers

    def _row(
        self, rows: Rows, spec: EnqueueSpec, bodies: list[bytes], ready: Prepared | None = None
    ) -> range:
        agenda = self._facets.agenda
        lsn, tail = rows.lsn, spec.tail if ready is None else ready.tail(0, rows.lsn)
        if agenda is not None:
            if ready is None:
                lane = agenda.queues.lane(spec.priority, spec.lane_key)
                group = lane, enqueued_meta(spec.flags), len(bodies), 0, False
            else:
                lane = agenda.queues.lane(spec.priority, spec.lane_key + ready.concurrency_key)
                meta = enqueued_meta(ready.flags) | (META_EXPIRES if ready.expires_ns else 0)
                due_ns = ready.due_ns if ready.due_ns > rows.now_ns else 0
                group = lane, meta, 1, due_ns, ready.is_wall
                if ready.expires_ns:
                    rows.expiries.append((lsn, ready.expires_ns, ready.expires_is_wall))
            rows.groups.append(group)
        rows.add(tail, bodies)
        return range(lsn, rows.lsn)

    def _write(self, batch: context.Batch, rows: Rows) -> None:
        if not rows.bodies:
            return
        first = batch.lsn
        records, locations, end = codec.born_records(rows.tails, rows.bodies, first, rows.start)
        agenda = self._facets.agenda
        if agenda is not None:
            agenda.apply_enqueued_groups(first, locations, rows.groups)
            for expiry in rows.expiries:
                agenda.apply_expiry(*expiry)
        if agenda is not None or rows.has_keys:
            self._recent.records.update(zip(range(first, rows.lsn), records, strict=True))
            self._recent.size += end - rows.start
        batch.parts += records
        batch.lsn = rows.lsn
        batch.size += end - rows.start
        batch.payload_size += sum(map(len, rows.bodies))
        batch.interest |= INTEREST_READY

    def enqueue_run(self, batch: context.Batch, spec: EnqueueSpec, bodies: Sequence[bytes]) -> int:
        """Enqueue plain jobs of one spec together; return the first job's lsn.

        Most batches are runs of one task's jobs, and the columns of the agenda take a run for a
        tenth of the cost of single jobs.
        """
        first, start = batch.lsn, batch.where + batch.size
        records, locations, end = codec.born_records(spec.tail, bodies, first, start)
        batch.lsn += len(bodies)
        agenda = self._facets.agenda
        if agenda is not None:
            lane = agenda.queues.lane(spec.priority, spec.lane_key)
            agenda.apply_enqueued_run(first, locations, lane, enqueued_meta(spec.flags))
            self._recent.records.update(zip(range(first, batch.lsn), records, strict=True))
            self._recent.size += end - start
        batch.parts += records
        batch.size += end - start
        batch.payload_size += end - start - (len(spec.tail) + 8) * len(bodies)
        batch.interest |= INTEREST_READY
        return first

    def _add_prepared(
        self, batch: context.Batch, spec: EnqueueSpec, body: bytes, ready: Prepared
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
