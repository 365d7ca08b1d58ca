"""Pausing and purging queues, and cancelling jobs by the many."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.errors import JobCancelled, JobNotFound, NotWaiting, UsageError
from taskq.log.requests import WITHDRAWN_MAX

if TYPE_CHECKING:
    from pathlib import Path

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


async def test_jobs_are_cancelled_by_queue_task_age_and_state(tmp_path: Path) -> None:
    async with TaskQ(tmp_path, durability="os") as app:

        async def enqueue(task: str, **options: Any) -> str:
            return (await app.enqueue(app.call_by_name(task).options(**options))).id

        mail = await enqueue("send", queue="mail")
        due = await enqueue("send", queue="mail", delay="1h")
        copy = await enqueue("copy", queue="sync")
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        for filters, expected in (
            ({"queue": "mail"}, 2),
            ({"task": "copy"}, 1),
            ({"state": "ready"}, 2),
            ({"state": State.SCHEDULED}, 1),
            ({"before": long_ago}, 0),
            ({"before": "1h"}, 0),
            ({"before": datetime.now(UTC)}, 3),
        ):
            assert (await app.cancel_many(dry_run=True, **filters)).count == expected, filters
        assert (await app.cancel_many(queue="mail", state="scheduled")).count == 1
        assert (await app.cancel_many(task="copy", limit=5)).count == 1
        states = [await app.job(job).status() for job in (mail, due, copy)]
        assert states == [State.READY, State.CANCELLED, State.CANCELLED]


async def test_a_limit_cancels_the_oldest(log: TaskLog) -> None:
    ids = await log.put_many([Put(payload=b"x") for _ in range(5)])
    assert (await log.cancel_many(queue="default", limit=2)).count == 2
    assert [view.job_id for view in await log.peek()] == ids[2:]


async def test_who_waits_for_a_job_is_told_that_it_was_cancelled(tmp_path: Path) -> None:
    async with TaskQ(tmp_path, durability="os") as app:
        job = await app.enqueue_by_name("nobody")
        waiting = asyncio.ensure_future(job.result(timeout=30))
        await app.store().port().stats()
        await app.cancel_many(task="nobody")
        with pytest.raises(JobCancelled):
            await waiting


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


async def test_a_job_that_waits_is_edited_and_its_worker_takes_it_as_it_is_now(
    tmp_path: Path,
) -> None:
    async with TaskQ(tmp_path / "log", durability="os") as app:
        ran: list[str] = []

        @app.task(queue="slow", key=lambda name: name)
        async def greet(name: str) -> str:
            ran.append(name)
            return name

        late = await greet.options(delay="9h").enqueue("ada")
        low = await greet.options(priority=1).enqueue("bob")
        assert await app.edit(late, run_now=True, queue="fast") is True
        assert await app.edit(low.id, priority=0) is True
        assert await app.edit(low.id, priority=0) is False
        assert (await greet.options(queue="fast").enqueue("ada")).duplicate
        async with app.worker(queues=["fast"]):
            assert await late.result(timeout=30) == "ada"
        with pytest.raises(NotWaiting, match="it is succeeded"):
            await app.edit(late, priority=9)
        async with app.worker():
            assert await low.result(timeout=30) == "bob"
        assert ran == ["ada", "bob"]


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
