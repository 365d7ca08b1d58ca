"""Ends of workers that come in the wrong moment, and yet must be ends."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from anyio import CancelScope, fail_after, sleep_forever
from anyio.abc import TaskStatus

from taskq import DeadLetter, TaskQ
from taskq.core.errors import TaskqError
from taskq.core.model import SECOND_NS
from taskq.core.views import Serving
from taskq.errors import JobFailed, LogGone
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.store.store import Store
from taskq_workers import JobFinished, Worker
from taskq_workers.slots import outcomes
from tests.workers import afar_jobs
from tests.workers.fakes import FakeApp

SECONDS = 30


def end_loop(but: str = "") -> list[asyncio.Task[object]]:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    # The runner of the tests waits for this very task.
    others = [other for other in others if other.get_name().startswith("taskq")]
    others = [other for other in others if other.get_name() != but]
    for other in others:
        other.cancel()
    return others


async def test_a_loop_that_ends_before_the_workers_first_step_ends_run(fake: FakeApp) -> None:
    running = asyncio.create_task(Worker(fake).run(), name="taskq-run")
    await asyncio.sleep(0)  # its keeper was made, and did not begin
    end_loop()
    done, _ = await asyncio.wait({running}, timeout=SECONDS)
    assert done


class Slow:
    """A background part that takes its time to leave."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        del store
        task_status.started()
        try:
            await sleep_forever()
        finally:
            self.leaves.set()
            with CancelScope(shield=True):
                await sleep_forever()


async def test_a_loop_that_ends_while_the_worker_cleans_up_ends_run(fake: FakeApp) -> None:
    ended: list[str] = []

    @fake.lifespan
    async def resource() -> AsyncIterator[None]:
        yield
        ended.append("lifespan")

    worker, slow = Worker(fake), Slow()
    worker.services.append(slow)
    running = asyncio.create_task(worker.run(), name="taskq-run")
    await worker.started.wait()
    worker.request_stop()
    await slow.leaves.wait()
    end_loop(but="taskq-lifespans")
    done, _ = await asyncio.wait({running}, timeout=SECONDS)
    assert done
    assert ended == ["lifespan"]


async def test_a_hook_and_a_job_that_hang_share_the_time_of_the_drain(app: TaskQ) -> None:
    hangs, runs = asyncio.Event(), asyncio.Event()

    @app.on_dead
    async def hang(_: DeadLetter) -> None:
        hangs.set()
        await asyncio.Event().wait()

    @app.task(retry=1)
    async def fail() -> None:
        raise ValueError("no good")

    @app.task
    async def last() -> None:
        runs.set()
        await asyncio.Event().wait()

    async with app:
        await fail.enqueue()
        await last.enqueue()
        async with Worker(app, drain_timeout=2):
            await asyncio.gather(hangs.wait(), runs.wait())
            began = time.monotonic()
        assert time.monotonic() - began < 3.8


async def test_a_lifespan_that_cancels_itself_does_not_pass_for_a_start(app: TaskQ) -> None:
    @app.lifespan
    async def gives_up() -> AsyncIterator[None]:
        await give_up()
        yield

    async def give_up() -> None:
        raise asyncio.CancelledError

    async with app:
        with pytest.raises(TaskqError, match="cancelled"):
            await Worker(app).start()


async def test_a_program_that_fills_the_threads_of_its_loop_keeps_no_worker_from_its_end(
    tmp_path: Path,
) -> None:
    app = TaskQ(tmp_path)
    is_over = threading.Event()

    @app.task(compress="zlib")
    async def fill(text: str) -> str:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        loop.run_in_executor(None, is_over.wait)
        return text

    try:
        async with asyncio.timeout(SECONDS):
            async with app:
                job = await fill.enqueue("x" * 100_000)
                async with app.worker(burst=True) as worker:
                    await worker.stopped.wait()
                assert len(await job.result()) == 100_000
                assert [item async for item in app.stream(follow=False)]
    finally:
        is_over.set()


@pytest.mark.posix("a directory with open files stays")
async def test_a_worker_that_sleeps_stops_when_its_directory_is_removed(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "data")
    app.task(name="idle")(lambda: None)
    worker = Worker(app)
    await worker.start()
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    async with asyncio.timeout(3 * LOOK_AROUND_NS / SECOND_NS):
        await worker.stopped.wait()
    with pytest.raises(LogGone, match="removed, moved or replaced"):
        await worker.run()
    await app.close()


