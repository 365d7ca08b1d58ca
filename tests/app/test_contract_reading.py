"""The contract of all front ends: the log read and replayed, its state, opening and closing."""

import asyncio
import os
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import pytest

from taskq import State, errors
from taskq.core.model import HEADERS_BYTES_MAX
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.reading.replay import REPLAY_HEADER
from tests.app.conftest import Front, without
from tests.reading.test_stream_readers import lsns as lsns_of

#: Why shards are left out.
ONE_LOG: Final = "it is asked of one log: each of app.logs()"
pytestmark = without("shards", because=ONE_LOG)

# -- the state -------------------------------------------------------------------------------------


async def test_the_next_jobs_are_shown_in_the_order_of_their_claims(front: Front) -> None:
    for number in range(6):
        await front.put(str(number), priority=number % 3)
    await front.put("late", expires=60)
    front.clock.advance("2m")
    shown = [view.payload for view in await front.ask("peek")]
    assert shown == [front.payload(number) for number in "251403"]
    assert len(await front.ask("peek", 2)) == 2
    assert len(await front.ask("peek", 10**30)) == 6
    assert await front.ask("peek", queue="other") == []


# -- compaction ------------------------------------------------------------------------------------


async def fill(front: Front) -> None:
    await front.put_many(*[front.job("x" * 9_000, queue="filler")] * 20)
    for delivery in await front.claim(queues=["filler"]):
        await front.settle(delivery, "ack")


async def test_compaction_plans_then_removes_and_keeps_what_is_not_over(front: Front) -> None:
    job = await front.put("kept", delay="1h", headers={"a": "b"}, key="k")
    await fill(front)
    plan = await front.ask("compact", keep=0, dry_run=True)
    done = await front.ask("compact", keep=0)
    assert [it.removed for it in done.segments] == [True] * len(plan.segments)
    view = await front.view(job)
    assert (view.payload, view.headers, view.key) == (front.payload("kept"), {"a": "b"}, b"k")


async def test_compaction_keeps_what_a_named_reader_has_not_read(front: Front) -> None:
    await front.ask("seek", "billing", "start")
    await fill(front)
    (segment, *_) = (await front.ask("compact", keep=0)).segments
    assert not segment.removed
    assert "the reader 'billing' has not read it" in segment.reason
    read = await lsns(front)
    assert read[0] == 1
    assert all(it.removed for it in (await front.ask("compact", keep=0)).segments)
    assert (await lsns(front))[0] == read[-1] + 1


# -- replay ----------------------------------------------------------------------------------------


async def ended(front: Front) -> dict[str, str]:
    jobs = {
        "won": await front.put(
            "1", priority=9, queue="mail", headers={"a": "b"}, key="k", keep="1h"
        ),
        "dead": await front.put("2", priority=8, attempts=1),
        "gone": await front.put("3", delay="1h"),
    }
    won, lost = await front.claim()
    await front.settle(won, "ack", b'"done"')
    await front.settle(lost, "nack", "E: no")
    await front.cancel(jobs["gone"])
    jobs["ready"] = await front.put("4")
    return jobs


async def test_a_replayed_job_is_a_new_one_like_the_old(front: Front) -> None:
    jobs = await ended(front)
    report = await front.ask("replay", state="succeeded")
    assert (report.count, report.problems, report.dry_run) == (1, 0, False)
    (job,) = report.jobs
    assert (job.job_id, job.state, job.queue) == (jobs["won"], State.SUCCEEDED, "mail")
    old, new = await front.view(job.job_id), await front.view(job.new_id)
    for name in ("queue", "task", "priority", "attempts_max", "payload"):
        assert getattr(new, name) == getattr(old, name)
    assert new.headers == {"a": "b", REPLAY_HEADER: job.job_id}
    assert (new.state, new.key, new.result) == (State.READY, None, None)
    assert (old.state, old.key, old.result) == (State.SUCCEEDED, b"k", b'"done"')
    await front.end_all("ack", b'"again"')
    await front.compact_all()
    assert (await front.view(job.new_id)).result == b'"again"'


