"""``taskq worker`` as a process of its own."""

import itertools
import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from taskq import DeadLetter, JobContext, State, TaskQ, retry, telemetry
from taskq import _native as native
from taskq.cli.main import main
from taskq.connection import tracing
from taskq.errors import LogClosed, UsageError
from taskq.log.config import LogConfig
from taskq.log.machine.disk import SystemClock
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.health import check_start
from taskq_workers import JobFinished
from tests.processes.harness import Child, eventually
from tests.programs import run_taskq

JOBS = """
import asyncio, os, sys
from taskq import TaskQ, current_job, retry

app = TaskQ("data")

def here(*words):
    # In one piece: the banner is written meanwhile.
    sys.stdout.write(" ".join(["HERE", *map(str, words)]) + "\\n")
    sys.stdout.flush()

@app.task
async def add(a: int, b: int) -> int:
    return a + b

@app.task(retry=retry.fixed(2, delay=0))
async def fail() -> None:
    raise ValueError("no way")

@app.task
async def gate() -> None:
    here(current_job().attempt)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(os.open("gate", os.O_RDONLY | os.O_NONBLOCK), "rb")
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    await reader.readline()

@app.task
async def blocks() -> None:
    here()
    open("gate").read()

@app.task
async def leaves() -> None:
    async def leave() -> None:
        sys.exit(3)
    await asyncio.wait([asyncio.create_task(leave())])
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Child]:
    (tmp_path / "jobs.py").write_text(JOBS)
    os.mkfifo(tmp_path / "gate")
    command = (sys.executable, "-m", "taskq", "worker", "jobs:app")
    return lambda *words, below=(): Child(*below, *command, *words)


def ran(*words: object) -> tuple[list[str], str]:
    """Return the lines of a worker that ended well, and what it logged."""
    done = run_taskq("worker", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[TaskQ]:
    queue = TaskQ(tmp_path / "data")
    yield queue
    queue.close_sync()


def put(queue: TaskQ, name: str, **arguments: object) -> str:
    return queue.enqueue_by_name_sync(f"jobs.{name}", **arguments).id


def look(queue: TaskQ, job_id: str) -> tuple[State, int]:
    job = queue.job(job_id).view_sync()
    return job.state, job.attempt


@pytest.mark.usefixtures("start")
def test_a_burst_prints_a_banner_and_a_line_for_each_job_then_ends(queue: TaskQ) -> None:
    added = put(queue, "add", a=1, b=2)
    failed = queue.enqueue_sync(queue.call_by_name("jobs.fail").options(attempts=2)).id
    lines, errors = ran("jobs:app", "--burst")
    assert errors == ""
    ready = next(n for n, line in enumerate(lines) if line.strip().startswith("ready"))
    assert ready < 8
    jobs = lines[ready + 1 :]
    assert sum(f"✓ jobs.add  {added}" in line for line in jobs) == 1
    assert sum(f"↻ jobs.fail  {failed}" in line for line in jobs) == 1
    assert sum("✗" in line and "attempt 2/2  ValueError: no way" in line for line in jobs) == 1
    assert "\x1b" not in "".join(lines)
    assert look(queue, added)[0] is State.SUCCEEDED


@pytest.mark.usefixtures("start")
def test_quiet_prints_no_job_lines_and_honours_queues_and_directory(tmp_path: Path) -> None:
    queue = TaskQ(tmp_path / "other")
    call = queue.call_by_name("jobs.add", a=1, b=2)
    taken = queue.enqueue_sync(call.options(queue="mail")).id
    left = queue.enqueue_sync(call.options(queue="else")).id
    queue.enqueue_sync(queue.call_by_name("jobs.leaves").options(queue="mail"))
    lines, errors = ran("jobs", "-q", "--burst", "-Q", "mail,more", "-Q", "third", "-d", "other")
    assert any("mail, more, third" in line for line in lines)
    assert any(str(tmp_path / "other") in line for line in lines)
    assert not any("✓" in line for line in lines)
    assert look(queue, taken)[0] is State.SUCCEEDED
    assert look(queue, left)[0] is State.READY
    assert "SystemExit raised in a task of a job: ignored" in errors
    queue.close_sync()


@pytest.mark.parametrize(("number", "below"), [
    (signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGHUP, ()), (signal.SIGTERM, ("nohup",)),
])  # fmt: skip
def test_a_first_signal_lets_the_running_job_finish(
    start: Callable[..., Child], queue: TaskQ, tmp_path: Path, number: signal.Signals,
    below: tuple[str, ...],
) -> None:  # fmt: skip
    """Below nohup the end of a terminal is none."""
    job = put(queue, "gate")
    with start(below=below) as worker:
        worker.expect("HERE")
        worker.send(signal.SIGTSTP)
        eventually(lambda: worker.state() == "T")
        worker.send(signal.SIGCONT)
        if below:
            worker.send(signal.SIGHUP)
        worker.send(number)
        worker.expect("draining: 1 running job gets 10 s to finish; once more cancels")
        assert worker.expect(f"  jobs.gate  {job}  running for ")
        if number == signal.SIGHUP:  # shell and kernel send it
            worker.send(number)
        (tmp_path / "gate").write_text("go on\n")
        *_, last = worker.rest()
        assert worker.wait() == 0
    assert re.fullmatch(r"stopped after .*, drained in .*: 1 job succeeded", last)
    assert look(queue, job)[0] is State.SUCCEEDED


@pytest.mark.parametrize("seconds", ["1000", "0.1"])
def test_a_job_that_outlasts_the_drain_or_a_second_signal_is_given_back_unburnt(
    start: Callable[..., Child], queue: TaskQ, seconds: str
) -> None:
    job = put(queue, "gate")
    with start("--drain-timeout", seconds) as worker:
        worker.expect("HERE")
        worker.send(signal.SIGTERM)
        if seconds == "1000":
            worker.expect("draining")
            worker.send(signal.SIGTERM)
        else:
            worker.expect("0.1 s are over: 1 running job cancelled and given back")
            assert worker.line().startswith(f"  jobs.gate  {job}  running for ")
        assert worker.rest()[-1].endswith(": 1 job given back")
        assert worker.wait() == 0
    assert look(queue, job) == (State.READY, 0)


def test_a_third_signal_ends_a_process_whose_loop_is_stuck(
    start: Callable[..., Child], queue: TaskQ
) -> None:
    put(queue, "blocks")
    with start() as worker:
        worker.expect("HERE")

        def is_gone() -> bool:
            worker.send(signal.SIGTERM)
            return worker.process.poll() is not None

        eventually(is_gone)
        assert worker.wait() == 128 + signal.SIGTERM


LOGS = """
import asyncio, logging, threading
from taskq import TaskQ, current_job
app = TaskQ("data")
log = logging.getLogger("shop")

