"""``TaskQ(shards=…)``: jobs with one key are in one log, whichever process enqueues them."""

import asyncio
import os
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taskq import Shards, TaskQ, chain, current_job, group
from taskq.errors import UsageError
from taskq.shards import FILE
from tests.effort import grows, some, within


def sharded(path: Path, bits: int = 2, **options: Any) -> TaskQ:
    return TaskQ(shards=Shards(path, prefix="jobs", bits=bits), **options)


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


async def run_all(app: TaskQ, **options: Any) -> None:
    async with app.worker(burst=True, **options) as worker:
        await worker.stopped.wait()


@pytest.mark.parametrize(("prefix", "bits", "first", "last"), [
    ("", 1, "1.000", "1.001"),
    ("jobs", 2, "jobs.2.000", "jobs.2.003"),
    ("a_B-9", 9, "a_B-9.9.000", "a_B-9.9.1ff"),
    ("", 10, "a.000", "a.3ff"),
])  # fmt: skip
def test_directories_have_the_seeds_names(prefix: str, bits: int, first: str, last: str) -> None:
    names = Shards("root", prefix=prefix, bits=bits).names()
    assert (names[0], names[-1], len(names)) == (first, last, 2**bits)


def test_the_shard_of_a_key_never_changes(tmp_path: Path) -> None:
    """These are on disk: another number would look for keys where they are not."""
    app = sharded(tmp_path, bits=10)

    @app.task(name="free", queue="mail")
    async def free(text: str) -> None: ...

    @app.task(name="limited", concurrency=1, concurrency_key=lambda text: text)
    async def limited(text: str) -> None: ...

    @app.task(name="all", rate="10/s")
    async def all_of_it(text: str) -> None: ...

    shards = Shards(tmp_path, bits=10)
    assert shards.index_of(free.call("a")) is None
    homes = [
        shards.index_of(call)
        for call in (
            free.options(key="k").call("a"), free.options(key="k", queue="other").call("a"),
            limited.call("a"), limited.options(queue="other").call("a"), limited.call("b"),
            all_of_it.call("a"), all_of_it.options(key="k").call("b"),
        )
    ]  # fmt: skip
    assert homes == [497, 582, 875, 875, 206, 159, 159]


async def test_a_wrong_number_of_shards_is_refused_and_says_what_to_write(tmp_path: Path) -> None:
    async with sharded(tmp_path, bits=2):
        pass
    assert Shards.of(tmp_path) == Shards(os.fspath(tmp_path), "jobs", 2)
    assert names_in(tmp_path) == [
        "jobs.2.000", "jobs.2.001", "jobs.2.002", "jobs.2.003", FILE,
    ]  # fmt: skip
    other = sharded(tmp_path, bits=3)
    async with sharded(tmp_path, bits=2):
        with pytest.raises(UsageError, match="has shards"):
            await TaskQ(tmp_path).open()
    with pytest.raises(UsageError, match=r"write Shards\(..., prefix='jobs', bits=2\)"):
        await other.open()


async def test_calls_of_several_shards_are_no_transaction(tmp_path: Path) -> None:
    app = sharded(tmp_path)

    @app.task
    async def note(text: str) -> str:
        return text

    calls = [note.options(key=f"k{number}").call(str(number)) for number in range(8)]
    async with app:
        with pytest.raises(UsageError, match="atomic=False"):
            await app.enqueue_many(calls)
        assert not any([(await log.stats()).queues for log in app.logs()])
        jobs = await app.enqueue_many(calls, atomic=False)
        assert [(await job.view()).key for job in jobs] == [call.extras.key for call in calls]  # type: ignore[union-attr]
        same = await app.enqueue_many([calls[0].options(window="1h"), note.call("free")])
        assert len({job.id.partition("-")[0] for job in same}) == 1
        with pytest.raises(UsageError, match="of one log"):
            app.transaction()
        with pytest.raises(UsageError, match="4 logs"):
            await app.readers()


async def test_a_flow_lies_in_one_shard_and_one_that_cannot_is_refused(tmp_path: Path) -> None:
    app = sharded(tmp_path)

    @app.task
    async def one(value: int) -> int:
        return value + 1

    @app.task(concurrency=1, concurrency_key=str)
    async def limited(value: int) -> int:
        return value + 1

    flow = await chain(one.call(1), one.step()).enqueue()
    tied = await group([limited.call(7), one.call(1)]).enqueue()
    await run_all(app)
    assert await flow.result(timeout=10) == 3
    assert await tied.result(timeout=10) == [8, 2]
    assert await (await app.flow(flow.id)).result(timeout=10) == 3
    with pytest.raises(UsageError, match="a flow must do with one"):
        await group([limited.call(number) for number in range(8)]).enqueue()
    await app.close()


