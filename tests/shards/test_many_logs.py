"""One worker over several logs: what is of a log stays in it; slots are shared by weight."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskq import TaskQ, current_job, progress
from taskq.app.logs import over
from taskq.errors import JobCancelled, LogGone
from taskq.log.config import LogConfig
from taskq.log.store.store import open_store
from taskq_workers.pool import LogPart, Worker
from taskq_workers.process import supervisor as supervising
from tests.cli.helpers import taskq, taskq_json
from tests.effort import at_most, grows, some, within
from tests.processes.harness import eventually
from tests.programs import run_taskq
from tests.workers.slots.resting import Run, apps_of, make_deterministic, run_seeds


async def put(app: TaskQ, path: Path, task: Any, *calls: Any, **options: Any) -> list[str]:
    log = over(app, path)
    async with log:
        jobs = await log._send_here([task.options(**options).call(argument) for argument in calls])
    return [job.id for job in jobs]


async def all_over(app: TaskQ, path: Path, count: int) -> None:
    async with over(app, path) as log:
        queues = (await log.stats()).queues
        assert sum(queue.succeeded for queue in queues) == count
        assert not any(queue.dead + queue.ready + queue.running for queue in queues)


async def until(holds: Callable[[], bool]) -> None:
    async with within():
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_jobs_of_all_logs_run_and_each_ends_in_its_own(tmp_path: Path) -> None:
    """In the order of their priorities, and within limits that each log counts by itself."""
    app = TaskQ(tmp_path / "own")
    begun: dict[str, list[tuple[str, int]]] = {"a": [], "b": []}
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    both = {log: asyncio.Event() for log in "ab"}

    @app.task
    async def note(log: str) -> None:
        tag = current_job().id.partition("-")[0]
        begun[log].append((tag, int(current_job().delivery.priority)))

    @app.task(concurrency=2, queue="limited")
    async def limited(log: str) -> None:
        now[log] += 1
        most[log] = max(most[log], now[log])
        if now[log] == 2:
            both[log].set()
        async with within():
            await both[log].wait()
        await asyncio.sleep(0)
        now[log] -= 1

    logs = {log: tmp_path / log for log in "ab"}
    ids = {}
    for log, path in logs.items():
        for priority in (1, 9, 5):
            ids[log] = await put(app, path, note, log, priority=priority)
        await put(app, path, limited, *[log] * 10)
    for queue, slots in (("default", 1), ("limited", 8)):
        async with app.worker(slots, logs=list(logs.values()), queues=[queue], burst=True) as it:
            await it.stopped.wait()
    for log in "ab":
        tag = ids[log][0].partition("-")[0]
        assert begun[log] == [(tag, 9), (tag, 5), (tag, 1)]
        assert most[log] == 2
        await all_over(app, logs[log], 13)
    assert not (tmp_path / "own").exists()


async def test_a_task_that_is_registered_late_is_claimed_from_all_logs(tmp_path: Path) -> None:
    app, logs, seen = TaskQ(tmp_path / "own"), [tmp_path / "a", tmp_path / "b"], list[str]()
    for path in logs:
        async with over(app, path) as log:
            await log.enqueue_by_name("late", path.name)
    worker: Any = app.worker(logs=logs)
    async with worker:
        shares = worker._runner.feed.shares.values()
        await until(lambda: all(share.feed.is_idle for share in shares))

        @app.task(name="late")
        async def late(text: str) -> None:
            seen.append(text)

        worker._task_names()  # as a claim of one log does that begins just then
        await until(lambda: len(seen) == 2)
    assert sorted(seen) == ["a", "b"]


async def test_what_a_job_does_to_the_log_it_does_to_its_own(tmp_path: Path) -> None:
    """Children, enqueues, transactions, handles and progress; from a thread, too."""
    app = TaskQ(tmp_path / "own")
    ids: dict[str, Any] = {}

    @app.task
    async def leaf(text: str) -> str:
        return text

    @app.task
    def thread(text: str) -> str:
        job = leaf.enqueue_sync(text)
        assert app.job(job.id).id == job.id
        return job.id

    @app.task
    async def root(text: str) -> None:
        await progress(0.5, text)
        current_job().enqueue(leaf.call("child"))
        job = await leaf.enqueue("plain")
        many = await app.enqueue_many([leaf.call("many")])
        async with app.transaction() as tx:
            late = tx.enqueue(thread.call("tx"))
        ids[text] = [job.id, many[0].id, late.id, current_job().id]
        ids[text].append(await late.handle.result(timeout=10))

    logs = [tmp_path / "a", tmp_path / "b"]
    for path in logs:
        await put(app, path, root, path.name)
    async with app.worker(logs=logs, burst=True) as worker:
        await worker.stopped.wait()
    for path in logs:
        async with over(app, path) as log:
            (queue,) = (await log.stats()).queues
            assert (queue.succeeded, queue.dead) == (6, 0)
            tag = log._connection.tag
        assert {job.partition("-")[0] for job in ids[path.name]} == {tag}
    assert not (tmp_path / "own").exists()


#: Seeds of logs that began their parts early: beside slower jobs, or beside an empty log.
EARLY = (range(4_335, 4_336), range(7_008, 7_009))
SHARES = [range(start, start + some(8, 20)) for start in range(0, some(1, 10_000), 20)]


@grows
@pytest.mark.parametrize("seeds", [*EARLY, *SHARES], ids=lambda seeds: seeds.start)
def test_each_log_has_its_share(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    make_deterministic(monkeypatch)
    run_seeds(Run, seeds, monkeypatch)


async def test_a_failed_log_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker ends with the last of them, and says why."""
    app = TaskQ(tmp_path / "own")

    @app.task
    async def work(name: str) -> str:
        return name

    a, b = tmp_path / "a", tmp_path / "b"
    await put(app, b, work, "first")

    async def lose_both() -> None:
        async with app.worker(logs=[a, b]) as worker:
            shutil.rmtree(b, ignore_errors=True)
            await until(lambda: f"log {b} is left" in caplog.text)
            async with over(app, a) as log:
                (job,) = await log._send_here([work.call("later")])
                assert await job.result(timeout=10) == "later"
            assert not worker.stopped.is_set()
            shutil.rmtree(a, ignore_errors=True)
            await worker.stopped.wait()

    with pytest.raises(LogGone, match=str(a)):
        await lose_both()