async def test_a_worker_tells_its_queues_tasks_and_slots_until_it_drains(fake: FakeApp) -> None:
    @fake.task(name="first")
    async def first() -> None: ...

    async with Worker(fake, concurrency=3, queues=["mail"]) as worker:
        names, queues = frozenset({"first"}), frozenset({"mail"})
        assert fake.fake.served == [Serving(queues=queues, tasks=names, slots=3)]

        @fake.task(name="second")
        async def second() -> None: ...

        assert worker._task_names() == {"first", "second"}
        answer = fake.fake.served[-1]
        assert answer is not None
        assert answer.tasks == frozenset({"first", "second"})
    assert fake.fake.served[-1] is None


def census() -> tuple[int, list[str], int, int]:
    """(open descriptors, threads, child processes, asyncio tasks) of this process.

    Not the threads of the loop's own executor: a busy machine has it start one more at any time.
    """
    gc.collect()
    names = sorted(item.name for item in threading.enumerate())
    threads = [name for name in names if not name.startswith("asyncio_")]
    mine = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    children = mine.read_text(encoding="ascii").split() if mine.exists() else []
    return len(os.listdir("/dev/fd")), threads, len(children), len(asyncio.all_tasks())  # noqa: PTH208


@pytest.mark.posix("counts descriptors")
@pytest.mark.parametrize("cycles", [3, pytest.param(50, marks=pytest.mark.slow)])
async def test_descriptors_threads_children_and_tasks_end_with_their_worker(
    tmp_path: Path, cycles: int
) -> None:
    app = afar_jobs.app
    app.data_dir = tmp_path / "data"
    async with app:
        before = None
        for _ in range(cycles):
            # Two at a time in one process, as some programs have them.
            async with Worker(app, concurrency=2), Worker(app, concurrency=2):
                await (await afar_jobs.where.enqueue("x")).result(SECONDS)
                await (await afar_jobs.on_own_loop.enqueue()).result(SECONDS)
                await (await afar_jobs.child.enqueue("y")).result(SECONDS)
            result = census()
            before = before or result
        # The first answers bring the loop's pipe.
        assert before is not None
        assert result[0] <= before[0] + 2
        assert result[1:] == before[1:]


@pytest.fixture
def narrow(tmp_path: Path, request: pytest.FixtureRequest) -> TaskQ:
    """Return the old version of an app: its task takes one argument, here or in a child."""
    if request.param == "child":
        afar_jobs.app.data_dir = tmp_path / "data"
        return afar_jobs.app
    old = TaskQ(tmp_path / "data", durability="os")

    @old.task(name="tests.workers.afar_jobs.where")
    async def where(text: str) -> str:
        return text

    return old


@pytest.mark.parametrize("narrow", ["loop", "child"], indirect=True)
async def test_jobs_of_another_version_are_given_back_while_its_workers_run(
    narrow: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of two versions overlap: 20 of 20 jobs that the old one meets first are done."""
    monkeypatch.setattr(outcomes, "_MISFIT_NS", SECOND_NS // 1_000)
    new = TaskQ(narrow.data_dir, durability="os")
    all_met, met = asyncio.Event(), set[str]()

    @new.task(name="tests.workers.afar_jobs.where")
    async def where(text: str, width: int) -> str:
        await all_met.wait()
        return text * width

    def note(event: JobFinished) -> None:
        assert event.outcome == "released", event.reason
        met.add(event.job_id)
        if len(met) >= 19:  # the new one runs the twentieth meanwhile
            all_met.set()

    async with narrow, new:
        async with new.worker(concurrency=1), narrow.worker(on_event=note):
            jobs = await where.enqueue_many([(f"{n}", 2) for n in range(20)])
            with fail_after(SECONDS):
                assert [await job.result() for job in jobs] == [f"{n}" * 2 for n in range(20)]
                assert [(await job.view()).attempt for job in jobs] == [1] * 20
        async with narrow.worker():
            job = await where.enqueue("a", 2)
            with fail_after(SECONDS), pytest.raises(JobFailed, match="width"):
                await job.result()
