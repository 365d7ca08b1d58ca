"""Payloads and results that are compressed or in files: callers get what was given, everywhere."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Put, QueuePolicy, State, TaskLog, TaskQ
from taskq.cli.main import main
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag
from taskq.errors import (
    CompressionUnavailable,
    LogDamaged,
    PayloadTooLarge,
    SpillMissing,
    UsageError,
)
from taskq.extras import install_line
from taskq.log.config import LogConfig
from taskq.log.format.bodies import Compression
from taskq.log.read.reader import LogReader
from taskq.log.segments.bodystore import BodyStore
from taskq.log.segments.spill import Spill, decode_reference
from taskq.views import JobView

TEXT: Final = b"the same words again and again, " * 200
NOISE: Final = random.Random(7).randbytes(PAYLOAD_BYTES_MAX + 1)
LARGE: Final = b"0123456789abcdef" * (3 * PAYLOAD_BYTES_MAX // 16)


def spilled(log: TaskLog | TaskQ) -> list[Path]:
    return sorted((log.data_dir / "spill").glob("*"))


async def stored(log: TaskLog, job_id: str) -> JobView:
    """Return the job with payload and result as the log has them."""
    port, lsn = await log._located(job_id)
    view = await port.view(lsn)
    assert view is not None
    return view


@pytest.mark.parametrize(
    ("policy", "is_plain"),
    [
        ({}, True), ({"compress": "none"}, True), ({"compress": "zlib"}, False),
        ({"spill": True}, False), ({"spill": True, "compress": "zlib"}, False),
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
        (NOISE, {"spill": True}),
        (NOISE + LARGE, {"spill": True, "compress": "zlib"}),
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
        # What this log could not read again itself is not compressed in the first place.
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compress": "gzip"}, "compress is 'gzip', it must be one of none, zlib, zstd"),
        ({"spill": "yes"}, "spill is 'yes', it must be True, False or None"),
    ],
)
async def test_a_wrong_option_is_named(
    log: TaskLog, tmp_path: Path, options: Any, message: str
) -> None:
    app = TaskQ(tmp_path / "other")

    @app.task
    async def work() -> None: ...

    with pytest.raises(UsageError, match=message):
        work.options(**options)
    with pytest.raises(UsageError, match=message):
        app.task(**options)(work.fn)
    with pytest.raises(UsageError, match=message):
        await log.put(TEXT, **options)


# -- files for large ones --------------------------------------------------------------------------


async def test_a_large_payload_is_refused_unless_it_may_go_to_a_file(log: TaskLog) -> None:
    for put in (log.put(NOISE), log.put_many([Put(payload=b"x"), Put(payload=NOISE)])):
        with pytest.raises(PayloadTooLarge, match="the payload has 1048577 bytes") as info:
            await put
        assert "allow it with spill=True" in str(info.value)
    assert await log.peek() == []
    assert spilled(log) == []
    job_id = await log.put(NOISE, spill=True)
    (file,) = spilled(log)
    assert file.read_bytes() == NOISE
    inside = await stored(log, job_id)
    assert (inside.payload_flags, len(inside.payload)) == (Flag.SPILLED, 40)
    assert [view.payload for view in await log.peek()] == [b""]
    assert "has 1048577 bytes, the limit is 1048576: it is in /" in (await log.peek())[0].problem
    (delivery,) = await log.claim(1)
    assert delivery.payload == NOISE == await log.payload(delivery)
    with pytest.raises(PayloadTooLarge, match="the result"):
        await log.ack(delivery, LARGE)
    await log.ack(delivery, LARGE, spill=True, compress="none")
    view = await log.get(job_id)
    assert (view.payload, view.result) == (NOISE, LARGE)
    assert len(spilled(log)) == 2


async def test_equal_large_payloads_share_a_file(log: TaskLog) -> None:
    ids = [await log.put(NOISE, spill=True) for _ in range(3)]
    ids += await log.put_many([Put(payload=NOISE, spill=True)] * 9)
    assert len(spilled(log)) == 1
    assert [d.payload == NOISE for d in await log.claim(20)] == [True] * 12


async def test_a_large_payload_is_compressed_first(log: TaskLog) -> None:
    """What fits the log then needs no file; what does not goes there compressed."""
    inline = await log.put(LARGE, spill=True, compress="zlib")
    assert (await stored(log, inline)).payload_flags == Flag.ZLIB
    assert spilled(log) == []
    dense = NOISE + LARGE
    job_id = await log.put(dense, spill=True, compress="zlib")
    assert (await stored(log, job_id)).payload_flags == Flag.ZLIB | Flag.SPILLED
    (file,) = spilled(log)
    assert PAYLOAD_BYTES_MAX < file.stat().st_size < len(dense) / 2
    assert (await log.get(job_id)).payload == dense
    assert [d.payload for d in await log.claim(9)] == [LARGE, dense]


async def test_files_have_a_limit_of_their_own(tmp_path: Path) -> None:
    limits = {"durability": "os", "spill": True, "spill_bytes_max": 2_000_000}
    async with TaskLog.open(tmp_path / "log", **limits) as log:  # type: ignore[arg-type]
        await log.put(bytes(2_000_000))
        with pytest.raises(PayloadTooLarge, match="limit is 2000000: raise spill_bytes_max"):
            await log.put(bytes(2_000_001))


async def test_a_file_that_is_gone_or_changed_is_named(log: TaskLog) -> None:
    job_id = await log.put(NOISE, spill=True)
    (delivery,) = await log.claim(1)
    (file,) = spilled(log)
    file.write_bytes(b"?" + NOISE[1:])
    for ask in (log.payload(delivery), log.get(job_id)):
        with pytest.raises(LogDamaged, match=f"{file} does not hold the payload of job {job_id}"):
            await ask
    file.unlink()
    with pytest.raises(SpillMissing, match=f"{file} is missing"):
        await log.payload(delivery)
    with LogReader.open(str(log.data_dir)) as reader:
        shown = reader.job(delivery.job)
    assert shown is not None
    assert (shown.payload, shown.state) == (b"", State.RUNNING)
    assert shown.problem.startswith(f"{file} is missing, and held the payload of job {job_id}")
    # The same bytes, put again, heal the job.
    await log.put(NOISE, spill=True)
    assert delivery.payload == NOISE


async def test_a_file_that_cannot_be_written_enqueues_nothing(log: TaskLog) -> None:
    (log.data_dir / "spill").write_bytes(b"in the way")
    with pytest.raises(Exception, match="could not write"):
        await log.put(NOISE, spill=True)
    (log.data_dir / "spill").unlink()
    assert await log.peek() == []


# -- tasks -----------------------------------------------------------------------------------------


async def test_arguments_and_results_of_any_size_go_through_a_task(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(spill=True, compress="zlib")
    async def double(text: str) -> str:
        return text * 2

    @app.task
    def length(text: str) -> int:
        return len(text)

    dense = NOISE.hex()
    async with app, app.worker():
        assert await (await double.enqueue("ab" * 5_000)).result(20) == "ab" * 10_000
        assert await (await double.enqueue(dense)).result(20) == dense * 2
        with pytest.raises(PayloadTooLarge, match="allow it with spill=True"):
            await length.enqueue(dense)
        big = length.options(spill=True)
        assert await (await big.enqueue(dense)).result(20) == len(dense)
        assert await (await app.enqueue(big.call(dense))).result(20) == len(dense)
        by_name = app.call_by_name(length.name, "x").options(spill=True, compress="zlib")
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

    @app.task(spill=True, compress="zlib")
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
    assert len(spilled(app)) == 2


# -- what is larger than anybody has a use for -----------------------------------------------------


def test_a_file_that_does_not_hold_the_body_costs_no_memory(tmp_path: Path) -> None:
    """It is checked in pieces, however large somebody made it."""
    spill, size = Spill(str(tmp_path)), 64 * 2**20
    reference = decode_reference(spill.put(NOISE), "it")
    os.truncate(spill.file_path(reference), size)
    forged = reference.digest + size.to_bytes(8, "little")
    for read in (spill.get, spill.check):
        tracemalloc.start()
        with pytest.raises(LogDamaged, match="does not hold it any more"):
            read(forged, "it")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 * 2**20


async def test_what_no_log_may_hold_is_not_read(log: TaskLog) -> None:
    """The record tells the size: beyond ``spill_bytes_max`` the file is not even opened."""
    spill = Spill(str(log.data_dir))
    stored = bytes(32) + (2**40).to_bytes(8, "little")
    with pytest.raises(PayloadTooLarge, match="raise spill_bytes_max"):
        BodyStore(str(log.data_dir), LogConfig(), spill).unpack(stored, int(Flag.SPILLED), "it")


async def test_tail_show_and_names_read_no_large_body(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their files are not opened; in place of a body it is told how large it is and where."""
    job_id = await log.put(NOISE, spill=True)
    (delivery,) = await log.claim()
    await log.ack(delivery, LARGE, spill=True)
    monkeypatch.setattr(Spill, "get", None)

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, "-d", str(log.data_dir)])
        assert not ended.value.code
        return capsys.readouterr().out

    answer = "has 1048577 bytes, the limit is 1048576: it is in /"
    assert answer not in await asyncio.to_thread(run, "tail")
    assert answer in await asyncio.to_thread(run, "tail", "--json")
    assert answer in await asyncio.to_thread(run, "show", job_id)
    shown = json.loads(await asyncio.to_thread(run, "show", job_id, "--json"))
    assert answer in shown["problem"]
    assert f"the result of job {job_id} has {len(LARGE)} bytes" in shown["problem"]
