"""Child processes of a worker: kept warm, recycled, handed over, and what they log."""

import asyncio
import io
import logging
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from taskq import JobHandle, State, TaskQ, current_job, retry
from taskq.cli.main import main
from taskq.core.model import LINES_BYTES_MAX
from taskq.errors import JobFailed
from taskq.log.machine.system import system
from taskq.log.read.reader import LogReader
from taskq_workers import JobFinished, Worker
from taskq_workers.children import runner
from taskq_workers.children.runner import ChildPhase, NoChild, ProcessRunner
from taskq_workers.runs.executors import ExecutorLimits, ThreadRunner
from taskq_workers.runs.joblogs import LEFT_OUT
from taskq_workers.runs.system import channel_of
from tests.effort import within
from tests.processes.harness import eventually
from tests.workers import afar_jobs
from tests.workers.afar_jobs import app
from tests.workers.fakes import FakeApp

SECONDS = 30


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[None]:
    app.data_dir = tmp_path / "data"
    async with app:
        yield


def pids(worker: Worker) -> list[int]:
    assert worker._places is not None
    processes = worker._places.processes
    assert isinstance(processes, ProcessRunner)
    return processes.pids


is_there = system.lives


async def pid_in(path: Path) -> int:
    def written() -> str:
        return path.read_text(encoding="ascii") if path.exists() else ""

    await asyncio.to_thread(eventually, written)
    return int(written())


async def failure(job: JobHandle[Any]) -> str:
    with pytest.raises(JobFailed) as caught:
        await job.result(SECONDS)
    return str(caught.value)


@pytest.mark.usefixtures("log")
async def test_a_cancelled_slot_kills_its_child_before_the_job_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    job = await afar_jobs.lasts.enqueue(str(path))
    async with Worker(app, drain_timeout=0):
        pid = await pid_in(path)
    assert not is_there(pid)
    view = await job.view()
    assert (view.state, view.attempt) == (State.READY, 0)


@pytest.mark.usefixtures("log")
async def test_a_child_is_replaced_after_its_number_of_jobs_and_when_it_grew_too_large() -> None:
    async with Worker(app, process_limit=1, max_jobs_per_child=2):
        jobs = [await afar_jobs.where.enqueue("x") for _ in range(3)]
        seen = [(await job.result(SECONDS))[0] for job in jobs]
    assert seen[0] == seen[1] != seen[2]
    async with Worker(app, process_limit=1, max_rss_per_child="90MB"):
        results = [await (await afar_jobs.grows.enqueue()).result(SECONDS) for _ in range(2)]
    assert results[0] != results[1]


