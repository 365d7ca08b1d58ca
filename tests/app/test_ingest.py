"""Jobs from a source exactly once, and blocks that are written when they are left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import Shards, State, TaskLog, TaskQ, current_job, errors
from taskq.core import model
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag


def order_of(app: TaskQ) -> Any:
    @app.task(name="order")
    def order(line: str) -> str:
        return line.upper()

    return order


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
        with pytest.raises(errors.UsageError, match="belongs to shard"):
            await app.ingest("b", keyed, 2)
        assert await app.position("b") == 1


# -- transaction blocks ----------------------------------------------------------------------------


async def states(log: TaskLog, *ids: str) -> list[State]:
    return [(await log.get(job)).state for job in ids]


# -- bytes -----------------------------------------------------------------------------------------


async def test_deliveries_are_settled_and_jobs_put_together(log: TaskLog) -> None:
    ids = [await log.put(b"%d" % number) for number in range(5)]
    held = await log.claim(3)
    async with log.transaction() as tx:
        tx.ack(held[0], result=b"42" * 999, compress="zlib")
        tx.nack(held[1], reason="no", delay="1h")
        tx.release(held[2], delay="1h")
        withdrawn, running = tx.cancel(ids[3]), tx.cancel(ids[1])
        job = tx.put(b"new", priority=9, key="k")
        same = tx.put(b"new", key="k")
        assert await states(log, *ids[:3]) == [State.RUNNING] * 3
        for pending in (job, same):
            with pytest.raises(errors.JobNotYetEnqueued, match="put together with the transaction"):
                _ = pending.id
        with pytest.raises(errors.UsageError, match="is known when the block is left"):
            _ = withdrawn.cancelled
    assert (withdrawn.cancelled, running.cancelled) == (True, True)
    assert (same.id, job.duplicate, same.duplicate) == (job.id, False, True)
    assert await states(log, *ids, job.id) == [
        State.SUCCEEDED, State.CANCELLED, State.SCHEDULED, State.CANCELLED, State.READY,
        State.READY,
    ]  # fmt: skip
    assert (await log.get(ids[0])).result == b"42" * 999
    port, lsn = await log._located(ids[0])
    stored = await port.view(lsn)
    assert stored is not None
    assert stored.result_flags == Flag.ZLIB
    assert [delivery.payload for delivery in await log.claim(9)] == [b"new", b"4"]
    assert repr(job) == f"<PendingPut {job.id}>"
    assert repr(withdrawn) == f"<PendingCancel {ids[3]}>"


async def test_a_settlement_that_is_refused_leaves_nothing_of_its_transaction(
    log: TaskLog,
) -> None:
    await log.put(b"x")
    (held,) = await log.claim()
    before = (await log.stats()).next_lsn
    with pytest.raises(errors.PayloadTooLarge):  # noqa: PT012 - the block is what is tested
        async with log.transaction() as tx:
            tx.put(b"good")
            tx.ack(held, b"y" * (PAYLOAD_BYTES_MAX + 1))
    assert (await log.stats()).next_lsn == before
    await log.release(held)
    with pytest.raises(errors.StaleDelivery):  # noqa: PT012 - as above
        async with log.transaction() as tx:
            tx.put(b"good")
            tx.ack(held)
    assert [delivery.payload for delivery in await log.claim(9)] == [b"x"]


# -- context ---------------------------------------------------------------------------------------


def test_outside_a_task_there_is_no_current_job() -> None:
    with pytest.raises(
        errors.UsageError, match=r"current_job\(\) is for code that runs inside a task"
    ):
        current_job()


async def test_children_wait_for_the_success_and_then_have_ids(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "TRANSACTION_BYTES_MAX", 10_000)
    pending: list[Any] = []

    @app.task(name="child")
    def child(text: str) -> str:
        return text

    @app.task(name="parent", queue="mail", retry=2)
    async def parent() -> None:
        job = current_job()
        assert (job.attempt, job.attempts_max, job.queue) == (1, 2, "mail")
        assert (job.task, job.headers, job.children) == ("parent", {"a": "b"}, None)
        assert repr(job) == f"<JobContext parent {job.id} attempt 1>"
        call = child.options(key="k").call("x" * 4_000)
        pending.extend(job.enqueue(call) for _ in range(2))
        assert repr(pending[0]) == "<PendingJob child no id yet>"
        for name in ("id", "duplicate"):
            with pytest.raises(errors.JobNotYetEnqueued, match="the child job has no id yet"):
                getattr(pending[0], name)
        with pytest.raises(errors.PayloadTooLarge, match=f"jobs enqueued by parent {job.id}"):
            job.enqueue(call)
        pending.append(job.enqueue(child.call("small")))

    job = await parent.options(headers={"a": "b"}).enqueue()
    await app.worker(burst=True).run()
    await job.result(0)
    assert [child.duplicate for child in pending] == [False, True, False]
    assert pending[0].id == pending[1].id != pending[2].id
    assert await pending[2].handle.result(0) == "small"
    assert repr(pending[2]) == f"<PendingJob child {pending[2].id}>"


# -- route -----------------------------------------------------------------------------------------


ROUTE: Final = Path(__file__).parents[1] / "bench" / "route.py"
#: Limits of rooms, files and functions of ours, there and back.
MOST: Final = {
    "jobs": {
        "enqueue": (8, 15, 75),
        "enqueue to result": (20, 56, 278),
        "enqueue to ack": (22, 60, 305),
        "taskq ls": (15, 40, 245),
    },
    "dead": {"dead letter": (24, 61, 320)},
    "killed": {"open after kill -9": (18, 60, 262)},
}


@pytest.mark.posix("counts what a call costs by other functions of the system")
@pytest.mark.parametrize("way", MOST)
def test_a_route_stays_short(way: str) -> None:
    command = [sys.executable, str(ROUTE), way, "--json"]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for title, most in MOST[way].items():
        counts = tuple(measured[title].values())
        assert len(counts) == len(most), counts
        assert all(map(int.__le__, counts, most)), (title, counts)