async def test_only_jobs_that_are_over_are_replayed_the_oldest_first(front: Front) -> None:
    jobs = await ended(front)
    planned = await front.ask("replay", dry_run=True)
    assert [job.job_id for job in planned.jobs] == [jobs[name] for name in ("won", "dead", "gone")]
    assert await front.count("ready") == 1
    assert (await front.ask("replay", everything=True, limit=2)).count == 2
    report = await front.ask("replay", state=["cancelled"])
    assert (await front.view(report.jobs[0].new_id)).due_ns == 0
    with pytest.raises(errors.UsageError):
        await front.ask("replay")


async def test_a_job_that_cannot_be_replayed_keeps_no_other_from_it(front: Front) -> None:
    room = HEADERS_BYTES_MAX - 4 - len("x") - 10
    jobs = [await front.put(headers=headers) for headers in ({}, {"x": "y" * room}, {})]
    await front.end_all()
    report = await front.ask("replay", state="succeeded")
    assert (report.count, report.problems) == (2, 1)
    assert [job.job_id for job in report.jobs] == jobs
    assert [bool(job.new_id) for job in report.jobs] == [True, False, True]
    assert "the headers has" in report.jobs[1].problem


# -- streams ---------------------------------------------------------------------------------------


async def lsns(front: Front, count: int | None = None, **choice: Any) -> list[int]:
    """Return what the reader "billing" gets next; the last is handled."""
    return await lsns_of(front.holder.stream(reader="billing", follow=False, **choice), count)


async def test_a_record_has_all_that_the_log_knows(front: Front) -> None:
    jobs = await ended(front)
    seen = {(record.kind, record.job_id): record for record in await front.records()}
    born, claimed = seen["enqueued", jobs["won"]], seen["claimed", jobs["won"]]
    assert (born.queue, born.priority, born.payload) == ("mail", 9, front.payload("1"))
    assert (born.headers, born.key) == ({"a": "b"}, b"k")
    assert born.time_ns // 1_000 == round(born.time.timestamp() * 1_000_000)
    (owner,) = (item for item in seen.values() if item.kind == "owner")
    assert (claimed.owner, claimed.attempt) == (owner.owner, 1)
    assert seen["succeeded", jobs["won"]].result == b'"done"'
    dead = seen["dead", jobs["dead"]]
    assert (dead.reason, dead.cause) == ("E: no", "exhausted")
    assert seen["enqueued", jobs["gone"]].due_ns > born.time_ns


async def test_a_stream_begins_at_any_time_or_lsn(front: Front) -> None:
    for _ in range(12):
        await front.put_many(*[front.job("y" * 2_000)] * 5)
    whole = await front.records()
    for number in (0, 1, 30, 59):
        assert await front.records(from_lsn=number + 1) == whole[number:]
        later = await front.records(from_time=whole[number].time)
        assert later == [item for item in whole if item.time >= whole[number].time]
    assert await front.records(from_time=datetime(2000, 1, 1, tzinfo=UTC)) == whole
    assert await front.records(from_lsn=61) == []
    with pytest.raises(errors.UsageError, match="lsn 62 is still to come: the next one is 61"):
        await front.records(from_lsn=62)


async def test_a_stream_has_the_kinds_queues_and_tasks_that_it_was_asked_for(front: Front) -> None:
    jobs = await front.put_many(*[front.job(queue=f"q{number % 2}") for number in range(6)])
    await front.end_all()
    task = (await front.view(jobs[0])).task
    for choice, count in (
        ({"queues": ["q0"]}, 9), ({"tasks": [task]}, 18), ({"queues": []}, 0),
        ({"queues": ["q0", "q1"], "kinds": ["succeeded"]}, 6), ({"tasks": ["other"]}, 0),
    ):  # fmt: skip
        assert len(await front.records(**choice)) == count
    # Its job began before the stream, which looks up its queue.
    start = (await front.records(kinds=["succeeded"]))[0].lsn
    result = await front.records(from_lsn=start, queues=["q1"])
    assert [item.job_id for item in result] == jobs[1::2]


async def test_a_stream_goes_on_as_the_log_is_written(front: Front) -> None:
    seen: list[str] = []

    async def follow() -> AsyncGenerator[None, None]:
        async for record in front.holder.stream(kinds=["enqueued"]):
            seen.append(record.job_id)
            yield

    stream = follow()
    jobs = []
    for _ in range(5):
        waiting = asyncio.ensure_future(anext(stream))
        jobs.append(await front.put())
        await waiting
    assert seen == jobs
    await stream.aclose()


