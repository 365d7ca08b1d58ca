"""Transactions: changes that become visible together, or not at all."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, Never, Self, TypeVar, Unpack

import taskq.telemetry as telemetry
from taskq.app.tasks import no_call
from taskq.calls.call import Call, PutOptions, make_put, transaction_bytes
from taskq.calls.serialization import encode_reason
from taskq.connection import blocking, handle
from taskq.connection.connection import Connection, Loose, check_bytes, loose_put, split_job_id
from taskq.core import durations, errors, kinds, model, records, retry
from taskq.log.format.bodies import Compression, check_size
from taskq.log.requests import Bundle, Delivery, Done, Duplicate, Settlement

if TYPE_CHECKING:
    from taskq.app.app import TaskQ


def claimed(delivery: Delivery) -> Delivery:
    """Return a delivery of ``claim``; raises UsageError for anything else, such as an id."""
    given: object = delivery
    if not isinstance(given, Delivery):
        raise errors.UsageError(f"the delivery is {given!r:.60}: give a delivery from claim()")
    return given


def failed(delivery: Delivery, reason: str, delay: durations.Duration | None) -> Settlement:
    """Return the settlement of a failed attempt: a retry later, or dead after the last attempt.

    Args:
        delivery: what ``claim`` returned.
        reason: kept with the job.
        delay: until it is due again; None for the default backoff (exponential, full jitter).

    Raises:
        UsageError: the delay is no duration.
    """
    body = encode_reason(reason)
    claimed(delivery)
    if 0 < delivery.attempts_max <= delivery.attempt:
        return Settlement(kinds.DEATH, delivery, body, cause=records.Cause.EXHAUSTED)
    if delay is None:
        draw = random.random()  # noqa: S311 - spreads retries, guards no secret
        delay_ns = round(retry.DEFAULT.delay_seconds(delivery.attempt, draw) * model.SECOND_NS)
    else:
        delay_ns = durations.nanoseconds(delay, "delay")
    return Settlement(kinds.RETRY, delivery, body, delay_ns=delay_ns)


def released(delivery: Delivery, delay: durations.Duration) -> Settlement:
    """Return the settlement that releases a delivery without using up its attempt.

    Raises:
        UsageError: the delay is no duration.
    """
    delay_ns = durations.nanoseconds(delay, "delay")
    return Settlement(kinds.RELEASE, claimed(delivery), delay_ns=delay_ns)


R = TypeVar("R")
P = TypeVar("P")

#: Estimated bytes of a settlement or a cancellation besides its result or reason.
_PART_BYTES: Final = 128
_TOGETHER: Final = "the transaction that it belongs to"


class PendingPut:
    """A job of a transaction; it has no id until the transaction is written."""

    __slots__ = ("_duplicate", "_id")

    def __init__(self) -> None:
        self._id = ""
        self._duplicate = False

    @property
    def id(self) -> str:
        """The job's id; if its key was taken, the id of the key's holder.

        Raises:
            JobNotYetEnqueued: the transaction is not on disk yet.
        """
        if not self._id:
            raise errors.JobNotYetEnqueued(
                f"the job has no id yet: it is put together with {_TOGETHER}"
            )
        return self._id

    @property
    def duplicate(self) -> bool:
        """Return whether the key was taken.

        Raises:
            JobNotYetEnqueued: as ``id``.
        """
        return bool(self.id) and self._duplicate

    def __repr__(self) -> str:
        return f"<PendingPut {self._id or 'no id yet'}>"


class PendingCancel:
    """A job that a transaction cancels, unless it is settled before the transaction is written."""

    __slots__ = ("_cancelled", "job_id")

    def __init__(self, job_id: str) -> None:
        self.job_id: str = job_id
        self._cancelled: bool | None = None

    @property
    def cancelled(self) -> bool:
        """Return whether the job was withdrawn or asked to end; False if it was settled already.

        Raises:
            UsageError: the transaction is not on disk yet.
        """
        if self._cancelled is None:
            raise errors.UsageError(
                f"whether job {self.job_id} is cancelled is known when the block is left"
            )
        return self._cancelled

    def __repr__(self) -> str:
        return f"<PendingCancel {self.job_id}>"


class _Transaction(ABC, Generic[P]):
    """Base of both kinds of transactions; ``P`` stands for a new job until it has an id.

    Nothing is written until the block ends, and nothing at all if an exception ends it. All changes
    then go into one frame of the log: settlements first, then cancellations, then new jobs. So a
    new job may take a key that the same transaction frees.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_open = self._is_over = False
        self._size = 0
        self._jobs: list[tuple[P, Loose]] = []
        self._cancels: list[tuple[PendingCancel, str, int]] = []
        #: each settlement with the compression of its result
        self._results: list[tuple[Settlement, Compression | None]] = []

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, kind: object, *_exc: object) -> None:
        self._is_open, self._is_over = False, True
        if kind is None and (self._jobs or self._cancels or self._results):
            items = await self._connection.pack_many([loose for _, loose in self._jobs])
            settlements = [await self._packed(*result) for result in self._results]
            bundle = Bundle(tuple(settlements), await self._located(), tuple(items))
            self._resolve(await self._connection.transact(bundle))

    def __enter__(self) -> Self:
        blocking.refuse_in_loop("with ... as tx", "async with ... as tx")
        self._enter()
        return self

    def __exit__(self, *exc: object) -> None:
        blocking.run(self.__aexit__(*exc))

    def cancel(self, job: str | handle.JobHandle[Any]) -> PendingCancel:
        """Withdraw a waiting job, or ask a running job to end.

        A delivery that the same transaction releases counts as waiting.

        Leaving the block raises ``JobNotFound`` if the log has no such job, and ``WrongLog`` if the
        job belongs to another log; then no part of the transaction was written.

        Raises:
            UsageError: the text is no job id.
        """
        job_id = job.id if isinstance(job, handle.JobHandle) else job
        tag, lsn = split_job_id(job_id)
        self._grow(_PART_BYTES)
        pending = PendingCancel(job_id)
        self._cancels.append((pending, tag, lsn))
        return pending

    def _enter(self) -> None:
        if self._is_open or self._is_over:
            raise errors.UsageError("a transaction is entered once: ask for another")
        self._is_open = True

    def _add_job(self, pending: P, loose: Loose) -> P:
        self._grow(transaction_bytes((loose[0],)))
        self._jobs.append((pending, loose))
        return pending

    def _grow(self, size: int) -> None:
        if not self._is_open:
            raise errors.UsageError(
                "a transaction is used within its own block: async with ... as tx"
            )
        if self._size + size > model.TRANSACTION_BYTES_MAX:
            raise errors.PayloadTooLarge(
                "the transaction",
                self._size + size,
                model.TRANSACTION_BYTES_MAX,
                "make several of it",
            )
        self._size += size

    async def _packed(self, settlement: Settlement, packing: Compression | None) -> Settlement:
        if settlement.kind is not kinds.SUCCESS or settlement.body is None:
            return settlement
        packer = self._connection.packer
        body, flags = await packer.result(settlement.body, packing, "the result")
        return settlement._replace(body=body, flags=flags)

    async def _located(self) -> tuple[int, ...]:
        if self._cancels:
            await self._connection.opened()
        for _, tag, lsn in self._cancels:
            self._connection.check_tag(tag, lsn)
        return tuple(lsn for _, _, lsn in self._cancels)

    def _resolve(self, done: Done) -> None:
        for (pending, _, _), cancelled in zip(self._cancels, done.cancelled, strict=True):
            pending._cancelled = bool(cancelled)
        for (job, _), answer in zip(self._jobs, done.jobs, strict=True):
            self._answer(job, answer)

    @abstractmethod
    def _answer(self, pending: P, answer: int | Duplicate) -> None:
        """Give a new job its id."""