@app.task
async def loop() -> None:
    log.info("here")
    await asyncio.create_task(asyncio.to_thread(log.info, "in a thread of its own"))

@app.task
def thread() -> None:
    log.info("here")

@app.task(runs_in="process")
def process() -> None:
    log.info("here")
    log.debug("never")
    log.info(f"{current_job().id} names itself")
"""


def test_each_line_that_a_job_logs_has_its_id_wherever_it_runs(
    queue: TaskQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs.py").write_text(LOGS)
    monkeypatch.setenv("TASKQ_LOG_LEVEL", "info")
    ids = [queue.enqueue_by_name_sync(f"logs.{n}").id for n in ("loop", "thread", "process")]
    _, errors = ran("logs", "--burst")
    # On a slow machine a line may warn of the event loop.
    lines = [line for line in errors.splitlines() if "the event loop st" not in line]
    assert sorted(lines) == sorted(
        [
            f"taskq: INFO: job {ids[0]} (logs.loop, attempt 1): here",
            f"taskq: INFO: job {ids[1]} (logs.thread, attempt 1): here",
            f"taskq: INFO: job {ids[2]} (logs.process, attempt 1): here",
            f"taskq: INFO: job {ids[0]} (logs.loop, attempt 1): in a thread of its own",
            f"taskq: INFO: {ids[2]} names itself",
        ]
    )


PRINTS = """
import logging
from taskq import TaskQ
app = TaskQ("data")

@app.task
async def loop() -> None:
    print("a line", "and a half", end="")
    logging.getLogger("shop").warning("between", extra={"order": 7})

@app.task(runs_in="process", keep_log="1KB", retry=1)
def process() -> None:
    print("one\\ntwo")
    raise ValueError("no")
