"""Pausing and purging queues, and cancelling jobs by the many."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.errors import JobNotFound, UsageError
from taskq.log.requests import WITHDRAWN_MAX

#: More than two slices.
MANY = 2 * WITHDRAWN_MAX + 345


async def test_a_paused_queue_takes_jobs_and_gives_none(log: TaskLog) -> None:
    assert await log.pause("mail") is True
    assert await log.pause("mail") is False
    job = await log.put(b"x", queue="mail")
    other = await log.put(b"x", queue="other")
    assert [view.job_id for view in await log.peek()] == [other]
    assert [delivery.job_id for delivery in await log.claim(10)] == [other]
    paused = {queue.queue: queue.paused for queue in (await log.stats()).queues}
    assert paused == {"mail": True, "other": False}
    assert await log.resume("mail") is True
    assert await log.resume("mail") is False
    assert [delivery.job_id for delivery in await log.claim(10)] == [job]


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "x" * 256])
async def test_what_is_no_name_of_a_queue_is_refused(log: TaskLog, name: str) -> None:
    for call in (log.pause, log.resume):
        with pytest.raises(UsageError, match="queue name"):
            await call(name)
    with pytest.raises(UsageError, match="queue name"):
        await log.cancel_many(queue=name)
    assert (await log.stats()).next_lsn == 1


async def test_a_whole_queue_is_cancelled_but_for_what_runs_which_is_counted(log: TaskLog) -> None:
    await log.put_many([Put(payload=b"x", queue="mail") for _ in range(MANY)])
    late = await log.put(b"x", queue="mail", delay="1h")
    other = await log.put(b"x", queue="other")
    (running,) = await log.claim(1, queues=["mail"])
    dry = await log.cancel_many(queue="mail", dry_run=True)
    assert (dry.count, dry.running) == (MANY, 1)
    done = await log.cancel_many(queue="mail")
    assert (done.count, done.running, done.refused_count) == (MANY, 1, 0)
    assert (await log.get(late)).state is State.CANCELLED
    assert (await log.get(other)).state is State.READY
    await log.ack(running)
    counts = {queue.queue: queue for queue in (await log.stats()).queues}
    assert (counts["mail"].cancelled, counts["mail"].succeeded) == (MANY, 1)
    assert (await log.cancel_many(queue="never used")).count == 0


async def test_cancelling_everything_must_be_said_and_wrong_filters_are_refused(
    log: TaskLog,
) -> None:
    await log.put(b"x")
    with pytest.raises(UsageError, match="give at least one"):
        await log.cancel_many()
    with pytest.raises(UsageError, match='must be "scheduled" or "ready"'):
        await log.cancel_many(state="running")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="limit is 0"):
        await log.cancel_many(queue="default", limit=0)
    with pytest.raises(UsageError, match="before is"):
        await log.cancel_many(before="yesterday")
    assert (await log.stats()).queues[0].ready == 1


# -- editing what waits ---------------------------------------------------------------------------


async def test_an_edit_with_wrong_arguments_changes_nothing(log: TaskLog) -> None:
    job = await log.put(b"x")
    for wrong in (
        {},
        {"run_now": True, "delay": 1},
        {"priority": 10},
        {"queue": ""},
        {"eta": datetime(2030, 1, 1)},  # noqa: DTZ001 - that it has no zone is what is wrong
        {"delay": "soon"},
    ):
        with pytest.raises(UsageError):
            await log.edit(job, **wrong)
    with pytest.raises(JobNotFound):
        await log.edit(job + "7", priority=1)
    assert [event.kind for event in await log.timeline(job)] == ["enqueued"]


def test_jobs_are_edited_from_code_without_a_loop(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log", durability="os")
    greet = app.task(name="greet")(print)
    job = greet.options(delay="1h").enqueue_sync("x")
    assert app.edit_sync(job, run_now=True)
    assert job.status_sync() is State.READY
    app.close_sync()
