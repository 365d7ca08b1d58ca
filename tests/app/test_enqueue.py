"""An enqueue: its options, children of a job, and how few functions it runs through."""

import asyncio
import contextlib
import gc
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskq import State, Task, TaskLog, TaskQ, current_job, errors
from taskq.core import model
from taskq.core.model import SECOND_NS, TIME_NS_MAX, Extras
from taskq.core.rates import Limit, Rate
from taskq.log.config import QueuePolicy
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from tests.log.world import World, fill_segment, keeping, tend


def add_task(app: TaskQ, **choices: Any) -> Task[..., Any]:
    def add(a: int, b: int = 0) -> int:
        return a + b

    task: Task[..., Any] = app.task(name="add", **choices)(add)
    return task


async def claim(app: TaskQ, count: int = 1) -> list[Delivery]:
    port = app.store().port()
    request = ClaimRequest(count, tasks=frozenset(app.tasks), wait_until_ns=0)
    deliveries: list[Delivery] = await port.claim(request)
    return deliveries


async def settle(app: TaskQ, settlement: Settlement) -> None:
    assert await app.store().port().settle([settlement]) == [None]


async def test_nothing_is_done_until_an_enqueue_is_awaited(app: TaskQ) -> None:
    add = add_task(app)
    late = add.enqueue(1, "wrong")
    assert inspect.isawaitable(late)
    assert inspect.iscoroutinefunction(add.enqueue)
    with pytest.warns(RuntimeWarning, match="never awaited"):  # noqa: PT031
        del late
        gc.collect()
    assert not app.data_dir.exists()


def test_one_app_serves_many_event_loops(tmp_path: Path) -> None:
    """``async_to_sync`` makes a loop for every call."""
    app = TaskQ(tmp_path / "data", durability="os")
    add = add_task(app)

    async def enqueue() -> str:
        return (await add.enqueue(1)).id

    assert len({asyncio.run(enqueue()) for _ in range(5)}) == 5
    app.close_sync()


async def test_the_last_of_several_blocks_of_an_app_closes_it(app: TaskQ) -> None:
    """Blocks may nest, run in threads, or fail to open; ``close`` ends all."""
    add = add_task(app)

    def is_open() -> bool:
        return app._connection.current is not None

    def beside() -> None:
        with app:
            add.enqueue_sync(1)

    async with app:
        async with app:
            await asyncio.to_thread(beside)
            await add.enqueue(2)
        await asyncio.to_thread(beside)
        await add.enqueue(3)
    assert not is_open()
    app.data_dir.rename(app.data_dir.with_name("away"))
    app.data_dir.touch()
    with pytest.raises(errors.LogError):
        await app.__aenter__()
    app.data_dir.unlink()
    async with app, app:
        await app.close()
        with pytest.raises(errors.LogClosed):
            await add.enqueue(4)
    async with app.worker(), app:  # in the wrong order
        job = await add.enqueue(5)
    assert is_open()
    async with app:
        assert await job.status() is State.SUCCEEDED
    assert not is_open()


async def test_a_close_during_the_opening_leaves_nothing_open(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data", durability="os")
    opening = asyncio.ensure_future(app.open())
    await asyncio.sleep(0)
    await app.close()
    with contextlib.suppress(errors.LogClosed):
        await opening
    assert app._connection.current is None


async def test_a_cancelled_enqueue_is_withdrawn_or_stands(app: TaskQ) -> None:
    add = add_task(app)
    running = [asyncio.ensure_future(add.enqueue(n)) for n in range(10)]
    await asyncio.sleep(0)
    for task in running:
        task.cancel()
    done = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in done)
    stands = await claim(app, 10)
    assert (await add.enqueue(99)).lsn > max([d.job for d in stands], default=0)


# -- keep ------------------------------------------------------------------------------------------


DAY = 86_400
OTHER = EnqueueSpec("other", "mail.send")


def test_a_job_is_kept_so_long_after_its_end_whatever_log_and_queue_say() -> None:
    queues = {"other": QueuePolicy(keep_seconds=2 * DAY)}
    world = World(config=keeping(keep_seconds=DAY, queues=queues))
    process = world.process()
    own = process.enqueue(b"own", Extras(keep_ns=30 * DAY * SECOND_NS), OTHER)
    ever = process.enqueue(b"ever", Extras(keep_ns=TIME_NS_MAX), OTHER)
    short = process.enqueue(b"short", Extras(keep_ns=SECOND_NS), OTHER)
    plain = process.enqueue(b"plain", None, OTHER)
    for delivery in process.claim(4):
        process.settle(delivery, body=b"result")
    before = world.view(own)
    for kept in ({own, plain}, {own}, {own}):
        fill_segment(process)
        world.clock.advance(1.5 * DAY)
        tend(process)
        assert {job for job in (own, short, plain) if world.view(job)} == kept
        assert world.view(own) == before
    fill_segment(process)
    world.clock.advance(30 * DAY)
    tend(process)
    assert world.view(own) is None
    assert world.view(ever) is not None