async def test_a_stream_has_jobs_that_compaction_wrote_again(front: Front) -> None:
    dead = await front.put("1", attempts=1, headers={"n": "1"}, queue="mail")
    await front.fail_all()
    late = await front.put("later", delay="1h", queue="mail")
    await fill(front)
    await front.ask("compact", keep=0)
    result = await front.records(kinds=["carried"], queues=["mail"])
    assert [(item.job_id, item.state) for item in result] == [(dead, "dead"), (late, "scheduled")]
    first, second = result
    assert (first.payload, first.reason, first.attempt) == (front.payload("1"), "E: no", 1)
    assert (first.headers, second.payload) == ({"n": "1"}, front.payload("later"))
    report = await front.ask("replay", state="dead")
    assert (await front.view(report.jobs[0].new_id)).payload == front.payload("1")


# -- named readers ---------------------------------------------------------------------------------


async def test_a_named_reader_gets_each_record_until_it_is_handled(front: Front) -> None:
    await front.put_many(*[front.job()] * 5)
    async for record in front.holder.stream(reader="billing"):
        if record.lsn == 3:
            break
    assert await lsns(front, 1) == [3]
    assert await lsns(front) == [4, 5]
    assert await lsns(front) == []
    (view,) = await front.ask("readers")
    assert (view.name, view.lsn, view.alive, view.problem) == ("billing", 6, False, "")
    await front.ask("forget_reader", "billing")
    assert await front.ask("readers") == []
    with pytest.raises(errors.UsageError, match="has no reader 'billing'; it has none"):
        await front.ask("forget_reader", "billing")
    assert await lsns(front, 1) == [1]


async def test_a_reader_lags_by_what_it_has_not_read_and_its_filter_lets_pass(front: Front) -> None:
    await front.put_many(*[front.job()] * 50)
    await lsns(front, 10)
    (view,) = await front.ask("readers")
    assert (view.lsn, view.lag_records) == (11, 40)
    lag_bytes = view.lag_bytes
    assert await lsns(front, kinds=["dead"]) == []
    (view,) = await front.ask("readers")
    assert (view.lsn, view.lag_records) == (51, 0)
    assert view.lag_bytes < lag_bytes / 10  # a sync may have left its mark meanwhile


async def test_a_second_reader_of_a_name_is_refused_by_the_pid_of_the_first(front: Front) -> None:
    await front.put_many(*[front.job()] * 3)
    async with front.holder.stream(reader="billing") as first:
        await anext(first)
        with pytest.raises(errors.ReaderBusy, match=f"process {os.getpid()} reads under the name"):
            await lsns(front)
        for name, *where in (("seek", "start"), ("forget_reader",)):
            with pytest.raises(errors.ReaderBusy):
                await front.ask(name, "billing", *where)
        assert [view.alive for view in await front.ask("readers")] == [True]
    assert [view.alive for view in await front.ask("readers")] == [False]


async def test_a_reader_is_moved_anywhere(front: Front) -> None:
    for _ in range(6):
        await front.put_many(*[front.job("x" * 4_000)] * 5)
    records = await front.records()
    assert (await front.ask("stats")).segments > 1
    assert await front.ask("seek", "billing", "end") == 31
    assert await lsns(front) == []
    for lsn in (1, 17, 30, 31):
        assert await front.ask("seek", "billing", lsn=lsn) == lsn
        assert await lsns(front) == list(range(lsn, 31))
    assert await front.ask("seek", "billing", "start") == 1
    first = await front.ask("seek", "billing", time=records[20].time)
    assert records[first - 1].time >= records[20].time
    assert await front.ask("seek", "billing", time=datetime.now(UTC)) == 31


async def test_a_reader_that_lags_beyond_the_policy_is_passed_by(front: Front) -> None:
    async with await front.again(reader_lag_bytes=SEGMENT_BYTES_MIN) as few:
        await few.ask("seek", "billing", "start")
        await fill(few)
        await few.ask("compact", keep=0)
        with pytest.raises(errors.ReaderFellBehind, match="'billing' was to go on at lsn 1"):
            await lsns(few)
        await few.ask("seek", "billing", "start")
        numbers = await lsns(few)
        assert all(first < second for first, second in pairwise(numbers))
