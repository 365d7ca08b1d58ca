"""Reading the log as it grows: every record once, in order, from wherever one likes."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq import Put, Record, Stream, TaskLog
from taskq.errors import LogClosed, LogFailed, OutcomeUnknown, UsageError
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.read.reader import LogReader
from taskq.log.state.job_history import records
from tests.effort import grows, some, within


async def read(stream: Stream) -> list[Record]:
    return [record async for record in stream]


# -- what comes ------------------------------------------------------------------------------------


async def follows(log: TaskLog) -> None:
    storage = log._connection.store()._open
    async with within():
        while not storage.committer.waiters.growth:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


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


@pytest.mark.parametrize("reader", [None, "reader"])
async def test_a_stream_begins_at_the_oldest_segment_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str | None
) -> None:
    """Compaction takes the oldest one as soon as it was found."""
    left: list[Path] = []

    def found(stream: Stream, *args: Any) -> Any:
        place = find(stream, *args)
        oldest = left.pop(0)
        oldest.unlink()
        if oldest.exists():
            pytest.skip("a file that is open keeps its name here")
        return place

    async with TaskLog.open(tmp_path, segment_bytes=SEGMENT_BYTES_MIN) as log:
        for _ in range(4):
            await log.put(bytes(SEGMENT_BYTES_MIN // 2))
        left += sorted((tmp_path / "log").glob("*.log"))[:1]
        find = Stream._find
        with monkeypatch.context() as patch:
            patch.setattr(Stream, "_find", lambda *args: found(*args) if left else find(*args))
            async with log.stream(reader=reader, follow=False) as stream:
                first = await anext(stream)
        assert first.lsn > 1
        async with log.stream(from_lsn=0, follow=False) as stream:
            assert (await anext(stream)).lsn == first.lsn


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
async def test_a_closed_stream_ends_its_read(log: TaskLog, reader: str | None, turns: int) -> None:
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
async def test_a_failed_fsync_ends_a_stream(log: TaskLog, monkeypatch: pytest.MonkeyPatch) -> None:
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
