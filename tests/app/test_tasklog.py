"""The layer below tasks: bytes in, deliveries out, settled by hand."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.connection.connection import Connection
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.errors import (
    JobNotFound,
    LogClosed,
    PayloadTooLarge,
    StaleDelivery,
    UsageError,
    WrongLog,
)
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.requests import WITHDRAWN_MAX, ClaimRequest
from taskq.log.store.port import LoopPort
from taskq.testing import TravelClock, use_clock
from taskq.testing.sandbox import FakeClock


async def test_bytes_go_in_and_come_out_once(log: TaskLog) -> None:
    job_id = await log.put(b"\x00\xff", queue="raw", headers={"kind": "x"})
    (delivery,) = await log.claim(10)
    assert (delivery.job_id, delivery.payload) == (job_id, b"\x00\xff")
    assert (delivery.queue, delivery.headers, delivery.attempt) == ("raw", {"kind": "x"}, 1)
    assert await log.claim(10) == []
    await log.ack(delivery, result=b"done")
    view = await log.get(job_id)
    assert (view.state, view.result) == (State.SUCCEEDED, b"done")


async def test_higher_priorities_come_first_and_equal_ones_in_order(log: TaskLog) -> None:
    ids = await log.put_many([Put(payload=b"%d" % n, priority=n % 3) for n in range(9)])
    claimed = await log.claim(9)
    assert [delivery.payload for delivery in claimed] == [
        b"2",
        b"5",
        b"8",
        b"1",
        b"4",
        b"7",
        b"0",
        b"3",
        b"6",
    ]
    assert {delivery.job_id for delivery in claimed} == set(ids)


async def test_many_jobs_are_put_all_or_none(log: TaskLog) -> None:
    wrong: list[Any] = [
        Put(payload="text"),  # type: ignore[arg-type]
        Put(payload=b"x" * (PAYLOAD_BYTES_MAX + 1)),
        Put(payload=b"", priority=11),
        Put(payload=b"", delay=-1),
        {"payload": b""},
    ]
    for bad in wrong:
        with pytest.raises(UsageError):
            await log.put_many([Put(payload=b"good"), bad])
    with pytest.raises(PayloadTooLarge, match="the transaction of 18 jobs"):
        await log.put_many([Put(payload=b"x" * 1_000_000)] * 18)
    assert await log.put_many([]) == []
    assert await log.claim(10) == []


async def test_a_claim_reads_only_its_queues(log: TaskLog) -> None:
    await log.put_many([Put(payload=q.encode(), queue=q) for q in ("a", "b", "c")])
    assert {d.payload for d in await log.claim(10, queues=["a", "c"])} == {b"a", b"c"}
    with pytest.raises(UsageError, match="give a list of names"):
        await log.claim(1, queues="a")
    with pytest.raises(UsageError, match="count is 0"):
        await log.claim(0)


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


async def test_a_claim_that_is_cancelled_as_its_job_comes_gives_it_back(
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


async def test_a_failed_job_comes_back_and_dies_after_its_last_attempt(log: TaskLog) -> None:
    job_id = await log.put(b"x", attempts=2)
    (first,) = await log.claim(1)
    await log.nack(first, reason="first", delay=0)
    (second,) = await log.claim(1)
    assert second.attempt == 2
    assert (await log.get(job_id)).reason == "first"
    await log.nack(second, reason="last", delay=0)
    view = await log.get(job_id)
    assert (view.state, view.reason) == (State.DEAD, "last")
    assert await log.claim(1) == []


async def test_without_a_delay_a_failed_job_waits_for_the_default_backoff(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.app.transaction.random.random", lambda: 0.999)
    job_id = await log.put(b"x")
    (delivery,) = await log.claim(1)
    await log.nack(delivery)
    view = await log.get(job_id)
    assert view.state is State.SCHEDULED


async def test_a_delivery_is_settled_once(log: TaskLog) -> None:
    await log.put(b"x")
    (delivery,) = await log.claim(1)
    await log.ack(delivery)
    for late in (log.ack(delivery), log.nack(delivery, delay=0), log.release(delivery)):
        with pytest.raises(StaleDelivery):
            await late


async def test_a_key_gives_the_first_job(log: TaskLog) -> None:
    first = await log.put(b"1", key="k", window="1h")
    assert await log.put(b"2", key=b"k", window="1h") == first
    assert await log.put(b"3", key="k", window="1h", queue="other") != first
    assert len(await log.claim(10)) == 2


@pytest.mark.parametrize("due", ["1h", 3600, timedelta(hours=1)])
async def test_a_delayed_job_is_scheduled(log: TaskLog, due: Any) -> None:
    job_id = await log.put(b"x", delay=due, expires=datetime(2100, 1, 1, tzinfo=UTC))
    view = await log.get(job_id)
    assert view.state is State.SCHEDULED
    assert abs(view.due_ns - view.enqueued_ns - 3600 * 10**9) < 10**9
    assert view.expires_ns == int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    assert await log.claim(1) == []


async def test_peek_and_stats_see_what_time_brought_though_nothing_was_written_since(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with TaskLog(Connection(str(tmp_path), LogConfig(clock=clock))) as log:
        due = await log.put(b"due", delay=60)
        await log.put(b"late", expires=60)
        assert [view.payload for view in await log.peek()] == [b"late"]
        clock.advance(61)
        assert [view.job_id for view in await log.peek()] == [due]
        (queue,) = (await log.stats()).queues
        assert queue.scheduled == 0


async def test_stats_count_each_queue(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"")] * 3 + [Put(payload=b"", queue="b", delay="1h")])
    (delivery, *_rest) = await log.claim(2)
    await log.ack(delivery)
    counts = {queue.queue: queue for queue in (await log.stats()).queues}
    assert (counts["default"].ready, counts["default"].running) == (1, 1)
    assert counts["b"].scheduled == 1


async def test_ids_of_nothing_or_of_another_log_are_refused(log: TaskLog, tmp_path: Path) -> None:
    job_id = await log.put(b"x")
    tag = job_id.split("-")[0]
    with pytest.raises(JobNotFound, match="there is no job"):
        await log.get(f"{tag}-999999")
    with pytest.raises(JobNotFound):
        await log.cancel(f"{tag}-999999")
    with pytest.raises(UsageError, match="is no job id"):
        await log.get("nonsense")
    other = await TaskLog.open(tmp_path / "other", durability="os")
    with pytest.raises(WrongLog):
        await other.get(job_id)
    await other.close()


async def test_a_log_is_opened_by_await_too_and_closed_twice(tmp_path: Path) -> None:
    log = await TaskLog.open(tmp_path / "log", durability="os")
    job_id = await log.put(b"x")
    await log.close()
    await log.close()
    with pytest.raises(LogClosed):
        await log.put(b"y")
    async with log:
        assert (await log.get(job_id)).payload == b"x"
    assert repr(log) == f"<TaskLog {log.data_dir}>"


async def test_tasks_and_bytes_share_a_directory(tmp_path: Path) -> None:
    async with (
        TaskQ(tmp_path / "log", durability="os") as app,
        TaskLog.open(tmp_path / "log", durability="os") as log,
    ):
        job = await app.enqueue_by_name("add", 1)
        (delivery,) = await log.claim(1)
        assert (delivery.job_id, delivery.task) == (job.id, "add")
        assert delivery.payload == b'{"*":[1]}'


async def test_an_exclusive_log_shuts_other_openers_out(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log", exclusive=True):
        with pytest.raises(UsageError, match="with other options"):
            await TaskLog.open(tmp_path / "log")


async def test_a_key_tells_the_job_that_holds_it_for_as_long_as_it_does(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        assert await log.find("photo-1") is None
        job = await log.put(b"one", key="photo-1")
        other = await log.put(b"two", key="photo-1", queue="mail")
        holders = [await log.find("photo-1"), await log.find(b"photo-1", queue="mail")]
        assert [holder and (holder.job_id, holder.payload) for holder in holders] == [
            (job, b"one"), (other, b"two"),
        ]  # fmt: skip
        assert await log.find("photo-2") is None
        await log.cancel(job)
        assert await log.find("photo-1") is None
        with pytest.raises(UsageError, match="find: the key"):
            await log.find(7)  # type: ignore[arg-type]


async def test_a_key_that_another_process_gave_is_found(tmp_path: Path) -> None:
    """And so is one of a log that was closed and compacted meanwhile."""
    async with TaskLog.open(tmp_path) as log:
        job = await log.put(b"one", key="photo-1")
    async with TaskLog.open(tmp_path) as log:
        await log.compact(keep=0)
        view = await log.find("photo-1")
        assert view is not None
        assert view.job_id == job


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
        for _ in range(2):  # again with what was written again
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
        records = [record async for record in log.stream(follow=False) if record.kind == "acted"]
        assert {record.job_id for record in records} == {jobs["live"], jobs["dead"]}


async def test_a_waiting_claimer_gets_the_job_the_moment_its_lease_ends(log: TaskLog) -> None:
    """Nobody pokes it: the storage thread wakes by itself for the deadline."""
    await log.put(b"x")
    (first,) = await log.claim(lease="50ms")
    (second,) = await log.claim(wait="20s", lease="1h")
    assert (second.job_id, second.attempt) == (first.job_id, 2)
    with pytest.raises(StaleDelivery):
        await log.ack(first)
    with pytest.raises(StaleDelivery):
        await log.extend(first)
    await log.extend(second, seconds="2h")
    await log.ack(second)


async def test_an_extended_delivery_is_not_handed_out_again(log: TaskLog) -> None:
    await log.put(b"x")
    (held,) = await log.claim(lease="50ms")
    await log.extend(held, seconds=3_600)
    assert await log.claim(wait="100ms") == []
    await log.ack(held)


# -- queue calls -----------------------------------------------------------------------------------


#: More than two slices.
MANY = 2 * WITHDRAWN_MAX + 345


async def test_a_paused_queue_takes_jobs_and_gives_none(log: TaskLog) -> None:
    assert await log.pause("mail") is True
    assert await log.pause("mail") is False
    job = await log.put(b"x", queue="mail")
    other = await log.put(b"x", queue="other")
    assert [view.job_id for view in await log.peek()] == [other]
    assert [delivery.job_id for delivery in await log.claim(10)] == [other]
    paused = {queue.queue: queue.paused for queue in (await log.stats()).queues}
    assert paused == {"mail": True, "other": False}
    assert await log.resume("mail") is True
    assert await log.resume("mail") is False
    assert [delivery.job_id for delivery in await log.claim(10)] == [job]


async def test_a_whole_queue_is_cancelled_but_for_what_runs_which_is_counted(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"x", queue="mail") for _ in range(MANY)])
    late = await log.put(b"x", queue="mail", delay="1h")
    other = await log.put(b"x", queue="other")
    (running,) = await log.claim(1, queues=["mail"])
    dry = await log.cancel_many(queue="mail", dry_run=True)
    assert (dry.count, dry.running) == (MANY, 1)
    done = await log.cancel_many(queue="mail")
    assert (done.count, done.running, done.refused_count) == (MANY, 1, 0)
    assert (await log.get(late)).state is State.CANCELLED
    assert (await log.get(other)).state is State.READY
    await log.ack(running)
    counts = {queue.queue: queue for queue in (await log.stats()).queues}
    assert (counts["mail"].cancelled, counts["mail"].succeeded) == (MANY, 1)
    assert (await log.cancel_many(queue="never used")).count == 0


# -- editing what waits ---------------------------------------------------------------------------


async def test_an_edit_with_wrong_arguments_changes_nothing(log: TaskLog) -> None:
    job = await log.put(b"x")
    for wrong in (
        {},
        {"run_now": True, "delay": 1},
        {"priority": 10},
        {"queue": ""},
        {"eta": datetime(2030, 1, 1)},  # noqa: DTZ001 - that it has no zone is what is wrong
        {"delay": "soon"},
    ):
        with pytest.raises(UsageError):
            await log.edit(job, **wrong)
    with pytest.raises(JobNotFound):
        await log.edit(job + "7", priority=1)
    assert [event.kind for event in await log.timeline(job)] == ["enqueued"]


def test_jobs_are_edited_from_code_without_a_loop(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log", durability="os")
    greet = app.task(name="greet")(print)
    job = greet.options(delay="1h").enqueue_sync("x")
    assert app.edit_sync(job, run_now=True)
    assert job.status_sync() is State.READY
    app.close_sync()
