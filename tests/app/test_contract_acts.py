"""The contract of all front ends: what is done to queues, waiting jobs, dead letters, sources."""

import re
from typing import Any, Final

import pytest

from taskq import State, errors
from tests.app.conftest import Front, without
from tests.app.test_contract import ELSEWHERE

#: Why shards are left out.
ONE_LOG: Final = "a transaction is of one log"

# -- controls --------------------------------------------------------------------------------------


async def test_a_paused_queue_takes_jobs_and_gives_none(front: Front) -> None:
    await front.ask("pause", "mail")
    job = await front.put(queue="mail")
    await front.put()
    assert await front.end_all() == 1
    assert (await front.ask("why", job)).code == "paused"
    assert {it.queue: it.paused for it in (await front.ask("stats")).queues}["mail"]
    async with await front.again() as again:
        assert await again.ask("pause", "mail") is False
        assert await again.claim() == []
        await again.ask("resume", "mail")
        assert [delivery.job_id for delivery in await again.claim()] == [job]


@without("log", because="jobs of a log have no task")
async def test_a_paused_task_waits_and_its_limits_are_changed_at_run_time(front: Front) -> None:
    job = await front.put()
    await front.ask("pause", task=front.work)
    assert "task 'work' is paused" in (await front.ask("why", job)).text
    await front.run()
    assert await front.state(job) is State.READY
    await front.ask("resume", task="work")
    await front.ask("limit", front.work, rate="1/h")
    more = await front.put()
    await front.run()
    assert await front.state(job, more) == [State.SUCCEEDED, State.READY]
    await front.ask("limit", front.work)
    await front.run()
    assert await front.state(more) is State.SUCCEEDED


@pytest.mark.parametrize(("name", "options", "back", "known"), [
    ("pause", {"queue": "mail"}, ("resume", {"queue": "mail"}), {}),
    ("pause", {"task": "t"}, ("resume", {"task": "t"}), {"task:t": {"paused": True}}),
    (
        "limit", {"task": "t", "concurrency": 2, "rate": "50/s"}, ("limit", {"task": "t"}),
        {"task:t": {"concurrency": 2, "rate": "50/s"}},
    ),
    ("set_slots", {"count": 3}, ("set_slots", {"count": None}), {"slots": {"": 3}}),
])  # fmt: skip
async def test_each_control_is_known_until_it_is_taken_back(
    front: Front, name: str, options: Any, back: Any, known: Any
) -> None:
    assert await front.ask(name, **options) is True
    assert await front.ask(name, **options) is False
    assert await front.ask("controls") == known
    assert [await front.ask(back[0], **back[1]) for _ in range(2)] == [True, False]
    assert await front.ask("controls") == {}
    for wrong in ({}, {"queue": "mail", "task": "work"}):
        with pytest.raises(errors.UsageError, match="give a queue, or task="):
            await front.ask("pause", **wrong)


# -- waiting jobs ----------------------------------------------------------------------------------


async def test_an_edit_changes_what_it_names_or_nothing(front: Front) -> None:
    job = await front.put("b", delay="1h", headers={"a": "b"}, key="k", attempts=3)
    assert await front.ask("edit", job, priority=9) is True
    assert await front.ask("edit", job, priority=9) is False
    assert await front.ask("edit", job, run_now=True, queue="mail") is True
    view = await front.view(job)
    assert (view.state, view.queue, view.priority) == (State.READY, "mail", 9)
    assert (view.payload, view.headers, view.key) == (front.payload("b"), {"a": "b"}, b"k")
    assert await front.ask("edit", job, delay="2h") is True
    assert (await front.state(job), view.attempts_max) == (State.SCHEDULED, 3)
    with pytest.raises(errors.UsageError):
        await front.ask("edit", job)


async def test_a_job_that_does_not_wait_is_not_edited(front: Front) -> None:
    job = await front.put()
    (delivery,) = await front.claim()
    for name in ("ack", None):
        with pytest.raises(errors.NotWaiting):
            await front.ask("edit", job, priority=9)
        if name:
            await front.settle(delivery, name)


