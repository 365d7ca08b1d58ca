"""Ends of deliveries: one by one, many together, in a transaction; and cancels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import eq
from typing import TYPE_CHECKING, Any, Final

import taskq._native as native
from taskq.core.errors import JobNotFound, PayloadTooLarge, TaskqError, UsageError
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.steps import Form
from taskq.core.kinds import (
    CANCEL,
    DEATH,
    ENDS,
    EXPIRY,
    RELEASE,
    REQUEST,
    RETURNS,
    SUCCESS,
)
from taskq.core.model import REASON_BYTES_MAX, TRANSACTION_BYTES_MAX, WAITING_STATES
from taskq.core.records import Cause, Flag
from taskq.log import requests
from taskq.log.decide import context, ends
from taskq.log.decide.context import bundle_size
from taskq.log.decide.ends import check_claim
from taskq.log.format import codec
from taskq.log.format.carried import OPTIONS_BYTES_MAX
from taskq.log.format.codec import FLAGS_AT
from taskq.log.format.columns import plain_records
from taskq.log.machine.ports import INTEREST_CANCEL, INTEREST_OUTCOME
from taskq.log.requests import Cancel, Done, Op, Settlement

if TYPE_CHECKING:
    from taskq.log.decide import enqueue, listeners, steps
    from taskq.log.state.facets import Facets

#: Children cancelled in one batch together with their callers; the next batch has the rest.
ORPHANS_MAX: Final = 2_048
#: Expired jobs recorded in one batch.
EXPIRED_MAX: Final = 2_048
_TOO_LATE: Final = Cancel.TOO_LATE


def is_asked(facets: Facets, delivery: requests.Delivery) -> bool:
    """Return whether a cancel of the job under this very claim was requested."""
    agenda = facets.need_agenda()
    claim = agenda.running.get(delivery.job)
    return claim is not None and claim[0] == delivery.token and delivery.job in agenda.leases.asked


class Cancels:
    """Cancels: withdraw a waiting job at once, ask the owner of a running one.

    The request is a record, so that the job does not run again. The process that would give the job
    back, or make it a dead letter, ends it as cancelled instead. That process is its owner, the
    next claimer after the owner's death, or the process that finds its lease over. A dead letter
    would invite operators to requeue a cancelled job. Only an earlier success is kept, since the
    work was done.

    A request names its claim and ends with it, so it does not concern a later attempt of a requeued
    dead letter.
    """

    def __init__(self, context: context.Context, ends: ends.Ends) -> None:
        self._context = context
        self._ends = ends

    def cancel(self, batch: context.Batch, job: int) -> Cancel:
        """Cancel a waiting job, or ask the owner of a running one to stop it."""
        if not 0 < job < batch.lsn:
            raise JobNotFound(f"no job {self._context.tag.id(job)} in this log")
        agenda = self._context.agenda
        if agenda.table.state(job) in WAITING_STATES:
            is_over = self._withdraw(batch, job, Cause.CALLER)
            return Cancel.WITHDRAWN if is_over else Cancel.ASKED
        claim = agenda.running.get(job)
        if claim is None:
            return _TOO_LATE
        if job not in agenda.leases.asked:
            attempt, token = agenda.attempt(job), claim[0]
            batch.add(codec.encode_job(REQUEST, 0, attempt, job, token))
            agenda.apply_cancel_asked(job, token)
            batch.interest |= INTEREST_CANCEL
        return Cancel.ASKED

    def withdraw(self, batch: context.Batch, what: requests.Withdrawal) -> list[int]:
        """Cancel or expire the jobs that still wait; return their numbers."""
        agenda = self._context.agenda
        withdrawn = [job for job in what.jobs if agenda.table.state(job) in WAITING_STATES]
        kind = EXPIRY if what.expired else CANCEL
        return [job for job in withdrawn if self._withdraw(batch, job, what.cause, kind)]

    def follow(self, batch: context.Batch) -> None:
        orphans, left = self._context.agenda.steps.orphans, ORPHANS_MAX
        while orphans and left:
            left -= 1
            child = next(iter(orphans))
            self.cancel(batch, child)
            orphans.pop(child, None)

    def expire(self, batch: context.Batch) -> bool:
        """Record some of the expired jobs; True if there are more."""
        agenda = self._context.agenda
        self._expire(batch, agenda.expired(batch.time_ns, EXPIRED_MAX))
        following = agenda.next_expiry_ns()
        if following is None or following > batch.time_ns:
            agenda.times.forget_over()
            return False
        return True

    def expire_passed(self, batch: context.Batch) -> None:
        order, table = self._context.agenda.order, self._context.agenda.table
        passed, order.passed = order.passed, []
        self._expire(batch, [job for job in passed if table.state(job) in WAITING_STATES])

    def _expire(self, batch: context.Batch, jobs: list[int]) -> None:
        attempt = self._context.agenda.attempt
        for job in jobs:
            self._ends.end(batch, EXPIRY, Cause.CALLER, job, 0, attempt(job), None)

    def _withdraw(self, batch: context.Batch, job: int, cause: Cause, kind: int = CANCEL) -> bool:
        attempt = self._context.agenda.attempt(job)
        return self._ends.end(batch, kind, cause, job, 0, attempt, None)


_PLAIN_JOB: Final = codec.JOB.size
#: Flags of a job whose end frees a key or other jobs.
_TIED: Final = int(Flag.KEY_UNTIL_SETTLED | Flag.FLOW)
#: Causes of a release that burns no attempt.
_KEEPS_ATTEMPT: Final = frozenset(
    {Cause.DRAIN, Cause.SNOOZE, Cause.CONDITION, Cause.BREAKER, Cause.WAITS}
)


class Settles:
    """The decisions of one process about the ends of deliveries."""

    def __init__(
        self,
        context: context.Context,
        ends: ends.Ends,
        enqueues: enqueue.Enqueues,
        deaths: listeners.Deaths,
        steps: steps.Steps,
    ) -> None:
        self._context = context
        self._steps = steps
        self._facets = context.facets
        self._enqueues = enqueues
        self._deaths = deaths
        self._untie = ends.untie
        self._back = ends.back
        self._unwind = ends.unwind

    def settle_soon(
        self, batch: context.Batch, op: int, items: list[Any]
    ) -> list[tuple[Settlement, TaskqError]]:
        """End deliveries without an answer; return the refused ones."""
        if op == Op.SUCCEED_NOWAIT:
            items = [Settlement(SUCCESS, delivery) for delivery in self._succeed(batch, items)]
        refused: list[tuple[Settlement, TaskqError]] = []
        for item in items:
            try:
                self.settle(batch, item)
            except TaskqError as error:
                refused.append((item, error))
        return refused

    def _succeed(
        self, batch: context.Batch, deliveries: list[requests.Delivery]
    ) -> list[requests.Delivery]:
        """End deliveries whose success concerns no other job, all together, or none of them.

        No delivery is ended if a claim is over, or comes twice. Return the deliveries still to
        settle.
        """
        claims = unclaimed(deliveries, self._context.owner, self._context.agenda.running)
        if claims is None:
            return deliveries
        jobs, attempts, tokens = claims
        location = batch.where + batch.size
        batch.parts.append(plain_records(SUCCESS, attempts, jobs, tokens))
        batch.size += _PLAIN_JOB * len(jobs)
        batch.lsn += len(jobs)
        batch.interest |= INTEREST_OUTCOME
        self._context.agenda.apply_succeeded(jobs)
        self._facets.note_ends(jobs, location, _PLAIN_JOB)
        return []

    def settle_each(self, batch: context.Batch, items: list[Settlement]) -> list[Any]:
        """End deliveries one by one; return for each None, its children's results, or its error."""
        return [answer or None for answer in context.each(self.settle, batch, items)]

    def settle(self, batch: context.Batch, item: Settlement) -> list[int | requests.Duplicate]:
        """End a delivery; return the results of enqueuing its children.

        The children are checked before any record is added, and added last: the end may free a key
        that a child takes.
        """
        kind, delivery, children = item.kind, item.delivery, item.children
        agenda, job = self._context.agenda, delivery.job
        check_claim(agenda, delivery)
        undoes = agenda.steps.undos.get(job)
        if kind is not SUCCESS and job in agenda.leases.asked and undoes != Form.UNDOING:
            kind = CANCEL
            item = item._replace(kind=kind, cause=Cause.ASKED)
        is_end = kind not in RETURNS
        if is_end and undoes == Form.UNDO and kind is not SUCCESS:
            self._unwind(batch, kind, item.cause, job, delivery.token, item.body)
            return []
        prepared = self._enqueues.prepared(batch, children, frozenset((job,) if is_end else ()))
        if is_end:
            self._end(batch, agenda, item)
        else:
            self._give_back(batch, item)
        return self._enqueues.add(batch, children, prepared)

    def _end(self, batch: context.Batch, agenda: Agenda, item: Settlement) -> None:
        kind, delivery, body, _, cause, _, flags, options = item
        job, attempt = delivery.job, delivery.attempt
        if delivery.record[FLAGS_AT] & _TIED:
            options = joined(self._untie(batch, kind, delivery.record, job), options)
        location = batch.where + batch.size
        if kind is not SUCCESS:
            flags, body = 0, (body or b"")[:REASON_BYTES_MAX]
            if kind is DEATH:
                self._deaths.note(delivery.lane, job, attempt, cause, body, batch.time_ns)
            else:
                body = body or None
        batch.add(
            codec.encode_job(
                kind, cause, attempt, job, delivery.token, body, batch.lsn, options, flags
            )
        )
        agenda.apply_ended(kind, job, batch.time_ns)
        self._facets.note_end(job, location)
        batch.interest |= INTEREST_OUTCOME

    def _give_back(self, batch: context.Batch, item: Settlement) -> None:
        kind, delivery, body, delay_ns, cause, _, _, options = item
        keeps = cause in _KEEPS_ATTEMPT or (kind is RELEASE and cause is Cause.CALLER)
        attempts = max(delivery.attempt - 1, 0) if keeps else delivery.attempt
        if cause is Cause.WAITS:
            self._steps.suspend(batch, delivery, attempts, body or b"", options)
            return
        job, token = delivery.job, delivery.token
        self._back(batch, kind, cause, job, token, attempts, delay_ns, body, options)


