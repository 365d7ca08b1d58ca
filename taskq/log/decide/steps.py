"""Steps, waits and signals of jobs that resume their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.errors import JobNotFound, JobSettled, PayloadTooLarge, UsageError
from taskq.core.flows import Policy, needs_of
from taskq.core.folds.agenda import apply_begun, apply_signal, apply_step, apply_waiting
from taskq.core.folds.steps import Form, Signal, Wait, unpack_waits, until
from taskq.core.kinds import RELEASE, WAIT
from taskq.core.model import SIGNAL_BYTES_MAX, SIGNALS_MAX, STEPS_MAX, TIME_NS_MAX
from taskq.core.records import STEPS_FEATURE, Cause
from taskq.core.values import NamedTuple
from taskq.log.decide.ends import Ends, check_claim
from taskq.log.format import codec
from taskq.log.format.flows import (
    Stepped,
    awaits_option,
    decode_step,
    encode_needs,
    encode_signal,
    encode_step,
)
from taskq.log.machine.ports import INTEREST_READY

if TYPE_CHECKING:
    from taskq.log.decide.context import Batch, Context
    from taskq.log.decide.enqueue import Enqueues
    from taskq.log.requests import Delivery, Item


class NewStep(NamedTuple):
    """A step that a running job has done, or requests, and that is not repeated.

    ``body`` is its value as JSON; an EVENT has none here, since its value is the signal's. ``form``
    is of ``core.folds.steps``. ``items`` are the jobs that a CALL enqueues in the same frame.
    ``signal`` is the signal that an EVENT takes, 0 for the oldest one of its name. A TIMEOUT is
    valid only if no signal came after ``signal``.
    """

    delivery: Delivery
    form: int
    name: str
    number: int
    body: bytes = b"null"
    flags: int = 0
    began_ns: int = 0
    items: tuple[Item, ...] = ()
    signal: int = 0
    #: whether the jobs go on if this job is cancelled
    detach: bool = False


class Fork(NamedTuple):
    """A new job with the steps of another one, up to one of them."""

    item: Item
    steps: tuple[Stepped, ...]


class NewSignal(NamedTuple):
    """A message to a job; ``once`` is its unique key, "" for none."""

    job: int
    name: str
    body: bytes
    once: str = ""


class Again(NamedTuple):
    """A step or signal of a job to rewrite, found at a location.

    ``is_kept``: a step of an ended job, which keeps its steps.
    """

    job: int
    location: int
    record: bytes
    time_ns: int
    is_kept: bool


class Steps:
    """The decisions of one process about steps, waits within a run, and signals.

    Only the claim that runs the job may write its steps. Waiting and the end of the claim are one
    record. A signal that comes before its wait is kept. If a signal and a timeout end a wait, the
    first in the log counts.
    """

    def __init__(self, context: Context, ends: Ends, enqueues: Enqueues) -> None:
        self._context = context
        self._ends = ends
        self._enqueues = enqueues

    def step(self, batch: Batch, new: NewStep) -> Stepped | None:
        """Write a step; None for an event without its signal, or a timeout after its signal."""
        delivery, form, name, number, body, flags, began_ns, items, wanted, detach = new
        agenda, job = self._context.agenda, delivery.job
        check_claim(agenda, delivery)
        place = agenda.steps.count(job)
        if place >= STEPS_MAX:
            raise UsageError(
                f"job {delivery.job_id} has {STEPS_MAX} steps already, and that is the limit: let "
                f"it enqueue a job that goes on, or do more in each step"
            )
        step = Stepped(
            name, number, form, place, body=body, flags=flags, began_ns=began_ns,
            is_detached=detach,
        )  # fmt: skip
        once = b""
        if form == Form.EVENT:
            signal = agenda.steps.find_signal(job, _encoded(name), max(wanted - 1, 0))
            if signal is None or wanted not in (0, signal.number):
                return None
            step, once = self._taken(batch, step, signal), signal.once
        elif form == Form.TIMEOUT and agenda.steps.find_signal(job, _encoded(name), wanted):
            return None
        prepared = self._enqueues.prepared(batch, items) if items else []
        if items:
            step = step._replace(first=batch.lsn + 1, jobs=len(items))
        record = encode_step(step, delivery.attempt, job, delivery.token, batch.lsn)
        # The same result as folding the record, without decoding it.
        called = (step.first, step.jobs) if items and not detach else None
        location, title = self._add(batch, record), (name, number)
        apply_step(agenda, job, place, location, step.signal, once, title, called, form)
        if items:
            self._enqueues.add(batch, items, prepared)
        return step

    def begin(self, batch: Batch, begun: tuple[Delivery, bytes]) -> None:
        """Write that a running job begins these waits, so that their time counts from now."""
        delivery, waits = begun
        agenda, job = self._context.agenda, delivery.job
        check_claim(agenda, delivery)
        record = codec.encode_job(
            WAIT, 0, delivery.attempt, job, delivery.token, None, batch.lsn, awaits_option(waits)
        )
        self._add(batch, record)
        apply_begun(agenda, job, waits)

    def fork(self, batch: Batch, fork: Fork) -> int:
        (job,) = self._enqueues.many(batch, [fork.item])
        assert isinstance(job, int)  # it has no key
        for place, step in enumerate(fork.steps):
            again = step._replace(place=place, signal=0)
            # The token is of no claim; with 0 folds would skip the record.
            location = self._add(batch, encode_step(again, 0, job, job, batch.lsn))
            apply_step(
                self._context.agenda, job, place, location, 0, _encoded(step.once), form=step.form
            )
        return job

    def suspend(
        self, batch: Batch, delivery: Delivery, counted: int, waits: bytes, options: bytes
    ) -> None:
        """Give a job with a valid claim back for these waits, without burning an attempt.

        The job is ready at once if a wait has ended already.
        """
        agenda, job = self._context.agenda, delivery.job
        due_ns, needs = self._look(job, unpack_waits(waits), batch.time_ns)
        options += awaits_option(waits)
        if needs is not None:
            options += encode_needs(needs)
        record = codec.encode_back(
            RELEASE, Cause.WAITS, counted, job, delivery.token, due_ns, b"", batch.lsn, options
        )
        batch.add(record)
        batch.features += (STEPS_FEATURE,)
        apply_waiting(agenda, job, counted, due_ns, batch.time_ns, waits, needs)
        batch.interest |= INTEREST_READY

    def _look(self, job: int, waits: list[Wait], now_ns: int) -> tuple[int, int | None]:
        """Return (latest end of the waits, needed inputs); 0 if the job need not wait."""
        agenda = self._context.agenda
        due_ns, fewest = until(waits) or TIME_NS_MAX, 0
        is_there = due_ns <= now_ns
        for wait in waits:
            if wait.form == Form.EVENT:
                name = _encoded(wait.name)
                signal = agenda.steps.find_signal(job, name, wait.first)
                is_there = is_there or signal is not None
            elif wait.form == Form.CALL:
                left = sum(
                    agenda.table.find(child) is not None
                    for child in range(wait.first, wait.first + wait.jobs)
                )
                is_there = is_there or not left
                fewest = min(fewest or left, left)
        if is_there:
            return 0, None
        return due_ns, needs_of(fewest, Policy.RUN) if fewest else None

    def signal(self, batch: Batch, new: NewSignal) -> bool:
        job, name, body, once = new
        agenda, tag = self._context.agenda, self._context.tag
        if not 0 < job < batch.lsn:
            raise JobNotFound(f"no job {tag.id(job)} in this log")
        if agenda.table.find(job) is None:
            raise JobSettled(tag.id(job), "", self._context.facets.path)
        steps = agenda.steps
        if once and steps.knows_once(job, _encoded(once)):
            return False
        if len(body) > SIGNAL_BYTES_MAX:
            raise PayloadTooLarge(f"signal {name!r}", len(body), SIGNAL_BYTES_MAX)
        if len(steps.signals.get(job, ())) >= SIGNALS_MAX:
            raise UsageError(
                f"job {tag.id(job)} has {SIGNALS_MAX} signals that no step of it has taken, and "
                f"that is the limit: see whether it waits for them by the same name"
            )
        lsn = batch.lsn
        location = self._add(batch, encode_signal(Stepped(name, once=once, body=body), job, lsn))
        apply_signal(agenda, job, Signal(lsn, _encoded(name), _encoded(once), location))
        if steps.awaits(job, name):
            attempt = agenda.attempt(job)
            self._ends.back(batch, RELEASE, Cause.INPUTS, job, 0, attempt, 0, None)
        return True

    def _taken(self, batch: Batch, step: Stepped, signal: Signal) -> Stepped:
        awaiting = decode_step(self._record(batch, signal.location))
        return step._replace(
            form=Form.EVENT,
            signal=signal.number,
            once=awaiting.once,
            body=awaiting.body,
            flags=awaiting.flags,
        )

    def _record(self, batch: Batch, location: int) -> bytes:
        at = batch.where
        if location < at or location >= at + batch.size:
            return self._context.journal.files.unchecked_record(location)
        for record in batch.parts:
            if at == location:
                return record
            at += len(record)
        raise KeyError(location)

    def _add(self, batch: Batch, record: bytes) -> int:
        location = batch.where + batch.size
        batch.add(record)
        if STEPS_FEATURE not in batch.features:
            batch.features += (STEPS_FEATURE,)
        return location


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