@without("shards", because="a key of another queue may lie in another shard")
async def test_an_edit_takes_the_key_along_unless_it_is_held_there(front: Front) -> None:
    job, holder = await front.put(key="k"), await front.put(key="k", queue="mail")
    with pytest.raises(errors.KeyHeld, match=holder):
        await front.ask("edit", job, queue="mail")
    assert (await front.view(job)).queue == "default"
    assert await front.ask("edit", job, queue="other")
    assert await front.put(key="k", queue="other") == job


async def test_many_waiting_jobs_are_cancelled_and_running_ones_counted(front: Front) -> None:
    await front.put(queue="mail")
    await front.claim()
    for number in range(6):  # by their keys in both shards
        await front.put(queue="mail", key=str(number))
    late = await front.put(queue="mail", delay="1h")
    other = await front.put(queue="other")
    dry = await front.ask("cancel_many", queue="mail", dry_run=True)
    assert (dry.count, dry.running, await front.count("cancelled")) == (7, 1, 0)
    assert (await front.ask("cancel_many", queue="mail", state="ready", limit=2)).count == 2
    assert (await front.ask("cancel_many", queue="mail", state="ready")).count == 4
    assert await front.state(late, other) == [State.SCHEDULED, State.READY]
    assert (await front.ask("cancel_many", queue="mail")).count == 1
    assert (await front.ask("cancel_many", queue="never used")).count == 0


async def test_jobs_are_cancelled_by_task_and_age_and_never_by_nothing(front: Front) -> None:
    job = await front.put()
    task = (await front.view(job)).task
    assert (await front.ask("cancel_many", task="other")).count == 0
    assert (await front.ask("cancel_many", before="1h")).count == 0
    with pytest.raises(errors.UsageError, match="give at least one"):
        await front.ask("cancel_many")
    assert (await front.ask("cancel_many", task=task, before="0s")).count == 1


# -- dead letters ----------------------------------------------------------------------------------


async def die(front: Front, *bodies: str, **options: Any) -> list[str]:
    """Return dead letters; digits, which are keys too, lie in both shards."""
    jobs = [await front.put(body, attempts=1, key=body, **options) for body in bodies]
    assert await front.end_all("nack", "E: no") == len(jobs)
    return jobs


async def test_dead_letters_are_listed_the_latest_death_first(front: Front) -> None:
    await die(front, *"012345")
    await die(front, *"67")
    letters = await front.dead("list")
    assert [letter.reason for letter in letters] == ["E: no"] * 8
    assert {letter.payload for letter in letters[:2]} == {front.payload("6"), front.payload("7")}
    deaths = [letter.settled_ns for letter in letters]
    assert deaths == sorted(deaths, reverse=True)
    assert [letter.settled_ns for letter in await front.dead("list", limit=5)] == deaths[:5]
    counts = [(await front.dead("requeue_all", limit=most)).count for most in (5, 9)]
    assert counts == [5, 3]


async def test_dead_letters_are_chosen_by_queue_error_and_time(front: Front) -> None:
    await die(front, "a")
    await die(front, "b", queue="mail")
    choices: list[tuple[dict[str, Any], int]] = [
        ({}, 2), ({"queue": "mail"}, 1), ({"error": "no"}, 2), ({"error": "x"}, 0),
        ({"error": re.compile("^x")}, 0), ({"task": "other"}, 0), ({"since": "1h"}, 2),
        ({"before": "1h"}, 0),
    ]  # fmt: skip
    for choice, count in choices:
        assert await front.dead("count", **choice) == count
        assert len(await front.dead("list", **choice)) == count
        assert (await front.dead("requeue_all", dry_run=True, **choice)).count == count


async def test_a_requeued_dead_letter_begins_anew(front: Front) -> None:
    (job,) = await die(front, "a", headers={"x": "y"})
    await front.dead("requeue", job)
    (delivery,) = await front.claim()
    assert (delivery.job_id, delivery.attempt, delivery.headers) == (job, 1, {"x": "y"})
    with pytest.raises(errors.NotDead, match=f"job {job} is no dead letter: it is running"):
        await front.dead("requeue", job)
    await front.settle(delivery, "ack")
    assert await front.dead("count") == 0


async def test_a_dead_letter_whose_key_is_held_stays_dead(front: Front) -> None:
    (job,) = await die(front, "a")
    holder = await front.put(key="a")
    with pytest.raises(errors.KeyHeld, match=holder):
        await front.dead("requeue", job)
    assert set((await front.dead("requeue_all")).refused) == {job}
    assert await front.state(job) is State.DEAD