async def test_a_schedule_ticks_in_one_shard(tmp_path: Path) -> None:
    app = sharded(tmp_path)
    seen: dict[str, set[str]] = defaultdict(set)
    enough = asyncio.Event()

    async def tick(name: str) -> None:
        seen[name].add(current_job().id.partition("-")[0])
        if len(seen) == 6:
            enough.set()

    task = app.task(tick)
    for number in range(6):
        app.schedule(f"s{number}", task.call(f"s{number}"), every="1s")
    async with app, app.worker():
        async with within():
            await enough.wait()
        known = [{schedule.name for schedule in await log.schedules.list()} for log in app.logs()]
    assert all(len(tags) == 1 for tags in seen.values())
    assert sorted(name for names in known for name in names) == [f"s{n}" for n in range(6)]
    assert sum(map(bool, known)) > 1


async def test_a_job_may_not_take_a_key_along_that_another_shard_holds(tmp_path: Path) -> None:
    app = sharded(tmp_path, bits=3)
    refused: list[str] = []

    @app.task
    async def leaf(text: str) -> str:
        return current_job().id

    @app.task
    async def root(number: int) -> None:
        for key in range(8):
            call = leaf.options(key=f"{number}:{key}").call("x")
            try:
                current_job().enqueue(call)
            except UsageError as error:
                refused.append(str(error))
                await leaf.options(key=f"{number}:{key}").enqueue("x")
        free = await leaf.enqueue("free")
        assert free.id.partition("-")[0] == current_job().id.partition("-")[0]

    await root.enqueue(1)
    await run_all(app)
    assert refused
    assert "outside of transactions" in refused[0]
    assert sum([sum(q.succeeded for q in (await log.stats()).queues) for log in app.logs()]) == 10
    await app.close()


@grows
@pytest.mark.parametrize("seed", range(some(3, 60)))
async def test_order_and_limits_by_key_hold_over_all_shards(tmp_path: Path, seed: int) -> None:
    """Producers take turns, and a worker leaves; a dedup key has one job until it is over."""
    random = Random(seed)
    options: dict[str, Any] = {"durability": "os"}
    apps = [sharded(tmp_path, bits=random.randint(1, 3) if not seed else 2, **options)]
    apps += [TaskQ(shards=apps[0]._router._shards, **options) for _ in range(2)]  # type: ignore[union-attr]
    ran: dict[str, list[int]] = defaultdict(list)
    running: set[tuple[str, str]] = set()
    overlaps: list[tuple[str, str]] = []
    singles: set[str] = set()
    turns = [random.choice((0, 0, 1, 9)) for _ in range(50)]
    leaves_after, leaves = random.randrange(60), asyncio.Event()

    async def alone(kind: str, key: str, number: int) -> None:
        overlaps.extend({(kind, key)} & running)
        running.add((kind, key))
        for _ in range(turns[number % 50]):
            await asyncio.sleep(0)
        running.discard((kind, key))

    async def work(key: str, number: int) -> None:
        await alone("work", key, number)
        ran[key].append(number)
        if sum(map(len, ran.values())) > leaves_after:
            leaves.set()

    async def once(key: str) -> None:
        await alone("once", key, 3)
        singles.add(key)

    tasks = [
        (
            app.task(name="work", concurrency=1, concurrency_key=lambda key: key)(work),
            app.task(name="once", key=lambda key: key)(once),
        )
        for app in apps
    ]
    put: dict[str, list[int]] = defaultdict(list)
    for number in range(120):
        worked, single = random.choice(tasks)
        key = f"k{random.randrange(9)}"
        await worked.enqueue(key, number)
        put[key].append(number)
        await single.enqueue(key)
    async with apps[0].worker(random.randint(1, 8)) as worker:
        await leaves.wait()
        worker.request_stop()
        await run_all(apps[1], concurrency=random.randint(2, 8))
    await run_all(apps[2])
    assert ran == put
    assert singles == put.keys()
    assert overlaps == []
    for app in apps:
        await app.close()


def upper(line: str) -> str:
    return line.upper()


async def test_a_source_and_its_jobs_are_in_the_shard_of_its_name(tmp_path: Path) -> None:
    async with sharded(tmp_path) as app:
        order = app.task(name="order")(upper)
        for name in "abcdefgh":
            await app.ingest(name, [order.call(name)], 1, after=None)
            assert await app.position(name) == 1
        used = [len(await log.sources()) for log in app.logs()]
        assert sum(used) == 8
        assert sum(map(bool, used)) > 1
        assert [source.name for source in await app.sources()] == list("abcdefgh")
        assert await app.forget_source("a")
        keyed = [order.call(key).options(key=key) for key in "klmnop"]
        with pytest.raises(UsageError, match="belongs to shard"):
            await app.ingest("b", keyed, 2)
        assert await app.position("b") == 1