"""


def test_lines_are_documents_and_prints_are_among_them_if_asked(
    queue: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    options = ("--burst", "-c", "1", "--log-format", "json", "--log-prints")
    ids = [queue.enqueue_by_name_sync(f"prints.{n}").id for n in ("loop", "process")]
    _, errors = ran("prints", *options, "--max-jobs", "2")
    values = [json.loads(line) for line in errors.splitlines()]
    assert all(datetime.fromisoformat(line.pop("time")).tzinfo for line in values)
    first = {"job": ids[0], "task": "prints.loop", "attempt": 1}
    other = {"job": ids[1], "task": "prints.process", "attempt": 1}
    printed = {"level": "info", "logger": "taskq.print"}
    between = {"level": "warning", "logger": "shop", "message": "between", "order": 7}
    assert [line for line in values if line["logger"] != "taskq.worker"] == [
        first | between,
        first | printed | {"message": "a line and a half"},
        other | printed | {"message": "one"},
        other | printed | {"message": "two"},
    ]
    kept = [line.split(" ", 2)[2] for line in _lines(queue, ids[1]).splitlines()]
    assert kept == ["INFO taskq.print: one", "INFO taskq.print: two"]


def test_the_default_level_prints_warnings_and_keeps_all_lines(
    queue: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "kept.py").write_text(
        LOGS.replace(
            "@app.task\ndef thread() -> None:\n",
            '@app.task(keep_log="1KB")\ndef thread() -> None:\n    log.warning("look out")\n',
        )
    )
    job = queue.enqueue_by_name_sync("kept.thread").id
    _, errors = ran("kept", "--burst")
    assert "look out" in errors
    assert "here" not in errors
    assert _lines(queue, job).endswith(" INFO shop: here")


def _lines(queue: TaskQ, job_id: str) -> str:
    with LogReader.open(str(queue.data_dir)) as reader:
        view = reader.job(reader.parse_id(job_id))
    assert view is not None
    (attempt,) = view.attempts
    return attempt.lines


def test_what_is_wrong_for_all_of_several_processes_is_said_once() -> None:
    guard = run_taskq("worker", "jobz", "--processes", 2)
    assert guard.returncode == 2
    assert guard.stderr.startswith("taskq: there is no module 'jobz'")
    assert guard.stderr.count("taskq: ") == 1


@pytest.mark.usefixtures("start")
def test_the_banner_of_several_processes_says_what_that_of_one_says(
    queue: TaskQ, tmp_path: Path
) -> None:
    put(queue, "add", a=1, b=2)
    lines, _ = ran("jobs", "--processes", 2, "--burst", "-Q", "default,mail")
    assert re.fullmatch(
        r"taskq .* guard, process \d+: 2 worker processes, 8 jobs at a time in each; Ctrl-C drains",
        lines[0],
    )
    for row in (
        f"  directory   {tmp_path / 'data'}",
        "  durability  fsync",
        "  recovered   0 in-flight jobs of processes that died",
        "  queues      default, mail",
        f"  plain jobs  {native.label()}",
    ):
        assert lines.count(row) == 1
    assert sum(line.startswith("  tasks       jobs.add, ") for line in lines) == 1
    stops = [line for line in lines if re.match(r"process \d+ stopped after ", line)]
    assert len(stops) == 2
    assert sum(line.endswith(": 1 job succeeded") for line in stops) == 1
    assert lines[-1].startswith("guard stopped after ")


TOLD: list[str] = []


def teller(app: TaskQ) -> None:
    TOLD.append("taken up")

    @app.middleware
    async def around(job: JobContext) -> AsyncIterator[None]:
        TOLD.append(f"begins {job.task}")
        yield
        TOLD.append(f"ends {job.task}")

    @app.on_dead
    def died(letter: DeadLetter) -> None:
        TOLD.append(f"died {letter.task}")


def broken(app: TaskQ) -> None:
    raise RuntimeError(f"no place for {app!r}")


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    points = [
        EntryPoint(name, f"{__name__}:{name}", "taskq.plugins") for name in ("teller", "broken")
    ]

    def entry_points(*, group: str) -> Iterable[EntryPoint]:
        return points if group == "taskq.plugins" else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


@pytest.mark.usefixtures("_installed")
async def test_a_plugin_is_taken_up_once_though_another_fails_and_hangs_its_hooks_on_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TASKQ_PLUGINS", "broken, teller")
    async with TaskQ(tmp_path / "data", durability="os") as app:

        @app.task(name="send", retry=1)
        async def send(name: str) -> None:
            if name == "nobody":
                raise ValueError(name)

        assert TOLD == [], "who only enqueues has no use for it"
        jobs = [await send.enqueue("ada"), await send.enqueue("nobody")]
        for _ in range(2):
            await app.worker(concurrency=1, burst=True).run()
        assert [(await job.status()).name for job in jobs] == ["SUCCEEDED", "DEAD"]
    assert TOLD == ["taken up", "begins send", "ends send", "begins send", "died send"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage() == "the plugin broken failed; the worker goes on without it"
    assert record.exc_info is not None


@pytest.mark.usefixtures("_installed")
async def test_a_missing_plugin_is_reported_before_any_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_PLUGINS", "sentri")
    async with TaskQ(tmp_path / "data", durability="os") as app:
        with pytest.raises(UsageError, match="no plugin 'sentri'; known are: broken, teller"):
            await app.worker().start()
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
        with pytest.raises(UsageError, match="known are: none: install the package that brings"):
            await app.worker().start()


numbers = itertools.count()

SHOP = """
from taskq import Inject, TaskQ, injected
app = TaskQ("data")

