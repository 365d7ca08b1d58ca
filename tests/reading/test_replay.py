"""Enqueueing past jobs once more: which, how, and linked to what."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.core.model import HEADERS_BYTES_MAX
from taskq.errors import UsageError
from taskq.reading.replay import REPLAY_HEADER
from taskq.views import JobView


async def one_of_each(log: TaskLog) -> dict[str, str]:
    ids = {
        "succeeded": await log.put(b"1", queue="mail", priority=9, headers={"a": "b"}, key="k"),
        "dead": await log.put(b"2", queue="mail", priority=8, attempts=1, headers={"c": "d"}),
        "cancelled": await log.put(b"3", priority=1, delay="1h"),
        "expired": await log.put(b"4", priority=1, expires=0.001),
    }
    won, lost = await log.claim(2, queues=["mail"])
    await log.ack(won, b"done")
    await log.nack(lost, "no")
    await log.cancel(ids["cancelled"])
    while (await log.get(ids["expired"])).state is not State.EXPIRED:
        await log.claim(1, queues=["nothing"])
    ids["ready"] = await log.put(b"5", priority=1)
    return ids


async def ack_all(log: TaskLog, count: int) -> None:
    await asyncio.gather(*(log.ack(delivery) for delivery in await log.claim(count)))


async def waiting(log: TaskLog) -> list[JobView]:
    return [view for view in await log.peek(10_000) if REPLAY_HEADER in view.headers]


async def test_a_replayed_job_is_a_new_one_like_the_old(log: TaskLog) -> None:
    """The same payload, queue, task, priority, attempts and headers; its key is not repeated."""
    ids = await one_of_each(log)
    report = await log.replay(state="succeeded")
    assert (report.count, report.problems, report.dry_run) == (1, 0, False)
    (job,) = report.jobs
    assert (job.job_id, job.state, job.queue) == (ids["succeeded"], State.SUCCEEDED, "mail")
    old, new = await log.get(job.job_id), await log.get(job.new_id)
    assert new.headers == {"a": "b", "replay_of": job.job_id}
    for name in ("queue", "task", "priority", "attempts_max", "payload"):
        assert getattr(new, name) == getattr(old, name)
    assert (new.state, new.key, new.attempt, new.result) == (State.READY, None, 0, None)
    assert (old.state, old.key, old.result) == (State.SUCCEEDED, b"k", b"done")


async def test_only_jobs_that_are_over_are_replayed(log: TaskLog) -> None:
    ids = await one_of_each(log)
    report = await log.replay(everything=True)
    assert {job.job_id for job in report.jobs} == set(ids.values()) - {ids["ready"]}
    assert [job.job_id for job in report.jobs] == sorted(
        (job.job_id for job in report.jobs), key=lambda job: int(job.split("-")[1])
    )
    views = {view.headers[REPLAY_HEADER]: view for view in await waiting(log)}
    assert set(views) == set(ids.values()) - {ids["ready"]}
    # Neither the delay of the one nor the end of the other is repeated.
    assert views[ids["cancelled"]].due_ns == 0
    assert views[ids["expired"]].expires_ns == 0


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"state": "ready"}, "state is 'ready': only jobs that are over can be replayed"),
        ({"state": ["dead", State.RUNNING]}, "state is 'running': only jobs that are over"),
        ({"since": "soon"}, "since is 'soon'"),
        ({"before": datetime(2024, 1, 1)}, "without a time zone"),  # noqa: DTZ001
        ({"queue": ""}, "queue name '' has 0 bytes"),
        ({"limit": 0}, "limit is 0, it must be 1 or more"),
    ],
)
async def test_a_wrong_choice_is_named(log: TaskLog, choice: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        await log.replay(**choice)


async def test_many_jobs_are_replayed_in_bounded_transactions(log: TaskLog) -> None:
    """More than one frame could hold, across segments."""
    payloads = [bytes([n % 256]) * 900_000 for n in range(12)]
    for payload in payloads:
        await log.put(payload)
    await log.put_many([Put(payload=b"%d" % n) for n in range(600)])
    await ack_all(log, 612)
    report = await log.replay(state="succeeded")
    assert report.count == 612
    views = await waiting(log)
    assert [view.payload for view in views] == [*payloads, *(b"%d" % n for n in range(600))]


async def test_what_a_replay_enqueues_is_not_replayed_by_it(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"x")] * 600)
    await ack_all(log, 600)
    assert (await log.replay(queue="default")).count == 600
    await ack_all(log, 600)
    again = await log.replay(queue="default")
    assert again.count == 1_200
    views = {view.job_id: view for view in await waiting(log)}
    # The link names the job that was enqueued again, which may itself be one.
    last = again.jobs[-1]
    assert views[last.new_id].headers == {REPLAY_HEADER: last.job_id}


async def test_a_payload_survives_however_it_was_stored(tmp_path: Path) -> None:
    """Compressed or as given: the bytes are the same, and stored as they were."""
    big = os.urandom(1_500_000)
    async with TaskQ(tmp_path / "data") as app, TaskLog.open(tmp_path / "data") as log:
        packed = app.call_by_name("t", "x" * 50_000).options(compress="zlib")
        large = app.call_by_name("t", big.hex())
        ids = [(await app.enqueue(call)).id for call in (packed, large)]
        for delivery in await log.claim(2):
            await log.ack(delivery)
        report = await app.replay(task="t")
        assert [job.job_id for job in report.jobs] == ids
        assert report.problems == 0
        for job in report.jobs:
            old, new = await log.get(job.job_id), await log.get(job.new_id)
            assert new.payload == old.payload
            assert len(new.payload) > 50_000


async def test_a_job_that_cannot_be_enqueued_again_keeps_no_other_from_it(log: TaskLog) -> None:
    room = HEADERS_BYTES_MAX - 4 - len("x") - 10
    ids = [
        await log.put(b"1"),
        await log.put(b"2", headers={"x": "y" * room}),
        await log.put(b"3"),
    ]
    await ack_all(log, 3)
    report = await log.replay(state="succeeded")
    assert (report.count, report.problems) == (2, 1)
    first, full, last = report.jobs
    assert [job.job_id for job in report.jobs] == ids
    assert "the headers has" in full.problem or "headers" in full.problem
    assert full.new_id == ""
    assert first.new_id
    assert last.new_id
