"""``log.transaction()`` and ``app.transaction()``: a block that is written when it is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskq import LogTransaction, State, TaskLog, TaskQ
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.errors import (
    DuplicateKey,
    JobNotFound,
    JobNotYetEnqueued,
    PayloadTooLarge,
    StaleDelivery,
    UsageError,
    WrongLog,
)


class Stop(Exception):
    """Leaves a block."""


async def states(log: TaskLog, *ids: str) -> list[State]:
    return [(await log.get(job)).state for job in ids]


# -- bytes -----------------------------------------------------------------------------------------


async def test_deliveries_are_settled_and_jobs_put_together(log: TaskLog) -> None:
    ids = [await log.put(b"%d" % number) for number in range(5)]
    held = await log.claim(3)
    async with log.transaction() as tx:
        tx.ack(held[0], result=b"42")
        tx.nack(held[1], reason="no", delay="1h")
        tx.release(held[2], delay="1h")
        withdrawn, running = tx.cancel(ids[3]), tx.cancel(ids[1])
        job = tx.put(b"new", priority=9, key="k")
        same = tx.put(b"new", key="k")
        assert await states(log, *ids[:3]) == [State.RUNNING] * 3
        for pending in (job, same):
            with pytest.raises(JobNotYetEnqueued, match="put together with the transaction"):
                _ = pending.id
        with pytest.raises(UsageError, match="is known when the block is left"):
            _ = withdrawn.cancelled
    assert (withdrawn.cancelled, running.cancelled) == (True, True)
    assert (same.id, job.duplicate, same.duplicate) == (job.id, False, True)
    assert await states(log, *ids, job.id) == [
        State.SUCCEEDED, State.CANCELLED, State.SCHEDULED, State.CANCELLED, State.READY,
        State.READY,
    ]  # fmt: skip
    assert (await log.get(ids[0])).result == b"42"
    assert [delivery.payload for delivery in await log.claim(9)] == [b"new", b"4"]
    assert repr(job) == f"<PendingPut {job.id}>"
    assert repr(withdrawn) == f"<PendingCancel {ids[3]}>"


async def test_a_block_left_by_an_exception_writes_nothing(log: TaskLog) -> None:
    job_id = await log.put(b"x")
    (held,) = await log.claim()
    before = (await log.stats()).next_lsn
    with pytest.raises(Stop):  # noqa: PT012 - the block is what is tested
        async with log.transaction() as tx:
            tx.ack(held)
            job = tx.put(b"y")
            raise Stop
    assert (await log.stats()).next_lsn == before
    assert await states(log, job_id) == [State.RUNNING]
    with pytest.raises(JobNotYetEnqueued):
        _ = job.id
    await log.ack(held)


async def test_a_part_that_is_refused_refuses_the_block(log: TaskLog, tmp_path: Path) -> None:
    """Leaving it raises what that part met, and nothing of the others was written."""
    first = await log.put(b"x", key="k")
    held = await log.claim()
    await log.release(held[0])
    tag = first.partition("-")[0]
    before = (await log.stats()).next_lsn

    async def refused(error: type[Exception], part: Any) -> None:
        with pytest.raises(error):  # noqa: PT012 - as above
            async with log.transaction() as tx:
                tx.put(b"good")
                part(tx)
        assert (await log.stats()).next_lsn == before

    await refused(StaleDelivery, lambda tx: tx.ack(held[0]))
    await refused(JobNotFound, lambda tx: tx.cancel(f"{tag}-{before + 9}"))
    await refused(WrongLog, lambda tx: tx.cancel("0123abcd-1"))
    await refused(UsageError, lambda tx: tx.cancel("what?"))
    await refused(DuplicateKey, lambda tx: tx.put(b"y", key="k", on_conflict="raise"))
    await refused(PayloadTooLarge, lambda tx: tx.put(b"y" * (PAYLOAD_BYTES_MAX + 1)))
    await refused(PayloadTooLarge, lambda tx: [tx.put(b"y" * 1_000_000) for _ in range(18)])
    await refused(PayloadTooLarge, lambda tx: tx.ack(held[0], b"y" * (PAYLOAD_BYTES_MAX + 1)))
    assert await states(log, first) == [State.READY]


async def test_a_block_is_entered_once_and_used_within(log: TaskLog) -> None:
    tx = log.transaction()
    assert isinstance(tx, LogTransaction)
    with pytest.raises(UsageError, match="within its own block"):
        tx.put(b"x")
    async with tx:
        pass
    with pytest.raises(UsageError, match="within its own block"):
        tx.put(b"x")
    with pytest.raises(UsageError, match="is entered once"):
        await tx.__aenter__()
    assert (await log.stats()).queues == ()


async def test_large_bodies_of_a_block_go_the_way_of_others(tmp_path: Path) -> None:
    options: Any = {"durability": "os", "compress": "zlib"}
    async with TaskLog.open(tmp_path / "log", **options) as log:
        await log.put(b"x")
        (held,) = await log.claim()
        async with log.transaction() as tx:
            tx.ack(held, result=b"r" * 3_000_000)
            job = tx.put(b"p" * 3_000_000)
        assert (await log.get(held.job_id)).result == b"r" * 3_000_000
        (held,) = await log.claim()
        assert (held.job_id, held.payload) == (job.id, b"p" * 3_000_000)


async def test_a_delivery_with_a_lease_is_settled_in_a_block(log: TaskLog) -> None:
    await log.put(b"x")
    (held,) = await log.claim(lease="1h")
    async with log.transaction() as tx:
        tx.nack(held, delay=0)
    (again,) = await log.claim(lease="1h")
    assert again.attempt == 2


# -- calls -----------------------------------------------------------------------------------------


def test_code_without_an_event_loop_has_the_same_block(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    with app.transaction() as tx:
        first, second = tx.enqueue(add.call(1, 2)), tx.enqueue(add.call(3, 4))
    with app.transaction() as tx:
        cancelled = tx.cancel(first.id)
        third = tx.enqueue(add.call(5, 6))
    assert cancelled.cancelled
    assert [job.handle.status_sync() for job in (first, second, third)] == [
        State.CANCELLED, State.READY, State.READY,
    ]  # fmt: skip
    with pytest.raises(WrongLog), app.transaction() as tx:  # noqa: PT012 - as above
        tx.enqueue(add.call(7, 8))
        tx.cancel("0123abcd-1")
    app.close_sync()