@pytest.mark.parametrize(
    ("given", "seconds"), [("5m", 300.0), (90, 90.0), ("never", None), (None, None), (0, 0.0)]
)
async def test_a_log_has_the_window_it_is_opened_with(
    tmp_path: Path, given: Any, seconds: float | None
) -> None:
    async with TaskLog.open(tmp_path / "log", durability="os", starvation=given) as log:
        assert log._connection.config.starvation_seconds == seconds
        low = await log.put(b"low", priority=0)
        assert [delivery.job_id for delivery in await log.claim()] == [low]


# -- dedup options ---------------------------------------------------------------------------------


async def test_a_task_says_what_becomes_of_a_key_that_is_held(app: TaskQ) -> None:
    @app.task(key=lambda number: f"k{number}", window="1h", on_conflict="replace")
    async def sync(number: int) -> None: ...

    first, second = await sync.enqueue(1), await sync.enqueue(1)
    assert (second.duplicate, await first.status()) == (False, State.CANCELLED)
    call = sync.call(1)
    for again in (sync.options(on_conflict="first").call(1), call.options(on_conflict="first")):
        assert (await app.enqueue(again)).id == second.id
    with pytest.raises(errors.DuplicateKey) as caught:
        await app.enqueue_many([call.options(key="other"), call.options(on_conflict="raise")])
    assert caught.value.job_id == second.id
    free = sync.options(key=None)  # and nothing else of the task's key
    assert not (await free.enqueue(1)).duplicate
    assert await second.status() is State.READY


async def test_a_task_whose_child_is_refused_fails_and_says_why(app: TaskQ) -> None:
    """The refusal comes with the success that the child should have joined: it fails instead."""

    @app.task
    async def child() -> None: ...

    @app.task(retry=1)
    async def parent() -> None:
        current_job().enqueue(child.call().options(key="k", on_conflict="raise"))

    taken = await child.options(key="k", delay="1h").enqueue()
    job = await parent.enqueue()
    async with app.worker(concurrency=1):
        with pytest.raises(errors.JobFailed, match=f"is held by job {taken.id}"):
            await job.result(timeout=20)


def key_of(call: Any) -> bytes:
    return b"" if call.extras is None else call.extras.concurrency_key


def send_number(to: int | None) -> None: ...


def test_a_key_is_made_of_the_arguments_defaults_filled_in(app: TaskQ) -> None:
    @app.task(name="send", concurrency=1, concurrency_key=lambda account, to="x": f"{account}/{to}")
    def send(account: str, to: str = "y") -> None: ...

    assert send.limit == Limit(concurrency=1, scope="send")
    assert key_of(send.call("a")) == b"a/y"
    assert key_of(send.options(concurrency_key="fixed").call("a")) == b"fixed"
    assert key_of(send.options(concurrency_key=None).call("a")) == b""
    assert key_of(send.call("a").options(priority=9)) == b"a/y"
    assert key_of(send.call("a").options(concurrency_key="other")) == b"other"
    assert key_of(send.options(key="k").call("a")) == b"a/y"
    number = app.task(name="number", rate="5/s", concurrency_key=lambda to: to)(send_number)
    assert number.limit is not None
    assert number.limit.rate == Rate(5, 10**9)
    assert [key_of(number.call(to)) for to in (7, None)] == [b"7", b""]


# -- context ---------------------------------------------------------------------------------------


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


ROUTE: Final = Path(__file__).parents[1] / "bench" / "route.py"
#: Limits of functions, files and rooms of ours, there and back.
MOST: Final = {
    "jobs": {
        "enqueue": (80, 16, 9), "enqueue to result": (278, 56, 19), "enqueue to ack": (305, 60, 20),
        "taskq ls": (245, 40, 13),
    },
    "dead": {"dead letter": (320, 61, 20)},
    "killed": {"open after kill -9": (262, 60, 15)},
}  # fmt: skip


@pytest.mark.posix("counts what a call costs by other functions of the system")
@pytest.mark.parametrize("way", MOST)
def test_a_route_stays_short(way: str) -> None:
    command = [sys.executable, str(ROUTE), way]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for title, most in MOST[way].items():
        assert len(measured[title]) == len(most)
        assert all(map(int.__le__, measured[title], most)), (title, measured[title])
