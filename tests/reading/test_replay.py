"""Past jobs are enqueued once more, and dead letters requeued and purged."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from taskq import Put, State, TaskLog, TaskQ
from taskq.core.model import HEADERS_BYTES_MAX
from taskq.errors import JobNotFound, NotDead, UsageError, WrongLog
from taskq.log.requests import LETTERS_MAX
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


# -- dead ------------------------------------------------------------------------------------------


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