class LogTransaction(_Transaction[PendingPut]):
    """A transaction of a ``TaskLog``: settle deliveries, cancel and put jobs, all or nothing.

    Leaving the block raises the error of any part: ``StaleDelivery``, ``JobNotFound``,
    ``DuplicateKey``, ``PayloadTooLarge``, … Then nothing was written.
    """

    def ack(
        self,
        delivery: Delivery,
        result: bytes | None = None,
        *,
        compress: Compression | None = None,
    ) -> None:
        """Settle a delivery as succeeded; arguments as in ``TaskLog.ack``."""
        packing = None
        claimed(delivery)
        if result is not None:
            check_bytes("the result", result)
            packer = self._connection.packer
            packing = packer.config.packing(delivery.queue, compress)
            check_size("the result", result)
        self._settle(Settlement(kinds.SUCCESS, delivery, result), packing)

    def nack(
        self, delivery: Delivery, reason: str = "", delay: durations.Duration | None = None
    ) -> None:
        """Settle a delivery as failed; arguments as in ``TaskLog.nack``."""
        self._settle(failed(delivery, reason, delay))

    def release(self, delivery: Delivery, delay: durations.Duration = 0) -> None:
        """Give a delivery back without using up its attempt; it is due again after ``delay``."""
        self._settle(released(delivery, delay))

    def put(self, payload: bytes, **options: Unpack[PutOptions]) -> PendingPut:
        """Put one job into the log; its id is known once the block is left.

        Raises:
            UsageError: an argument is wrong.
            PayloadTooLarge: the payload, or the transaction, is over its limit.
        """
        loose = loose_put(make_put(payload, options), self._connection.packer)
        return self._add_job(PendingPut(), loose)

    def _settle(self, settlement: Settlement, packing: Compression | None = None) -> None:
        self._grow(_PART_BYTES + len(settlement.body or b""))
        self._results.append((settlement, packing))

    def _answer(self, pending: PendingPut, answer: int | Duplicate) -> None:
        lsn = answer if isinstance(answer, int) else answer.lsn
        pending._id = self._connection.tag.id(lsn)
        pending._duplicate = not isinstance(answer, int)


class AppTransaction(_Transaction[handle.PendingJob[Any]]):
    """A transaction of a ``TaskQ``: enqueue calls and cancel jobs, all or nothing.

    Use ``async with app.transaction() as tx``, or ``with`` in code without an event loop. Leaving
    the block raises the error of any part, and then nothing was written.
    """

    def __init__(self, app: TaskQ) -> None:
        super().__init__(app._connection)
        self._app = app

    def enqueue(self, call: Call[R], *rest: Never) -> handle.PendingJob[R]:
        """Enqueue a call; its id is known once the block is left.

        Raises:
            UsageError: the argument is no call.
            PayloadTooLarge: its payload, or the transaction, is over its limit.
        """
        if rest or type(call) is not Call:
            raise no_call(call, rest, "tx.enqueue")
        call = telemetry.created(call)
        pending = handle.PendingJob(call, _TOGETHER)
        self._add_job(pending, self._connection.packer.loose(call))
        return pending

    def _answer(self, pending: handle.PendingJob[Any], answer: int | Duplicate) -> None:
        task = pending.call.task
        pending._handle = handle.make_handle(self._app, task, self._connection.tag, answer)