async def test_a_log_that_does_not_open_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = TaskQ(tmp_path / "own")

    @app.task
    async def work(name: str) -> str:
        return name

    a, b = tmp_path / "a", tmp_path / "b"
    await put(app, a, work, "one")
    b.write_text("no directory")
    async with app.worker(logs=[a, b], burst=True) as worker:
        await worker.stopped.wait()
    assert f"log {b} is left out" in caplog.text
    await all_over(app, a, 1)


async def test_each_log_has_its_own_ticks_of_a_schedule(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "own")
    seen: set[str] = set()

    @app.every("1s")
    @app.task
    async def tick() -> None:
        seen.add(current_job().id.partition("-")[0])

    async with app.worker(logs=[tmp_path / "a", tmp_path / "b"]):
        await until(lambda: len(seen) == 2)


async def test_a_running_job_of_any_log_is_cancelled(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "own")
    running = asyncio.Event()

    @app.task
    async def work(name: str) -> None:
        running.set()
        await asyncio.Event().wait()

    b = tmp_path / "b"
    async with app.worker(logs=[tmp_path / "a", b]), over(app, b) as log:
        (job,) = await log._send_here([work.call("x")])
        await running.wait()
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)


def test_a_worker_rests_with_all_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, is_free = threading.Event(), threading.Event()
    stand: list[threading.Barrier] = []
    meet = supervising._meet

    def noted(together: threading.Barrier) -> None:
        stand.append(together)
        meet(together)

    monkeypatch.setattr(supervising, "_meet", noted)
    monkeypatch.setattr(supervising, "_pause", stopped.set)
    stores = [open_store(str(tmp_path / name), LogConfig()) for name in ("one", "two")]
    worker = cast("Worker", SimpleNamespace(app=None, stores=stores))
    supervisor = supervising.Supervisor(worker, lambda _store, _stats: None, print)
    supervisor._on_pause_signal(0, None)
    assert stopped.is_set()  # nothing is open yet
    stopped.clear()
    supervisor._store = stores[0]
    stores[1].between_batches(is_free.wait)
    supervisor._on_pause_signal(0, None)
    eventually(lambda: stopped.is_set() or any(barrier.n_waiting for barrier in stand))
    assert not stopped.is_set()
    is_free.set()
    assert stopped.wait(30)
    for store in stores:
        store.close()


