"""A type checker's knowledge of an app. A line with ``# E: code`` must give that error."""

from __future__ import annotations

from typing import assert_type

import taskq
from taskq import Call, JobHandle, PendingJob, State, Task, TaskQ, Worker, current_job, retry, task

app = TaskQ("data")


@app.task
async def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(queue="mail", priority=7, retry=retry.fixed(attempts=3), timeout="30s", expires="1d")
def shout(text: str, *, loud: bool = True) -> str:
    return text.upper() if loud else text


@task
async def plain(n: float) -> None:
    assert n


@task(key=lambda n: f"{n}", window="1h")
def keyed(n: int) -> list[str]:
    return [str(n)]


@app.task(batch=100, within="1s", queue="bulk")
async def index(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


@app.task(batch=10)
def store(rows: list[dict[str, int]]) -> None:
    assert rows


async def batches_are_enqueued_one_by_one() -> None:
    assert_type(await index.enqueue("a"), JobHandle[int])
    assert_type(await store.enqueue({"a": 1}), JobHandle[None])
    await index.enqueue(["a"])  # E: arg-type
    await store.enqueue(1)  # E: arg-type


async def calls_are_typed() -> None:
    assert_type(await add(1, b=2), int)
    assert_type(shout("x", loud=False), str)
    await add("x")  # E: arg-type
    shout(1)  # E: arg-type
    shout("x", False)  # E: call-arg


async def enqueues_are_typed() -> None:
    job = await add.enqueue(1, b=2)
    assert_type(job, JobHandle[int])
    assert_type(await job.result(timeout=5), int)
    assert_type(await (await shout.enqueue("x")).result(), str)
    assert_type(await (await keyed.enqueue(1)).result(), list[str])
    assert_type(await job.status(), State)
    assert_type(await job.cancel(), bool)
    assert_type(job.id, str)
    await add.enqueue("x")  # E: arg-type
    await add.enqueue()  # E: call-arg
    await add.enqueue(1, 2, 3)  # E: call-arg
    await add.enqueue(1, c=2)  # E: call-arg
    await shout.enqueue("x", loud="yes")  # E: arg-type
    await plain.enqueue("x")  # E: arg-type
    text: str = await job.result()  # E: assignment
    assert text


async def options_keep_the_types() -> None:
    job = await add.options(delay="5m", priority=9, key="k").enqueue(1)
    assert_type(await job.result(), int)
    await add.options(delay="5m").enqueue("x")  # E: arg-type
    add.options(priority="high")  # E: arg-type
    add.options(prority=9)  # E: call-arg


async def calls_carry_the_result() -> None:
    call = shout.call("x", loud=False)
    assert_type(call, Call[str])
    assert_type(call.options(priority=1), Call[str])
    assert_type(await app.enqueue(call), JobHandle[str])
    assert_type(await app.enqueue_many([call, shout.call("y")]), list[JobHandle[str]])
    assert_type(current_job().enqueue(call), PendingJob[str])
    shout.call(5)  # E: arg-type


async def many_are_typed() -> None:
    assert_type(await add.enqueue_many([(1,), (1, 2)]), list[JobHandle[int]])
    await add.enqueue_many([1, 2])  # E: list-item


def threads_are_typed() -> None:
    assert_type(add.enqueue_sync(1).result_sync(), int)
    add.enqueue_sync("x")  # E: arg-type
    shout.options(attempts=1).enqueue_sync(5)  # E: arg-type


def tasks_are_tasks() -> None:
    known: Task[[int], list[str]] = keyed
    wrong: Task[[str], list[str]] = keyed  # E: assignment
    assert known.name
    assert wrong.name


def options_are_known() -> None:
    app.task(queue="mail", priority=1)
    app.task(prority=1)  # E: call-overload
    app.task(priority="high")  # E: call-overload
    assert taskq.Taskq  # E: attr-defined


async def run_a_worker() -> None:
    async with app.worker(concurrency=2, queues=["mail"], drain_timeout="5s") as worker:
        assert_type(worker.running, int)
        await worker.stop()
    app.worker(concurency=2)  # E: call-arg
    app.worker(burst="yes")  # E: arg-type
    app.run_worker(burts=True)  # E: call-arg
    assert_type(Worker(app, burst=True).concurrency, int)
