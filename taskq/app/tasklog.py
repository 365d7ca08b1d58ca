"""TaskLog: the layer below tasks, with payloads as bytes and explicit settling."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from taskq.app.holder import LogHolder
from taskq.app.transaction import LogTransaction, claimed, failed, released
from taskq.calls.call import Put, PutOptions, key_bytes, make_put
from taskq.connection import connection, logoptions
from taskq.connection.blocking import blocking, refuse_in_loop, run
from taskq.core import durations, errors, kinds, parsing, sources, views
from taskq.log.decide.settle import is_asked
from taskq.log.format.bodies import Compression
from taskq.log.read.selection import key_holder
from taskq.log.requests import ClaimRequest, Delivery, Settlement

if TYPE_CHECKING:
    from taskq.log.store.port import LoopPort

_CLAIM_MAX: Final = 100_000


class TaskLog(LogHolder):
    """A directory of jobs with payloads as bytes. Enter or await ``TaskLog.open(path)``."""

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], **options: Unpack[logoptions.LogOptions]
    ) -> TaskLog:
        """Return the log of a directory, created if it is missing; enter the result or await it.

        Args:
            path: the directory.
            options: see ``LogOptions``.

        Raises:
            UsageError: an option is wrong.
        """
        return cls(connection.Connection(os.fspath(path), logoptions.log_config(options)))

    @property
    def data_dir(self) -> Path:
        """The directory, as an absolute path."""
        return Path(self._connection.path)

    async def put(self, payload: bytes, **options: Unpack[PutOptions]) -> str:
        """Put one job into the log; on return it is as durable as the log's options ask for.

        Args:
            payload: at most PAYLOAD_BYTES_MAX bytes.
            options: see ``PutOptions``.

        Returns:
            The job's id; if its key is taken, the id of the key's holder.

        Raises:
            UsageError: an argument is wrong; nothing was written.
            DuplicateKey: another job holds the key, and ``on_conflict`` is "raise".
            LogError: the log could not be opened or written.
        """
        job = connection.loose_put(make_put(payload, options), self._connection.packer)
        item = job[0] if job[1] is None else await self._connection.pack(job)
        port = await self._connection.port()
        return self._id_of(await port.enqueue(*item))

    put_sync: Final = blocking(put)

    async def put_many(self, jobs: Iterable[Put]) -> list[str]:
        """Put all jobs into the log, or none: one transaction. Return their ids in order.

        Raises:
            UsageError: a job is wrong, or together they are too large; nothing was written.
            DuplicateKey: another job holds a key, and ``on_conflict`` is "raise"; nothing was
                written.
            LogError: the log could not be opened or written.
        """
        given = [connection.loose_put(job, self._connection.packer) for job in jobs]
        items = await self._connection.pack_many(given)
        answers = await self._connection.send_many(items)
        return [self._id_of(answer) for answer in answers]

    put_many_sync: Final = blocking(put_many)

    async def ingest(
        self, source: str, jobs: Iterable[Put], position: Any, *, after: Any = sources.ANYWHERE
    ) -> list[str]:
        """Put jobs and the new position of their source into the log, in one transaction.

        Like ``TaskQ.ingest``, with ``Put`` in place of calls. Return the jobs' ids in order.

        Raises:
            SourceMoved: the source's position is not ``after``; nothing was written.
            UsageError: an argument or a job is wrong, or they are too large; nothing was written.
            DuplicateKey: as ``put_many``.
            LogError: the log could not be opened or written.
        """
        move = sources.checked_move(source, position, after)
        given = [connection.loose_put(job, self._connection.packer) for job in jobs]
        items = await self._connection.pack_many(given)
        answers = await self._connection.send_many(items, move)
        return [self._id_of(answer) for answer in answers]

    ingest_sync: Final = blocking(ingest)

    async def claim(
        self,
        count: int = 1,
        *,
        queues: Iterable[str] | None = None,
        wait: durations.Duration | None = 0,
        lease: durations.Duration | None = None,
    ) -> list[Delivery]:
        """Take up to ``count`` jobs, highest priority first; each counts an attempt.

        Args:
            count: most deliveries to return.
            queues: names of the queues to take from; None for all.
            wait: how long to wait for a first job; None for ever. The log is searched at least
                once, even if the search takes longer.
            lease: how long a delivery may take before another claimer may take its job back, unless
                ``extend`` is called in time; None: until this process ends.

        Returns:
            Deliveries to ack, nack or release; fewer than ``count`` if fewer jobs are ready. A
            large ``payload`` is read from disk at each access; ``payload()`` does not block the
            event loop.

        Raises:
            UsageError: an argument is wrong.
            LogLocked: another process kept the log locked.
        """
        count = parsing.whole(count, "count")
        if not 1 <= count <= _CLAIM_MAX:
            raise errors.UsageError(f"count is {count}, it must be 1 to {_CLAIM_MAX}")
        names = None if queues is None else parsing.checked_queues(queues)
        port = await self._connection.port()
        store, until = self._connection.store(), None
        if wait is not None:
            until = store.steady_ns() + durations.nanoseconds(wait, "wait")
        store.serve(self, views.Serving(queues=names))
        lease_ns = 0 if lease is None else durations.positive_nanoseconds(lease, "lease")
        request = ClaimRequest(count, queues=names, wait_until_ns=until, lease_ns=lease_ns)
        asked = port.claim(request)
        try:
            await asyncio.wait((asked,))
        except asyncio.CancelledError:
            port.forget(asked)
            raise
        deliveries: list[Delivery] = asked.result()
        return self._connection.packer.deliveries(deliveries)

    claim_sync: Final = blocking(claim)

    async def payload(self, delivery: Delivery) -> bytes:
        """Return ``delivery.payload``, read and decompressed off the event loop if it is large.

        Raises:
            LogDamaged: the payload is damaged.
            PayloadTooLarge: decompressed it would be over ``decompressed_bytes_max``.
            CompressionUnavailable: its compression is not installed here.
        """
        return await self._connection.packer.payload(delivery)

    payload_sync: Final = blocking(payload)

    async def ack(
        self,
        delivery: Delivery,
        result: bytes | None = None,
        *,
        compress: Compression | None = None,
    ) -> None:
        """Settle a delivery as succeeded.

        Args:
            delivery: from ``claim``.
            result: bytes to keep with the job; None for no result.
            compress: how the result is compressed; None: as configured for the queue or the log.

        Raises:
            StaleDelivery: the job was taken back or settled before.
            PayloadTooLarge: the result is over PAYLOAD_BYTES_MAX; the delivery goes on.
        """
        flags = 0
        claimed(delivery)
        if result is not None:
            connection.check_bytes("the result", result)
            packer = self._connection.packer
            packing = packer.config.packing(delivery.queue, compress)
            result, flags = await packer.result(result, packing, "the result")
        await self._settle(Settlement(kinds.SUCCESS, delivery, result, flags=flags))

    ack_sync: Final = blocking(ack)

    async def nack(
        self, delivery: Delivery, reason: str = "", delay: durations.Duration | None = None
    ) -> None:
        """Settle a delivery as failed: the job is retried later, or dead after its last attempt.

        Args:
            delivery: from ``claim``.
            reason: kept with the job.
            delay: until it is due again; None for the default backoff (exponential, full jitter).

        Raises:
            StaleDelivery: the job was taken back or settled before.
        """
        await self._settle(failed(delivery, reason, delay))

    nack_sync: Final = blocking(nack)

    async def release(self, delivery: Delivery, delay: durations.Duration = 0) -> None:
        """Give a delivery back without using up its attempt; it is due again after ``delay``.

        Raises:
            StaleDelivery: the job was taken back or settled before.
        """
        await self._settle(released(delivery, delay))

    release_sync: Final = blocking(release)

    async def extend(self, delivery: Delivery, seconds: durations.Duration = 30) -> None:
        """Set a delivery's lease to end this duration from now, also if it had none.

        A delivery stays valid after the end of its lease until a claimer takes the job back.

        Raises:
            JobCancelled: the job was cancelled: release the delivery.
            StaleDelivery: the job was taken back or settled before.
        """
        lease_ns = durations.positive_nanoseconds(seconds, "seconds")
        port = await self._connection.port()
        await port.extend(claimed(delivery), lease_ns)

    extend_sync: Final = blocking(extend)

    def transaction(self) -> LogTransaction:
        """Return a transaction: its changes become visible together, or not at all.

        ::

            async with log.transaction() as tx:
                tx.ack(delivery, result=b"...")
                job = tx.put(b"...")
            print(job.id)
        """
        return LogTransaction(self._connection)

    async def cancel(self, job_id: str) -> bool:
        """Cancel a waiting job, or request the end of a running job; False if it is settled.

        True means that the job does not run again. The worker of a running job learns of it from
        ``cancel_asked``, or from ``extend``, which raises. ``release`` and ``nack`` then end the
        job as cancelled; ``ack`` still counts.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
        """
        port, lsn = await self._located(job_id)
        return bool(await port.cancel(lsn))

    cancel_sync: Final = blocking(cancel)

    async def cancel_asked(self, delivery: Delivery) -> bool:
        """Return whether the job of this delivery was cancelled; if so, release the delivery.

        Raises:
            LogClosed: the log is closed here.
        """
        claimed(delivery)
        port = await self._connection.port()
        return bool(await port.look(lambda sight: is_asked(sight.facets, delivery)))

    cancel_asked_sync: Final = blocking(cancel_asked)

    async def get(self, job_id: str) -> views.JobView:
        """Return all data of a job in the log.

        Raises:
            JobNotFound: the log has no such job.
            WrongLog: the id belongs to another log.
            LogDamaged: its payload or result is damaged.
        """
        port, lsn = await self._located(job_id)
        view: views.JobView | None = await port.view(lsn)
        if view is None:
            raise await port.not_found(lsn)
        return await self._connection.packer.opened_view(view)

    get_sync: Final = blocking(get)

    async def find(self, key: str | bytes, queue: str = "default") -> views.JobView | None:
        """Find the job that holds a dedup key in a queue; None if the key is free.

        ::

            view = await log.find("order-42", queue="mail")

        Raises:
            UsageError: the key or the queue name is not valid.
            LogDamaged: the job's payload or result is damaged.
        """
        wanted = parsing.check_name("queue name", queue), key_bytes("find", key)
        port = await self._connection.port()
        lsn: int | None = await port.look(
            lambda sight: key_holder(sight, *wanted), needs_agenda=False, needs_keys=True
        )
        return None if lsn is None else await self.get(self._connection.tag.id(lsn))

    find_sync: Final = blocking(find)

    async def close(self) -> None:
        """Finish pending requests and close the directory. Legal twice."""
        store = self._connection.current
        if store is not None and store.usable:
            store.serve(self, None)
        await self._connection.aclose()

    def close_sync(self) -> None:
        """Do as ``close``, blocking this thread."""
        refuse_in_loop("close_sync()", "await close()")
        run(self.close())

    async def __aenter__(self) -> Self:
        return await self._opened()

    def __enter__(self) -> Self:
        refuse_in_loop("with log", "async with log")
        return run(self._opened())

    def __await__(self) -> Generator[Any, None, Self]:
        """Open the directory now."""
        return self._opened().__await__()

    def __repr__(self) -> str:
        return f"<TaskLog {self._connection.path}>"

    async def _opened(self) -> Self:
        self._connection.reopen()
        await self._connection.opened()
        return self

    async def _settle(self, settlement: Settlement) -> None:
        port = await self._connection.port()
        (answer,) = await port.settle([settlement])
        if isinstance(answer, errors.TaskqError):
            raise answer

    async def _located(self, job_id: str) -> tuple[LoopPort, int]:
        tag, lsn = connection.split_job_id(job_id)
        port = await self._connection.port()
        self._connection.check_tag(tag, lsn)
        return port, lsn

    def _id_of(self, answer: Any) -> str:
        lsn = answer if isinstance(answer, int) else answer.lsn
        return self._connection.tag.id(lsn)
