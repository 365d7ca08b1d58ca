"""Claims: hand out jobs, extend claims, and take jobs back after their claims."""

from __future__ import annotations

from itertools import compress, repeat
from typing import Final

import taskq._native as native
from taskq.core import parsing
from taskq.core.errors import JobCancelled, LogDamaged
from taskq.core.folds import agenda, claims, lanes
from taskq.core.folds.jobtable import META_DURABLE_CLAIM, RUN_MIN, STATE_MASK
from taskq.core.kinds import CANCEL, CLAIM, DEATH, EXTENSION, RELEASE
from taskq.core.model import State
from taskq.core.records import Cause
from taskq.log.decide.context import Batch, Context
from taskq.log.decide.ends import Ends, check_claim
from taskq.log.format import codec
from taskq.log.format.carried import encode_lease
from taskq.log.format.columns import plain_records
from taskq.log.format.notes import _RATE, _RATE_OPTION, _RATE_TAG
from taskq.log.requests import ClaimRequest, Delivery

#: Most jobs of one claim.
CLAIMED_MAX: Final = 4_096
#: Most jobs taken back in one batch.
TAKEN_BACK_MAX: Final = 4_096
_PLAIN_JOB: Final = codec.JOB.size


class Claims:
    """The decisions of one process about claims.

    A claim is over when its lease has ended, or its owner's process is gone. A lease is a deadline
    of one claim, and ``extend`` moves it. Once it has passed, a claimer takes the job back, and
    only then is the claim over. So a late holder may still settle or extend before any claimer
    comes. The token decides, never the clock alone.

    Args:
        description: of this process, written to the log before its first claim.
    """

    def __init__(self, context: Context, ends: Ends, description: bytes) -> None:
        self._context = context
        self._files = context.journal.files
        self._recent = context.recent
        self._owner = context.owner
        self._tag = context.tag
        self._ends = ends
        self._description = description
        self._introduced = False

    def forget(self) -> None:
        self._introduced = False

    def claim_jobs(self, batch: Batch, request: ClaimRequest) -> tuple[list[Delivery], bool]:
        agenda = self._context.agenda
        taken = _take(agenda, request)
        if not taken:
            return [], False
        self._introduce(batch)
        if len(taken) >= RUN_MIN and not (request.lease_ns or agenda.groups.limits):
            records = self._records(taken)
            if records is not None:
                return self._claim_run(batch, taken, records)
        return self._claim_each(batch, taken, request)

    def _introduce(self, batch: Batch) -> None:
        if not self._introduced:
            batch.add(codec.encode_owner(self._owner, self._description, batch.lsn))
            self._introduced = True

    def _claim_each(
        self, batch: Batch, taken: claims.JobColumns, request: ClaimRequest
    ) -> tuple[list[Delivery], bool]:
        agenda = self._context.agenda
        deliveries: list[Delivery] = []
        must_sync = False
        pack, claimed, owner = codec.JOB.pack, int(CLAIM), self._owner
        tag, epoch, recent, running = self._tag, batch.epoch, self._recent.records, agenda.running
        parts, lsn, new = batch.parts, batch.lsn, tuple.__new__
        lease = encode_lease(batch.time_ns + request.lease_ns) if request.lease_ns else b""
        lease_size = len(lease)
        size = _PLAIN_JOB + lease_size
        damaged: list[tuple[int, int, int]] = []
        for job, location, attempt, lane, meta in taken:
            record = recent.pop(job, None)
            if record is None:
                try:
                    record = self._files.record(location, job)
                except LogDamaged:
                    damaged.append((job, attempt, lsn))
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
            for job in taken.jobs:
                agenda.leases.apply_until(job, batch.time_ns + request.lease_ns)
        if agenda.groups.limits:
            mark_rated(batch, taken)
        for job, attempt, token in damaged:
            self._ends.end(
                batch, DEATH, Cause.REJECTED, job, token, attempt, b"its record is damaged"
            )
        return deliveries, must_sync

    def _records(self, taken: claims.JobColumns) -> list[bytes] | None:
        """Return the enqueue records of claimed jobs, or None if one of them is damaged."""
        recent, jobs = self._recent.records, taken.jobs
        near = list(map(recent.pop, jobs, repeat(b""))) if recent else []
        if near and all(near):
            return near
        try:
            if not any(near):
                return self._files.records(taken.locations, jobs)
            far_away = [not record for record in near]
            places = (list(compress(column, far_away)) for column in (taken.locations, jobs))
            far = iter(self._files.records(*places))
        except LogDamaged:
            recent.update((job, record) for job, record in zip(jobs, near, strict=False) if record)
            return None
        return [record or next(far) for record in near]

    def _claim_run(
        self, batch: Batch, taken: claims.JobColumns, records: list[bytes]
    ) -> tuple[list[Delivery], bool]:
        jobs, attempts, owner = taken.jobs, taken.attempts, self._owner
        place = self._tag, batch.epoch, owner, batch.lsn
        batch.parts.append(plain_records(CLAIM, attempts, jobs, owner))
        batch.lsn += len(jobs)
        batch.size += _PLAIN_JOB * len(jobs)
        columns = jobs, attempts, taken.lanes, records
        deliveries = claimed(*place, *columns, self._context.agenda.running)
        return deliveries, any(meta & META_DURABLE_CLAIM for meta in set(taken.metas))

    def extend(self, batch: Batch, operand: tuple[Delivery, int]) -> None:
        """Move the deadline of a claim to ``lease_ns`` from now; it may have had none."""
        delivery, lease_ns = operand
        agenda = self._context.agenda
        check_claim(agenda, delivery)
        if delivery.job in agenda.leases.asked:
            raise JobCancelled(delivery.job_id)
        deadline_ns = batch.time_ns + lease_ns
        batch.add(
            codec.encode_job(
                EXTENSION, 0, delivery.attempt, delivery.job, delivery.token,
                options=encode_lease(deadline_ns),
            )
        )  # fmt: skip
        agenda.leases.apply_until(delivery.job, deadline_ns)

    def take_back_lost(self, batch: Batch, dead: set[int], *, ends: bool = True) -> int:
        """Take back the jobs of dead owners; return their count. If it ``ends``, some die."""
        agenda = self._context.agenda
        lost = [job for job, claim in agenda.running.items() if claim[2] in dead]
        if not ends:
            asked = agenda.leases.asked
            lost = [
                job for job in lost if job in asked or not self._is_last(job, agenda.attempt(job))
            ]
        del lost[TAKEN_BACK_MAX:]
        for job in lost:
            self._take_back(
                batch, job, Cause.OWNER_LOST, "WorkerLost: the worker process died", "while it ran"
            )
        return len(lost)

    def take_back_over(self, batch: Batch) -> int:
        agenda = self._context.agenda
        following = agenda.leases.next_ns()
        if following is None or following > batch.time_ns:
            return 0
        over = agenda.leases.over(batch.time_ns, TAKEN_BACK_MAX)
        for job in over:
            self._take_back(
                batch, job, Cause.LEASE_OVER, "LeaseOver: neither settled nor extended in time",
                "in",
            )  # fmt: skip
        return len(over)

    def _take_back(self, batch: Batch, job: int, cause: Cause, what: str, during: str) -> None:
        agenda = self._context.agenda
        token, attempt = agenda.running[job][0], agenda.attempt(job)
        if job in agenda.leases.asked:
            self._ends.end(batch, CANCEL, Cause.ASKED, job, token, attempt, what.encode())
        elif self._is_last(job, attempt):
            reason = f"{what} {during} attempt {attempt}"
            self._ends.end(batch, DEATH, cause, job, token, attempt, reason.encode())
        else:
            self._ends.back(batch, RELEASE, cause, job, token, attempt, 0, what.encode())

    def _is_last(self, job: int, attempt: int) -> bool:
        table = self._context.agenda.table
        chunk = table.find(job)
        if chunk is None or chunk.metas[table.index] & STATE_MASK != State.RUNNING:
            return False
        try:
            record = self._recent.record(job, chunk.locations[table.index])
        except LogDamaged:
            return False
        allowed = codec.BORN.unpack_from(record)[5]
        return bool(allowed) and attempt >= allowed