async def test_claimed_jobs_of_a_failed_log_are_returned(caplog: pytest.LogCaptureFixture) -> None:
    apps, (other, gone) = apps_of(Random(0), 2)
    running, hold = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        running.set()
        await hold.wait()

    task = apps[0].task(name="work")(work)
    worker = Worker(apps[0], concurrency=1, schedules=False, warns=False)
    worker._parts = parts = [LogPart(app, ticks=False, syncs=False) for app in apps]
    apps[0].put(task)
    async with within(), worker:
        await running.wait()
        failing = cast("Any", parts[1].host)
        lies = apps[1].put(task)
        gone.ready.clear()
        gone.running[lies.token] = lies
        failing.feed.add([lies])
        for _ in range(2):
            failing.fail(LogGone("log1", "it was removed"))
        assert not failing.feed.buffer  # at once, not when it is found to lie there for long
        await until(lambda: not gone.running)
        assert caplog.text.count("is left, the others go on") == 1
        apps[0].put(task)
        hold.set()
        await until(lambda: other.ended == 2)
        assert not worker.stopped.is_set()


# -- logs command ----------------------------------------------------------------------------------


LOGS = ("a", "b", "c")
TAKEOVER_SECONDS = 1.0
APP = """
import time
from pathlib import Path

from taskq import TaskQ

app = TaskQ("own")


@app.task
async def leaf(text: str) -> str:
    return text


@app.task
async def root(text: str) -> str:
    await leaf.enqueue(text)
    return text


@app.task(runs_in="process")
def child(text: str) -> str:
    leaf.enqueue_sync(text)
    return text


@app.task
def hang(text: str) -> str:
    begun = Path(text)
    if not begun.exists():
        begun.touch()
        time.sleep(60)
    return text
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "many_logs_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TASKQ_DATA_DIR", raising=False)


def put_by_command(log: str, task: str, text: str) -> None:
    words = ("-d", log, "--task", f"many_logs_app.{task}", json.dumps({"text": text}))
    assert taskq("put", *words).exit_code == 0


def states(log: str) -> list[tuple[str, str]]:
    jobs = taskq_json("ls", log)
    return sorted((job["task"].rpartition(".")[2], job["state"]) for job in jobs)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("guard", [[], ["--processes", "1"]])
def test_the_command_works_several_logs(tmp_path: Path, guard: list[str]) -> None:
    for log in ("a", "b=c"):
        put_by_command(log, "root", "x")
        put_by_command(log, "child", "y")
    words = ("many_logs_app:app", "-d", "a=3", "-d", "b=c", "--burst", *guard)
    shown = run_taskq("worker", *words, check=True).stdout
    assert f"{tmp_path / 'a'}, {tmp_path / 'b=c'}" in shown
    for log in ("a", "b=c"):
        both = [("leaf", "succeeded")] * 2
        assert states(log) == [("child", "succeeded"), *both, ("root", "succeeded")]
    assert not (tmp_path / "own").exists()


def start_worker() -> subprocess.Popen[bytes]:
    words = ["worker", "many_logs_app:app", *(word for log in LOGS for word in ("-d", log))]
    return subprocess.Popen([sys.executable, "-m", "taskq", *words], stdout=subprocess.DEVNULL)


@pytest.mark.usefixtures("here")
@grows
async def test_jobs_of_all_logs_of_a_killed_worker_run_again_at_once(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "own")
    again: dict[str, float] = {}
    all_again = asyncio.Event()

    @app.task(name="many_logs_app.hang")
    async def hang(text: str) -> None:
        again[text] = time.monotonic()
        if len(again) == len(LOGS):
            all_again.set()

    began = {log: str(tmp_path / f"begun-{log}") for log in LOGS}
    for log in LOGS:
        async with over(app, tmp_path / log) as first:
            await first._send_here([hang.call(began[log])])
    killed = start_worker()
    try:
        await asyncio.to_thread(eventually, lambda: all(map(os.path.exists, began.values())))
        async with app.worker(logs=[tmp_path / log for log in LOGS]):
            killed.send_signal(signal.SIGKILL)
            moment = time.monotonic()
            async with within(at_most(3)):
                await all_again.wait()
    finally:
        killed.kill()
        killed.wait()
    assert max(again.values()) - moment < at_most(TAKEOVER_SECONDS)
