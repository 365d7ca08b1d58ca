"""Services beside the slots: upkeep, health, warnings of stray jobs, hooks of dead letters."""

import asyncio
import json
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.abc import TaskStatus
from click.testing import CliRunner

from taskq import DeadLetter, JobHandle, State, TaskLog, TaskQ, durable
from taskq.cli.main import main
from taskq.core.records import Cause, Kind
from taskq.engine import LogReader
from taskq.errors import JobFailed, JobNotFound, TaskqError
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.journal.recovery import FAILED_FILE
from taskq.log.requests import EnqueueSpec, Op, Settlement
from taskq.log.store.store import Store
from taskq.log.upkeep import health
from taskq.log.upkeep.health import check_health
from taskq.views import Why
from taskq_workers.pool import Worker
from taskq_workers.services import watches
from taskq_workers.services.watches import StrayWatch
from tests.effort import within
from tests.log.world import Process, World
from tests.processes.harness import eventually
from tests.workers.conftest import Listen
from tests.workers.fakes import Held

SECONDS = 30


class Part:
    def __init__(self, said: list[str], name: str, problem: Exception | None = None) -> None:
        self._said, self._name, self._problem = said, name, problem
        self.fails, self.ended = asyncio.Event(), asyncio.Event()

    async def run(self, store: Store, *, task_status: TaskStatus[None]) -> None:
        assert store.usable
        if self._problem is not None:
            raise self._problem
        self._said.append(f"{self._name} begins")
        task_status.started()
        try:
            await self.fails.wait()
            raise ValueError("it cannot go on")
        finally:
            self._said.append(f"{self._name} ends")
            self.ended.set()


