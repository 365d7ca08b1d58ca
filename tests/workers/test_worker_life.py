"""Start, stop, drain and failures of the log, on a log in memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
import types
import warnings
from asyncio import Future
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import CancelScope, fail_after, sleep_forever
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from taskq import DeadLetter, TaskQ, current_job
from taskq.core.model import SECOND_NS, State
from taskq.core.records import Cause, Kind
from taskq.core.why import Why
from taskq.errors import (
    DuplicateKey,
    JobFailed,
    LogClosed,
    LogError,
    LogGone,
    LogLocked,
    PayloadTooLarge,
    TaskqError,
    UsageError,
)
from taskq.log.commit.committer import LOOK_AROUND_NS
from taskq.log.machine import threads
from taskq.log.requests import Answer, ClaimRequest, Delivery, Settlement
from taskq.log.store.store import Store
from taskq_workers import JobFinished, Worker
from taskq_workers.runs import joblogs, system
from taskq_workers.runs.executors import SWITCH_INTERVAL_SECONDS
from taskq_workers.slots import feed, outcomes
from tests.tables import ROOT
from tests.workers import afar_jobs
from tests.workers.fakes import FakeApp, Held


async def test_a_worker_starts_once_and_stops_at_any_time(fake: FakeApp) -> None:
    worker = Worker(fake)
    await worker.stop()
    await worker.stop()
    await worker.start()
    await worker.run()
    assert not worker.started.is_set()
    async with Worker(fake) as worker:
        with pytest.raises(UsageError, match="started before"):
            await worker.start()

        @fake.task
        async def stop() -> None:
            worker.request_stop()

        fake.put(stop)
        await worker.stopped.wait()
    assert [settlement.kind for settlement in fake.fake.settled] == [Kind.SUCCEEDED]
    with pytest.raises(UsageError, match="started before"):
        await worker.run()


async def test_a_worker_with_unresolvable_annotations_refuses_to_start(app: TaskQ) -> None:
    effects: list[int] = []

    @app.task
    async def charge() -> "Nowhere":  # type: ignore[name-defined] # noqa: F821, UP037
        effects.append(1)

    @app.task
    async def read(row: list["Missing"]) -> None:  # type: ignore[name-defined] # noqa: F821, UP037
        effects.append(1)

    await charge.enqueue()
    with pytest.raises(UsageError, match=r"(?s)charge.*Nowhere.*resolved.*; .*read.*Missing"):
        await app.worker().run()
    assert not effects


class Sender:
    async def __call__(self, number: int) -> int:
        await checkpoint()
        return number + 1


async def add(more: int, number: int) -> int:
    await checkpoint()
    return number + more


@functools.wraps(add)
def around(*args: Any, **kwargs: Any) -> Any:
    return add(*args, **kwargs)


@functools.wraps(add)
def own_loop(*args: Any, **kwargs: Any) -> Any:
    return asyncio.run(add(*args, **kwargs))


@pytest.mark.parametrize(
    "fn",
    [
        Sender(), Sender().__call__, functools.partial(add, 1), functools.partial(Sender()),
        staticmethod(functools.partial(add, 1)), functools.partial(around, 1),
        functools.partial(own_loop, 1), functools.partial(functools.partial(add), 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seconds", [None, 50])
async def test_whatever_stands_around_an_async_function_its_coroutine_is_awaited(
    app: TaskQ, fn: Any, seconds: float | None
) -> None:
    if isinstance(fn, types.MethodType):
        with pytest.raises(UsageError, match="method of an object"):
            app.task(name="add")(fn)
        return
    task = app.task(name="add", timeout=seconds)(fn)
    async with app.worker():
        assert await (await task.enqueue(number=1)).result(timeout=50) == 2


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_drain_lets_running_jobs_finish_and_claims_no_more(
    fake: FakeApp, *, is_cancelled: bool
) -> None:
    held = Held(fake)
    fake.put(held.task)
    worker = Worker(fake, drain_timeout=math.inf)
    running = asyncio.create_task(worker.run())
    await held.runs.wait()
    running.cancel() if is_cancelled else worker.request_stop()
    while fake.fake.waiting():
        await checkpoint()
    fake.put(held.task)
    held.end.set()
    with pytest.raises(asyncio.CancelledError) if is_cancelled else contextlib.nullcontext():
        await running
    assert worker.stopped.is_set()
    (settled,) = fake.fake.settled
    assert (settled.kind, settled.body) == (Kind.SUCCEEDED, b'"done"')
    assert len(fake.fake.ready) == 1


async def test_a_job_that_was_done_while_the_loop_stood_still_is_done_after_the_drain(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, loop = Held(fake), asyncio.get_running_loop()
    fake.put(held.task)
    worker = Worker(fake, drain_timeout=10)
    running = asyncio.create_task(worker.run())
    await held.runs.wait()
    worker.request_stop()
    while fake.fake.waiting():
        await checkpoint()
    time = loop.time
    for late in (0.0, 30.0):
        monkeypatch.setattr(loop, "time", lambda late=late: time() + late)
        for _ in range(10):  # turns between an answer of the network and the job's end
            await checkpoint()
    held.end.set()
    held.end.set()
    await running
    (settled,) = fake.fake.settled
    assert settled.kind is Kind.SUCCEEDED


async def test_a_burst_ends_once_outcomes_that_a_locked_log_refused_are_kept(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS_FIRST", 0.001)
    refusals = [LogLocked("data", 1, "stopped", 30.0)] * 2

    @fake.task
    async def fine() -> None: ...

    fake.put(fine)
    fake.fake.refuse = lambda _: refusals.pop() if refusals else None
    async with asyncio.timeout(SECONDS):
        await Worker(fake, burst=True).run()
    assert [settlement.kind for settlement in fake.fake.settled] == [Kind.SUCCEEDED]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (PayloadTooLarge("a transaction", 9, 8), (Kind.DEAD, Cause.REJECTED)),
        (DuplicateKey("default", b"k", "fake-7"), (Kind.RETRIED, Cause.CALLER)),
    ],
)
async def test_a_success_that_the_log_refuses_is_a_failure_with_the_reason(
    fake: FakeApp, error: TaskqError, end: tuple[Kind, Cause]
) -> None:
    @fake.task
    async def child(n: int) -> None:
        pass

    @fake.task
    async def parent() -> None:
        current_job().enqueue(child.call(1))

    def refuse(settlement: Settlement) -> TaskqError | None:
        return error if settlement.children else None

    fake.put(parent)
    fake.fake.refuse = refuse
    async with Worker(fake):
        (settled,) = await fake.fake.settlements(1)
    assert (settled.kind, settled.cause) == end
    assert settled.body is not None
    assert str(error).encode() in settled.body


async def test_a_stop_does_not_wait_for_a_log_that_does_not_open(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = asyncio.Event()

    async def wait() -> FakeApp:
        opening.set()
        await asyncio.Event().wait()
        return fake

    monkeypatch.setattr(fake, "open", wait)
    worker = Worker(fake)
    starting = asyncio.create_task(worker.start())
    await opening.wait()
    await worker.stop()
    await starting
    assert not worker.started.is_set()


async def test_sync_tasks_run_in_parallel_threads_with_their_context(fake: FakeApp) -> None:
    barrier = threading.Barrier(4)
    seen: dict[int, tuple[str, str]] = {}

    @fake.task
    def meet(n: int) -> int:
        barrier.wait(30)
        seen[n] = (current_job().id, threading.current_thread().name)
        return n

    ids = {n: fake.put(meet, n).job_id for n in range(12)}
    async with Worker(fake, concurrency=8, thread_limit=4):
        await fake.fake.settlements(12)
    assert {n: job_id for n, (job_id, _) in seen.items()} == ids
    names = {name for _, name in seen.values()}
    assert len(names) == 4
    assert threading.current_thread().name not in names


@pytest.mark.parametrize("name", ["open", "storage", "run", "progress", "aside", "watch"])
async def test_a_thread_that_the_system_refuses_once_is_started_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A job waits for it and burns no attempt, and the log closes."""
    refused: list[threading.Thread] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if not refused and thread.name.startswith(f"taskq-{name}"):
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threads, "_pools", [])
    monkeypatch.setattr(outcomes, "AGAIN_SECONDS", 0)
    app = TaskQ(tmp_path, durability="os")

    @app.task(retry=1)
    def report(fraction: float) -> float:
        current_job().progress(fraction)
        return fraction

    if name in {"open", "storage"}:
        with pytest.raises(LogError, match=f"taskq-{name}.*can't.*limit of threads"):
            await app.open()
    await app.open()
    with fail_after(20):
        async with app, app.worker(concurrency=1):
            for part in (0.25, 0.5):
                assert await (await report.enqueue(part)).result() == part
    assert refused


