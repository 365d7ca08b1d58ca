"""``taskq why``: one sentence, from the files and the processes that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, TaskLog, TaskQ
from tests.cli.helpers import Sample, taskq, taskq_json


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("succeeded", "succeeded", "it succeeded "),
        ("dead", "dead", "its attempt is spent (ValueError: [red]bad\\x1b[31m)"),
        ("retried", "not_due", "attempt 1 of 3 failed (TimeoutError: slow); the next is due in "),
        ("cancelled", "cancelled", "it was cancelled "),
        ("bytes", "no_worker", "it was put as bytes, and no process claims any"),
        ("task", "not_due", "it is due in 2h, at 20"),
    ],
)
def test_why_tells_one_reason_for_people_and_for_programs(
    sample: Sample, name: str, code: str, text: str
) -> None:
    job_id = sample.ids[name]
    printed = taskq("why", job_id, "-d", sample.path)
    assert printed.exit_code == 0
    [line] = printed.stdout.splitlines()
    assert line.startswith(f"{job_id}: ")
    assert text in line
    answer = taskq_json("why", job_id, "-d", sample.path)
    assert (answer["id"], answer["code"]) == (job_id, code)
    assert bool(answer["until"]) is (code == "not_due")


def test_why_of_a_job_that_is_not_there_says_so(sample: Sample) -> None:
    tag = sample.ids["dead"].partition("-")[0]
    result = taskq("why", f"{tag}-999", "-d", sample.path)
    assert result.exit_code == 1
    assert f"there is no job {tag}-999 in this log" in result.stderr
    result = taskq("why", "999", "-d", sample.path)
    assert result.exit_code == 1
    assert "there is no job 999 in this log (the newest is" in result.stderr
    assert taskq("why", "x999", "-d", sample.path).exit_code == 2


async def _told(job: JobHandle[Any]) -> None:
    for _ in range(2):
        await job.status()


async def test_a_reader_sees_which_queues_and_tasks_live_workers_serve(tmp_path: Path) -> None:
    app = TaskQ(tmp_path)

    @app.task(name="known", queue="mail")
    async def known() -> None: ...

    async with app:
        other = await app.enqueue(app.call_by_name("unknown").options(queue="mail"))
        elsewhere = await app.enqueue(app.call_by_name("known").options(queue="sync"))
        assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "no_worker"
        async with app.worker(concurrency=3, queues=["mail"]):
            await _told(other)
            assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "task_unknown"
            assert taskq_json("why", elsewhere.id, "-d", tmp_path)["code"] == "queue_not_served"
            [owner] = taskq_json("workers", "-d", tmp_path)
            assert owner["serves"] == [{"queues": ["mail"], "tasks": ["known"], "slots": 3}]
            assert taskq("workers", "-d", tmp_path).stdout.splitlines()[1].endswith(" mail")
        await _told(other)
        assert taskq_json("why", other.id, "-d", tmp_path)["code"] == "no_worker"


async def test_who_claims_bytes_by_hand_serves_them(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        job_id = await log.put(b"bytes", queue="q")
        await log.claim(queues=["other"])
        await log.get(job_id)
        assert taskq_json("why", job_id, "-d", tmp_path)["code"] == "queue_not_served"
        await log.claim(1, queues=["q", "r"])
        second = await log.put(b"more", queue="q")
        assert taskq_json("why", second, "-d", tmp_path)["code"] == "next"
        assert taskq_json("why", job_id, "-d", tmp_path)["code"] == "running"
    assert taskq_json("why", job_id, "-d", tmp_path)["code"] == "worker_lost"
    assert not list((tmp_path / "owners").glob("*.serves*"))