@pytest.mark.usefixtures("log")
async def test_children_are_started_for_jobs_that_need_one_and_up_to_the_limit(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    async with Worker(app, process_limit=2) as worker:
        assert await (await afar_jobs.child.enqueue("x")).result(SECONDS) == "x"
        assert pids(worker) == []
        jobs = [await afar_jobs.waits_for.enqueue(str(go)) for _ in range(5)]
        await asyncio.to_thread(eventually, lambda: worker.running == 5)
        assert len(pids(worker)) == 2
        go.touch()
        assert len({await job.result(SECONDS) for job in jobs}) <= 2


ENDED: list[JobFinished] = []


@pytest.fixture(scope="module")
async def worker(
    tmp_path_factory: pytest.TempPathFactory, stays_open: Callable[[], None]
) -> AsyncIterator[Worker]:
    app.data_dir = tmp_path_factory.mktemp("warm") / "data"
    async with app:
        async with Worker(app, process_limit=2, on_event=ENDED.append) as worker:
            stays_open()
            yield worker
            # The last test may have killed its child, and the next one comes with a job.
            await (await afar_jobs.where.enqueue("last")).result(SECONDS)
            children = pids(worker)
        assert children
        assert not any(map(is_there, children))


@pytest.fixture
def at_work(worker: Worker) -> None:
    """Have the worker there for each test."""
    del worker
    ENDED.clear()


@pytest.mark.usefixtures("at_work")
async def test_a_job_knows_itself_and_its_deadline_wherever_it_runs() -> None:
    """Jobs of a child run in one warm process, in its main thread."""
    seen = {}
    for place, task in afar_jobs.FACTS.items():
        for number in range(2):
            job = await task.options(headers={"number": f"{number}"}).enqueue()
            job_id, attempt, headers, deadline, *seen[place] = await job.result(SECONDS)
            assert (job_id, attempt, headers) == (job.id, 1, {"number": f"{number}"})
            assert timedelta(minutes=59) < deadline - datetime.now(UTC) <= timedelta(hours=1)
    here, child = os.getpid(), seen["child"][0]
    assert here != child
    assert seen == {
        "loop": [here, True], "thread": [here, False], "own loop": [here, False],
        "child": [child, True], "child's loop": [child, True],
    }  # fmt: skip


@pytest.mark.usefixtures("at_work")
async def test_jobs_enqueued_in_a_child_join_its_success() -> None:
    job = await afar_jobs.parent.enqueue(fails=True)
    assert await job.result(SECONDS) == "enqueued"
    records = [item async for item in app.stream(kinds=["enqueued"], follow=False)]
    (child,) = (item.job_id for item in records if item.task == afar_jobs.child.name)
    assert await app.job(child).result(SECONDS) == "of a process"
    ended = [end.outcome for end in ENDED if end.task == afar_jobs.child.name]
    assert ended == ["succeeded"]


@pytest.mark.usefixtures("at_work")
async def test_payloads_and_results_larger_than_a_pipe_pass() -> None:
    # Packed ones are opened before they go to a child.
    packed = afar_jobs.where.options(compress="zlib")
    for task, sizes in (
        (afar_jobs.where, [70_000] * 4 + [700_000] * 4 + [16_000_000]), (packed, [100_000]),
    ):  # fmt: skip
        jobs = [await task.enqueue("x" * size) for size in sizes]
        assert [(await job.result(SECONDS))[1] for job in jobs] == ["x" * size for size in sizes]


@pytest.mark.posix("a channel is no number on other systems")
def test_a_default_time_limit_of_sockets_is_none_of_a_childs_channel() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.001)
    try:
        ours, theirs = socket.socketpair()
        channel = channel_of(theirs.detach())
    finally:
        socket.setdefaulttimeout(before)
    with ours, channel:
        assert channel.gettimeout() is None
        assert os.get_blocking(channel.fileno())


@pytest.mark.posix("Python makes a null pointer an error")
@pytest.mark.usefixtures("at_work")
async def test_a_child_that_dies_costs_its_job_one_attempt_and_another_nothing(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    other = await afar_jobs.waits_for.enqueue(str(go))
    for how in ("null", "kill", "exit"):
        job = await afar_jobs.dies.enqueue(how)
        assert await job.result(SECONDS) == "the second time"
        view = await job.view()
        assert [attempt.outcome for attempt in view.attempts] == ["retried", "succeeded"], how
        assert "ChildDied: its child process" in (view.attempts[0].reason or "")
    go.touch()
    assert await other.result(SECONDS)


@pytest.mark.posix("forks")
@pytest.mark.parametrize("waits_on_threads", [False, True])
@pytest.mark.usefixtures("at_work")
async def test_a_childs_end_is_seen_though_another_process_has_its_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_on_threads: bool
) -> None:
    if waits_on_threads:  # as on Windows
        monkeypatch.setattr("taskq_workers.runs.system.LOOPS_READ", False)
        monkeypatch.delattr(os, "pidfd_open")
    for number in range(2):  # the first one's child may have begun before
        path = tmp_path / f"{number}"
        job = await afar_jobs.leaves_one.enqueue(str(path))
        try:
            assert "exited with 1" in await failure(job)
        finally:
            os.kill(await pid_in(path), signal.SIGKILL)


@pytest.mark.usefixtures("at_work")
async def test_a_timeout_kills_the_child_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    job = await afar_jobs.hangs.enqueue(str(path))
    answer = await failure(job)
    assert not is_there(await pid_in(path))
    assert (
        "TimeoutError: not done within its timeout of 0.3 s: its child process was kill" in answer
    )