def unclaimed(
    deliveries: list[requests.Delivery], owner: int, running: dict[int, tuple[int, int, int]]
) -> tuple[list[int], list[int], list[int]] | None:
    """Remove the claims of deliveries from ``running``; return (jobs, attempts, tokens).

    None, and no claim is removed, if a claim is over or comes twice.
    """
    if native.is_on:
        taken: tuple[list[int], list[int], list[int]] | None = native.plain.unclaimed(
            deliveries, owner, running
        )
        if taken is not None:
            return taken
    _, jobs, tokens, epochs, attempts, _, _ = zip(*deliveries, strict=True)
    claims = list(map(running.pop, jobs, repeat(None)))
    if all(map(eq, claims, zip(tokens, epochs, repeat(owner)))):
        return list(jobs), list(attempts), list(tokens)
    running.update((job, claim) for job, claim in zip(jobs, claims, strict=True) if claim)
    return None


def joined(options: bytes, lines: bytes) -> bytes:
    """Return an end's options with the attempt's logged lines, if there is room for both."""
    return options + lines if len(options) + len(lines) <= OPTIONS_BYTES_MAX else options


class Transactions:
    """Changes of several kinds that become visible together, or not at all.

    They go into one frame, which is on disk as a whole or missing. Every part is checked before the
    first part is added, against the state that it will meet. Settlements come first, then
    cancellations, then new jobs, so that a new job can take a key that another job frees.
    """

    def __init__(
        self,
        context: context.Context,
        enqueues: enqueue.Enqueues,
        cancels: Cancels,
        settles: Settles,
    ) -> None:
        self._context = context
        self._enqueues = enqueues
        self._cancels = cancels
        self._settles = settles

    def transact(self, batch: context.Batch, bundle: requests.Bundle) -> Done:
        """Apply a whole transaction; if this raises, nothing was added."""
        settlements, cancels, items = bundle
        ending = self._check(batch, bundle)
        prepared = self._enqueues.prepared(batch, items, ending)
        for settlement in settlements:
            self._settles.settle(batch, settlement)
        cancelled = [self._cancels.cancel(batch, job) for job in cancels]
        return Done(cancelled, self._enqueues.add(batch, items, prepared))

    def _check(self, batch: context.Batch, bundle: requests.Bundle) -> frozenset[int]:
        size = bundle_size(bundle)
        if size > TRANSACTION_BYTES_MAX:
            raise PayloadTooLarge("the transaction", size, TRANSACTION_BYTES_MAX, "make it smaller")
        settlements, cancels, _ = bundle
        agenda = self._context.agenda
        back, ended = self._check_settlements(agenda, settlements)
        for job in cancels:
            if not 0 < job < batch.lsn:
                raise JobNotFound(f"no job {self._context.tag.id(job)} in this log")
            if job in back or agenda.table.state(job) in WAITING_STATES:
                ended.add(job)
        return frozenset(ended)

    def _check_settlements(
        self, agenda: Agenda, settlements: Sequence[Settlement]
    ) -> tuple[set[int], set[int]]:
        back: set[int] = set()
        ended: set[int] = set()
        for settlement in settlements:
            delivery = settlement.delivery
            check_claim(agenda, delivery)
            if delivery.job in back or delivery.job in ended:
                raise UsageError(f"{delivery!r} comes twice in this transaction")
            is_end = settlement.kind in ENDS or delivery.job in agenda.leases.asked
            (ended if is_end else back).add(delivery.job)
        return back, ended
