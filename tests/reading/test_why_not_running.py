"""``await log.why(job_id)``: the reason, from within a process that has the log open."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.why import Why
from taskq.errors import JobNotFound, WrongLog
from taskq.log.read import diagnosis as asking
from taskq.log.state.job_history import DROPPED_FILE


async def test_a_job_is_behind_those_that_its_workers_claim_first(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        await log.claim(queues=["q"])
        ids = [await log.put(b"x", queue="q") for _ in range(3)]
        for _ in range(2):
            await log.put(b"x", queue="q", priority=9)
            await log.put(b"x", queue="elsewhere", priority=9)
        await log.put(b"x", queue="q", priority=1)
        reason = await log.why(ids[2])
        assert (reason.code, reason.ahead) == (Why.BEHIND_PRIORITY, 4)
        assert reason.text == "2 jobs of higher priority and 2 older jobs are before it"
        await log.claim(2, queues=["q"])
        reason = await log.why(ids[2])
        assert (reason.code, reason.ahead) == (Why.BEHIND_OLDER, 2)
        await log.claim(2, queues=["q"])
        assert (await log.why(ids[2])).code is Why.NEXT
        running = await log.why(ids[0])
        assert running.code is Why.RUNNING
        assert "attempt 1 of 5" in running.text


async def test_an_app_tells_why_its_jobs_wait(tmp_path: Path) -> None:
    async with TaskQ(tmp_path) as app:
        job = await app.enqueue(app.call_by_name("mail.send"))
        assert (await app.why(job.id)).code is Why.NO_WORKER


async def test_a_job_that_is_not_there_has_no_reason(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        job_id = await log.put(b"x")
        tag = job_id.partition("-")[0]
        with pytest.raises(JobNotFound, match=f"there is no job {tag}-99 in"):
            await log.why(f"{tag}-99")
        with pytest.raises(WrongLog):
            await log.why("00000000-1")


async def test_a_process_that_keeps_the_writer_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_LOOK_SECONDS", 0)
    async with TaskLog.open(tmp_path) as log:
        await log.claim()
        job_id = await log.put(b"x")
        assert (await log.why(job_id)).code is Why.NEXT
        monkeypatch.setattr(asking, "flock_holders", lambda *_: [4711])
        monkeypatch.setattr(asking, "process_state", lambda _: "stopped: python app.py")
        reason = await log.why(job_id)
        assert reason.code is Why.LOCKED
        assert reason.text.startswith("process 4711 (stopped: python app.py) keeps")
        looks = iter([[4711], [4711], [0]])
        monkeypatch.setattr(asking, "flock_holders", lambda *_: next(looks))
        assert (await log.why(job_id)).code is Why.NEXT


async def test_the_lock_of_a_stopped_worker_is_seen_by_who_only_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_LOOK_SECONDS", 0)
    async with TaskLog.open(tmp_path) as log:
        await log.claim()
        job_id = await log.put(b"x")
        lsn = int(job_id.rpartition("-")[2])
        from taskq.log.read.reader import LogReader  # noqa: PLC0415

        with (tmp_path / "write.lock").open("rb") as file, LogReader.open(str(tmp_path)) as reader:
            fcntl.flock(file, fcntl.LOCK_EX)
            monkeypatch.setattr(asking, "process_state", lambda _: "stopped: python")
            reason = reader.why(lsn)
            assert reason is not None
            assert reason.code is Why.LOCKED


async def test_a_job_that_a_full_disk_took_is_explained(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        job = await log.put(b"x", queue="q")
        gone = f"{job.rpartition('-')[0]}-999"
        with pytest.raises(JobNotFound):
            await log.why(gone)
        note = {"before_lsn": 1_000, "at_ns": 1}
        (tmp_path / DROPPED_FILE).write_text(json.dumps(note), encoding="utf-8")
        reason = await log.why(gone)
        assert reason.code is Why.DROPPED
        assert "the disk was full" in reason.text
