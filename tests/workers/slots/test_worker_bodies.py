"""What a worker makes of payloads and results that are compressed, or in files."""

from __future__ import annotations

import logging
import random
import struct
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import QueuePolicy, State, TaskQ, current_job, retry
from taskq.core.errors import AppendFailed, ResultGone, SpillMissing
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Cause, Flag, Kind
from taskq.core.views import JobView
from taskq.errors import JobFailed
from taskq.extras import install_line
from taskq.log.format.bodies import compress
from taskq.log.segments.spill import Spill
from taskq.log.store.port import LoopPort
from taskq_workers.slots import outcomes
from tests.workers.fakes import FakeApp

SECONDS: Final = 30
TEXT: Final = "the same words again and again, " * 200
DENSE: Final = random.Random(7).randbytes(PAYLOAD_BYTES_MAX).hex()


async def seen(port: LoopPort, lsn: int) -> JobView:
    """Return a job as the log has it."""
    view = await port.view(lsn)
    assert view is not None
    return view


async def put_stored(app: TaskQ, task: Any, stored: bytes, flags: int) -> Any:
    """Return a job whose payload the log holds in exactly this form."""
    port = app.store().port()
    return app.job(f"{app.store().tag}-{await port.enqueue(task.spec.packed(flags), stored)}")


# -- payloads --------------------------------------------------------------------------------------


async def test_a_bomb_ends_as_a_dead_letter_at_once(app: TaskQ) -> None:
    """Whether it tells its size or lies about it: no retry would make it smaller."""

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


async def test_a_job_whose_file_is_gone_is_dead_and_says_which(app: TaskQ) -> None:
    @app.task(spill=True, retry=retry.fixed(5, delay=0))
    async def length(text: str) -> int:
        return len(text)

    async with app:
        job = await length.enqueue(DENSE)
        (file,) = (app.data_dir / "spill").iterdir()
        file.unlink()
        async with app.worker():
            with pytest.raises(JobFailed, match=f"SpillMissing: {file} is missing, and held the"):
                await job.result(SECONDS)
        assert await job.status() is State.DEAD


async def test_a_large_payload_is_read_off_the_event_loop(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    real = Spill.get

    def get(spill: Spill, stored: bytes, what: str) -> bytes:
        threads.append(threading.get_ident())
        return real(spill, stored, what)

    @app.task(spill=True)
    async def length(text: str) -> int:
        return len(text)

    monkeypatch.setattr(Spill, "get", get)
    async with app, app.worker():
        assert await (await length.enqueue(DENSE)).result(SECONDS) == len(DENSE)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_without_zstd_a_worker_leaves_its_jobs_to_others(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No attempt is burnt, nothing is lost, and both log and program say what is missing."""

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


async def test_jobs_that_join_a_success_may_be_large(app: TaskQ) -> None:
    """Their payloads go to files before the success that brings them is written."""

    @app.task(spill=True)
    async def length(text: str) -> int:
        return len(text)

    @app.task
    async def parent() -> None:
        children.append(current_job().enqueue(length.call(DENSE)))
        children.append(current_job().enqueue(length.options(compress="zlib").call(TEXT)))
        with pytest.raises(ValueError, match="allow it with spill=True"):
            current_job().enqueue(length.options(spill=True).call(DENSE).options(spill=False))

    children: list[Any] = []
    async with app, app.worker():
        await (await parent.enqueue()).result(SECONDS)
        results = [await child.handle.result(SECONDS) for child in children]
        assert results == [len(DENSE), len(TEXT)]
        port = app.store().port()
        flags = [(await seen(port, child.handle.lsn)).payload_flags for child in children]
        assert flags == [Flag.SPILLED, Flag.ZLIB]


async def test_a_large_result_waits_for_a_full_disk_and_runs_its_job_once(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals, runs = Spill.put, [1, 2], []

    def put(spill: Spill, body: bytes, *rest: Any) -> bytes:
        if refusals:
            refusals.pop()
            raise AppendFailed(spill.path, OSError(28, "No space left on device"))
        return real(spill, body, *rest)

    @app.task(spill=True)
    async def large() -> str:
        runs.append(1)
        return DENSE

    async def no_sleep(_: float) -> None: ...

    monkeypatch.setattr(Spill, "put", put)
    monkeypatch.setattr("taskq_workers.slots.storing.asyncio.sleep", no_sleep)
    async with app, app.worker():
        assert await (await large.enqueue()).result(SECONDS) == DENSE
    assert (runs, refusals) == ([1], [])


async def test_a_result_whose_file_was_collected_before_its_record_runs_its_job_again(
    fake: FakeApp,
) -> None:
    """A worker that could not reach its log for an hour must not settle with a name of nothing."""

    @fake.task
    async def work() -> int:
        return 1

    fake.fake.refuse = lambda item: SpillMissing("gone") if item.kind is Kind.SUCCEEDED else None
    async with fake.worker(concurrency=1):
        fake.put(work)
        (settled,) = await fake.fake.settlements(1)
    assert (settled.kind, settled.cause) == (Kind.RELEASED, Cause.DRAIN)
