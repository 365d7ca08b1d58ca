"""Jobs from a source exactly once: ``ingest`` moves its position in the same transaction."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from taskq import Put, Shards, TaskLog, TaskQ
from taskq.errors import DuplicateKey, PayloadTooLarge, SourceMoved, UsageError
from taskq.testing import Sandbox
from taskq.views import JobView
from tests.cli.helpers import taskq, taskq_json


def order_of(app: TaskQ) -> Any:
    @app.task(name="order")
    def order(line: str) -> str:
        return line.upper()

    return order


def line_of(view: JobView) -> str:
    line: str = json.loads(view.payload or b"")["line"]
    return line


async def test_the_loop_of_the_guide_takes_each_line_once(app: TaskQ) -> None:
    order, lines = order_of(app), [f"line {number}" for number in range(10)]
    for step in (3, 4, 5):  # each run is another program
        done = await app.position("orders.csv")
        end = min((done or 0) + step, len(lines))
        calls = (order.call(line) for line in lines[done or 0 : end])
        jobs = await app.ingest("orders.csv", calls, end, after=done)
        assert len(jobs) == end - (done or 0)
    assert await app.position("orders.csv") == 10
    views = await app.peek(20)
    assert list(map(line_of, views)) == lines


async def test_a_handle_gives_the_result_and_a_held_key_the_holder(app: TaskQ) -> None:
    order = order_of(app)
    call = order.call("a").options(key="k", priority=9)
    first, again = await app.ingest("s", [call, call], 1)
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
    async with app.worker(burst=True) as worker:
        await worker.stopped.wait()
    assert await first.result(timeout=5) == "A"
    call = order.call("b").options(key="l", on_conflict="raise")
    with pytest.raises(DuplicateKey):
        await app.ingest("s", [call, call], 2)
    assert await app.position("s") == 1


@pytest.mark.parametrize("position", [0, 12, -1.5, "", "a\nb é 𝄞", True, False, [], {}, [None], {
    "topic": {"0": 17, "1": 2**70}, "at": [1.25, None]},
])  # fmt: skip
async def test_a_position_comes_back_as_it_was_given(app: TaskQ, position: Any) -> None:
    await app.ingest("s", [], position, after=None)
    assert await app.position("s") == position
    assert type(await app.position("s")) is type(position)
    await app.ingest("s", [], "next", after=position)
    with pytest.raises(SourceMoved, match="stands at 'next', and not at"):
        await app.ingest("s", [], "other", after=position)


async def test_positions_of_dicts_are_compared_whatever_the_order_of_their_keys(app: TaskQ) -> None:
    await app.ingest("s", [], {"b": 1, "a": 2})
    await app.ingest("s", [], 1, after={"a": 2, "b": 1})


@pytest.mark.parametrize("wrong", [object(), b"bytes", math.nan, {1, 2}, [math.inf], "\ud800"])
async def test_a_position_that_is_no_json_is_refused(app: TaskQ, wrong: Any) -> None:
    for position, after in ((wrong, 1), (1, wrong)):
        with pytest.raises(UsageError, match=r"'s' is .*, it must be a JSON value"):
            await app.ingest("s", [], position, after=after)
    assert await app.sources() == []


async def test_what_ingest_cannot_do_is_refused_and_names_the_remedy(app: TaskQ) -> None:
    order = order_of(app)
    with pytest.raises(UsageError, match=r"None, .* forget_source\('s'\)"):
        await app.ingest("s", [order.call("a")], None)
    with pytest.raises(UsageError, match="source name"):
        await app.ingest("", [order.call("a")], 1)
    with pytest.raises(UsageError, match=r"ingest\(\) takes calls such as"):
        await app.ingest("s", [("a",)], 1)  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge, match=r"position of source 's' has .* limit is 4096"):
        await app.ingest("s", [], "x" * 5_000)
    many = [order.options(compress="none").call("x" * 100_000)] * 200
    with pytest.raises(PayloadTooLarge, match=r"200 jobs from source 's' has .* ingest fewer at a"):
        await app.ingest("s", many, 1)
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(UsageError, match="deep"):
        await app.ingest("s", [], deep)
    assert (await app.stats()).next_lsn == 1


async def test_sources_are_listed_and_forgotten(app: TaskQ) -> None:
    await app.ingest("b", [], {"row": 1})
    await app.ingest("a", [], 7)
    listed = await app.sources()
    assert [(source.name, source.position) for source in listed] == [("a", 7), ("b", {"row": 1})]
    assert taskq_json("sources", "-d", app.data_dir) == [source.as_dict() for source in listed]
    assert '{"row": 1}' in taskq("sources", "ls", "-d", app.data_dir).stdout
    assert await app.forget_source("a") is True
    assert await app.forget_source("a") is False
    assert await app.position("a") is None


def test_the_command_forgets_a_source(tmp_path: Path) -> None:
    with TaskQ(tmp_path) as app:
        app.ingest_sync("b", [], 1)
    assert taskq("sources", "forget", "b", "-d", tmp_path).stdout == "b: forgotten\n"
    assert taskq("sources", "-d", tmp_path).stdout == "No source was ingested into this log.\n"
    again = taskq("sources", "forget", "b", "-d", tmp_path).stdout
    assert again == "b: this log knows no such source\n"


async def test_records_tell_of_positions(app: TaskQ) -> None:
    await app.ingest("s", [order_of(app).call("a")], [1])
    records = [record async for record in app.stream(follow=False, kinds=["ingested"])]
    assert [(it.kind, dict(it.headers), it.payload) for it in records] == [
        ("ingested", {"taskq-source": "s"}, b"[1]")
    ]


def test_code_without_an_event_loop_has_twins(tmp_path: Path) -> None:
    with TaskQ(tmp_path / "log") as app:
        (job,) = app.ingest_sync("s", [order_of(app).call("a")], 1, after=None)
        assert app.position_sync("s") == 1
        with pytest.raises(SourceMoved):
            app.ingest_sync("s", [], 2, after=0)
        assert [source.name for source in app.sources_sync()] == ["s"]
        assert app.forget_source_sync("s") is True
        assert job.status_sync().name == "READY"
    with TaskLog.open(tmp_path / "bytes") as log:
        ids = log.ingest_sync("s", [Put(payload=b"a"), Put(payload=b"b", priority=9)], "end")
        assert log.position_sync("s") == "end"
        assert [it.job_id for it in log.claim_sync(2)] == ids[::-1]


async def test_of_many_ingesters_at_once_each_line_is_taken_by_one(app: TaskQ) -> None:
    order = order_of(app)

    async def take() -> int:
        taken = 0
        while (done := await app.position("s") or 0) < 40:
            with contextlib.suppress(SourceMoved):
                await app.ingest("s", [order.call(str(done))], done + 1, after=done or None)
                taken += 1
        return taken

    assert sum(await asyncio.gather(*(take() for _ in range(4)))) == 40
    assert [int(line_of(view)) for view in await app.peek(100)] == list(range(40))


async def test_a_source_and_its_jobs_are_in_the_shard_of_its_name(tmp_path: Path) -> None:
    async with TaskQ(shards=Shards(tmp_path, bits=2)) as app:
        order = order_of(app)
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


async def test_a_sandbox_takes_sources_like_a_log(app: TaskQ) -> None:
    order = order_of(app)
    async with Sandbox(app) as box:
        await app.ingest("s", [order.call("a")], 1)
        assert (await box.drain()).succeeded == 1
        assert await app.position("s") == 1
    assert await app.position("s") is None
