"""Payloads and results that are compressed or in files: callers get what was given, everywhere."""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import JobHandle, Put, QueuePolicy, TaskLog, TaskQ
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag
from taskq.errors import CompressionUnavailable, PayloadTooLarge
from taskq.extras import install_line
from taskq.log.read.reader import LogReader
from taskq.views import JobView

TEXT: Final = b"the same words again and again, " * 200
NOISE: Final = os.urandom(1_500_000)
LARGE: Final = bytes(3_000_000)


async def stored(log: TaskLog, job_id: str) -> JobView:
    port, lsn = await log._located(job_id)
    view = await port.view(lsn)
    assert view is not None
    return view


async def test_a_list_leaves_out_what_unpacked_is_over_a_mebibyte(log: TaskLog) -> None:
    await log.put(NOISE, attempts=1)
    await log.put(NOISE + LARGE, attempts=1, compress="zlib")
    for delivery in await log.claim(2):
        await log.nack(delivery, "no")
    packed, plain = await log.dead.list()
    assert (plain.payload, plain.problem) == (NOISE, "")
    assert (packed.payload, bool(packed.problem)) == (b"", True)
    assert (await log.get(packed.job_id)).payload == NOISE + LARGE


async def test_job_before_queue_before_log(tmp_path: Path) -> None:
    queues = {"mail": QueuePolicy(compress="zstd"), "raw": QueuePolicy(compress="none")}
    options: Any = {"durability": "os", "compress": "zlib", "queues": queues}
    async with TaskLog.open(tmp_path / "log", **options) as log:
        puts = [
            Put(payload=TEXT), Put(payload=TEXT, queue="mail"), Put(payload=TEXT, queue="raw"),
            Put(payload=TEXT, queue="raw", compress="zlib"),
            Put(payload=TEXT, queue="mail", compress="none"),
            Put(payload=b"a" * 1_023), Put(payload=NOISE[:5_000]),  # too small, and too dense
        ]  # fmt: skip
        ids = await log.put_many(puts)
        flags = [(await stored(log, job_id)).payload_flags for job_id in ids]
        assert flags == [Flag.ZLIB, Flag.ZSTD, 0, Flag.ZLIB, 0, 0, 0]
        for delivery in await log.claim(9, queues=["mail", "raw"]):
            await log.ack(delivery, TEXT)
        flags = [(await stored(log, job_id)).result_flags for job_id in ids[1:5]]
        assert flags == [Flag.ZSTD, 0, 0, Flag.ZSTD]
        assert [d.payload for d in await log.claim(9)] == [TEXT, b"a" * 1_023, NOISE[:5_000]]


async def test_what_would_be_too_large_is_not_decompressed(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os", compress="zlib") as log:
        job_id = await log.put(bytes(500_000))
    limited = {"durability": "os", "decompressed_bytes_max": 100_000}
    async with TaskLog.open(tmp_path / "log", **limited) as log:  # type: ignore[arg-type]
        (delivery,) = await log.claim(1)
        for ask in (log.payload(delivery), log.get(job_id)):
            with pytest.raises(PayloadTooLarge, match=f"the payload of job {job_id}, decompressed"):
                await ask
        with pytest.raises(PayloadTooLarge, match="raise decompressed_bytes_max"):
            _ = delivery.payload
        await log.release(delivery)
        (listed,) = await log.peek()
        assert (listed.payload, "raise decompressed_bytes_max" in listed.problem) == (b"", True)
        # Bodies that this log could not read again are not compressed.
        other = await log.put(bytes(100_001), compress="zlib")
        assert (await stored(log, other)).payload_flags == 0
        assert (await log.get(other)).payload == bytes(100_001)


async def test_zstd_without_its_package_is_refused_before_any_write(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    extra = re.escape(install_line("zstd"))
    with pytest.raises(CompressionUnavailable, match=extra):
        await log.put(TEXT, compress="zstd")
    with pytest.raises(CompressionUnavailable, match=extra):
        TaskLog.open(tmp_path / "other", compress="zstd")
    with pytest.raises(CompressionUnavailable, match=extra):
        TaskQ(tmp_path / "other", compress="zstd")
    app = TaskQ(tmp_path / "other")

    async def work() -> None: ...

    with pytest.raises(CompressionUnavailable, match=extra):
        app.task(compress="zstd")(work)
    assert await log.peek() == []


async def test_a_body_of_16_mib_is_in_the_log_and_a_larger_one_is_refused_with_a_way_out(
    log: TaskLog,
) -> None:
    largest, way_out = os.urandom(PAYLOAD_BYTES_MAX), "limit is 16777216: put the data into a file"
    larger = largest + b"x"
    for put in (log.put(larger), log.put_many([Put(payload=b"x"), Put(payload=larger)])):
        with pytest.raises(PayloadTooLarge, match=way_out):
            await put
    assert await log.peek() == []
    job = await log.put(largest, keep="never")
    (delivery,) = await log.claim(9)
    assert delivery.payload == largest
    with pytest.raises(PayloadTooLarge, match=f"the result has 16777217 bytes, the {way_out}"):
        await log.ack(delivery, larger)
    await log.ack(delivery, largest)
    for _ in range(2):  # as it was written, and carried by compaction, both in one record
        view = await log.get(job)
        assert view.payload == view.result == largest
        assert (await log.compact(keep=0)).segments
    with LogReader.open(str(log.data_dir)) as reader:
        assert not reader.verify().damage


async def test_arguments_and_results_of_any_size_go_through_a_task(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(compress="zlib")
    async def double(text: str) -> str:
        return text * 2

    @app.task
    def length(text: str) -> int:
        return len(text)

    dense = NOISE.hex()
    big = length.options(priority=7)
    by_name = app.call_by_name(length.name, "x").options(compress="zlib")
    async with app, app.worker():
        with pytest.raises(PayloadTooLarge, match="put the data into a file and pass its path"):
            await length.enqueue("x" * PAYLOAD_BYTES_MAX)
        jobs: list[JobHandle[Any]] = [
            await double.enqueue(dense),
            await big.enqueue(dense),
            await app.enqueue(by_name),
            *await big.enqueue_many([(dense,), ("y",)]),
            *await app.enqueue_many([big.call(dense), length.call("z"), double.call("q" * 5_000)]),
            await asyncio.to_thread(double.enqueue_sync, "ab" * 5_000),
        ]
        size = len(dense)
        results = [dense * 2, size, 1, size, 1, size, 1, "q" * 10_000, "ab" * 10_000]
        assert [await job.result(20) for job in jobs] == results
        assert (await jobs[1].view()).payload == b'{"text":"%s"}' % dense.encode()
        assert (await jobs[0].view()).result == b'"%s"' % (dense * 2).encode()
