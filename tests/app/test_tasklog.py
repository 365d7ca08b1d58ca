"""The layer below tasks: bytes in, deliveries out, settled by hand."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from taskq import State, TaskLog, TaskQ, errors
from taskq.core.records import Flag
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import ClaimRequest
from taskq.log.store.port import LoopPort
from taskq.testing import TravelClock, use_clock


async def test_a_claim_waits_for_a_job_and_no_longer_than_asked(log: TaskLog) -> None:
    assert await log.claim(1, wait="10ms") == []
    claimer = asyncio.ensure_future(log.claim(1, wait=None))
    await asyncio.sleep(0)
    job_id = await log.put(b"x")
    assert [d.job_id for d in await claimer] == [job_id]


@pytest.mark.parametrize("wait", [None, "20s"])
async def test_a_claim_that_is_cancelled_takes_no_job(log: TaskLog, wait: str | None) -> None:
    claimer = asyncio.ensure_future(log.claim(wait=wait))
    await _asked(log)
    claimer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claimer
    job_id = await log.put(b"x")
    assert [(d.job_id, d.attempt) for d in await log.claim(wait="20s")] == [(job_id, 1)]


async def test_a_claim_cancelled_as_its_job_comes_returns_it(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim: Any = LoopPort.claim

    def cancelled_when_answered(port: LoopPort, request: ClaimRequest) -> Any:
        asked = claim(port, request)
        asked.add_done_callback(lambda _: claimer.cancel())
        return asked

    with monkeypatch.context() as patch:
        patch.setattr(LoopPort, "claim", cancelled_when_answered)
        claimer = asyncio.ensure_future(log.claim(wait="20s"))
        await _asked(log)
        job_id = await log.put(b"x")
        with pytest.raises(asyncio.CancelledError):
            await claimer
    assert [(d.job_id, d.attempt) for d in await log.claim(wait="20s")] == [(job_id, 1)]


async def _asked(log: TaskLog) -> None:
    """Until what was begun before has sent its question to the log, which serves them in order."""
    await asyncio.sleep(0)
    await log.stats()


async def test_a_failed_job_waits_for_a_backoff_unless_it_is_given_a_delay(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.app.transaction.random.random", lambda: 0.999)
    job = await log.put(b"x")
    await log.nack((await log.claim())[0])
    assert (await log.get(job)).state is State.SCHEDULED


async def test_find_returns_the_job_that_holds_a_key(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        assert await log.find("photo-1") is None
        job = await log.put(b"one", key="photo-1")
        other = await log.put(b"two", key="photo-1", queue="mail")
    async with TaskLog.open(tmp_path) as log:  # closed and compacted meanwhile
        await log.compact(keep=0)
        holders = [await log.find("photo-1"), await log.find(b"photo-1", queue="mail")]
        assert [holder and (holder.job_id, holder.payload) for holder in holders] == [
            (job, b"one"), (other, b"two"),
        ]  # fmt: skip
        assert await log.find("photo-2") is None
        await log.cancel(job)
        assert await log.find("photo-1") is None


async def test_an_act_is_in_the_timeline_as_long_as_its_job_is_kept(tmp_path: Path) -> None:
    clock = TravelClock(1_700_000_000)
    app = TaskQ(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
    use_clock(app, clock)
    log = TaskLog(app.connection)
    async with app:
        jobs = {
            name: await log.put(name.encode(), attempts=1, keep="1h")
            for name in ("ended", "dead", "live")
        }
        with log.acting("ana"):
            for job in jobs.values():
                await log.edit(job, priority=9)
        acted = {job: (await log.timeline(job))[-2] for job in jobs.values()}
        for delivery in await log.claim(2):
            await (
                log.nack(delivery, "no") if delivery.job_id == jobs["dead"] else log.ack(delivery)
            )
        for _ in range(2):  # a second time, with carried records
            for _ in range(3):
                await log.cancel(await log.put(os.urandom(SEGMENT_BYTES_MIN // 2)))
            clock.advance(600)
            assert (await log.compact(keep="5m")).carried
            for job, before in acted.items():
                acts = [event for event in await log.timeline(job) if event.kind == "acted"]
                assert [(act.reason, act.time_ns) for act in acts] == [
                    ("ana: edit", before.time_ns)
                ]
        for _ in range(3):
            await log.cancel(await log.put(os.urandom(SEGMENT_BYTES_MIN // 2)))
        clock.advance(9_000)
        await log.compact(keep="5m")
        with log.acting("ana"):
            port = await app.connection.port()
            assert await port.withdraw([]) == []  # which is no act
        records = [record async for record in log.stream(follow=False) if record.kind == "acted"]
        assert {record.job_id for record in records} == {jobs["live"], jobs["dead"]}


async def test_a_waiting_claimer_gets_the_job_the_moment_its_lease_ends(log: TaskLog) -> None:
    """Nobody pokes it: the storage thread wakes by itself for the deadline."""
    await log.put(b"x")
    (first,) = await log.claim(lease="50ms")
    (second,) = await log.claim(wait="20s", lease="1h")
    assert (second.job_id, second.attempt) == (first.job_id, 2)
    with pytest.raises(errors.StaleDelivery):
        await log.ack(first)
    with pytest.raises(errors.StaleDelivery):
        await log.extend(first)
    await log.extend(second, seconds="2h")
    await log.ack(second)


# -- transactions ----------------------------------------------------------------------------------


async def test_deliveries_are_settled_and_jobs_put_together(log: TaskLog) -> None:
    ids = [await log.put(b"%d" % number) for number in range(4)]
    held = await log.claim(3)
    async with log.transaction() as tx:
        tx.ack(held[0], result=b"42" * 999, compress="zlib")
        tx.nack(held[1], reason="no", delay="1h")
        tx.release(held[2], delay="1h")
        running, job = tx.cancel(ids[1]), tx.put(b"new", priority=9)
        assert (await log.get(ids[0])).state is State.RUNNING
    assert running.cancelled
    assert [(await log.get(it)).state for it in (*ids, job.id)] == [
        State.SUCCEEDED, State.CANCELLED, State.SCHEDULED, State.READY, State.READY,
    ]  # fmt: skip
    assert (await log.get(ids[0])).result == b"42" * 999
    port, lsn = await log._located(ids[0])
    stored = await port.view(lsn)
    assert stored is not None
    assert stored.result_flags == Flag.ZLIB
    assert [delivery.payload for delivery in await log.claim(9)] == [b"new", b"3"]
    assert repr(job) == f"<PendingPut {job.id}>"
    assert repr(running) == f"<PendingCancel {ids[1]}>"