async def test_a_part_that_fails_stops_its_worker_after_its_jobs(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    held = Held(app)
    async with app:
        worker, part, failing = Worker(app), Part(said, "one"), Part(said, "two")
        worker.services += [part, failing]
        job = await held.task.enqueue()
        running = asyncio.create_task(worker.run())
        await held.runs.wait()
        with caplog.at_level(logging.ERROR, "taskq.worker"):
            failing.fails.set()
            await part.ended.wait()
        held.end.set()
        with pytest.raises(ValueError, match="it cannot go on"):
            await running
        assert await job.result(timeout=SECONDS) == "done"
    assert said == ["one begins", "two begins", "two ends", "one ends"]
    assert [record.getMessage() for record in caplog.records] == [
        "the worker stops: it cannot go on"
    ]


async def until_health_fails(app: TaskQ, names: set[str], text: str = "") -> None:
    """Wait until the checks of these names fail, and no others, and one of them says this."""
    async with within(SECONDS):
        while True:
            checks = await asyncio.to_thread(check_health, app.data_dir)
            failed = [check for check in checks if not check.ok]
            said = any(text in check.detail for check in failed) or not text
            if said and {check.name for check in failed} == names:
                return


async def test_health_fails_while_the_storage_thread_answers_nothing(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standstill fails health, waiting jobs or not; it recovers by itself."""
    monkeypatch.setattr(watches, "STALL_SECONDS", 0.1)
    goes_on = threading.Event()
    text = "the storage thread answers no request, and is at"
    async with app, app.worker():
        await until_health_fails(app, set())
        app.store().between_batches(goes_on.wait)
        try:
            await until_health_fails(app, {"process", "worker", "jobs"}, text)
        finally:
            goes_on.set()
        await until_health_fails(app, set())


async def test_health_fails_while_the_loop_of_a_worker_begins_no_job(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart is due for that."""
    monkeypatch.setattr(watches, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(watches, "BLOCKED_SECONDS", 0.01)
    monkeypatch.setattr(watches, "_ASK_SECONDS", 0.01)
    text = "the event loop does not turn, so that no job begins"

    @app.task
    async def block() -> None:
        asyncio.run_coroutine_threadsafe(
            until_health_fails(app, {"worker", "jobs"}, text), other
        ).result(SECONDS)

    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    try:
        async with app, app.worker():
            job = await block.enqueue()
            await job.result(timeout=SECONDS)
            await until_health_fails(app, set())
    finally:
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()


async def test_jobs_that_wait_for_a_blocked_loop_are_given_to_another_worker(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "BLOCKED_SECONDS", 0.01)
    monkeypatch.setattr(watches, "_ASK_SECONDS", 0.01)
    other, ran = TaskQ(app.data_dir, durability="os"), threading.Event()
    app.task(name="late")(later)

    @other.task(name="late")
    def late_there() -> None:
        ran.set()

    def elsewhere() -> bool:
        job = other.enqueue_by_name_sync("late")
        eventually(lambda: job.view_sync().attempts)  # the blocked worker has claimed it
        with other.worker_thread(concurrency=1):
            return ran.wait(SECONDS)

    @app.task(name="block", retry=1)
    async def block() -> bool:
        for _ in range(3):  # the claim for the other slot is made after this one's first step
            await asyncio.sleep(0)
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(elsewhere).result()

    async with other, app, app.worker(concurrency=2):
        assert await (await block.enqueue()).result(timeout=3 * SECONDS)


_UNKNOWN = (
    "1 job waits that no worker knows: proj.send (1); start one with the app that registers them, "
    "or name their module with -I"
)


Heard = asyncio.Queue[str]


@pytest.fixture
async def heard(on_log: Listen) -> Heard:
    texts = Heard()
    on_log(texts.put_nowait)
    return texts


async def test_jobs_without_a_task_are_reported_at_the_start_and_repeatedly(
    app: TaskQ, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app:
        await app.enqueue_by_name("proj.send")
        async with app.worker():
            assert await heard.get() == _UNKNOWN
        monkeypatch.setattr(watches, "LOOK_SECONDS", 0.01)
        worker = Worker(app, warns=False)  # as one of several
        assert StrayWatch not in {type(part) for part in worker.services}
        worker.services.append(StrayWatch(app, None))
        async with worker:
            assert [await heard.get() for _ in range(3)] == [_UNKNOWN] * 3


async def test_an_unused_queue_is_reported_and_jobs_that_another_worker_takes_are_not(
    app: TaskQ, heard: Heard
) -> None:
    @app.task(name="known", queue="mail")
    async def known() -> None: ...

    async with app:
        await app.pause("default")
        await known.enqueue()
        await app.enqueue_by_name("proj.send")
        async with app.worker(queues=["mail"], warns=False), app.worker(queues=["none"]):
            assert await heard.get() == (
                "nobody uses queue 'none': no task puts into it, no job was ever in it; "
                "known are default, mail"
            )
        assert heard.empty()


async def test_a_stall_counts_as_one_look_at_jobs_that_wait_for_each_other(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch: Any = watches.StuckWatch(app, None, int, list, lambda _: None, lambda: None)
    waits, looks, moments = [1], list[int](), count(0.0, 3_600.0)

    async def stuck() -> frozenset[int]:
        looks.append(1)
        return frozenset(waits)

    monkeypatch.setattr(watches, "_waits", waits)
    monkeypatch.setattr(watches, "_STUCK_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(watches, "monotonic", lambda: next(moments))
    watch._loop = SimpleNamespace(time=lambda: next(moments))
    watch._stuck, watch._new_hold = stuck, lambda *_: waits.clear()
    await watch._look_on(None)
    assert len(looks) == 1 + watches.STUCK_SECONDS


@pytest.mark.parametrize("runs_in", ["loop", "thread"])
async def test_parents_that_fill_all_slots_and_wait_for_children_are_reported(
    app: TaskQ, heard: Heard, monkeypatch: pytest.MonkeyPatch, runs_in: str
) -> None:
    monkeypatch.setattr(watches, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(watches, "_STUCK_LOOK_SECONDS", 0.01)

    @app.task(name="child", retry=1)
    async def child(number: int) -> int:
        return number

    @app.task(name="parent", retry=1)
    async def parent(number: int) -> int:
        return await (await child.enqueue(number)).result()

    @app.task(name="parent in a thread", retry=1)
    def parent_in_thread(number: int) -> int:
        return child.enqueue_sync(number).result_sync()

    async with app, app.worker(concurrency=2):
        for number in range(2):
            await (parent if runs_in == "loop" else parent_in_thread).enqueue(number)
        assert "waits within its run for job" in await heard.get()
        text = await heard.get()
        assert text.startswith("nothing moves here: all 2 slots run jobs that wait for others")
        await app.stats()  # answered after others were
        with LogReader.open(str(app.data_dir)) as reader:
            ready, running = (
                reader.jobs({state}, None, None, 2) for state in (State.READY, State.RUNNING)
            )
            whys = [reader.why(job.lsn) for job in (*ready, *running)]
            stands = reader.standing()
        assert [why and why.code for why in whys] == [Why.BUSY] * 2 + [Why.RUNNING] * 2
        assert all("all 2 slots run jobs that wait for others" in str(why) for why in whys)
        assert (stands.level, "stands still: all 2 slots" in stands.text) == ("bad", True)
        async with app.worker(concurrency=1):  # a slot more, and all of them end
            for job in running:
                await app.job(job.job_id).result()


async def test_a_parent_that_leaves_a_slot_to_its_child_is_warned_once_and_no_more(
    app: TaskQ, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(watches, "_STUCK_LOOK_SECONDS", 0.001)
    child = app.task(name="child", retry=1)(later)

    @app.task(name="parent", retry=1)
    async def parent() -> None:
        await (await child.enqueue()).result()

    async with app, app.worker(concurrency=2):
        for _ in range(3):
            await (await parent.enqueue()).result()
        assert "waits within its run" in await heard.get()
        assert heard.empty()


@pytest.fixture
def letters() -> list[DeadLetter]:
    return []


@pytest.fixture
def deadly(app: TaskQ) -> TaskQ:

    @app.task(name="fail", queue="mail", priority=7, retry=1)
    async def fail() -> None:
        raise ValueError("no good")

    return app


@pytest.mark.parametrize(
    "error", [SystemExit(2), asyncio.CancelledError(), StopIteration()], ids=repr
)
async def test_no_error_of_a_hook_stops_the_worker_or_fails_a_job(
    deadly: TaskQ, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(_: object) -> None:
        raise error

    async def later(_: object) -> None:
        raise error

    for hook in (plain, later):
        deadly.on_dead(hook)
    deadly.on_step(plain)

    @deadly.task(name="steps", retry=1)
    async def steps() -> int:
        return await durable.step("a", lambda: 1)

    with caplog.at_level(logging.ERROR):
        async with deadly, deadly.worker(on_event=plain):
            with pytest.raises(JobFailed):
                await (await deadly.enqueue_by_name("fail")).result(timeout=20)
            assert await (await steps.enqueue()).result(timeout=20) == 1
    for name in ("on_dead", "on_step", "on_event"):
        assert f"the {name} hook failed" in caplog.text or f"an {name} hook failed" in caplog.text


async def test_the_letter_is_in_the_log_when_the_hook_is_called(deadly: TaskQ) -> None:
    """A slow hook gets its time at the worker's end."""
    states: list[State] = []

    async def look(letter: DeadLetter) -> None:
        states.append(await deadly.job(letter.job_id).status())
        assert (letter.queue, letter.task, letter.priority) == ("mail", "fail", 7)
        assert (letter.cause, letter.attempt) == ("exhausted", 1)
        assert letter.reason.startswith("ValueError: no good")
        assert letter.settled_ns > 0
        for _ in range(50):
            await asyncio.sleep(0)
        await deadly.dead.purge(letter.job_id)

    async with deadly:
        await deadly.enqueue_by_name("fail")
        await deadly.worker(burst=True, on_dead=look).run()
        assert await deadly.dead.count() == 0
    assert states == [State.DEAD]


async def test_a_stopped_worker_hears_nothing(deadly: TaskQ, letters: list[DeadLetter]) -> None:
    deadly.on_dead(letters.append)
    async with deadly:
        async with deadly.worker():
            pass
        async with await TaskLog.open(deadly.data_dir, durability="os") as log:
            await log.put(b"x", attempts=1)
            (delivery,) = await log.claim()
            await log.nack(delivery)
    assert letters == []


Calls = list[tuple[DeadLetter, str]]


def heard_by(process: Process) -> Calls:
    calls: Calls = []
    process.committer.operations.deaths.listen(None, "hook", lambda *given: calls.append(given))
    return calls


def test_dead_letters_of_killed_workers_reach_on_dead_hooks() -> None:
    """By the process that takes them back, once the record is as durable as an answer."""
    world = World()
    first, second = world.process(), world.process()
    job = first.enqueue(spec=EnqueueSpec(attempts=1, queue="mail"))
    first.claim()
    calls = heard_by(second)
    first.kill()
    world.clock.advance(1)
    second.commit([])
    second.claim()
    ((letter, hook),) = calls
    assert hook == "hook"
    assert (letter.job_id, letter.cause) == (f"{second.journal.tag}-{job}", "worker lost")
    assert letter.reason.startswith("WorkerLost")


def test_on_dead_runs_once_for_a_failed_batch_and_never_for_a_failed_sync() -> None:
    world = World()
    process = world.process()
    for _ in range(2):
        process.enqueue(spec=EnqueueSpec(attempts=1))
    (delivery,), (other,) = process.claim(), process.claim()
    calls = heard_by(process)
    tell: Any = lambda _: [(EnqueueSpec(task="tell"), b"", None)]  # noqa: E731 - a hook of an app
    process.committer.operations.deaths.write("app", tell)
    died = Settlement(Kind.DEAD, delivery, b"no", cause=Cause.REJECTED)
    nonsense: Future[Any] = Future()
    process.commit([
        (Op.SETTLE_NOWAIT, None, None, ([died], print)),
        (Op.PURGE, None, nonsense, ["no number"]),
    ])  # fmt: skip
    process.sync()
    assert isinstance(nonsense.exception(0), TaskqError)
    enqueued = [record for record in world.records() if record.type == Kind.ENQUEUED]
    assert [record.task for record in enqueued][2:] == ["tell"]
    world.machine.fail_next_syncs()
    with pytest.raises(TaskqError, match="fsync failed"):
        process.settle(other, Kind.DEAD, body=b"no")
    assert [letter.job_id for letter, _ in calls] == [delivery.job_id]


KEEP_BYTES = 8 * SEGMENT_BYTES_MIN


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "log").glob("*.log"))


async def echo(text: str) -> str:
    return text


async def later() -> None: ...


async def run_rounds(app: TaskQ, *, while_over: bool) -> JobHandle[str]:
    """Jobs of about 4 KiB each, until four times the limit went through; returns the first."""
    first: JobHandle[str] | None = None
    for _ in range(16):
        jobs = await app.enqueue_many([app.call_by_name("echo", 2_000 * "x")] * 32)
        first = first or jobs[0]
        for job in jobs:
            assert len(await job.result(SECONDS)) == 2_000
        if while_over:
            async with asyncio.timeout(SECONDS):
                while (await app.stats()).size > KEEP_BYTES:
                    pass
    assert first is not None
    return first


async def test_a_worker_keeps_its_log_within_the_limit_by_itself(tmp_path: Path) -> None:
    """Nobody asked for a compaction, and the one job that waits is there all the time."""
    app = TaskQ(tmp_path, keep_bytes=KEEP_BYTES)
    app.task(name="echo")(echo)
    delayed = app.task(name="later")(later).options(delay="1h", key="k")
    async with app, app.worker():
        waits = await delayed.enqueue()
        first = await run_rounds(app, while_over=True)
        assert log_bytes(tmp_path) <= KEEP_BYTES + SEGMENT_BYTES_MIN
        with pytest.raises(JobNotFound):
            await first.status()
        assert await waits.status() is State.SCHEDULED
        again = await delayed.enqueue()
        assert (again.id, again.duplicate) == (waits.id, True)
        (queue,) = (await app.stats()).queues
    assert (queue.succeeded, queue.scheduled) == (16 * 32, 1)


async def test_without_upkeep_nothing_goes(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, keep_bytes=KEEP_BYTES, upkeep=False)
    app.task(name="echo")(echo)
    async with app, app.worker():
        first = await run_rounds(app, while_over=False)
        assert await first.status() is State.SUCCEEDED
    assert log_bytes(tmp_path) > 3 * KEEP_BYTES
    assert not list((tmp_path / "log").glob("*.idx"))


def found(path: Path, config: LogConfig | None = None) -> dict[str, bool]:
    return {check.name: check.ok for check in check_health(path, config)}


def problems(path: Path, config: LogConfig | None = None) -> dict[str, str]:
    return {check.name: check.detail for check in check_health(path, config) if not check.ok}


def ask(*arguments: object) -> tuple[int, Any]:
    words = ["health", *map(str, arguments), "--json"]
    result = CliRunner().invoke(main, words)
    return result.exit_code, json.loads(result.stdout)


async def test_a_process_without_claims_is_live_and_nobody_or_no_log_is_neither(app: TaskQ) -> None:
    code, answer = ask("-d", app.data_dir)
    assert (code, answer["checks"][0]["ok"], app.data_dir.exists()) == (1, False, False)
    async with app:
        assert ask("-d", app.data_dir)[0] == 1
        assert ask("-d", app.data_dir, "--live")[0] == 0
        assert found(app.data_dir)["worker"] is False
    code, answer = ask("-d", app.data_dir, "--live")
    assert (code, answer["ok"]) == (1, False)
    checks = found(app.data_dir)
    expected = {"log": True, "writes": True, "process": False, "worker": False, "jobs": True}
    assert checks == {**expected, "disk": True, "access": True}


async def test_all_is_well_until_a_write_fails_a_disk_is_full_or_a_process_stopped(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app, app.worker(concurrency=3):
        while not found(app.data_dir)["worker"]:  # noqa: ASYNC110 - a file says so, soon
            await asyncio.sleep(0)
        code, answer = ask("-d", app.data_dir)
        assert (code, answer["ok"], problems(app.data_dir)) == (0, True, {}), answer
        details = {check["name"]: check["detail"] for check in answer["checks"]}
        assert details["worker"] == "1 worker process, 3 jobs at a time"
        marker = app.data_dir / FAILED_FILE
        marker.write_text("{}")
        assert problems(app.data_dir)["writes"].startswith("An fsync failed")
        assert ask("-d", app.data_dir, "--live")[0] == 1
        marker.unlink()
        full = problems(app.data_dir, LogConfig(min_free_bytes=2**60))["disk"]
        assert full.endswith(f"{2**60:,} must stay so: enqueues are refused, make room")
        monkeypatch.setattr(health, "process_state", lambda _: "stopped: python -m taskq")
        assert found(app.data_dir)["process"] is False


async def test_jobs_that_no_worker_would_take_are_not_healthy_but_live(app: TaskQ) -> None:
    @app.task(name="known")
    async def known() -> None: ...

    async with app:
        await known.options(queue="mail").enqueue()
        for name in ("proj.tasks.send", "proj.tasks.send", "proj.tasks.bill"):
            await app.enqueue_by_name(name)
        await app.enqueue(app.call_by_name("later").options(delay="1h"))
        await app.enqueue(app.call_by_name("paused").options(queue="off"))
        await app.pause("off")
        assert detail_of(app) == (False, "No worker runs: 4 jobs wait")
        async with app.worker(queues=["default"]):
            await app.stats()  # answered after the worker's claims were announced
            ok, detail = detail_of(app)
            assert not ok
            assert detail == (
                "4 jobs wait that no worker knows: proj.tasks.send (2), later (1), proj.tasks.bill "
                "(1); start one with the app that registers them, or name their module with -I. "
                "2 jobs wait "
                "in a queue that no worker serves: mail (1), off (1); start one with -Q mail,off, "
                "or without -Q"
            )
            assert ask("-d", app.data_dir)[0] == 1
            assert ask("-d", app.data_dir, "--live")[0] == 0


def detail_of(app: TaskQ) -> tuple[bool, str]:
    first = next(check for check in check_health(app.data_dir) if check.name == "jobs")
    return first.ok, first.detail