@pytest.mark.usefixtures("at_work")
async def test_a_soft_timeout_is_raised_in_the_task_wherever_it_waits() -> None:
    jobs = {place: await task.enqueue() for place, task in afar_jobs.SOFT.items()}
    answers = {place: await job.result(SECONDS) for place, job in jobs.items()}
    # There the interpreter raises it, by its class.
    assert answers.pop("thread") == "cleaned up: the task's soft_timeout is over"
    assert set(answers.values()) == {"cleaned up: not done within its soft_timeout of 0.2 s"}


@pytest.mark.usefixtures("at_work")
async def test_what_a_task_raises_in_a_child_does_not_end_the_child(worker: Worker) -> None:
    await (await afar_jobs.where.enqueue("x")).result(SECONDS)
    before = pids(worker)
    for name in ("exit", "interrupt"):
        await failure(await afar_jobs.RAISERS["child"].options(attempts=1).enqueue(name, ""))
    await (await afar_jobs.where.enqueue("x")).result(SECONDS)
    assert pids(worker) == before


def a_runner(fake: FakeApp, monkeypatch: pytest.MonkeyPatch) -> ProcessRunner:
    """Return a runner with room for one child, which does nothing by itself."""

    def child(*_: object) -> Mock:
        return Mock(phase=ChildPhase.STARTING, is_ready=True, problem="")

    monkeypatch.setattr(runner, "Child", child)
    limits = ExecutorLimits(threads=1, processes=1)
    return ProcessRunner(asyncio.get_running_loop(), fake, limits)


async def test_a_timeout_that_rings_as_its_job_ends_kills_not_the_next_job() -> None:
    done, killed = asyncio.get_running_loop().create_future(), list[BaseException]()
    child: Any = SimpleNamespace(kill=killed.append)
    reason = TimeoutError("late")
    runner._expire(child, done, reason)
    done.set_result(None)  # in the turn of the timer: by now the child has another job
    runner._expire(child, done, reason)
    assert killed == [reason]