def claimed(
    tag: parsing.Tag,
    epoch: int,
    owner: int,
    token: int,
    jobs: list[int],
    attempts: list[int],
    lanes: list[lanes.Lane],
    records: list[bytes],
    running: dict[int, tuple[int, int, int]],
) -> list[Delivery]:
    if native.is_on:
        made: list[Delivery] | None = native.plain.claimed(
            Delivery, tag, epoch, owner, token, jobs, attempts, lanes, records, running
        )
        if made is not None:
            return made
    tokens = range(token, token + len(jobs))
    claims = zip(tokens, repeat(epoch), repeat(owner))
    running.update(zip(jobs, claims, strict=True))
    rows = zip(repeat(tag), jobs, tokens, repeat(epoch), attempts, lanes, records)
    return list(map(tuple.__new__, repeat(Delivery), rows))


def _take(agenda: agenda.Agenda, request: ClaimRequest) -> claims.JobColumns:
    if request.limits is not None:
        agenda.groups.declare(request.limits, agenda.moment)
    count = min(request.count, CLAIMED_MAX)
    if request.weights is not None:
        return request.weights.take(agenda.order, count, request.queues, request.tasks)
    return agenda.order.take(count, request.queues, request.tasks)


def mark_rated(batch: Batch, taken: claims.JobColumns) -> None:
    parts = batch.parts
    for number, lane in enumerate(taken.lanes, len(parts) - len(taken)):
        limit = None if lane.group is None else lane.group.limit
        if limit is None or limit.rate is None:
            continue
        rate = limit.rate
        rated = _RATE_OPTION.pack(_RATE_TAG, _RATE.size, rate.count, rate.window_ns)
        claim = parts[number]
        size, kind, byte, options_size, flags = codec.PREFIX.unpack_from(claim)
        more = len(rated)
        head = codec.PREFIX.pack(size + more, kind, byte, options_size + more, flags)
        parts[number] = head + claim[codec.PREFIX.size :] + rated
        batch.size += more
