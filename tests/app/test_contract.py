"""One contract of all front ends: an app, a log, shards, each awaited or by its blocking twins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Shards, State, TaskLog, TaskQ, errors


class Front:
    """A front end, asked with await or, by its blocking twins, from a thread."""

    def __init__(self, kind: str, path: Path) -> None:
        name, _, self.twin = kind.partition(" ")
        makes: dict[str, Any] = {
            "app": lambda: TaskQ(path, durability="os"),
            "log": lambda: TaskLog.open(path, durability="os"),
            "shards": lambda: TaskQ(shards=Shards(path), durability="os"),
        }
        self.holder = makes[name]()

    async def ask(self, name: str, *args: Any, of: Any = None, **options: Any) -> Any:
        of = self.holder if of is None else of
        if self.twin:
            return await asyncio.to_thread(getattr(of, f"{name}_sync"), *args, **options)
        return await getattr(of, name)(*args, **options)

    async def dead(self, name: str, *args: Any, **options: Any) -> Any:
        return await self.ask(name, *args, of=self.holder.dead, **options)

    async def put(self, body: str = "x", **options: Any) -> str:
        if isinstance(self.holder, TaskLog):
            return str(await self.ask("put", body.encode(), **options))
        call = self.holder.call_by_name("work", body).options(**options)
        return str((await self.ask("enqueue", call)).id)

    async def cancel(self, job: str) -> bool:
        if isinstance(self.holder, TaskLog):
            return bool(await self.ask("cancel", job))
        return bool(await self.ask("cancel", of=self.holder.job(job)))

    async def state(self, job: str) -> State:
        if isinstance(self.holder, TaskLog):
            return State((await self.ask("get", job)).state)
        return State(await self.ask("status", of=self.holder.job(job)))

    async def claim_all(self, *, fails: bool = False) -> int:
        """Settle each ready job; return their number."""
        count = 0
        for log in self.holder.logs():
            async with TaskLog.open(log.data_dir, durability="os") as below:
                for delivery in await below.claim(100):
                    count += 1
                    await (below.nack(delivery, "E: no", delay=0) if fails else below.ack(delivery))
        return count

    async def count(self, name: str) -> int:
        return sum(getattr(queue, name) for queue in (await self.ask("stats")).queues)


KINDS: Final = [f"{name}{twin}" for name in ("app", "log", "shards") for twin in ("", " blocking")]


@pytest.fixture(params=KINDS)
async def front(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    front = Front(request.param, tmp_path / "log")
    async with front.holder:
        yield front


async def test_a_job_is_seen_from_its_put_to_its_end(front: Front) -> None:
    job = await front.put(queue="mail", priority=9, headers={"a": "é"}, attempts=2)
    assert await front.state(job) is State.READY
    assert (await front.ask("why", job)).code == "no_worker"
    assert await front.claim_all(fails=True) == await front.claim_all() == 1
    assert await front.state(job) is State.SUCCEEDED
    first, second = await front.ask("attempts", job)
    assert (first.outcome, first.error, second.outcome) == ("retried", "E", "succeeded")
    assert (first.message, first.pid, len(first.fingerprint)) == ("no", os.getpid(), 16)
    assert first.ended_at is not None
    assert first.started_at < first.ended_at <= second.started_at
    kinds = [event.kind for event in await front.ask("timeline", job)]
    assert kinds == ["enqueued", "claimed", "retried", "claimed", "succeeded"]
    assert await front.count("succeeded") == 1
    for gone in (f"{job}9", "0000ffff-1"):
        for name in ("why", "timeline", "attempts"):
            with pytest.raises(errors.JobNotFound):
                await front.ask(name, gone)


async def test_a_held_key_gives_its_job_or_is_refused_or_replaced(front: Front) -> None:
    first = await front.put(key="k", window="1h", until="settled")
    assert await front.put("other", key="k") == first
    with pytest.raises(errors.DuplicateKey, match=first):
        await front.put(key="k", on_conflict="raise")
    second = await front.put(key="k", on_conflict="replace")
    assert second != first
    assert (await front.state(first), await front.state(second)) == (State.CANCELLED, State.READY)
    assert await front.put(key="k", queue="other") not in {first, second}
    window = await front.put(key="w", window="1h")
    assert await front.claim_all() == 3
    assert await front.put(key="w") == window
    assert await front.put(key="k") != second


async def test_a_paused_queue_takes_jobs_and_gives_none(front: Front) -> None:
    assert await front.ask("pause", "mail") is True
    assert await front.ask("pause", "mail") is False
    job = await front.put(queue="mail")
    assert [queue.paused for queue in (await front.ask("stats")).queues] == [True]
    assert await front.claim_all() == 0
    assert (await front.ask("why", job)).code == "paused"
    assert await front.ask("resume", "mail") is True
    assert await front.ask("resume", "mail") is False
    assert await front.claim_all() == 1


async def test_waiting_jobs_are_edited_and_cancelled_alone_or_by_what_they_have(
    front: Front,
) -> None:
    jobs = [await front.put(key=f"{number}", queue="mail") for number in range(6)]
    late = await front.put(queue="other", delay="1h")
    assert await front.cancel(jobs[0]) is True
    assert await front.cancel(jobs[0]) is False
    assert (await front.ask("cancel_many", queue="mail", dry_run=True)).count == 5
    assert (await front.ask("cancel_many", queue="mail", limit=2)).count == 2
    assert (await front.ask("cancel_many", queue="mail")).count == 3
    assert await front.count("cancelled") == 6
    assert await front.ask("edit", late, run_now=True)
    assert await front.state(late) is State.READY


async def test_dead_letters_are_listed_requeued_and_purged(front: Front) -> None:
    jobs = [await front.put(key=f"{number}", attempts=1) for number in range(8)]
    assert await front.claim_all(fails=True) == 8
    assert await front.dead("count") == await front.dead("count", error="no") == 8
    letters = await front.dead("list", limit=5)
    assert [letter.reason for letter in letters] == ["E: no"] * 5
    assert [letter.settled_ns for letter in letters] == sorted(
        (letter.settled_ns for letter in await front.dead("list")), reverse=True
    )[:5]
    await front.dead("requeue", jobs[0])
    with pytest.raises(errors.NotDead, match=f"job {jobs[0]} is no dead letter: it is ready"):
        await front.dead("requeue", jobs[0])
    assert (await front.dead("requeue_all", dry_run=True)).count == 7
    assert (await front.dead("requeue_all", limit=3)).count == 3
    first, *rest = [letter.job_id for letter in await front.dead("list")]
    await front.dead("purge", first)
    with pytest.raises(errors.JobNotFound):
        await front.state(first)
    done = await front.dead("purge_many", [first, *rest[:2], jobs[0]])
    assert (done.count, set(done.refused)) == (2, {first, jobs[0]})
    assert (await front.dead("purge_all")).count == 1
    assert (await front.count("ready"), await front.dead("count")) == (4, 0)
    with pytest.raises(errors.WrongLog):
        await front.dead("requeue", "0000ffff-1")


async def test_each_control_is_kept_and_taken_away(front: Front) -> None:
    controls: list[tuple[str, dict[str, Any]]] = [
        ("pause", {"task": "send"}),
        ("limit", {"task": "send", "concurrency": 2, "rate": "50/s"}),
        ("set_slots", {"count": 3}),
    ]
    for name, options in controls:
        assert await front.ask(name, **options)
        assert not await front.ask(name, **options), "twice the same"
    limited = {"concurrency": 2, "rate": "50/s"}
    known = {"task:send": {"paused": True, **limited}, "slots": {"": 3}}
    assert await front.ask("controls") == known
    assert await front.ask("resume", task="send")
    assert (await front.ask("controls"))["task:send"] == limited
    assert await front.ask("limit", task="send")
    assert await front.ask("set_slots", count=None)
    assert await front.ask("controls") == {}


async def test_a_source_has_a_position_until_it_is_forgotten(front: Front) -> None:
    await front.ask("ingest", "b", [], {"row": 1}, after=None)
    await front.ask("ingest", "a", [], 7)
    with pytest.raises(errors.SourceMoved, match="stands at 7, and not at 6"):
        await front.ask("ingest", "a", [], 8, after=6)
    listed = await front.ask("sources")
    assert [(source.name, source.position) for source in listed] == [("a", 7), ("b", {"row": 1})]
    assert await front.ask("forget_source", "a") is True
    assert await front.ask("forget_source", "a") is False
    assert await front.ask("position", "a") is None
    assert await front.ask("position", "b") == {"row": 1}


async def test_a_closed_front_end_says_so_until_it_is_opened_again(front: Front) -> None:
    job = await front.put()
    for _ in range(2):
        await front.ask("close")
    for use in (front.put(), front.state(job), front.ask("stats")):
        with pytest.raises(errors.LogClosed, match="closed"):
            await use
    async with front.holder:
        assert await front.state(job) is State.READY


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("log")])
async def test_a_handle_waits_for_its_result_and_raises_what_became_of_it(
    kind: str, tmp_path: Path
) -> None:
    front = Front(kind, tmp_path / "log")

    async def half(number: int) -> set[int]:
        if number % 2:
            raise ValueError("odd")
        return {number // 2}

    task = front.holder.task(name="half", retry=1)(half)
    async with front.holder:
        even, odd, never = [await front.ask("enqueue", task.call(number)) for number in (4, 3, 2)]
        assert await front.ask("cancel", of=never)
        for wait in (0, "1ms"):
            with pytest.raises(errors.ResultTimeout, match="is still ready after"):
                await front.ask("result", wait, of=even)
        await front.holder.worker(burst=True).run()
        assert await front.ask("result", 20, of=even) == {2}
        with pytest.raises(errors.JobFailed, match="ValueError: odd"):
            await front.ask("result", 20, of=odd)
        with pytest.raises(errors.JobCancelled):
            await front.ask("result", of=never)
        again = front.holder.job(even.id)
        assert again == even
        assert await front.ask("result", of=again) == {2}
        await front.dead("purge", odd.id)
        with pytest.raises(errors.JobNotFound):
            await front.ask("result", 20, of=odd)
        with pytest.raises(errors.UsageError):
            front.holder.job("nonsense")
