"""Code without an event loop, or with another than asyncio's: twins, threads, forks, refusals."""

from __future__ import annotations

import asyncio
import inspect
import logging
import shlex
import sys
import threading
import types
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from taskq import Flow, FlowHandle, JobHandle, Stream, Task, TaskLog, TaskQ, chain
from taskq.connection.blocking import blocking
from taskq.connection.connection import end_at_caller
from taskq.core.rates import rate_of
from taskq.errors import ResultTimeout, UsageError
from taskq.log.machine.threads import reports
from taskq.log.read import reader
from taskq.log.read.reader import LogReader
from taskq.reading.dead import DeadLetters
from taskq.schedules import LogSchedules
from tests.programs import run_python


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = TaskQ(tmp_path / "data")

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="fail", retry=1)
    async def fail() -> None:
        raise ValueError("order 17 is bad")

    yield app
    app.close_sync()


KINDS = [TaskQ, TaskLog, Task, Flow, JobHandle, FlowHandle, DeadLetters, LogSchedules, Stream]


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_coroutine_has_a_blocking_twin_of_the_same_signature(kind: type) -> None:
    methods = {
        name: method
        for name, method in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert methods
    for name, method in methods.items():
        twin = getattr(kind, f"{name}_sync", None)
        assert twin is not None, f"{kind.__name__}.{name} has no twin"
        assert not inspect.iscoroutinefunction(twin)
        parameters = [inspect.signature(item).parameters.keys() for item in (method, twin)]
        assert parameters[0] == parameters[1], name
        assert twin.__doc__.startswith(f"Do as ``{name}``"), name


@pytest.mark.parametrize("kind", KINDS)
async def test_every_twin_refuses_to_run_in_the_thread_of_an_event_loop(kind: Any) -> None:
    twins = [name for name in dir(kind) if name.endswith("_sync")]
    assert twins
    for name in twins:
        twin = inspect.getattr_static(kind, name)
        missing = [
            parameter.name
            for parameter in inspect.signature(twin).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        with pytest.raises(UsageError, match=rf"{name}\(\) would stop this event loop: use await"):
            twin(*missing)


async def test_a_block_without_async_is_not_entered_in_the_thread_of_an_event_loop(
    app: TaskQ, tmp_path: Path
) -> None:
    log = TaskLog.open(tmp_path / "log")
    for block in (app, log, app.transaction(), log.transaction(), log.stream()):
        with pytest.raises(UsageError, match="would stop this event loop: use async with"), block:
            raise AssertionError("it was entered")


def test_calls_of_many_threads_share_one_loop(app: TaskQ) -> None:
    before = threading.active_count()
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(app.dead.count_sync())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [0] * 8
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("taskq-sync") == 1
    assert threading.active_count() - before <= 3


def test_an_interrupted_call_cancels_what_it_waits_for() -> None:
    class Interrupted(BaseException):
        pass

    cancelled = threading.Event()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupt(*_: object) -> None:
        assert begun.wait(20)
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskq.log.machine.threads.Pending.result", interrupt)
        with pytest.raises(Interrupted):
            blocking(wait)()
    assert cancelled.wait(20)


def task_of(app: TaskQ) -> Any:
    return app.tasks["add"]


CALLS: list[Callable[[TaskQ], Coroutine[Any, Any, Any]]] = [
    lambda app: app.open(),
    lambda app: task_of(app).enqueue(1, 2),
    lambda app: app.enqueue_many([task_of(app).call(1, 2)]),
    lambda app: app.enqueue_by_name("add", 1, 2),
    lambda app: chain(task_of(app).call(1, 2), task_of(app).step(3)).enqueue(),
    lambda app: app.job(1).result(),
    lambda app: app.job(1).status(),
    lambda app: app.stats(),
    lambda app: app.dead.list(),
    lambda app: app.pause("mail"),
    lambda app: app.worker().start(),
    lambda app: TaskLog.open(app.data_dir).__aenter__(),
]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("ask", CALLS)
def test_another_event_loop_than_asyncio_is_refused_with_advice(
    app: TaskQ, ask: Callable[[TaskQ], Coroutine[Any, Any, Any]], is_open: bool
) -> None:
    if is_open:
        task_of(app).enqueue_sync(1, 2)
    try:
        with pytest.raises(UsageError, match="none runs here: under trio use") as refused:
            ask(app).send(None)
    finally:
        app.close_sync()
    assert "\n" not in str(refused.value)


def test_threads_of_eventlet_are_refused_before_anything_hangs(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {"thread"}
    patcher: Any = types.ModuleType("eventlet.patcher")
    patcher.is_monkey_patched = replaced.__contains__
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    line = r"call eventlet.monkey_patch\(thread=False, select=False\)"
    for name in ("thread", "select"):
        replaced.clear()
        replaced.add(name)
        with pytest.raises(UsageError, match=line):
            app.open_sync()
        with pytest.raises(UsageError, match=line):
            asyncio.run(app.stats())
    replaced.clear()
    replaced.add("socket")
    with app:
        assert not app.stats_sync().queues


SCRIPT = """
import asyncio, logging, os, sys
from taskq import State, TaskQ

# In development mode asyncio warns of each turn over 0.1 s: that tells how busy the machine is.
logging.getLogger("asyncio").setLevel(logging.ERROR)

app = TaskQ(sys.argv[1])

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

async def look(job):
    return await app.job(job.id).status()

before = add.enqueue_sync(1)
assert app.dead.count_sync() == 0  # so that the loop for blocking calls runs, too
pids = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = add.enqueue_sync(10 + n)
            also = asyncio.run(add.enqueue_many([(20 + n,)]))[0]
            assert asyncio.run(look(before)) is State.READY
            assert mine.status_sync() is also.status_sync() is State.READY
            assert app.dead.count_sync() == 0
            assert mine.lsn != also.lsn != before.lsn
            app.close_sync()
            code = 0
        finally:
            os._exit(code)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert codes == [0, 0, 0], codes
after = add.enqueue_sync(2)
assert before.status_sync() is after.status_sync() is State.READY

async def count():
    stats = await (await app.open()).store().port().stats()
    return sum(queue.ready for queue in stats.queues)

print(asyncio.run(count()))
app.close_sync()
"""


# From 3.12 on Python warns of every fork beside threads; that it may be done is what is shown here.
@pytest.mark.parametrize("options", [[], ["-X", "dev"]])
def test_an_app_used_before_a_fork_serves_parent_and_children(
    tmp_path: Path, options: list[str]
) -> None:
    done = run_python(*options, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "8"
    assert done.stderr == ""


AT_EXIT = """
import atexit, sys
from taskq import TaskQ
from taskq.errors import ResultTimeout

app = TaskQ(sys.argv[1], compress="zlib")

@app.task
def add(text: str) -> str:
    return text

job = add.enqueue_sync("a")
if len(sys.argv) > 2:
    app.readers_sync()  # so that threads were used before

@atexit.register
def end():
    try:
        job.result_sync(timeout=0)
    except ResultTimeout as error:
        print(error)
    large = add.enqueue_sync("b" * 100_000)
    large.cancel_sync()
    print(len(large.view_sync().payload), app.readers_sync(), app.why_sync(large.id).text)
    app.close_sync()
"""


@pytest.mark.parametrize("before", [[], ["used"]])
def test_blocking_calls_answer_at_the_exit_of_the_interpreter(
    tmp_path: Path, before: list[str]
) -> None:
    done = run_python("-c", AT_EXIT, tmp_path / "data", *before)
    assert done.stderr == ""
    late, answers = done.stdout.splitlines()
    assert "is still ready after 0 s" in late
    assert answers.startswith("100011 [] it was cancelled")


def _of_program() -> None:
    raise ValueError("in the program's own code")


def _refuse(cause: Callable[[], object]) -> None:
    try:
        cause()
    except (ValueError, UsageError) as error:
        raise UsageError("wrong") from error


@pytest.mark.parametrize(
    ("cause", "is_kept"), [(_of_program, True), (lambda: rate_of("no rate"), False)]
)
def test_a_cause_is_kept_where_the_program_raised_it(
    cause: Callable[[], object], is_kept: bool
) -> None:
    with pytest.raises(UsageError) as caught:
        _refuse(cause)
    end_at_caller(caught.value)
    assert (caught.value.__cause__ is not None) == is_kept
    assert caught.value.__suppress_context__


@pytest.fixture
def spaced(tmp_path: Path) -> TaskQ:
    return TaskQ(tmp_path / "my data")


async def late(spaced: TaskQ, seconds: float = 0.01) -> ResultTimeout:
    job = await spaced.enqueue_by_name("proj.send")
    with pytest.raises(ResultTimeout) as info:
        await job.result(timeout=seconds)
    assert str(info.value).startswith(f"job {job.id} is still ready after {seconds:g} s")
    return info.value


async def test_a_log_that_answers_while_the_loop_stands_still_is_not_late(
    spaced: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, view = asyncio.get_running_loop(), JobHandle._view
    time = loop.time

    async def stalls(job: JobHandle[Any]) -> Any:
        monkeypatch.setattr(loop, "time", lambda: time() + 30)
        for _ in range(10):
            await asyncio.sleep(0)
        return await view(job)

    monkeypatch.setattr(JobHandle, "_view", stalls)
    async with spaced:
        await late(spaced)


async def test_a_timeout_omits_a_reason_that_takes_over_a_tenth_of_the_wait(
    spaced: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES_MIN", 0)
    async with spaced:
        error = await late(spaced, 0.00001)
    assert error.why == ""
    see = f"taskq why {error.job_id} -d {shlex.quote(str(spaced.data_dir))}"
    assert str(error).endswith(f"after 1e-05 s; for the reason: {see}")


def test_what_a_question_reads_begins_at_the_newest_snapshot(spaced: TaskQ) -> None:
    with spaced:
        for _ in range(5):
            spaced.enqueue_by_name_sync("proj.send", "x" * 1_000_000)
        with LogReader.open(str(spaced.data_dir)) as before:
            assert before.unfolded_bytes() > 5_000_000
        spaced.stats_sync()  # folded, so that there is something to keep
    with LogReader.open(str(spaced.data_dir)) as after:
        assert list((spaced.data_dir / "snapshot").glob("*agenda*"))
        assert 0 <= after.unfolded_bytes() < 10_000


#: A first call, interrupted at each Python call from a number on by calls of each kind.
INTERRUPTED = """
import datetime, sys
from taskq import TaskLog, TaskQ, errors

app, log = TaskQ("data", durability="os"), TaskLog.open("bytes")

@app.task(name="plain")
def plain(n: int) -> None: ...

@app.task(key=lambda day: str(day))
def keyed(day: datetime.date) -> None: ...

CALLS = {
    "plain": lambda: plain.enqueue_sync(1),
    "keyed": lambda: keyed.enqueue_sync(datetime.date(2026, 1, 1)),
    "many": lambda: plain.enqueue_many_sync([(1,), (2,)]),
    "call": lambda: app.enqueue_sync(plain.call(1)),
    "name": lambda: app.enqueue_by_name_sync("plain", 1),
    "stats": lambda: app.stats_sync(),
    "put": lambda: log.put_sync(b"x"),
    "with": lambda: app.__enter__(),
}
start, steps, refused = int(sys.argv[2]), 0, 0

def interrupt(*_):
    global steps, refused
    steps += 1
    if steps < start:
        return
    sys.settrace(None)
    try:
        CALLS[list(CALLS)[steps % len(CALLS)]]()
    except errors.UsageError:
        refused += 1
    sys.settrace(interrupt)

sys.settrace(interrupt)
CALLS[sys.argv[1]]()
sys.settrace(None)
print(refused > 0)
app.close_sync()
log.close_sync()
"""


@pytest.mark.parametrize(
    ("call", "start"), [("plain", 500), ("keyed", 12_000), ("many", 9_000), ("with", 500)]
)
def test_a_handler_within_a_first_call_is_refused_or_served(
    tmp_path: Path, call: str, start: int
) -> None:
    """It neither waits for ever nor meets half of a module, at any step."""
    done = run_python("-c", INTERRUPTED, call, start, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_log_handler_that_enqueues_does_not_keep_a_log_from_opening(
    app: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    jobs: list[str] = []

    class Enqueuer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            jobs.append(record.name + app.tasks["add"].enqueue_sync(1, 2).id)

    handler = Enqueuer()
    logging.getLogger("taskq").addHandler(handler)
    try:
        assert app.tasks["add"].enqueue_sync(1, 2).id
        reports.drain(30)
        app.close_sync()
    finally:
        logging.getLogger("taskq").removeHandler(handler)
    assert len(jobs) == 1
