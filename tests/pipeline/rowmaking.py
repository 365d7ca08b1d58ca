"""Real logs with every kind of life in them, and their rows as the source gives them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pyarrow as pa

from taskq import Put, TaskLog, TaskQ, durable
from taskq.arrow import DETAILS, Corrupt, Piece, as_bytes, decode
from taskq_plugins.fleet import durable_end, find_logs, segments

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.log.requests import Delivery

SEGMENT_BYTES = 64 * 1024
#: Sources of the tables.
COLUMNS = as_bytes(DETAILS)


def rows_of(root: Path, after: dict[str, int] | None = None) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for log in find_logs(root):
        places = segments(log)
        mark = durable_end(log, places).mark
        for place in places:
            end = mark.offset if place.first_lsn == mark.segment else place.size_bytes
            piece = Piece(place.path, log.device, log.log_id, log.tag, place.first_lsn, 0, end)
            batches.extend(decode(piece, COLUMNS, corrupt=Corrupt.FAIL))
    table = pa.Table.from_batches(batches, COLUMNS)
    for log_id, lsn in (after or {}).items():
        is_old = pa.compute.and_(
            pa.compute.equal(table["log_id"], log_id), pa.compute.less_equal(table["lsn"], lsn)
        )
        table = table.filter(pa.compute.invert(is_old))
    return table


def last_lsns(table: pa.Table) -> dict[str, int]:
    result = table.group_by("log_id").aggregate([("lsn", "max")])
    return dict(zip(result["log_id"].to_pylist(), result["lsn_max"].to_pylist(), strict=True))


def cut(table: pa.Table, count: int) -> list[pa.Table]:
    size = -(-table.num_rows // count)
    return [table.slice(at, size) for at in range(0, table.num_rows, size)]


async def live(path: Path, seed: int, turns: int, *, keep: str | None = None) -> None:
    """Let a log live: jobs that succeed, fail, die, are requeued, purged or cancelled, or wait.

    With ``keep`` it is compacted at the end, and finished jobs are kept for that time.
    """
    draw = random.Random(seed)
    ids: list[str] = []
    async with TaskLog.open(
        path, durability="os", upkeep=False, segment_bytes=SEGMENT_BYTES, min_free=0, reserve=0
    ) as log:
        for _ in range(turns):
            ids += await log.put_many([_job(draw) for _ in range(draw.randrange(1, 6))])
            for delivery in await log.claim(draw.randrange(1, 5)):
                await _settle(log, delivery, draw)
            if draw.randrange(4) == 0:
                await log.cancel(draw.choice(ids))
            for job in await log.dead.list():
                if (chosen := draw.randrange(8)) < 2:
                    await (log.dead.purge, log.dead.requeue)[chosen](job.job_id)
        if keep is not None:
            await log.compact(keep=keep)


def _job(draw: random.Random) -> Put:
    return Put(
        payload=b"x" * draw.randrange(3_000),
        queue=draw.choice(["mail", "default"]),
        priority=draw.randrange(10),
        attempts=draw.choice([1, 2, 5]),
        delay=draw.choice([0, 0, 0, 3_600]),
        key=draw.choice([None, draw.randbytes(8)]),
        headers=draw.choice([{}, {"replay_of": "x-1", "a": "b"}]),
        keep=draw.choice([None, "1d"]),
    )


async def _settle(log: TaskLog, delivery: Delivery, draw: random.Random) -> None:
    match draw.randrange(6):
        case 0:
            await log.nack(delivery, "ValueError: no 17", delay=0)
        case 1:
            await log.release(delivery)
        case 2:
            await log.nack(delivery, "KeyError: 'x'", delay=3_600)
        case 3:  # it is lost with its process
            pass
        case _:
            await log.ack(delivery, draw.choice([None, b"42"]))


def order_app(path: Path) -> TaskQ:
    app = TaskQ(path)

    @app.task
    def child() -> int:
        return 1

    @app.task(name="order", retry=2)
    async def order(number: int) -> int:
        async with asyncio.TaskGroup() as pages:
            for page in range(3):
                pages.create_task(durable.step("page", str, "é" * page))
        await durable.call(child.call())
        if number % 2:
            await durable.event("paid", int, timeout="7d")
        return await durable.step("ship", lambda: number)

    return app


async def work(app: TaskQ) -> None:
    async with app.worker(burst=True) as worker:
        await worker.stopped.wait()


async def do_steps(path: Path, jobs: int) -> None:
    async with order_app(path) as app:
        for number in range(jobs):
            await app.enqueue_by_name("order", number)
        await work(app)