def test_every_thread_is_started_where_its_refusal_names_the_limits_or_does_no_harm() -> None:
    own = {
        "taskq/log/machine/threads.py", "taskq/log/machine/windows.py", "taskq/conditions/base.py",
        "workers/taskq_workers/runs/executors.py",
    }  # fmt: skip
    starting = {
        path.relative_to(ROOT).as_posix()
        for room in ("taskq", "workers", "plugins")
        for path in ROOT.glob(f"{room}/**/*.py")
        if re.search(r"\bThread\(", path.read_text("utf-8"))
    }
    assert starting == own


async def test_a_sync_job_that_waits_for_a_thread_when_cancelled_never_runs(fake: FakeApp) -> None:
    runs, end = threading.Event(), threading.Event()
    ran = []

    @fake.task
    def one_by_one(n: int) -> None:
        ran.append(n)
        runs.set()
        fake.loop.call_soon_threadsafe(fake.fake.poke)
        assert end.wait(30)

    fake.loop = asyncio.get_running_loop()
    for n in range(2):
        fake.put(one_by_one, n)
    worker = Worker(fake, concurrency=2, thread_limit=1, drain_timeout=0)
    async with worker:
        await fake.fake.until(lambda: runs.is_set() and worker.running == 2)
    end.set()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("taskq-run")]
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    assert ran == [0]
    assert len(fake.fake.settled) == 2


