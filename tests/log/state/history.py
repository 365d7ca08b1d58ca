"""Random histories of a log, written twice at once: as records, and straight into the folds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup, key_hash
from taskq.core.folds.jobtable import META_EXPIRES, META_KEYED
from taskq.core.model import Extras, State
from taskq.core.records import Cause, Flag, Kind
from taskq.log.format import codec
from taskq.log.format.frames import Frame, Scanner
from taskq.log.format.options import encode_extras, encode_key_hash, encode_replaces
from taskq.log.requests import EnqueueSpec
from taskq.log.state.fold import enqueued_meta

LOG_ID: Final = UUID(int=0x1234)
SEED: Final = codec.segment_seed(LOG_ID, 1)
BASE: Final = 3 << 32
EPOCH: Final = 99
ALL: Final = 2**62
START_NS: Final = 10**18
SPECS: Final = tuple(
    EnqueueSpec(queue, task, priority, 3)
    for queue in ("default", "mail")
    for task in ("", "tâche")
    for priority in (0, 5, 9)
)
#: a step of a history: (name, number, number, flag)
Step = tuple[str, int, int, bool]


@dataclass(slots=True)
class Batch:
    """Records of one moment, and the lsn of the first."""

    time_ns: int
    first_lsn: int
    records: list[bytes] = field(default_factory=list)


class History:
    """Decides the outcome of each step; applies it to ``agenda`` and ``dedup`` directly."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.dedup = Dedup()
        self.time_ns = START_NS
        self.lsn = 1
        self.offset = codec.SEGMENT_HEADER.size
        self.batches: list[Batch] = []
        self.keys: dict[int, int] = {}
        self.jobs_by_hash: dict[int, int] = {}
        self.hashes: set[int] = set()

    def run(self, steps: list[Step]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)
        self.close()

    # -- batches -----------------------------------------------------------------------------------

    def begin(self, span: int, step: int, has_step: bool) -> None:
        """The next batch: time goes by ``span``, and the clock may step."""
        self.close()
        self.time_ns += span
        if has_step:
            self.time_ns += step - 150
        self.batches.append(Batch(self.time_ns, self.lsn))
        if has_step:
            self.agenda.apply_clock(step - 150)
            self.dedup.apply_clock(step - 150)
            self.add(codec.encode_clock(step - 150, self.lsn))
        self.agenda.promote(self.time_ns, ALL)

    def close(self) -> None:
        if self.batches and self.batches[-1].records:
            size = sum(map(len, self.batches[-1].records))
            self.offset += codec.frame_size(size)

    def add(self, record: bytes) -> int:
        if not self.batches:
            self.batches.append(Batch(self.time_ns, self.lsn))
        batch = self.batches[-1]
        at = sum(map(len, batch.records))
        batch.records.append(record)
        self.agenda.ages.note(batch.first_lsn, max(batch.time_ns - self.agenda.times.shift_ns, 0))
        self.lsn += 1
        return BASE + self.offset + codec.FRAME_HEADER_SIZE + at

    # -- steps -------------------------------------------------------------------------------------

    def enqueue(self, number: int, moment: int, is_wall: bool) -> None:
        spec = SPECS[number % len(SPECS)]
        extras = Extras()
        if moment % 3 == 0:
            extras.due_ns = moment + (self.time_ns - 100 if is_wall else 0)
            extras.due_is_wall = is_wall
        if moment % 4 == 0:
            extras.expires_ns = moment + 1 + (0 if is_wall else self.time_ns)
            extras.expires_is_wall = not is_wall
        if moment % 5 == 0:
            extras.key = b"key %d" % (number % 3)
            extras.window_ns = 0 if number % 2 else moment + 1
            extras.until_settled = number % 4 > 1
        if moment % 7 == 0:
            extras.headers = {"trace": "é" * (number % 4), "": ""}
        self._enqueue(spec, extras)

    def _enqueue(self, spec: EnqueueSpec, extras: Extras) -> None:
        flags = int(spec.flags)
        hashed = 0
        if extras.key is not None:
            hashed = key_hash(spec.queue.encode(), extras.key)
            if extras.until_settled or not extras.window_ns:
                flags |= Flag.KEY_UNTIL_SETTLED
        options = encode_extras(extras, self.time_ns)
        replaced = self.jobs_by_hash.get(hashed, 0) if hashed and self.lsn % 3 == 0 else 0
        if replaced:
            options += encode_replaces(replaced)
            self.dedup.apply_dropped(hashed, replaced)
        sizes = spec.lane_key[:2]
        tail = codec.enqueue_tail(
            spec.priority, flags, spec.attempts, sizes[0], sizes[1], spec.route, options
        )
        job = self.lsn
        location = self.add(codec.encode_checked(tail, b"payload of %d" % job, job))
        lane = self.agenda.queues.lane(spec.priority, spec.lane_key)
        expires = extras.expires_ns
        expires += self.time_ns if expires and not extras.expires_is_wall else 0
        meta = enqueued_meta(flags) | (META_EXPIRES if expires else 0)
        due = extras.due_ns
        due += self.time_ns if due and not extras.due_is_wall else 0
        if due > self.time_ns:
            self.agenda.apply_scheduled(job, location, lane, meta, due, extras.due_is_wall)
        else:
            self.agenda.apply_enqueued(job, location, lane, meta)
        if expires:
            self.agenda.apply_expiry(job, expires, extras.expires_is_wall)
        if hashed:
            self.dedup.apply_taken(
                hashed, job, location, extras.window_ns, self.time_ns,
                until_settled=extras.until_settled,
            )  # fmt: skip
            self.keys[job] = hashed
            self.jobs_by_hash[hashed] = job
            self.hashes.add(hashed)

    def claim(self, count: int, owner: int, __: bool) -> None:
        for job, _, attempt, _, _ in self.agenda.order.take(count % 8, None, None):
            token = self.lsn
            self.add(codec.encode_job(Kind.CLAIMED, 0, attempt, job, owner))
            self.agenda.running[job] = (token, EPOCH, owner)

    def claim_elsewhere(self, pick: int, owner: int, _: bool) -> None:
        """A claim that did not come out of ``take``: of any ready job."""
        job = self._pick(State.READY, pick)
        if job:
            token, attempt = self.lsn, self.agenda.attempt(job) + 1
            self.add(codec.encode_job(Kind.CLAIMED, 0, attempt, job, owner))
            self.agenda.apply_claimed(job, token, EPOCH, owner, attempt)

    def give_back(self, pick: int, delay: int, releases: bool) -> None:
        job = self._pick(State.RUNNING, pick)
        if job:
            kind = Kind.RELEASED if releases else Kind.RETRIED
            attempt = self.agenda.attempt(job) - releases
            due = self.time_ns + delay if delay % 2 else 0
            token = self.agenda.running[job][0]
            self.add(codec.encode_back(kind, Cause.DRAIN, attempt, job, token, due, b"", self.lsn))
            self.agenda.apply_back(job, attempt, due, self.time_ns)

    def settle(self, pick: int, _: int, succeeds: bool) -> None:
        job = self._pick(State.RUNNING, pick)
        if job:
            self._end(Kind.SUCCEEDED if succeeds else Kind.DEAD, job, b"body" if succeeds else None)

    def cancel(self, pick: int, _: int, ready: bool) -> None:
        job = self._pick(State.READY if ready else State.SCHEDULED, pick)
        if job:
            self._end(Kind.CANCELLED, job, None)

    def expire(self, _: int, __: int, ___: bool) -> None:
        for job in self.agenda.expired(self.time_ns, ALL):
            self._end(Kind.EXPIRED, job, None)

    def note(self, number: int, kind: int, is_owner: bool) -> None:
        """Records that no fold needs: who an owner is, and kinds of later versions."""
        if is_owner:
            self.add(codec.encode_owner(number, b"{}", self.lsn))
        else:
            self.add(codec.PREFIX.pack(16, 129 + kind % 127, 0, 0, 0) + bytes(4))

    def _end(self, kind: Kind, job: int, body: bytes | None) -> None:
        options = b""
        if self._meta(job) & META_KEYED:
            options = encode_key_hash(self.keys[job])
            self.dedup.apply_free(self.keys[job], job, self.time_ns)
        attempt = self.agenda.attempt(job)
        self.add(codec.encode_job(kind, Cause.CALLER, attempt, job, 5, body, self.lsn, options))
        self.agenda.apply_ended(kind, job)

    def _meta(self, job: int) -> int:
        chunk = self.agenda.table.find(job)
        assert chunk is not None
        return chunk.metas[self.agenda.table.index]

    def _pick(self, state: State, pick: int) -> int:
        jobs = [job for job in range(1, self.lsn) if self.agenda.table.state(job) is state]
        return jobs[pick % len(jobs)] if jobs else 0

    # -- bytes -------------------------------------------------------------------------------------

    def segment(self, cuts: frozenset[int] = frozenset()) -> bytes:
        """The segment's bytes: a frame for each batch, cut in two before each lsn of ``cuts``."""
        header = codec.SegmentHeader(1, EPOCH, LOG_ID.bytes, START_NS)
        data = codec.encode_segment_header(header)
        for batch in self.batches:
            start = 0
            for end in range(1, len(batch.records) + 1):
                if end == len(batch.records) or batch.first_lsn + end in cuts:
                    records = batch.records[start:end]
                    data += codec.encode_frame(
                        b"".join(records), len(records), batch.first_lsn + start, EPOCH,
                        batch.time_ns, 0, SEED, len(data),
                    )  # fmt: skip
                    start = end
        return data


def frames_of(data: bytes) -> list[Frame]:
    def read(count: int, offset: int) -> bytes:
        return data[offset : offset + count]

    items = Scanner(read, SEED, len(data), 1, sealed=False).frames(codec.SEGMENT_HEADER.size)
    return [item for item in items if isinstance(item, Frame)]
