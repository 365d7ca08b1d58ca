"""Streams and replays of a log whose oldest end was compacted away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskq import Put, Record, State, Stream, TaskLog
from taskq.errors import ReaderFellBehind
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.reading.replay import REPLAY_HEADER


async def read(stream: Stream) -> list[Record]:
    return [record async for record in stream]


async def dead_letters(log: TaskLog, count: int) -> list[str]:
    ids = await log.put_many(
        [
            Put(payload=b"%d" % n * 300, queue="mail", attempts=1, headers={"n": str(n)})
            for n in range(count)
        ]
    )
    for delivery in await log.claim(count):
        await log.nack(delivery, "no such address")
    return ids


async def fill(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"x" * 9_000)] * 40)
    await asyncio.gather(*(log.ack(delivery) for delivery in await log.claim(40)))
    await log.put(b"the segment that is written to stays")


async def test_a_stream_tells_of_jobs_that_were_written_again(log: TaskLog) -> None:
    ids = await dead_letters(log, 3)
    scheduled = await log.put(b"later", queue="mail", delay="1h", headers={"a": "b"})
    await fill(log)
    report = await log.compact(keep=0.000_001)
    assert report.carried >= 4
    result = await read(log.stream(follow=False, kinds=["carried"], queues=["mail"]))
    assert [(item.job_id, item.state) for item in result] == [
        *((job, "dead") for job in ids),
        (scheduled, "scheduled"),
    ]
    dead, *_, late = result
    assert (dead.payload, dead.reason, dead.attempt) == (b"0" * 300, "no such address", 1)
    assert (dead.headers, dead.queue, dead.attempts_max) == ({"n": "0"}, "mail", 1)
    assert (late.payload, late.headers) == (b"later", {"a": "b"})
    assert late.due_ns > late.time_ns


async def test_a_filter_knows_jobs_that_were_written_again(log: TaskLog) -> None:
    ids = await dead_letters(log, 3)
    await fill(log)
    await log.compact(keep=0.000_001)
    end = (await log.stats()).next_lsn
    for job in ids:
        await log.dead.purge(job)
    result = await read(log.stream(from_lsn=end, follow=False, queues=["mail"]))
    assert [(item.kind, item.job_id, item.queue) for item in result] == [
        ("purged", job, "mail") for job in ids
    ]
    assert await read(log.stream(from_lsn=end, follow=False, queues=["other"])) == []


async def test_jobs_are_replayed_that_began_in_segments_which_are_gone(log: TaskLog) -> None:
    ids = await dead_letters(log, 5)
    await fill(log)
    await log.compact(keep=0.000_001)
    await log.dead.purge(ids[1])
    await log.dead.requeue(ids[2])
    report = await log.replay(state="dead")
    assert [job.job_id for job in report.jobs] == [ids[0], ids[3], ids[4]]
    for number, job in zip((0, 3, 4), report.jobs, strict=True):
        new = await log.get(job.new_id)
        assert (new.payload, new.queue) == (b"%d" % number * 300, "mail")
        assert (new.attempts_max, new.state) == (1, State.READY)
        assert new.headers == {"n": str(number), REPLAY_HEADER: job.job_id}


async def test_compaction_keeps_what_a_named_reader_has_not_read(log: TaskLog) -> None:
    await log.seek("billing", "start")
    await fill(log)
    report = await log.compact(keep=0.000_001)
    assert [segment.removed for segment in report.segments] == [False]
    assert "the reader 'billing' has not read it" in report.segments[0].reason
    read_all = await read(log.stream(reader="billing", follow=False))
    assert read_all[0].lsn == 1
    report = await log.compact(keep=0.000_001)
    assert all(segment.removed for segment in report.segments)
    assert report.segments
    (view,) = await log.readers()
    assert view.problem == ""
    rest = await read(log.stream(reader="billing", follow=False))
    assert rest[0].lsn == read_all[-1].lsn + 1


async def test_a_reader_that_is_too_far_behind_for_the_policy_is_told_so(tmp_path: Path) -> None:
    log = TaskLog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES_MIN, reader_lag_bytes=100_000)
    async with log:
        await log.seek("billing", "start")
        await fill(log)
        await log.compact(keep=0.000_001)
        with pytest.raises(ReaderFellBehind, match="reader 'billing' was to go on at lsn 1"):
            await read(log.stream(reader="billing", follow=False))
        await log.seek("billing", "start")
        assert await read(log.stream(reader="billing", follow=False))
