"""Payloads and results that are compressed or in files: callers get what was given, everywhere."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Put, QueuePolicy, State, TaskLog, TaskQ
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag
from taskq.errors import (
    CompressionUnavailable,
    PayloadTooLarge,
)
from taskq.extras import install_line
from taskq.log.config import LogConfig
from taskq.log.format.bodies import Compression
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


@pytest.mark.parametrize(
    ("policy", "is_plain"),
    [
        ({}, True), ({"compress": "none"}, True), ({"compress": "zlib"}, False),
    ],
)  # fmt: skip
def test_bodies_are_packed_where_the_log_or_a_queue_says_so(
    policy: dict[str, Any], is_plain: bool
) -> None:
    assert LogConfig(**policy).is_plain is is_plain
    assert LogConfig(queues={"raw": QueuePolicy(**policy)}).is_plain is is_plain


# -- compression -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["zlib", "zstd"])
async def test_a_compressed_payload_comes_back_wherever_it_is_asked_for(
    log: TaskLog, way: Compression
) -> None:
    job_id = await log.put(TEXT, compress=way, headers={"a": "b"})
    inside = await stored(log, job_id)
    assert inside.payload_flags == {"zlib": Flag.ZLIB, "zstd": Flag.ZSTD}[way]
    assert len(inside.payload) < 300
    assert [view.payload for view in await log.peek()] == [TEXT]
    (delivery,) = await log.claim(1)
    assert delivery.payload == TEXT == await log.payload(delivery)
    await log.ack(delivery, TEXT + b"!", compress=way)
    view = await log.get(job_id)
    assert (view.payload, view.result, view.payload_flags, view.result_flags) == (
        TEXT, TEXT + b"!", 0, 0,
    )  # fmt: skip
    with LogReader.open(str(log.data_dir)) as reader:
        (listed,) = reader.jobs(None, None, None, 9)
        shown = reader.job(listed.lsn)
    assert shown is not None
    assert (listed.payload, listed.result) == (shown.payload, shown.result) == (TEXT, TEXT + b"!")


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (TEXT, {"compress": "zlib"}),
        (TEXT, {"compress": "zstd"}),
        (NOISE, {}),
        (NOISE + LARGE, {"compress": "zlib"}),
    ],
)
async def test_a_dead_letter_gives_back_the_bytes_that_were_given(
    log: TaskLog, body: bytes, options: dict[str, Any]
) -> None:
    """Dead, shown, requeued and claimed again. LedgerQ hands out the compressed ones."""
    job_id = await log.put(body, attempts=2, headers={"who": "me"}, **options)
    for _ in range(2):
        (delivery,) = await log.claim(1)
        assert (delivery.payload, delivery.headers) == (body, {"who": "me"})
        await log.nack(delivery, "no", delay=0)
    view = await log.get(job_id)
    assert (view.state, view.payload, view.headers) == (State.DEAD, body, {"who": "me"})
    (listed,) = await log.dead.list()
    assert (listed.payload == body) is not bool(listed.problem)
    await log.dead.requeue(job_id)
    (delivery,) = await log.claim(1)
    assert (delivery.payload, delivery.headers) == (body, {"who": "me"})
    await log.ack(delivery, body, **options)
    view = await log.get(job_id)
    assert (view.state, view.payload, view.result) == (State.SUCCEEDED, body, body)


async def test_small_and_dense_payloads_are_stored_as_they_are(log: TaskLog) -> None:
    ids = await log.put_many(
        [Put(payload=body, compress="zlib") for body in (b"a" * 1_023, NOISE[:5_000], TEXT)]
    )
    views = [await stored(log, job_id) for job_id in ids]
    assert [view.payload_flags for view in views] == [0, 0, Flag.ZLIB]
    assert [d.payload for d in await log.claim(9)] == [b"a" * 1_023, NOISE[:5_000], TEXT]


async def test_job_before_queue_before_log(tmp_path: Path) -> None:
    queues = {"mail": QueuePolicy(compress="zstd"), "raw": QueuePolicy(compress="none")}
    async with TaskLog.open(
        tmp_path / "log", durability="os", compress="zlib", queues=queues
    ) as log:
        puts = [
            Put(payload=TEXT),
            Put(payload=TEXT, queue="mail"),
            Put(payload=TEXT, queue="raw"),
            Put(payload=TEXT, queue="raw", compress="zlib"),
            Put(payload=TEXT, queue="mail", compress="none"),
        ]
        ids = await log.put_many(puts)
        flags = [(await stored(log, job_id)).payload_flags for job_id in ids]
        assert flags == [Flag.ZLIB, Flag.ZSTD, 0, Flag.ZLIB, 0]
        for delivery in await log.claim(9, queues=["mail", "raw"]):
            await log.ack(delivery, TEXT)
        flags = [(await stored(log, job_id)).result_flags for job_id in ids[1:]]
        assert flags == [Flag.ZSTD, 0, 0, Flag.ZSTD]


async def test_a_key_a_delay_and_headers_go_with_a_compressed_payload(log: TaskLog) -> None:
    first = await log.put(TEXT, compress="zlib", key="k", delay="1h", headers={"a": "b"})
    assert await log.put(TEXT, compress="zlib", key="k") == first
    view = await log.get(first)
    assert (view.key, view.headers, view.state) == (b"k", {"a": "b"}, State.SCHEDULED)
    assert view.payload == TEXT


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


async def test_zstd_without_its_package_is_told_before_anything_is_written(
    log: TaskLog, app_without_zstandard: None, tmp_path: Path
) -> None:
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


@pytest.fixture
def app_without_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)


# -- large ones ------------------------------------------------------------------------------------


async def test_a_body_of_16_mib_is_in_the_log_and_a_larger_one_is_refused_with_a_way_out(
    log: TaskLog,
) -> None:
    largest, way_out = os.urandom(PAYLOAD_BYTES_MAX), "limit is 16777216: put the data into a file"
    larger = largest + b"x"
    for put in (log.put(larger), log.put_many([Put(payload=b"x"), Put(payload=larger)])):
        with pytest.raises(PayloadTooLarge, match=way_out):
            await put
    assert await log.peek() == []
    jobs = [await log.put(largest), *await log.put_many([Put(payload=b"x"), Put(payload=largest)])]
    for delivery in await log.claim(9):
        assert delivery.payload in {largest, b"x"}
        with pytest.raises(PayloadTooLarge, match=f"the result has 16777217 bytes, the {way_out}"):
            await log.ack(delivery, larger)
        await log.ack(delivery, largest)
    views = [await log.get(job) for job in jobs]
    assert [len(view.payload) for view in views] == [len(largest), 1, len(largest)]
    assert {view.result for view in views} == {largest}
    assert set((log.data_dir / "log").parent.iterdir()) >= {log.data_dir / "log"}
    with LogReader.open(str(log.data_dir)) as reader:
        assert not reader.verify().damage


async def test_a_job_of_the_largest_payload_and_result_is_carried(log: TaskLog) -> None:
    """Compaction writes both into one record again."""
    largest = os.urandom(PAYLOAD_BYTES_MAX)
    job = await log.put(largest, keep="never")
    (delivery,) = await log.claim()
    await log.ack(delivery, largest)
    report = await log.compact(keep=0)
    assert report.segments
    view = await log.get(job)
    assert view.payload == view.result == largest


# -- tasks -----------------------------------------------------------------------------------------


async def test_arguments_and_results_of_any_size_go_through_a_task(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(compress="zlib")
    async def double(text: str) -> str:
        return text * 2

    @app.task
    def length(text: str) -> int:
        return len(text)

    dense = NOISE.hex()
    async with app, app.worker():
        assert await (await double.enqueue("ab" * 5_000)).result(20) == "ab" * 10_000
        assert await (await double.enqueue(dense)).result(20) == dense * 2
        with pytest.raises(PayloadTooLarge, match="put the data into a file and pass its path"):
            await length.enqueue("x" * PAYLOAD_BYTES_MAX)
        big = length.options(priority=7)
        assert await (await big.enqueue(dense)).result(20) == len(dense)
        assert await (await app.enqueue(big.call(dense))).result(20) == len(dense)
        by_name = app.call_by_name(length.name, "x").options(compress="zlib")
        assert await (await app.enqueue(by_name)).result(20) == 1
        jobs = await big.enqueue_many([(dense,), ("y",)])
        assert [await job.result(20) for job in jobs] == [len(dense), 1]
        calls = [big.call(dense), length.call("z"), double.call("q" * 5_000)]
        mixed = await app.enqueue_many(calls)
        assert [await job.result(20) for job in mixed] == [len(dense), 1, "q" * 10_000]
        assert (await mixed[0].view()).payload == json.dumps({"text": dense}).replace(
            ": ", ":"
        ).encode()
        assert await mixed[0].status() is State.SUCCEEDED


def test_the_same_without_an_event_loop(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(compress="zlib")
    def double(text: str) -> str:
        return text * 2

    dense = NOISE.hex()
    jobs = [double.enqueue_sync(dense), app.enqueue_sync(double.call("ab" * 5_000))]
    jobs += double.enqueue_many_sync([(dense,)])
    jobs += app.enqueue_many_sync([double.call("x"), double.call(dense)])

    async def run() -> list[str]:
        async with app, app.worker():
            return [await asyncio.to_thread(job.result_sync, 20) for job in jobs]

    values = asyncio.run(run())
    assert values == [dense * 2, "ab" * 10_000, dense * 2, "xx", dense * 2]
    again = TaskQ(tmp_path / "data", durability="os")
    assert again.job(jobs[0].id).view_sync().result == json.dumps(dense * 2).encode()
    again.close_sync()