@app.task(name="shop.send")
async def send(to: str) -> int:
    return 1
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, own_settings: None) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def check(*words: object) -> tuple[int, dict[str, tuple[bool, str]]]:
    result = CliRunner().invoke(main, ["check", *map(str, words), "--json"])
    assert result.stdout, result.output
    answer = json.loads(result.stdout)
    assert answer["ok"] is (result.exit_code == 0)
    return result.exit_code, {
        line["name"]: (line["ok"], line["detail"]) for line in answer["checks"]
    }


def module(text: str) -> str:
    name = f"checked_{next(numbers)}"
    Path(f"{name}.py").write_text(text)
    return f"{name}:app"


@pytest.mark.usefixtures("here")
def test_check_reports_every_passed_item_and_creates_nothing(tmp_path: Path) -> None:
    code, result = check(module(SHOP))
    assert code == 0
    assert list(result) == [
        *("versions", "app", "tasks", "schedules", "jobs", "settings", "directory", "clock")
    ]
    assert result["tasks"] == (True, "1 task")
    assert not (tmp_path / "data").exists()
    text = CliRunner().invoke(main, ["check"])
    assert text.exit_code == 0
    assert text.output.startswith("ok      versions")


UNNAMED = """
@app.task
async def unnamed(n: "Nowhere") -> None: ...
"""
LENT = """
class Database: ...

@app.task
async def lent(db: Inject[Database] = injected()) -> None: ...
"""
TICK = """
@app.every("1h")
async def tick(n: int) -> None: ...
"""
#: A module, the check that fails, and what it says.
WRONG = {
    "import nowhere_at_all": ("app", "nowhere_at_all"),
    SHOP + UNNAMED: ("tasks", "Nowhere"),
    SHOP + LENT: ("tasks", "lent takes db from a lifespan, and the app has none"),
    SHOP + TICK: ("schedules", "the schedule"),
    SHOP.partition("@app")[0]: ("tasks", ""),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("text", WRONG)
def test_check_reports_a_failed_item_among_the_others(text: str) -> None:
    name, words = WRONG[text]
    code, result = check(module(text))
    assert code == 1
    assert [key for key, (is_well, _) in result.items() if not is_well] == [name]
    assert words in result[name][1]


@pytest.mark.usefixtures("here")
def test_waiting_jobs_are_counted_and_their_arguments_tried() -> None:
    with TaskQ("data") as app:
        app.enqueue_by_name_sync("shop.send", to="a@b.c")
        _, known = check(module(SHOP))
        app.enqueue_sync(app.call_by_name("shop.send", number=7).options(delay="1h"))
        app.enqueue_sync(app.call_by_name("shop.gone").options(queue="old"))
        app.pause_sync("old")
        code, result = check(module(SHOP))
    assert known["jobs"] == (
        True,
        "1 waits, all for tasks that are known; the arguments of 1 were tried",
    )
    assert code == 1
    detail = result["jobs"][1]
    assert "1 job waits that no worker knows: shop.gone (1)" in detail
    assert "1 of the 2 that were tried do not fit shop.send, such as " in detail
    assert "number" in detail


@pytest.mark.usefixtures("here")
def test_check_reports_a_directory_that_is_not_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    with TaskQ("data") as app:
        app.store()
    assert check("-d", "data")[0] == 0
    # The user of the tests may have every permission.
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    code, result = check("-d", "data")
    assert (code, result["directory"][0]) == (1, False)


@pytest.mark.usefixtures("here")
def test_check_reports_a_clock_earlier_than_the_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskQ(tmp_path / "data") as app:
        app.enqueue_by_name_sync("shop.send", "a@b.c")
    now_ns = SystemClock().wall_ns()
    for moment_ns, item in ((now_ns - 7200 * 10**9, "2h before the log"), (5, "1970-01-01")):
        monkeypatch.setattr(SystemClock, "wall_ns", lambda _, ns=moment_ns: ns)
        (clock,) = [
            item for item in check_start(tmp_path / "data", LogConfig()) if item.name == "clock"
        ]
        assert not clock.ok
        assert item in clock.detail


Labels = tuple[tuple[str, Any], ...]


class Meters:
    """The current export: name -> labels -> number, or (count, sum) of a histogram."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def told(self) -> dict[str, dict[Labels, Any]]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: {
                tuple(sorted((point.attributes or {}).items())): getattr(point, "value", None)
                if hasattr(point, "value")
                else (point.count, point.sum)
                for point in metric.data.data_points
            }
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meters]:
    for name, value in (("meter", None), ("is_on", False), ("_is_meter_chosen", False)):
        monkeypatch.setattr(tracing, name, value)
    meters = Meters()
    telemetry.measure(meters.provider)
    yield meters
    meters.provider.shutdown()


def labels(operation: str, **more: Any) -> Labels:
    seen = {
        "messaging.system": "taskq",
        "messaging.operation.name": operation,
        "messaging.destination.name": "mail",
        "taskq.task": "work",
        **{name.replace("_", ".", 1): value for name, value in more.items()},
    }
    if operation == "send":
        seen["messaging.operation.type"] = "send"
    return tuple(sorted(seen.items()))


async def test_worker_counts_match_the_attempts(app: TaskQ, meters: Meters) -> None:
    ended: list[JobFinished] = []

    @app.task(name="work", queue="mail", retry=retry.fixed(2, 0))
    async def work(number: int) -> None:
        if number == 3:
            raise ValueError("three")

    async with app:
        await work.enqueue(0)
        await app.worker(burst=True, on_event=ended.append).run()
        await work.enqueue_many([(number,) for number in range(1, 5)])
        # Workers of a process share the instruments.
        await app.worker(burst=True, on_event=ended.append).run()
        answer = meters.told()
        stats = await app.stats()
    assert answer["messaging.client.sent.messages"] == {labels("send"): 5}
    assert answer["messaging.client.consumed.messages"] == {labels("process"): len(ended)}
    assert answer["messaging.client.operation.duration"][labels("send")][0] == 2
    for outcome, more in (
        ("succeeded", {}),
        ("retried", {"error_type": "ValueError"}),
        ("dead", {"error_type": "ValueError"}),
    ):
        count, seconds = answer["messaging.process.duration"][
            labels("process", taskq_outcome=outcome, **more)
        ]
        seen = [end.seconds for end in ended if end.outcome == outcome]
        assert (count, seconds) == (len(seen), pytest.approx(sum(seen)))
    (queue,) = stats.queues
    dead = (("messaging.destination.name", "mail"), ("taskq.state", "dead"))
    assert answer["taskq.queue.jobs"][dead] == queue.dead == 1
    assert stats.engine is not None
    assert 0 < answer["taskq.engine.records"][()] <= stats.engine.records


async def test_an_enqueue_that_fails_is_timed_with_its_error_and_not_counted(
    app: TaskQ, meters: Meters
) -> None:
    @app.task(name="work", queue="mail")
    async def work() -> None: ...

    async with app:
        pass
    with pytest.raises(LogClosed):
        await work.enqueue()
    answer = meters.told()
    failed = labels("send", error_type=f"{LogClosed.__module__}.LogClosed")
    assert answer["messaging.client.operation.duration"][failed][0] == 1
    assert "messaging.client.sent.messages" not in answer