SECONDS = 30


async def test_a_burst_runs_a_child_that_a_claim_took_while_it_was_withdrawn(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    worker = Worker(app, burst=True)

    @app.task
    async def child() -> None:
        ran.append("child")

    @app.task
    async def parent() -> None:
        assert worker._runner is not None
        port = app.store().port()
        while not worker._runner.feed.is_idle:
            await port.stats()
        await port.stats()  # answered after the claim, which waits in the log from now on
        deliver, settle, claim = port.deliver, port.settle, port.claim
        taken, empty = threading.Event(), threading.Event()

        def deliver_and_tell(answers: list[Answer]) -> None:
            deliver(answers)
            for _, _, value in answers:
                if value == []:
                    empty.set()
                elif isinstance(value, list) and isinstance(value[0], Delivery):
                    taken.set()

        def settle_and_see(items: list[Settlement]) -> Future[Any]:
            settled: Future[Any] = settle(items)
            assert taken.wait(SECONDS)
            return settled

        def claim_and_see(request: ClaimRequest) -> Future[list[Delivery]]:
            claimed: Future[list[Delivery]] = claim(request)
            assert taken.is_set()
            assert ran or empty.wait(SECONDS)
            return claimed

        monkeypatch.setattr(port, "deliver", deliver_and_tell)
        monkeypatch.setattr(port, "settle", settle_and_see)
        monkeypatch.setattr(port, "claim", claim_and_see)
        current_job().enqueue(child.call())

    async with app:
        await parent.enqueue()
        await worker.run()
    assert ran == ["child"]


async def test_a_log_that_is_closed_under_a_worker_stops_it_with_that_error(app: TaskQ) -> None:
    held, worker = Held(app), Worker(app)
    running = asyncio.create_task(worker.run())
    await held.task.enqueue()
    await held.runs.wait()
    await app.close()
    held.end.set()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(LogClosed):
            await running
    assert worker.stopped.is_set()


async def test_a_burst_leaves_what_its_rate_does_not_let_through(app: TaskQ) -> None:
    @app.task(name="send", rate="3/h")
    async def send(_number: int) -> None: ...

    async with app:
        jobs = await send.enqueue_many([(number,) for number in range(5)])
        await app.worker(burst=True).run()
        states = [await job.status() for job in jobs]
        assert states == [State.SUCCEEDED] * 3 + [State.READY] * 2
        async with app.worker():
            await app.stats()  # answered after the worker's claims were announced
            assert (await app.why(jobs[3].id)).code is Why.RATE


async def test_a_worker_shares_its_claims_between_queues_by_weight(app: TaskQ) -> None:
    seen: list[str] = []

    @app.task(name="note")
    async def note(queue: str) -> None:
        seen.append(queue)

    async with app:
        for queue in ("bulk", "mail", "other"):
            await note.options(queue=queue).enqueue_many([(queue,)] * 100)
        await app.worker(concurrency=1, queues={"mail": 3, "bulk": 1}, burst=True).run()
    assert Counter(seen) == {"mail": 100, "bulk": 100}
    assert 20 <= Counter(seen[:40])["mail"] <= 36


def test_turns_of_threads_are_short_only_while_others_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, own = system.Turns(), sys.getswitchinterval()
    clock = SimpleNamespace(now=0.0, others=0.0)
    times = SimpleNamespace(
        monotonic=lambda: clock.now, thread_time=lambda: clock.now / 2,
        process_time=lambda: clock.now / 2 + clock.others,
    )  # fmt: skip
    monkeypatch.setattr(system, "time", times)
    monkeypatch.setattr(system, "IS_LINUX", True)
    monkeypatch.setattr(system, "_spent_by_storage", lambda: 0.0)
    for seconds, others, expected in (
        (9.0, 9.0, own), (0.5, 0.1, own), (0.5, 0.4, system.TURN_SECONDS),
        (5.0, 0.0, system.TURN_SECONDS), (0.5, 0.0, own), (0.5, 0.4, system.TURN_SECONDS),
    ):  # fmt: skip
        clock.now, clock.others = clock.now + seconds, clock.others + others
        turns.look()
        assert sys.getswitchinterval() == pytest.approx(expected, abs=1e-6)
    turns.rest()
    assert sys.getswitchinterval() == pytest.approx(own, abs=1e-6)


def interpreter_wide() -> dict[str, object]:
    """Return what all parts of a program share."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    root = logging.getLogger()
    return {
        "turns": sys.getswitchinterval(),
        "garbage": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup": wakeup,
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "warnings": list(warnings.filters),
        "logging": (root.level, list(root.handlers)),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "paths": (list(sys.argv), list(sys.path), dict(os.environ)),
        "loops": asyncio.get_event_loop_policy(),
    }


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
@pytest.mark.filterwarnings("ignore:.*event_loop_policy:DeprecationWarning")  # of Python 3.14
@pytest.mark.parametrize("way", ["alone", "two", "an error", "run_worker", "frozen"])
def test_a_worker_leaves_its_program_as_it_was(
    tmp_path: Path, way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a child that the program forks after it: it has the program's handlers."""
    monkeypatch.setattr(joblogs._State, "chosen", joblogs.Logging())  # no command's, as others were
    app, turns = TaskQ(tmp_path / "log"), list[float]()

    @app.task(soft_timeout="1m", keep_log="4KB")
    def note() -> None:
        turns.append(sys.getswitchinterval())

    async def main() -> None:
        async with app, app.worker() as worker:
            await (await note.enqueue()).result(timeout=50)
            if way == "two":
                async with app.worker():
                    await (await note.enqueue()).result(timeout=50)
                    await worker.stop()
                    await (await note.enqueue()).result(timeout=50)
            if way == "an error":
                raise ZeroDivisionError

    if way == "frozen":
        gc.freeze()
        request.addfinalizer(gc.unfreeze)
    if way == "run_worker":
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for end in (reader, writer):
            request.addfinalizer(functools.partial(os.close, end))
        wakes = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        request.addfinalizer(lambda: signal.set_wakeup_fd(wakes))
    before = interpreter_wide()
    if way in {"run_worker", "frozen"}:
        note.enqueue_sync()
        app.run_worker(burst=True)
        own = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not (pid := os.fork()):
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN)
        signal.signal(signal.SIGTERM, own)
        assert os.waitpid(pid, 0)[1] == 0
    else:
        with contextlib.suppress(ZeroDivisionError):
            asyncio.run(main())
    assert max(turns) <= SWITCH_INTERVAL_SECONDS
    assert interpreter_wide() == before


