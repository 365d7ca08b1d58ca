"""One contract of all front ends: jobs from their put to their end; see ``conftest.Front``."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from taskq import State, errors
from taskq.core.fingerprints import fingerprint, pattern_of
from taskq.core.model import HEADERS_BYTES_MAX
from taskq.core.why import Why
from taskq.log.format.bodies import Compression
from tests.app.conftest import Front, without, work

HOUR: Final = timedelta(hours=1)
ELSEWHERE: Final = "0000ffff-1"
NO_HANDLES: Final = "a log has jobs as bytes, without handles"

# -- put -------------------------------------------------------------------------------------------


async def test_what_a_job_carries_comes_back_whole(front: Front) -> None:
    headers = {"a": "é" * ((HEADERS_BYTES_MAX - 5) // 2)}
    begin, times = datetime.now(UTC) - timedelta(seconds=2), {"delay": "1h", "expires": "2h"}
    job = await front.put(
        "b", queue="mail", priority=9, headers=headers, attempts=2, key="k", **times
    )
    view = await front.view(job)
    assert (view.job_id, view.payload) == (job, front.payload("b"))
    assert (view.queue, view.priority, view.headers) == ("mail", 9, headers)
    assert (view.attempts_max, view.key, view.state) == (2, b"k", State.SCHEDULED)
    assert begin < view.enqueued_at < view.due_at < view.expires_at  # type: ignore[operator]
    assert (view.enqueued_at.tzinfo, view.settled_at) == (UTC, None)


async def test_jobs_are_claimed_by_priority_and_then_by_age(front: Front) -> None:
    for number in range(6):
        await front.put(str(number), priority=number % 3)
    taken = [delivery.payload for delivery in await front.claim()]
    assert taken == [front.payload(number) for number in "251403"]


async def test_many_jobs_are_put_in_order_and_together(front: Front) -> None:
    jobs = await front.put_many(*(front.job(str(number)) for number in range(100)))
    assert [delivery.job_id for delivery in await front.claim()] == jobs
    assert len({(await front.view(job)).enqueued_ns for job in jobs[::33]}) == 1


async def test_many_jobs_of_which_one_is_refused_are_none(front: Front) -> None:
    holder = await front.put(key="k")
    refused = front.job(key="k", on_conflict="raise")
    with pytest.raises(errors.DuplicateKey, match=holder) as caught:
        await front.put_many(front.job(), refused)
    assert caught.value.job_id == holder
    with pytest.raises(errors.PayloadTooLarge, match="transaction of 18 jobs has"):
        await front.put_many(*[front.job("x" * 1_000_000)] * 18)
    assert [delivery.job_id for delivery in await front.claim()] == [holder]


async def test_no_jobs_make_no_log(front: Front, tmp_path: Path) -> None:
    other = Front(front.kind, tmp_path / "other" / "log")
    assert await other.put_many() == []
    assert not (tmp_path / "other").exists()
    await other.ask("close")


@pytest.mark.parametrize("size", [65_536, 65_535, HEADERS_BYTES_MAX, HEADERS_BYTES_MAX - 4])
async def test_headers_over_the_limit_are_refused_and_never_cut(front: Front, size: int) -> None:
    with pytest.raises(errors.PayloadTooLarge, match=f"headers has {size + 5} bytes, the limit is"):
        await front.put(headers={"a": "x" * size})
    with pytest.raises(errors.PayloadTooLarge):
        await front.put_many(front.job(), front.job(headers={"a": "x" * size}))
    assert await front.count("ready") == 0


@pytest.mark.parametrize("way", ["zlib", "zstd"])
async def test_a_compressed_body_comes_back_by_every_call(front: Front, way: Compression) -> None:
    text = "the same words again and again, " * 200
    job = await front.put(text, compress=way)
    (delivery,) = await front.claim()
    assert len(delivery.record) < 400
    await front.settle(delivery, "ack", front.payload(text), compress=way)
    view = await front.view(job)
    assert view.payload == view.result == delivery.payload == front.payload(text)
    assert view.payload_flags == view.result_flags == 0


async def test_a_delayed_job_waits_until_it_is_due(front: Front) -> None:
    job = await front.put(delay="1h")
    assert (await front.state(job), await front.claim()) == (State.SCHEDULED, [])
    assert (await front.ask("why", job)).code == "not_due"
    assert (await front.count("scheduled"), await front.count("ready")) == (1, 0)
    front.clock.advance(HOUR)  # and nothing is written
    assert await front.state(job) is State.READY
    assert (await front.count("scheduled"), await front.count("ready")) == (0, 1)
    await front.end_all("nack", delay="1h")
    assert await front.state(job) is State.SCHEDULED


async def test_a_job_that_was_not_taken_in_time_expires(front: Front) -> None:
    job = await front.put(expires=HOUR)
    front.clock.advance(2 * HOUR)
    assert await front.claim() == []
    assert await front.state(job) is State.EXPIRED
    assert (await front.ask("why", job)).code == "expired"


async def test_a_disk_without_room_takes_no_job_and_settles(front: Front) -> None:
    await front.put()
    async with await front.again(min_free=2**60, reserve=0) as full:
        with pytest.raises(errors.DiskFull, match="quota or lower min_free") as caught:
            await full.put()
        assert caught.value.limit_bytes == 2**60
        assert await full.end_all() == 1


async def test_the_first_callers_open_the_directory_once(front: Front) -> None:
    fresh = await front.again()
    jobs = await asyncio.gather(*(fresh.put() for _ in range(20)))
    assert len({*jobs}) == 20
    assert {log.connection.store().openers for log in fresh.holder.logs()} == {1}
    await fresh.ask("close")


async def test_a_failed_opening_fails_all_callers_and_may_be_repeated(
    front: Front, tmp_path: Path
) -> None:
    path = tmp_path / "other"
    path.write_text("in the way")
    fresh = Front(front.kind, path)
    failed = await asyncio.gather(*(fresh.put() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, errors.LogError) for error in failed)
    path.unlink()
    assert await fresh.state(await fresh.put()) is State.READY
    await fresh.ask("close")


# -- keys ------------------------------------------------------------------------------------------


async def test_a_held_key_gives_the_job_that_holds_it(front: Front) -> None:
    first = await front.put(key="k")
    assert await front.put("other", key="k") == first
    assert await front.put_many(front.job(key="k"), front.job(key="k")) == [first] * 2
    assert await front.put(key="k", queue="other") != first
    assert await front.count("ready") == 2


async def test_a_held_key_is_taken_over_from_a_waiting_job_alone(front: Front) -> None:
    first = await front.put(key="k")
    second = await front.put(key="k", on_conflict="replace")
    assert await front.state(first, second) == [State.CANCELLED, State.READY]
    await front.claim()
    assert await front.put(key="k", on_conflict="replace") == second


async def test_a_key_is_free_once_its_job_is_over_or_its_window(front: Front) -> None:
    plain, window = await front.put(key="p"), await front.put(key="w", window=HOUR)
    both = await front.put(key="b", window=HOUR, until="settled")
    gone = await front.put(key="g")
    assert await front.cancel(gone)
    assert await front.put(key="g") != gone
    front.clock.advance(2 * HOUR)
    assert await front.put(key="w") != window
    assert await front.put(key="b") == both
    await front.end_all()
    assert await front.put(key="b") != both
    assert await front.put(key="p") != plain
    window = await front.put(key="after its end", window=HOUR)
    await front.end_all()
    assert await front.put(key="after its end") == window


@without("shards", because="each shard counts its own keys")
async def test_the_number_of_keys_is_an_option(front: Front) -> None:
    async with await front.again(keys_max=2) as few:
        await few.put_many(few.job(key="1"), few.job(key="2"))
        with pytest.raises(errors.UsageError, match="keys_max is 2"):
            await few.put(key="3")


# -- claimed and settled ---------------------------------------------------------------------------


async def test_a_failed_job_comes_back_and_dies_after_its_last_attempt(front: Front) -> None:
    job = await front.put("p", attempts=2, headers={"grüße": "世界 🌍"}, key="k")
    for reason, state in (("first", State.READY), ("last", State.DEAD)):
        (delivery,) = await front.claim()
        assert (delivery.payload, delivery.headers) == (front.payload("p"), {"grüße": "世界 🌍"})
        await front.settle(delivery, "nack", reason, delay=0)
        view = await front.view(job)
        assert (view.state, view.reason) == (state, reason)
    for late in ("ack", "nack", "release"):
        with pytest.raises(errors.StaleDelivery):
            await front.settle(delivery, late)


async def test_a_released_job_has_used_no_attempt(front: Front) -> None:
    job = await front.put(attempts=1)
    for _ in range(3):
        assert await front.end_all("release") == 1
    assert (await front.view(job)).attempt == 0
    assert await front.fail_all() == 1
    assert await front.state(job) is State.DEAD


async def test_each_attempt_has_its_times_its_process_and_what_went_wrong(front: Front) -> None:
    job = await front.put(attempts=2)
    assert await front.ask("attempts", job) == ()
    assert await front.fail_all() == await front.end_all() == 1
    first, second = await front.ask("attempts", job)
    assert (first.outcome, first.error, first.message) == ("retried", "E", "no")
    assert (second.outcome, second.error, second.pid) == ("succeeded", "", os.getpid())
    assert first.fingerprint == fingerprint((await front.view(job)).task, pattern_of("E: no"))
    assert first.started_at < first.ended_at <= second.started_at
    kinds = [event.kind for event in await front.ask("timeline", job)]
    assert kinds == ["enqueued", "claimed", "retried", "claimed", "succeeded"]


async def test_attempts_stay_through_requeue_and_compaction(front: Front) -> None:
    job = await front.put(attempts=1)
    await front.fail_all()
    await front.dead("requeue", job)
    await front.fail_all()
    before = await front.ask("attempts", job)
    assert [(it.number, it.outcome) for it in before] == [(1, "dead")] * 2
    await front.compact_all()
    assert await front.ask("attempts", job) == before


async def test_a_job_is_kept_as_long_as_it_says(front: Front) -> None:
    long, short = await front.put(keep="1h"), await front.put()
    await front.end_all("ack", b'"r"')
    await front.compact_all()
    assert (await front.view(long)).result == b'"r"'
    with pytest.raises(errors.JobNotFound):
        await front.view(short)


async def test_an_act_is_in_the_timeline_with_the_name_of_who_acts(front: Front) -> None:
    job = await front.put()
    with front.holder.acting("ana"):
        await front.ask("edit", job, priority=9)
        await front.cancel(job)
    acts = [event for event in await front.ask("timeline", job) if event.kind == "acted"]
    assert [act.reason for act in acts] == ["ana: edit", "ana: cancel"]


async def test_a_waiting_job_is_cancelled_once(front: Front) -> None:
    job = await front.put()
    assert await front.cancel(job) is True
    assert await front.cancel(job) is False
    assert (await front.state(job), await front.claim()) == (State.CANCELLED, [])


async def test_a_running_job_that_is_cancelled_does_not_run_again(front: Front) -> None:
    job = await front.put()
    (delivery,) = await front.claim()
    assert await front.settle(delivery, "cancel_asked") is False
    assert await front.cancel(job) is True
    assert await front.settle(delivery, "cancel_asked") is True
    assert await front.state(job) is State.RUNNING
    with pytest.raises(errors.JobCancelled):
        await front.settle(delivery, "extend", seconds=30)
    await front.settle(delivery, "nack", "given up", delay=0)
    view = await front.view(job)
    assert (view.state, view.reason) == (State.CANCELLED, "given up")
    assert await front.cancel(job) is False
    kinds = [event.kind for event in await front.ask("timeline", job)]
    assert kinds == ["enqueued", "claimed", "cancel_asked", "cancelled"]


async def test_an_unknown_job_is_one_error_by_every_call(front: Front) -> None:
    job = await front.put()
    for gone, error in ((f"{job}9", errors.JobNotFound), (ELSEWHERE, errors.WrongLog)):
        for name in ("why", "timeline", "attempts"):
            with pytest.raises(error):
                await front.ask(name, gone)
        for call in (front.view, front.cancel):
            with pytest.raises(error):
                await call(gone)
        with pytest.raises(error):
            await front.ask("edit", gone, priority=1)
    for nonsense in ("hello", "", "a b-1", "-1", None, 1.5, b"1"):
        with pytest.raises(errors.JobNotFound):
            await front.ask("why", nonsense)


@without("shards", because="a number alone does not name a shard")
async def test_a_number_or_its_beginning_finds_the_only_job_of_it(front: Front) -> None:
    first = await front.put()
    await front.cancel(first)
    jobs = await front.put_many(*[front.job()] * 18)
    assert [job.rpartition("-")[2] for job in (first, *jobs)] == ["1", *map(str, range(3, 21))]
    for name in (jobs[8], 11, "11", f" {jobs[8]} "):
        assert (await front.ask("timeline", name))[0].lsn == 11
    assert (await front.ask("timeline", "2"))[0].lsn == 20
    further = await front.put()
    for name in ("why", "timeline", "attempts"):
        with pytest.raises(errors.JobNotFound, match=f"2 begin so: {further}, {jobs[-1]}. Give"):
            await front.ask(name, "2")


# -- handles ---------------------------------------------------------------------------------------


@without("log", because=NO_HANDLES)
async def test_a_handle_gives_what_the_task_returned(front: Front) -> None:
    job = front.holder.job(await front.put("a"))
    await front.run()
    assert await front.ask("result", 20, of=job) == await job == "a"
    assert await front.ask("result", of=front.holder.job(job.id)) == "a"


@without("log", because=NO_HANDLES)
async def test_a_handle_raises_what_became_of_its_job(front: Front) -> None:
    jobs = [await front.put("bad", attempts=1), await front.put(), await front.put(expires=60)]
    dead, never, late = map(front.holder.job, jobs)
    await front.cancel(never.id)
    front.clock.advance(HOUR)
    await front.run()
    for job, error, message in (
        (dead, errors.JobFailed, "ValueError: order 17 is bad"),
        (never, errors.JobCancelled, never.id),
        (late, errors.JobExpired, late.id),
    ):
        with pytest.raises(error, match=message):
            await front.ask("result", 20, of=job)
    await front.dead("purge", dead.id)
    with pytest.raises(errors.JobNotFound):
        await front.ask("result", 20, of=dead)


@without("log", because=NO_HANDLES)
async def test_a_handle_that_waits_gets_the_end_of_its_job(front: Front) -> None:
    job = front.holder.job(await front.put(delay="1h"))
    waiter = asyncio.ensure_future(front.ask("result", 20, of=job))
    await asyncio.sleep(0)
    await front.cancel(job.id)
    with pytest.raises(errors.JobCancelled):
        await waiter


@without("log", because=NO_HANDLES)
async def test_a_wait_that_ends_first_says_why_the_job_does_not_run(front: Front) -> None:
    job = front.holder.job(await front.put())
    await front.ask("pause", "default")
    await front.ask("stats")
    for wait in (0, "10ms"):
        with pytest.raises(errors.ResultTimeout, match=f"{job.id} is still ready after") as caught:
            await front.ask("result", wait, of=job)
    assert caught.value.why.startswith("queue 'default' is paused; let it go on with: taskq resume")


@without("log", because=NO_HANDLES)
async def test_a_result_not_kept_is_gone_and_one_of_an_unknown_task_is_json(front: Front) -> None:
    front.holder.task(name="silent", store_result=False)(work)
    gone = await front.ask("enqueue_by_name", "silent", "x")
    await front.run()
    with pytest.raises(errors.ResultGone):
        await front.ask("result", 20, of=gone)
    foreign = await front.ask("enqueue_by_name", "elsewhere")
    await front.end_all("ack", b'{"a":[1]}')
    assert await front.ask("result", of=foreign) == {"a": [1]}


@without("log", because=NO_HANDLES)
async def test_a_handle_asks_of_its_job_what_its_app_does(front: Front) -> None:
    job = front.holder.job(await front.put(attempts=1))
    assert (await front.ask("why", of=job)).code == (await front.ask("why", job)).code
    await front.fail_all()
    assert await front.ask("attempts", of=job) == await front.ask("attempts", job) != ()
    assert await front.ask("status", of=job) is State.DEAD
    await front.ask("requeue", of=job)
    assert await front.ask("status", of=job) is State.READY
    assert await front.ask("progress", of=job) is None
    await front.ask("cancel", of=job)
    assert [step async for step in job.watch()] == []


@without("log", because=NO_HANDLES)
async def test_handles_are_equal_by_their_id(front: Front) -> None:
    first, second = await front.put(), await front.put()
    assert front.holder.job(first) == front.holder.job(first) != front.holder.job(second)
    assert len({front.holder.job(first), front.holder.job(first)}) == 1
    assert front.holder.job(first) != first
    for nonsense in ("nonsense", None):
        with pytest.raises(errors.UsageError):
            front.holder.job(nonsense)


async def test_a_signal_is_kept_once_for_a_job_that_is_not_over(front: Front) -> None:
    job = await front.put()
    assert await front.ask("signal", job, "go", 1, once="a") is True
    assert await front.ask("signal", job, "go", 1, once="a") is False
    await front.end_all()
    with pytest.raises(errors.JobSettled):
        await front.ask("signal", job, "go")


# -- the state -------------------------------------------------------------------------------------


async def test_counts_are_of_all_queues_and_print_as_a_table(front: Front) -> None:
    await front.put_many(front.job(queue="mail"), front.job(queue="mail", delay="1h"))
    await front.put(queue="q", attempts=1)
    await front.fail_all()
    await front.put(queue="q")
    stats = await front.ask("stats")
    counts = {it.queue: (it.scheduled, it.ready, it.dead) for it in stats.queues}
    assert counts["q"] == (0, 1, 1)
    assert counts["mail"][0] == 1
    first, *rest = str(stats).splitlines()
    assert first.split()[:3] == ["queue", "scheduled", "ready"]
    assert sorted(line.split()[0] for line in rest) == ["mail", "q"]


async def test_counts_of_a_past_moment_are_as_they_were(front: Front) -> None:
    await front.put()
    moment = datetime.now(UTC)
    front.clock.advance(1)
    await front.put()
    stats = await front.ask("stats", moment)
    assert sum(queue.ready for queue in stats.queues) == 1
    with pytest.raises(errors.UsageError, match="is still to come"):
        await front.ask("stats", moment + timedelta(hours=1))


async def test_the_reason_why_a_job_does_not_run_is_one_of_a_list(front: Front) -> None:
    job = await front.put()
    assert (await front.ask("why", job)).code is Why.NO_WORKER
    await front.claim()
    codes = [Why.RUNNING, Why.NEXT, Why.BEHIND_OLDER]
    jobs = [job, *[await front.put() for _ in range(2)]]
    assert [(await front.ask("why", it)).code for it in jobs] == codes
    await front.put_many(*[front.job(priority=9)] * 2)
    reason = await front.ask("why", jobs[2])
    assert (reason.code, reason.ahead) == (Why.BEHIND_PRIORITY, 3)
    assert reason.text == "2 jobs of higher priority and 1 older job are before it"


async def test_a_closed_front_end_says_so_until_it_is_opened_again(front: Front) -> None:
    job = await front.put()
    for _ in range(2):
        await front.ask("close")
    for use in (front.put(), front.state(job), front.ask("stats")):
        with pytest.raises(errors.LogClosed, match="closed"):
            await use
    async with front.holder:
        assert await front.state(job) is State.READY


@without("shards", because="each opener of shards makes holders of its own")
async def test_an_exclusive_log_shuts_other_openers_out(front: Front) -> None:
    async with await front.again(exclusive=True):
        with pytest.raises(errors.UsageError, match="with other options"):
            await Front(front.kind, front.path).__aenter__()
