"""``keep``: how long a task's finished jobs are kept, where the log says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, Put, State, TaskLog, TaskQ
from taskq.core.model import SECOND_NS, TIME_NS_MAX, Extras
from taskq.errors import JobNotFound, UsageError
from taskq.log.config import SEGMENT_BYTES_MIN, QueuePolicy
from taskq.log.requests import EnqueueSpec
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import World

DAY = 86_400
OTHER = EnqueueSpec("other", "mail.send")


async def compact_all(log: TaskLog) -> None:
    """Let go what was written so far, as far as nothing keeps it."""
    for _ in range(4):
        await log.put(bytes(30_000), queue="filler")
    report = await log.compact(keep=0)
    assert any(segment.removed for segment in report.segments)


def test_a_job_is_kept_so_long_after_its_end_whatever_log_and_queue_say() -> None:
    queues = {"other": QueuePolicy(keep_seconds=2 * DAY)}
    world = World(config=keeping(keep_seconds=DAY, queues=queues))
    process = world.process()
    own = process.enqueue(b"own", Extras(keep_ns=30 * DAY * SECOND_NS), OTHER)
    ever = process.enqueue(b"ever", Extras(keep_ns=TIME_NS_MAX), OTHER)
    short = process.enqueue(b"short", Extras(keep_ns=SECOND_NS), OTHER)
    plain = process.enqueue(b"plain", None, OTHER)
    for delivery in process.claim(4):
        process.settle(delivery, body=b"result")
    before = world.view(own)
    for kept in ({own, plain}, {own}, {own}):
        fill_segment(process)
        world.clock.advance(1.5 * DAY)
        tend(process)
        assert {job for job in (own, short, plain) if world.view(job)} == kept
        assert world.view(own) == before
    fill_segment(process)
    world.clock.advance(30 * DAY)
    tend(process)
    assert world.view(own) is None
    assert world.view(ever) is not None


async def test_a_task_a_call_and_a_put_say_how_long(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, segment_bytes=SEGMENT_BYTES_MIN, upkeep=False)

    @app.task(keep="1d")
    async def report(number: int) -> int:
        return number

    @app.task
    async def ping(text: str) -> None:
        """Nobody wants to know."""

    async with app, TaskLog.open(tmp_path, segment_bytes=SEGMENT_BYTES_MIN, upkeep=False) as log:
        async with app.worker():
            long = await report.enqueue(7)
            own = await ping.options(keep="never").enqueue("own")
            plain: list[JobHandle[Any]] = [await report.options(keep=None).enqueue(8)]
            plain.append(await ping.enqueue(""))
            for job in plain:
                await job.result(20)
        put = await log.put_many([Put(payload=b"1", keep=60), Put(payload=b"2")])
        for delivery in await log.claim(2):
            await log.ack(delivery, b"done")
        await compact_all(log)
        assert await long.result(20) == 7
        assert await own.status() is State.SUCCEEDED
        assert (await log.get(put[0])).result == b"done"
        for gone in (*[job.id for job in plain], put[1]):
            with pytest.raises(JobNotFound):
                await log.get(gone)


async def test_a_replayed_job_is_kept_as_the_old_one(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path, segment_bytes=SEGMENT_BYTES_MIN, upkeep=False) as log:
        await log.put(b"x", queue="q", keep="1h")
        await log.ack((await log.claim())[0])
        old = (await log.replay(queue="q")).jobs[0]
        await log.ack((await log.claim())[0], b"done")
        await compact_all(log)
        assert (await log.get(old.new_id)).result == b"done"
        assert (await log.get(old.job_id)).state is State.SUCCEEDED


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, b"1h"])
async def test_a_wrong_time_is_refused_by_name(tmp_path: Path, wrong: Any) -> None:
    app = TaskQ(tmp_path)
    with pytest.raises(UsageError, match=r"^keep is "):
        app.task(name="x", keep=wrong)(print)
    async with TaskLog.open(tmp_path) as log:
        with pytest.raises(UsageError, match=r"^keep is "):
            await log.put(b"x", keep=wrong)
        assert (await log.stats()).next_lsn == 1


@pytest.mark.parametrize(
    ("given", "seconds"), [("5m", 300.0), (90, 90.0), ("never", None), (None, None), (0, 0.0)]
)
async def test_a_log_has_the_window_that_it_is_opened_with(
    tmp_path: Path, given: Any, seconds: float | None
) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os", starvation=given) as log:
        assert log._connection.config.starvation_seconds == seconds
        low = await log.put(b"low", priority=0)
        assert [delivery.job_id for delivery in await log.claim()] == [low]