async def test_a_program_without_logging_gets_its_warnings_while_lines_are_kept(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    last = logging.Handler()
    monkeypatch.setattr(last, "emit", lambda record: lines.append(record.getMessage()))
    last.setLevel(logging.WARNING)
    monkeypatch.setattr(logging, "lastResort", last)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    @fake.task(keep_log="4KB")
    async def note() -> None:
        logging.getLogger("of.the.program").info("quiet")
        logging.getLogger("of.the.program").warning("loud")

    fake.put(note)
    async with Worker(fake):
        await fake.fake.settlements(1)
    assert lines == ["loud"]


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
    hangs, last = asyncio.Event(), Held(app)

    @app.on_dead
    async def hang(_: DeadLetter) -> None:
        hangs.set()
        await asyncio.Event().wait()

    @app.task(retry=1)
    async def fail() -> None:
        raise ValueError("no good")

    async with app:
        await fail.enqueue()
        await last.task.enqueue()
        async with Worker(app, drain_timeout=2):
            await asyncio.gather(hangs.wait(), last.runs.wait())
            began = time.monotonic()
        assert time.monotonic() - began < 3.8


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
                await app.worker(burst=True).run()
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
            await new.stats()  # answered after the worker's claims were announced
            jobs = await where.enqueue_many([(f"{n}", 2) for n in range(20)])
            with fail_after(SECONDS):
                assert [await job.result() for job in jobs] == [f"{n}" * 2 for n in range(20)]
                assert [(await job.view()).attempt for job in jobs] == [1] * 20
        async with narrow.worker():
            job = await where.enqueue("a", 2)
            with fail_after(SECONDS), pytest.raises(JobFailed, match="width"):
                await job.result()
