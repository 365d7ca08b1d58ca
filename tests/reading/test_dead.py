"""``log.dead`` and ``app.dead``: what is done to jobs that nobody runs any more."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.errors import JobNotFound, NotDead, UsageError, WrongLog
from taskq.log.requests import LETTERS_MAX

#: More than two slices.
MANY = 2 * LETTERS_MAX + 345


async def die(log: TaskLog, *jobs: Put, reason: str = "ValueError: no") -> list[str]:
    ids = await log.put_many(jobs)
    while deliveries := await log.claim(4_000):
        await asyncio.gather(*(log.nack(delivery, reason) for delivery in deliveries))
    return ids


def once(payload: bytes = b"x", **options: Any) -> Put:
    return Put(payload=payload, attempts=1, **options)


async def test_a_dead_letter_is_listed_with_its_reason_and_requeued_once(log: TaskLog) -> None:
    (job,) = await die(log, once(b"abc", headers={"a": "b"}))
    (view,) = await log.dead.list()
    assert (view.job_id, view.reason, view.attempt) == (job, "ValueError: no", 1)
    assert (view.payload, view.headers, view.state) == (b"abc", {"a": "b"}, State.DEAD)
    await log.dead.requeue(job)
    assert await log.dead.list() == []
    with pytest.raises(NotDead, match=f"job {job} is no dead letter: it is ready") as caught:
        await log.dead.requeue(job)
    assert (caught.value.job_id, caught.value.state) == (job, "ready")
    (delivery,) = await log.claim()
    assert (delivery.job_id, delivery.payload, delivery.attempt) == (job, b"abc", 1)
    await log.ack(delivery)
    with pytest.raises(NotDead, match="it is succeeded"):
        await log.dead.requeue(job)


async def test_thousands_are_requeued_and_purged_in_slices(log: TaskLog) -> None:
    await die(log, *(once(b"%d" % number) for number in range(MANY)))
    assert await log.dead.count() == MANY
    assert (await log.dead.requeue_all(dry_run=True)).count == MANY
    assert (await log.dead.requeue_all(limit=LETTERS_MAX + 1)).count == LETTERS_MAX + 1
    assert (await log.dead.requeue_all()).count == MANY - LETTERS_MAX - 1
    assert await log.dead.count() == 0
    claimed = await log.claim(4_000)
    assert [delivery.payload for delivery in claimed] == [b"%d" % number for number in range(MANY)]
    await asyncio.gather(*(log.nack(delivery, "again") for delivery in claimed))
    assert (await log.dead.purge_all(dry_run=True)).count == MANY
    assert (await log.dead.purge_all()).count == MANY
    (queue,) = (await log.stats()).queues
    assert (queue.dead, queue.ready) == (0, 0)


async def test_a_purged_job_is_unknown(log: TaskLog) -> None:
    first, second = await die(log, once(), once())
    await log.dead.purge(first)
    with pytest.raises(JobNotFound):
        await log.get(first)
    with pytest.raises(JobNotFound):
        await log.dead.purge(first)
    live = await log.put(b"live")
    with pytest.raises(NotDead, match="it is ready"):
        await log.dead.purge(live)
    done = await log.dead.purge_many([first, second, live])
    assert (done.count, set(done.refused)) == (1, {first, live})


async def test_who_waits_for_a_purged_job_is_told_that_there_is_none(tmp_path: Path) -> None:
    async with TaskQ(tmp_path / "data", durability="os") as app:
        job = await app.enqueue(app.call_by_name("nobody").options(attempts=1))
        log = await TaskLog.open(tmp_path / "data", durability="os")
        (delivery,) = await log.claim()
        await log.nack(delivery)
        await app.dead.purge(job.id)
        with pytest.raises(JobNotFound):
            await job.result(timeout=30)
        await log.close()


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"error": 5}, "error is 5"),
        ({"error": re.compile(b"x")}, "error is re.compile"),
        ({"since": "soon"}, "since is 'soon'"),
        ({"before": datetime(2024, 1, 1)}, "without a time zone"),  # noqa: DTZ001 - that is wrong
        ({"queu": "mail"}, "there is no filter 'queu'"),
    ],
)
async def test_wrong_filters_are_refused_before_anything_is_done(
    log: TaskLog, filters: Any, message: str
) -> None:
    await die(log, once())
    for call in (log.dead.list, log.dead.count, log.dead.requeue_all, log.dead.purge_all):
        with pytest.raises(UsageError, match=re.escape(message)):
            await call(**filters)
    assert await log.dead.count() == 1


async def test_wrong_ids_and_limits_are_refused_before_anything_is_done(log: TaskLog) -> None:
    (job,) = await die(log, once())
    with pytest.raises(UsageError, match="is no job id"):
        await log.dead.requeue_many([job, "nonsense"])
    with pytest.raises(WrongLog):
        await log.dead.requeue_many([job, "0000ffff-1"])
    with pytest.raises(UsageError, match="give a list of ids"):
        await log.dead.purge_many(job)
    for limit in (0, -1, True, "many"):
        with pytest.raises(UsageError, match="limit is"):
            await log.dead.list(limit=limit)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="limit is"):
            await log.dead.purge_all(limit=limit)  # type: ignore[arg-type]
    assert await log.dead.count() == 1
    assert (await log.dead.requeue_many([])).count == 0
