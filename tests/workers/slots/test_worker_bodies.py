"""Compressed payloads and results in a worker."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import QueuePolicy, TaskQ, current_job, retry
from taskq.core.errors import ResultGone
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Cause, Flag, Kind
from taskq.core.views import JobView
from taskq.errors import JobFailed
from taskq.extras import install_line
from taskq.log.format.bodies import compress
from taskq.log.store.port import LoopPort
from taskq_workers.slots import outcomes
from tests.workers.fakes import FakeApp

SECONDS: Final = 30
TEXT: Final = "the same words again and again, " * 200
DENSE: Final = random.Random(7).randbytes(PAYLOAD_BYTES_MAX).hex()


async def seen(port: LoopPort, lsn: int) -> JobView:
    view = await port.view(lsn)
    assert view is not None
    return view


async def put_stored(app: TaskQ, task: Any, stored: bytes, flags: int) -> Any:
    """Return a job whose payload the log holds in exactly this form."""
    port = app.store().port()
    return app.job(f"{app.store().tag}-{await port.enqueue(task.spec.packed(flags), stored)}")


# -- payloads --------------------------------------------------------------------------------------


async def test_a_bomb_ends_as_a_dead_letter_at_once(app: TaskQ) -> None:
    @app.task(retry=retry.fixed(5, delay=0))
    async def never(text: str) -> None: ...

    huge, _ = compress(bytes(110_000_000), "zlib")
    liar = struct.pack("<Q", 1_000) + huge[8:]
    async with app, app.worker():
        honest = await put_stored(app, never, huge, Flag.ZLIB)
        with pytest.raises(JobFailed, match=f"the payload of job {honest.id}, decompressed, has"):
            await honest.result(SECONDS)
        other = await put_stored(app, never, liar, Flag.ZLIB)
        with pytest.raises(
            JobFailed, match=r"LogDamaged: the payload of job .* does not decompress"
        ):
            await other.result(SECONDS)
        for job in (honest, other):
            port = app.store().port()
            assert (await seen(port, job.lsn)).attempt == 1


async def test_without_zstd_a_worker_leaves_its_jobs_to_others(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(compress="zstd", retry=1)
    async def length(text: str) -> int:
        return len(text)

    monkeypatch.setattr(outcomes, "ELSEWHERE_SECONDS", 0.0)
    async with app:
        job = await length.enqueue(TEXT)
        with monkeypatch.context() as without, caplog.at_level(logging.WARNING, "taskq.worker"):
            without.setitem(sys.modules, "zstandard", None)
            async with app.worker():
                port = app.store().port()
                view = await seen(port, job.lsn)
                while len(view.attempts) < 3:
                    view = await seen(port, job.lsn)
        assert view.attempt <= 1
        assert install_line("zstd") in view.attempts[0].reason
        warnings = [
            message for message in caplog.messages if "jobs wait for another worker" in message
        ]
        assert len(warnings) == 1
        async with app.worker():
            assert await job.result(SECONDS) == len(TEXT)


async def test_a_job_left_to_others_waits_a_minute(fake: FakeApp) -> None:
    @fake.task(compress="zstd")
    async def length(text: str) -> int:
        return len(text)

    stored, flags = compress(TEXT.encode(), "zlib")
    async with fake.worker(concurrency=1):
        fake.fake.put(length.spec.packed(Flag.ZSTD | Flag.ZLIB), stored)
        (settled,) = await fake.fake.settlements(1)
        assert (settled.kind, settled.cause) == (Kind.DEAD, Cause.REJECTED)
        module = sys.modules["zstandard"]
        sys.modules["zstandard"] = None  # type: ignore[assignment]
        try:
            fake.fake.put(length.spec.packed(Flag.ZSTD), stored)
            *_, settled = await fake.fake.settlements(2)
        finally:
            sys.modules["zstandard"] = module
    assert (settled.kind, settled.delay_ns, settled.cause) == (
        Kind.RELEASED, 60 * 10**9, Cause.CALLER,
    )  # fmt: skip
    assert flags == Flag.ZLIB


# -- results ---------------------------------------------------------------------------------------


async def test_results_are_stored_as_their_task_queue_or_log_says(tmp_path: Path) -> None:
    queues = {"raw": QueuePolicy(compress="none")}
    app = TaskQ(tmp_path / "data", durability="os", compress="zlib", queues=queues)

    @app.task
    async def repeat(text: str) -> str:
        return text

    @app.task(compress="zstd")
    def repeat_in_thread(text: str) -> str:
        return text

    @app.task(store_result=False)
    async def forget(text: str) -> str:
        return text

    async with app, app.worker():
        port = app.store().port()

        async def flags(job: Any) -> int:
            assert await job.result(SECONDS) == TEXT
            return (await seen(port, job.lsn)).result_flags

        assert await flags(await repeat.enqueue(TEXT)) == Flag.ZLIB
        assert await flags(await repeat.options(queue="raw").enqueue(TEXT)) == 0
        assert await flags(await repeat_in_thread.enqueue(TEXT)) == Flag.ZSTD
        small = await repeat.enqueue("x")
        assert await small.result(SECONDS) == "x"
        assert (await seen(port, small.lsn)).result_flags == 0
        quiet = await forget.enqueue(TEXT)
        with pytest.raises(ResultGone):
            await quiet.result(SECONDS)


async def test_results_of_the_largest_size_that_come_at_once_are_all_kept(app: TaskQ) -> None:
    together = asyncio.Barrier(5)

    @app.task
    async def same(text: str) -> str:
        await together.wait()
        return text

    largest = "x" * (PAYLOAD_BYTES_MAX - len('{"text":""}'))
    async with app, app.worker(concurrency=5):
        texts = (largest, "a", largest, largest, "b")
        jobs = [await same.enqueue(text) for text in texts]
        assert [await job.result(SECONDS) for job in jobs] == list(texts)


async def test_a_success_may_bring_a_large_result_and_large_jobs(app: TaskQ) -> None:
    @app.task
    async def length(text: str) -> int:
        return len(text)

    @app.task
    async def parent() -> str:
        children.append(current_job().enqueue(length.call(large)))
        children.append(current_job().enqueue(length.options(compress="zlib").call(TEXT)))
        with pytest.raises(ValueError, match="put the data into a file and pass its path"):
            length.call("x" * PAYLOAD_BYTES_MAX)
        return large

    children: list[Any] = []
    large = "y" * (PAYLOAD_BYTES_MAX - 1_000)
    async with app, app.worker():
        assert await (await parent.enqueue()).result(SECONDS) == large
        results = [await child.handle.result(SECONDS) for child in children]
        assert results == [len(large), len(TEXT)]
        port = app.store().port()
        flags = [(await seen(port, child.handle.lsn)).payload_flags for child in children]
        assert flags == [0, Flag.ZLIB]
