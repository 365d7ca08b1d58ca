"""Reading the log as it grows: every record once, in order, from wherever one likes."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq import Put, Record, State, Stream, TaskLog, TaskQ
from taskq.errors import LogClosed, LogFailed, OutcomeUnknown, ReaderFellBehind, UsageError
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read.reader import LogReader
from taskq.log.state.job_history import records
from taskq.reading.replay import REPLAY_HEADER
from tests.effort import grows, some, within


async def read(stream: Stream) -> list[Record]:
    return [record async for record in stream]


async def some_of_each(log: TaskLog) -> dict[str, str]:
    ids = {"won": await log.put(b"1", queue="mail", priority=9, headers={"from": "here"}, key="k")}
    ids["lost"] = await log.put(b"2", queue="mail", priority=8, attempts=2, expires="1d")
    ids["late"] = await log.put(b"3", delay="1h")
    won, lost = await log.claim(2)
    await log.ack(won, b"done")
    await log.nack(lost, "first try", delay=0)
    (lost,) = await log.claim(1)
    await log.nack(lost, "second try")
    await log.cancel(ids["late"])
    return ids


# -- what comes ------------------------------------------------------------------------------------


async def follows(log: TaskLog) -> None:
    storage = log._connection.store()._open
    async with within():
        while not storage.committer.waiters.growth:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def test_a_record_says_all_that_the_log_does(log: TaskLog) -> None:
    ids = await some_of_each(log)
    before = datetime.now(UTC) - timedelta(minutes=1)
    seen = {(record.kind, record.job_id): record for record in await read(log.stream(follow=False))}
    born = seen["enqueued", ids["won"]]
    assert (born.queue, born.task, born.priority, born.payload) == ("mail", "", 9, b"1")
    assert (born.headers, born.key, born.attempts_max) == ({"from": "here"}, b"k", 5)
    assert before < born.time < datetime.now(UTC)
    assert born.time_ns // 1_000 == round(born.time.timestamp() * 1_000_000)
    claimed = seen["claimed", ids["won"]]
    (owner,) = (item for item in seen.values() if item.kind == "owner")
    assert claimed.owner == owner.owner != 0
    assert (claimed.attempt, claimed.queue) == (1, "mail")
    assert seen["succeeded", ids["won"]].result == b"done"
    assert seen["dead", ids["lost"]].reason == "second try"
    assert seen["dead", ids["lost"]].cause == "exhausted"
    assert seen["enqueued", ids["lost"]].expires_ns > born.time_ns
    assert seen["enqueued", ids["late"]].due_ns > born.time_ns


# -- from where ------------------------------------------------------------------------------------


async def test_a_stream_begins_at_any_time_or_lsn(log: TaskLog) -> None:
    for _ in range(150):
        await log.put(b"y" * 1_000)
    whole = await read(log.stream(follow=False))
    for number in (0, 1, 75, 149):
        # Times are shown to the microsecond, and written to the nanosecond.
        moment = whole[number].time
        expected = [item for item in whole if item.time >= moment]
        result = await read(log.stream(follow=False, from_time=moment))
        assert result in (expected, whole[number:])
        assert await read(log.stream(follow=False, from_lsn=number + 1)) == whole[number:]
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    assert await read(log.stream(follow=False, from_time=long_ago)) == whole
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert await read(log.stream(follow=False, from_time=soon)) == []
    assert await read(log.stream(follow=False, from_lsn=151)) == []
    with pytest.raises(UsageError, match=r"lsn 152 is still to come: the next one is 151"):
        await read(log.stream(follow=False, from_lsn=152))


async def test_a_stream_from_a_time_to_come_passes_over_what_is_before(log: TaskLog) -> None:
    moment = datetime.now(UTC) + timedelta(milliseconds=100)
    stream = log.stream(from_time=moment)
    first = asyncio.ensure_future(anext(stream))
    while datetime.now(UTC) < moment:
        await log.put(b"before")
    await log.put(b"after")
    record = await asyncio.wait_for(first, 30)
    assert record.time >= moment
    await stream.aclose()


# -- which -----------------------------------------------------------------------------------------


async def test_filters_choose_by_kind_queue_and_task(tmp_path: Path) -> None:
    async with TaskQ(tmp_path / "data") as app, TaskLog.open(tmp_path / "data") as log:
        mail = await app.enqueue(app.call_by_name("mail.send", 1).options(queue="mail"))
        await app.enqueue(app.call_by_name("mail.send", 2))
        await app.enqueue(app.call_by_name("pay", 3).options(queue="mail"))
        for delivery in await log.claim(3):
            await log.ack(delivery)

        async def count(**choice: Any) -> int:
            return len(await read(log.stream(follow=False, **choice)))

        assert await count(queues=["mail"]) == 6
        assert await count(tasks=["mail.send"]) == 6
        assert await count(queues=["mail"], tasks=["mail.send"]) == 3
        assert await count(queues=["mail", "default"], kinds=["succeeded"]) == 3
        assert await count(queues=[]) == 0
        result = await read(app.stream(follow=False, queues=["mail"], tasks=["mail.send"]))
        assert {item.job_id for item in result} == {mail.id}


async def test_a_filter_knows_jobs_that_began_before_the_stream(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"x" * 5_000, queue=f"q{n % 2}") for n in range(100)])
    claimed = await log.claim(100)
    for delivery in claimed:
        await log.ack(delivery, b"r" * 2_000)
    ends = await read(log.stream(follow=False, kinds=["succeeded"]))
    start = ends[0].lsn
    result = await read(log.stream(follow=False, from_lsn=start, queues=["q1"]))
    assert [item.job_id for item in result] == [d.job_id for d in claimed if d.queue == "q1"]
    assert {item.queue for item in result} == {"q1"}
    # Without a filter nothing is looked up: not known is "".
    whole = await read(log.stream(follow=False, from_lsn=start))
    assert {item.queue for item in whole} == {""}


async def test_a_job_that_nothing_is_known_of_passes_every_filter(log: TaskLog) -> None:
    """Its first records are gone: it is not for a filter to drop what it cannot judge."""
    await log.put(b"x" * 70_000, queue="mail")
    (delivery,) = await log.claim(1)
    await log.put(b"x")
    await log.ack(delivery)
    await log.close()
    min((log.data_dir / "log").glob("*.log")).unlink()
    async with log:
        result = await read(log.stream(follow=False, queues=["other"]))
    assert ("succeeded", "") in [(item.kind, item.queue) for item in result]


# -- the stream as an object -----------------------------------------------------------------------


@pytest.mark.posix("waits in steps of 16 ms")
async def test_a_wait_that_is_given_up_loses_nothing(log: TaskLog) -> None:
    bodies: list[bytes | None] = []
    async with log.stream(kinds=["enqueued"]) as stream:
        for number in range(60):
            await log.put(b"%d" % number * 2_000)
            seconds = 0.0
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        bodies.append((await anext(stream)).payload)
                    break
                except TimeoutError:
                    seconds += 0.000_05
    assert bodies == [b"%d" % number * 2_000 for number in range(60)]
    assert (await log.stats()).segments > 2


async def test_a_loop_that_was_left_goes_on_where_it_was(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"%d" % n) for n in range(10)])
    stream = log.stream(follow=False)
    first = [(await anext(stream)).lsn for _ in range(3)]
    async for record in stream:
        first.append(record.lsn)
        if len(first) == 5:
            break
    rest = [record.lsn for record in await read(stream)]
    assert first + rest == list(range(1, 11))
    assert await read(stream) == []


@pytest.mark.parametrize("reader", [None, "billing"])
@pytest.mark.parametrize("turns", [*range(0, 12, 2), 40])
async def test_closing_a_stream_ends_a_running_read(
    log: TaskLog, reader: str | None, turns: int
) -> None:
    """At once, wherever it has come to by then, although nothing is written."""
    await log.put(b"x")
    stream, got = log.stream(reader=reader), asyncio.Event()

    async def follow() -> None:
        async for _ in stream:
            got.set()

    async with within():
        reading = asyncio.ensure_future(follow())
        await got.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        await stream.aclose()
        await reading
    assert not any(view.alive for view in await log.readers())


async def test_a_stream_is_closed_only_when_the_closing_that_was_cancelled_is_over(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.put(b"x")
    stream = log.stream(reader="billing")
    await anext(stream)
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()
    plain = stream._finish

    def slowly(opened: Any) -> None:
        begun.set()
        assert go.wait(30)
        plain(opened)
        ended.set()

    monkeypatch.setattr(stream, "_finish", slowly)
    closing = asyncio.ensure_future(stream.aclose())
    await asyncio.to_thread(begun.wait, 30)
    closing.cancel()
    await asyncio.wait({closing})
    assert not ended.is_set()
    asyncio.get_running_loop().call_soon(go.set)
    await stream.aclose()
    assert ended.is_set()
    assert [view.alive for view in await log.readers()] == [False]


async def test_a_reader_that_is_cancelled_as_its_stream_closes_is_cancelled(log: TaskLog) -> None:
    stream = log.stream()
    reading = asyncio.ensure_future(read(stream))
    await follows(log)
    closing = asyncio.ensure_future(stream.aclose())
    reading.cancel()
    async with within():
        await asyncio.wait({reading, closing})
    assert reading.cancelled()


async def test_a_stream_is_read_by_one_task(log: TaskLog) -> None:
    stream = log.stream()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="two tasks read from one stream"):
        await anext(stream)
    await log.put(b"x")
    assert (await waiting).lsn == 1
    await stream.aclose()


async def test_a_stream_of_a_closed_log_ends_with_an_error(tmp_path: Path) -> None:
    log = await TaskLog.open(tmp_path / "log")
    await log.put(b"x")
    stream = log.stream()
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await follows(log)
    await log.close()
    with pytest.raises(LogClosed):
        await asyncio.wait_for(waiting, 30)
    with pytest.raises(LogClosed):
        await anext(stream)
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.posix("syncs by another call")
async def test_a_stream_of_a_log_whose_fsync_fails_ends_with_an_error(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.put(b"1")
    stream = log.stream(reader="billing", kinds=["enqueued"])
    assert (await anext(stream)).payload == b"1"
    waiting = asyncio.ensure_future(anext(stream))
    await follows(log)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("taskq.log.machine.posix.os.fdatasync", fail)
        with pytest.raises(OutcomeUnknown):
            await log.put(b"2")
        with pytest.raises(LogFailed):
            await asyncio.wait_for(waiting, 30)
    await stream.aclose()
    await log.close()
    async with log:
        result = await read(log.stream(reader="billing", kinds=["enqueued"], follow=False))
        assert [item.payload for item in result] == [b"2"]


# -- stream compacted ------------------------------------------------------------------------------


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


async def test_a_stream_includes_rewritten_jobs(log: TaskLog) -> None:
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


async def test_a_reader_that_lags_beyond_the_policy_gets_an_error(tmp_path: Path) -> None:
    log = TaskLog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES_MIN, reader_lag_bytes=100_000)
    async with log:
        await log.seek("billing", "start")
        await fill(log)
        await log.compact(keep=0.000_001)
        with pytest.raises(ReaderFellBehind, match="reader 'billing' was to go on at lsn 1"):
            await read(log.stream(reader="billing", follow=False))
        await log.seek("billing", "start")
        assert await read(log.stream(reader="billing", follow=False))


# -- stream property -------------------------------------------------------------------------------


#: (what, how many, how large)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "win", "lose", "read", "seek"]),
        st.integers(1, 12),
        st.sampled_from([0, 7, 600, 9_000, 40_000]),
    ),
    max_size=30,
)


def scan(path: str) -> list[Record]:
    with LogReader.open(path) as reader:
        return list(records(reader._journal, reader._journal.start()))


async def write(log: TaskLog, what: str, number: int, size: int) -> None:
    if what == "put":
        await log.put_many([Put(payload=bytes(size))] * number)
        return
    for delivery in await log.claim(number):
        if what == "win":
            await log.ack(delivery, bytes(size // 10))
        else:
            await log.nack(delivery, "x" * (size // 10), delay=0)


async def read_on(log: TaskLog, number: int, size: int) -> list[int]:
    numbers: list[int] = []
    async with log.stream(reader="billing", follow=False) as stream:
        for _ in range(number):
            record = await anext(stream, None)
            if record is None:
                return numbers
            numbers.append(record.lsn)
        if size:
            await stream.commit()
            return numbers
    # It was not handled, so it comes again.
    return numbers[:-1]


async def live(
    path: str, steps: list[tuple[str, int, int]], durability: str
) -> tuple[list[int], int]:
    result: list[int] = []
    start = 0
    numbers = count()
    options: Any = {"durability": durability, "interval": "5ms"}
    async with TaskLog.open(path, segment_bytes=SEGMENT_BYTES_MIN, **options) as log:
        for what, number, size in steps:
            if what == "read":
                result += await read_on(log, number, size)
            elif what == "seek" and result:
                start = result[next(numbers) * 7 % len(result)]
                await log.seek("billing", lsn=start)
                result = []
            elif what != "seek":
                await write(log, what, number, size)
        result += await read_on(log, 100_000, 1)
        whole = [(it.lsn, it.time_ns, it.epoch) async for it in log.stream(follow=False)]
        assert whole == [(it.lsn, it.time_ns, it.epoch) for it in scan(path)]
    return result, start


@given(STEPS, st.sampled_from(["fsync", "interval", "os"]))
@grows
@settings(max_examples=some(10, 30))
def test_streaming_equals_a_scan(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], durability: str
) -> None:
    path = str(tmp_path_factory.mktemp("log"))
    result, start = asyncio.run(live(path, steps, durability))
    assert result == [record.lsn for record in scan(path) if record.lsn >= start]
