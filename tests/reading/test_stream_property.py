"""A reader that stops and goes on at any place reads the records of one scan."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq import Put, TaskLog
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.record import Record
from taskq.log.read.reader import LogReader
from taskq.log.state.job_history import records
from tests.effort import grows, some

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


async def read(log: TaskLog, number: int, size: int) -> list[int]:
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


async def live(path: str, steps: list[tuple[str, int, int]]) -> tuple[list[int], int]:
    result: list[int] = []
    start = 0
    numbers = count()
    async with TaskLog.open(path, segment_bytes=SEGMENT_BYTES_MIN) as log:
        for what, number, size in steps:
            if what == "read":
                result += await read(log, number, size)
            elif what == "seek" and result:
                start = result[next(numbers) * 7 % len(result)]
                await log.seek("billing", lsn=start)
                result = []
            elif what != "seek":
                await write(log, what, number, size)
        result += await read(log, 100_000, 1)
        whole = [record.lsn async for record in log.stream(follow=False)]
        assert whole == [record.lsn for record in scan(path)]
    return result, start


@given(STEPS)
@grows
@settings(max_examples=some(10, 30))
def test_streaming_equals_a_scan(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    path = str(tmp_path_factory.mktemp("log"))
    result, start = asyncio.run(live(path, steps))
    assert result == [record.lsn for record in scan(path) if record.lsn >= start]