async def test_a_purged_dead_letter_is_unknown(front: Front) -> None:
    first, second = await die(front, "0", "1")
    await front.dead("purge", first)
    for ask in (front.state(first), front.dead("purge", first), front.dead("requeue", first)):
        with pytest.raises(errors.JobNotFound):
            await ask
    assert (await front.dead("purge_all", dry_run=True)).count == 1
    assert (await front.dead("purge_all")).count == 1
    assert await front.dead("list") == []
    assert second not in {job.job_id for job in await front.dead("list")}


async def test_an_act_on_many_letters_names_those_that_refused(front: Front) -> None:
    ready, *dead = await die(front, *"0123")
    await front.dead("requeue", ready)
    gone = dead.pop()
    await front.dead("purge", gone)
    done = await front.dead("purge_many", [*dead, ready, gone])
    assert (done.count, set(done.refused), done.refused_count) == (2, {ready, gone}, 2)
    assert {type(error) for error in done.refused.values()} == {errors.NotDead, errors.JobNotFound}
    for name in ("requeue_many", "purge_many"):
        with pytest.raises(errors.WrongLog):
            await front.dead(name, [ready, ELSEWHERE])
        with pytest.raises(errors.UsageError, match="give a list of ids"):
            await front.dead(name, ready)


# -- sources ---------------------------------------------------------------------------------------


async def test_the_loop_of_the_guide_takes_each_line_once(front: Front) -> None:
    lines = [f"line {number}" for number in range(10)]
    for step in (3, 4, 5):  # each run is another program
        done = await front.ask("position", "orders.csv") or 0
        end = min(done + step, len(lines))
        jobs = [front.job(line, priority=9 - int(line[-1]) % 2) for line in lines[done:end]]
        assert len(await front.ingest("orders.csv", jobs, end, after=done or None)) == len(jobs)
    taken = [it.payload for it in await front.claim()]
    assert taken == list(map(front.payload, lines[::2] + lines[1::2]))


@without("shards", because="a key belongs to another shard than the source")
async def test_an_ingested_job_whose_key_is_held_is_the_holder(front: Front) -> None:
    first, again = await front.ingest("s", [front.job(key="k")] * 2, 1)
    assert first == again
    refused = front.job(key="k", on_conflict="raise")
    with pytest.raises(errors.DuplicateKey):
        await front.ingest("s", [front.job(), refused], 2)
    assert (await front.ask("position", "s"), await front.count("ready")) == (1, 1)


async def test_a_source_that_moved_meanwhile_takes_nothing(front: Front) -> None:
    await front.ingest("s", [], 7)
    for after in (6, None, {"row": 7}):
        with pytest.raises(errors.SourceMoved, match=r"stands at 7, and not (at|unknown)"):
            await front.ingest("s", [front.job()], 8, after=after)
    assert await front.ask("position", "s") == 7
    assert await front.count("ready") == 0


async def test_a_position_comes_back_as_it_was_given(front: Front) -> None:
    positions: list[Any] = [
        0, 12, -1.5, "", "a\nb é 𝄞", True, False, [], {}, [None],
        {"topic": {"0": 17, "1": 2**70}, "at": [1.25, None]},
    ]  # fmt: skip
    for number, position in enumerate(positions):
        await front.ingest(f"s{number}", [], position, after=None)
        known = await front.ask("position", f"s{number}")
        assert (known, type(known)) == (position, type(position))
        if isinstance(position, dict):
            position = dict(reversed(position.items()))  # noqa: PLW2901 - an equal one
        await front.ingest(f"s{number}", [], "next", after=position)
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(errors.UsageError, match="deep"):
        await front.ingest("s", [], deep)


async def test_sources_are_listed_by_name_until_they_are_forgotten(front: Front) -> None:
    for name in "cab":
        await front.ingest(name, [], {"row": name})
    listed = [(source.name, source.position) for source in await front.ask("sources")]
    assert listed == [(name, {"row": name}) for name in "abc"]
    assert [await front.ask("forget_source", "a") for _ in range(2)] == [True, False]
    assert await front.ask("position", "a") is None
    assert [source.name for source in await front.ask("sources")] == ["b", "c"]


