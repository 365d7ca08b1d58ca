"""``taskq peek``: the next jobs in the order of their claims, and nothing is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq import TaskLog
from tests.cli.helpers import Sample, taskq, taskq_json

if TYPE_CHECKING:
    from pathlib import Path


async def test_peek_shows_in_which_order_jobs_are_claimed(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        low = await log.put(b"low", priority=1)
        await log.put(b"later", delay="1h", priority=9)
        first, second = await log.put(b"first"), await log.put(b"second", queue="other")
        await log.put(b"paused", queue="closed", priority=9)
        await log.pause("closed")
        shown = [job["id"] for job in taskq_json("peek", "-d", tmp_path)]
        assert shown == [first, second, low]
        assert [job["id"] for job in taskq_json("peek", "-d", tmp_path, "-n", 1)] == [first]
        assert [job["id"] for job in taskq_json("peek", "-d", tmp_path, "-Q", "other")] == [second]
        claimed = [delivery.job_id for delivery in await log.claim(9)]
    assert claimed == shown


def test_peek_prints_payloads_that_drive_no_terminal(sample: Sample) -> None:
    heading, *rows = taskq("peek", "-d", sample.path).stdout.splitlines()
    assert heading.split() == ["ID", "QUEUE", "TASK", "PRIO", "ENQUEUED", "PAYLOAD"]
    assert [row.split()[0] for row in rows] == [sample.ids["bytes"]]
    assert rows[0].endswith("plain text")
    (job,) = taskq_json("peek", "-d", sample.path)
    assert job["payload"] == {"encoding": "text", "data": "plain text"}


async def test_peek_cuts_what_is_long_and_escapes_what_is_no_text(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path) as log:
        await log.put(b"\x1b[31m\xff\n" + b"x" * 2_000)
    (row,) = taskq("peek", "-d", tmp_path).stdout.splitlines()[1:]
    assert "\\x1b[31m\\xff xxx" in row
    assert row.endswith("x…")
    assert len(row) < 150


def test_peek_says_that_nothing_is_ready(sample: Sample) -> None:
    result = taskq("peek", "-d", sample.path, "-Q", "nosuch")
    assert (result.exit_code, result.stdout) == (0, "No job of that queue is ready.\n")
    assert taskq("peek", "-d", sample.path, "--at", "1").stdout.count("\n") == 2