async def test_a_child_that_dies_as_it_is_handed_over_costs_its_next_job_nothing(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = a_runner(fake, monkeypatch)
    taking = asyncio.create_task(children._take())
    await asyncio.sleep(0)
    (first,) = children._children
    for phase in (ChildPhase.IDLE, ChildPhase.GONE):
        first.phase = phase
        children._on_change(first)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (second,) = children._children
    second.phase = ChildPhase.IDLE
    children._on_change(second)
    async with within():
        assert await taking is second is not first


async def test_no_job_waits_for_a_child_or_a_thread_of_a_runner_that_has_ended(
    fake: FakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = a_runner(fake, monkeypatch)
    early = asyncio.create_task(children._take())
    await asyncio.sleep(0)
    children.close()
    threads = ThreadRunner(asyncio.get_running_loop(), 1)
    threads.close()
    async with within():
        for waiting in (early, children._take()):
            with pytest.raises(NoChild, match="the worker ends"):
                await waiting
        with pytest.raises(RuntimeError, match="the worker has ended"):
            await threads.run(print, (), {})


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Yield what a program with a format of its own logs."""
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    form = "%(taskq_job)s|%(taskq_task)s|%(taskq_attempt)d|%(message)s"
    handler.setFormatter(logging.Formatter(form))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield output
    logging.setLogRecordFactory(make)
    logger.removeHandler(handler)


async def test_a_worker_within_a_program_names_jobs_in_the_programs_own_format(
    app: TaskQ, lines: io.StringIO
) -> None:
    """It takes no name that a program gives to particulars: a record would refuse them."""
    own = {"job_id": 7, "task": "t", "attempt": 2}

    @app.task
    async def count(number: int) -> None:
        logging.getLogger("shop").warning("counted %d", number, extra=own)

    @app.task
    def count_in_thread(number: int) -> None:
        logging.getLogger("shop").warning("counted %d", number)

    async with app, app.worker():
        jobs = [await count.enqueue(1), await count_in_thread.enqueue(2)]
        for job in jobs:
            await job.result(SECONDS)
        logging.getLogger("shop").warning("outside")
    assert sorted(lines.getvalue().splitlines()) == sorted(
        [
            f"{jobs[0].id}|{count.name}|1|counted 1",
            f"{jobs[1].id}|{count_in_thread.name}|1|counted 2",
            "||0|outside",
        ]
    )


async def test_the_lines_of_each_attempt_stay_with_its_outcome_through_compaction(
    tmp_path: Path,
) -> None:
    app = TaskQ(tmp_path / "data", segment_bytes=64 * 1024)

    @app.task(keep_log="1KB", retry=retry.fixed(2, delay=0))
    async def fail() -> None:
        logging.getLogger("shop").warning("try %d", current_job().attempt)
        await asyncio.to_thread(logging.getLogger("shop").error, "in a thread")
        raise ValueError("no")

    @app.task(keep_log="1KB")
    def succeed() -> None:
        logging.getLogger("shop").warning("well")

    @app.task
    async def other(_: str = "") -> None:
        logging.getLogger("shop").warning("nobody's")

    async with app, app.worker():
        died = await fail.enqueue()
        await failure(died)
        jobs = [died, await succeed.enqueue(), await other.enqueue()]
        for filler in [*jobs[1:], *await other.enqueue_many([("x" * 10_000,) for _ in range(30)])]:
            await filler.result(SECONDS)
        tries = [[f"WARNING shop: try {n}", "ERROR shop: in a thread"] for n in (1, 2)]
        assert [[_untimed(lines) for lines in kept(app, job.id)] for job in jobs] == [
            tries,
            [["WARNING shop: well"]],
            [[]],
        ]
        assert (await app.compact(keep=0)).segments
    assert _untimed(kept(app, died.id)[-1]) == tries[-1]
    shown = CliRunner().invoke(main, ["show", died.id, "-d", str(app.data_dir)])
    assert "logged by attempt 2\n" in shown.output
    assert "WARNING shop: try 2\n" in shown.output


async def test_of_many_lines_the_latest_are_kept_and_it_is_said_that_there_were_more(
    app: TaskQ,
) -> None:
    @app.task(keep_log=300)
    async def talk() -> int:
        for number in range(1_000):
            logging.getLogger("shop").warning("line %d", number)
        logging.getLogger("shop").warning("%s", "é" * 10_000)
        return 1

    @app.task(keep_log="64KiB")
    async def noise() -> None:
        for _ in range(80):
            logging.getLogger("shop").warning("%s", random.randbytes(500).hex())

    async with app, app.worker():
        talks, noises = await talk.enqueue(), await noise.enqueue()
        await talks.result(SECONDS)
        await noises.result(SECONDS)
    (few,), (dense,) = kept(app, talks.id), kept(app, noises.id)
    assert few.startswith(f"{LEFT_OUT}\né")
    assert len(few.encode()) < 400
    assert 40_000 < len(dense) <= LINES_BYTES_MAX


@pytest.mark.usefixtures("at_work")
async def test_a_child_that_is_killed_leaves_its_lines() -> None:
    died = await afar_jobs.logs_and_dies.enqueue()
    await failure(died)
    spoke = await afar_jobs.logs.enqueue("hello")
    await spoke.result(SECONDS)
    seen = [_untimed(line) for job in (died.id, spoke.id) for line in kept(app, job)]
    assert seen == [["ERROR shop: alas"], ["ERROR shop: hello"]]


def kept(app: TaskQ, job_id: str) -> list[str]:
    """Return the lines of each attempt, as a reader beside it finds them."""
    with LogReader.open(str(app.data_dir)) as reader:
        view = reader.job(reader.parse_id(job_id))
    assert view is not None
    return [attempt.lines for attempt in view.attempts]


def _untimed(lines: str) -> list[str]:
    return [line.split(" ", 2)[2] for line in lines.splitlines()]