# -- transactions ----------------------------------------------------------------------------------


class Stop(Exception):
    """Leaves a block."""


def put_in(tx: Any, job: Any) -> Any:
    """Put a job of ``Front.job`` into a transaction."""
    if hasattr(tx, "enqueue"):
        return tx.enqueue(job)
    options = {name: getattr(job, name) for name in ("key", "priority", "on_conflict")}
    return tx.put(job.payload, **options)


@without("shards", because=ONE_LOG)
async def test_a_block_writes_all_of_it_when_it_is_left(front: Front) -> None:
    gone = await front.put()
    async with front.transaction() as tx:
        job = put_in(tx, front.job("new", key="k", priority=9))
        same = put_in(tx, front.job("new", key="k"))
        withdrawn = tx.cancel(gone)
        assert await front.state(gone) is State.READY
        for name in ("id", "duplicate"):
            with pytest.raises(errors.JobNotYetEnqueued, match="together with the transaction"):
                getattr(job, name)
        with pytest.raises(errors.UsageError, match="is known when the block is left"):
            _ = withdrawn.cancelled
    assert withdrawn.cancelled
    assert (same.id, job.duplicate, same.duplicate) == (job.id, False, True)
    assert await front.state(gone, job.id) == [State.CANCELLED, State.READY]


@without("shards", because=ONE_LOG)
async def test_a_block_left_by_an_exception_writes_nothing(front: Front) -> None:
    job = await front.put()
    before = (await front.ask("stats")).next_lsn
    with pytest.raises(Stop):  # noqa: PT012 - the block is what is tested
        async with front.transaction() as tx:
            tx.cancel(job)
            pending = put_in(tx, front.job())
            raise Stop
    assert (await front.ask("stats")).next_lsn == before
    with pytest.raises(errors.JobNotYetEnqueued):
        _ = pending.id


@without("shards", because=ONE_LOG)
async def test_a_refused_part_leaves_nothing_of_its_transaction(front: Front) -> None:
    first = await front.put(key="k")
    before = (await front.ask("stats")).next_lsn
    tag = first.partition("-")[0]
    refused = front.job(key="k", on_conflict="raise")
    parts: list[tuple[type[Exception], Any]] = [
        (errors.JobNotFound, lambda tx: tx.cancel(f"{tag}-{before + 9}")),
        (errors.WrongLog, lambda tx: tx.cancel(ELSEWHERE)),
        (errors.UsageError, lambda tx: tx.cancel("what?")),
        (errors.DuplicateKey, lambda tx: put_in(tx, refused)),
        (
            errors.PayloadTooLarge,
            lambda tx: [put_in(tx, front.job("y" * 1_000_000)) for _ in range(18)],
        ),
    ]
    for error, part in parts:
        with pytest.raises(error):  # noqa: PT012 - as above
            async with front.transaction() as tx:
                put_in(tx, front.job("good"))
                part(tx)
        assert (await front.ask("stats")).next_lsn == before


@without("shards", because=ONE_LOG)
async def test_a_block_is_entered_once_and_used_within(front: Front) -> None:
    tx = front.holder.transaction()
    with pytest.raises(errors.UsageError, match="within its own block"):
        put_in(tx, front.job())
    with pytest.raises(errors.UsageError, match="within its own block"):
        tx.cancel(await front.put())
    async with tx:
        pass
    with pytest.raises(errors.UsageError, match="within its own block"):
        put_in(tx, front.job())
    with pytest.raises(errors.UsageError, match="is entered once"):
        await tx.__aenter__()
    assert await front.count("ready") == 1


@without("shards", "log", because="a call is what is scheduled, in one log")
async def test_a_schedule_is_added_paused_and_removed(front: Front) -> None:
    schedules = front.holder.schedules
    await front.ask("add", "eu", front.work.call("x"), every="1h", of=schedules)
    (view,) = await front.ask("list", of=schedules)
    assert (view.name, view.task, view.rule) == ("eu", "work", "every 1:00:00")
    for name in ("pause", "resume"):
        await front.ask(name, "eu", of=schedules)
        assert (await front.ask("list", of=schedules))[0].paused == (name == "pause")
    assert await front.ask("remove", "eu", of=schedules) is True
    assert await front.ask("list", of=schedules) == []
