"""``taskq worker`` as a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner

from taskq import State, TaskQ
from taskq import _native as native
from taskq.cli.main import main
from taskq.log.read.reader import LogReader
from tests.processes.warm import Program

SECONDS = 30

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
def thread() -> None:
    here()
    open("gate").read()

@app.task
async def executor() -> None:
    await asyncio.to_thread(thread)

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


class Process:
    """A running worker whose lines are read as they come."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        words = ["-m", "taskq", "worker", *arguments]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - see close
        self.popen: Program | subprocess.Popen[str]
        if options:
            self.popen = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
                **options,
            )  # fmt: skip
        else:
            self.popen = Program(words, stderr=self._errors.fileno())
        self.lines: list[str] = []

    def until(self, words: str) -> str:
        assert self.popen.stdout is not None
        for line in itertools.chain(list(self.lines), self._new_lines(self.popen.stdout)):
            if words in line:
                return line
        raise AssertionError(f"ended without {words!r}: {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self) -> int:
        assert self.popen.stdout is not None
        self.lines += self.popen.stdout.read().splitlines()
        code = self.popen.wait(SECONDS)
        self._errors.seek(0)
        self.errors = self._errors.read()
        return code

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(SECONDS)
        for file in (self.popen.stdin, self.popen.stdout, self._errors):
            assert file is not None
            file.close()

    def _new_lines(self, stream: IO[str]) -> Iterator[str]:
        for line in stream:
            self.lines.append(line.rstrip("\n"))
            yield self.lines[-1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "jobs.py").write_text(JOBS)
    os.mkfifo(tmp_path / "gate")
    processes = []

    def start_one(*arguments: str, **options: Any) -> Process:
        processes.append(Process(*arguments, **options))
        return processes[-1]

    yield start_one
    for process in processes:
        process.close()


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


def test_a_burst_prints_a_banner_and_a_line_for_each_job_then_ends(
    start: Any, queue: TaskQ
) -> None:
    added = put(queue, "add", a=1, b=2)
    failed = queue.enqueue_sync(queue.call_by_name("jobs.fail").options(attempts=2)).id
    worker = start("jobs:app", "--burst")
    assert worker.end() == 0
    assert worker.errors == ""
    ready = next(n for n, line in enumerate(worker.lines) if line.strip().startswith("ready"))
    assert ready < 8
    jobs = worker.lines[ready + 1 :]
    assert sum(f"✓ jobs.add  {added}" in line for line in jobs) == 1
    assert sum(f"↻ jobs.fail  {failed}" in line for line in jobs) == 1
    assert sum("✗" in line and "attempt 2/2  ValueError: no way" in line for line in jobs) == 1
    assert "\x1b" not in "".join(worker.lines)
    assert look(queue, added)[0] is State.SUCCEEDED


def test_quiet_prints_no_job_lines_and_the_queues_and_directory_are_as_told(
    start: Any, tmp_path: Path
) -> None:
    queue = TaskQ(tmp_path / "other")
    call = queue.call_by_name("jobs.add", a=1, b=2)
    taken = queue.enqueue_sync(call.options(queue="mail")).id
    left = queue.enqueue_sync(call.options(queue="else")).id
    queue.enqueue_sync(queue.call_by_name("jobs.leaves").options(queue="mail"))
    worker = start("jobs", "-q", "--burst", "-Q", "mail,more", "-Q", "third", "-d", "other")
    assert worker.end() == 0
    assert any("mail, more, third" in line for line in worker.lines)
    assert any(str(tmp_path / "other") in line for line in worker.lines)
    assert not any("✓" in line for line in worker.lines)
    assert look(queue, taken)[0] is State.SUCCEEDED
    assert look(queue, left)[0] is State.READY
    assert "SystemExit raised in a task of a job: ignored" in worker.errors
    queue.close_sync()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_lets_the_running_job_finish(
    start: Any, queue: TaskQ, tmp_path: Path, number: int
) -> None:
    job = put(queue, "gate")
    worker = start("jobs:app", start_new_session=True)
    worker.until("HERE")
    worker.signal(signal.SIGTSTP)
    _, status = os.waitpid(worker.popen.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    worker.signal(signal.SIGCONT)
    worker.signal(number)
    worker.until("draining: 1 running job gets 10 s to finish; once more cancels")
    assert worker.until(f"  jobs.gate  {job}  running for ")
    (tmp_path / "gate").write_text("go on\n")
    assert worker.end() == 0
    assert re.fullmatch(r"stopped after .*, drained in .*: 1 job succeeded", worker.lines[-1])
    assert look(queue, job)[0] is State.SUCCEEDED


def test_a_second_signal_cancels_and_releases_without_burning_an_attempt(
    start: Any, queue: TaskQ
) -> None:
    job = put(queue, "gate")
    worker = start("jobs:app", "--drain-timeout", "1000")
    worker.until("HERE")
    worker.signal(signal.SIGTERM)
    worker.until("draining")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert any("given back" in line for line in worker.lines)
    assert worker.lines[-1].endswith(": 1 job given back")
    assert look(queue, job) == (State.READY, 0)


@pytest.mark.parametrize("task", ["thread", "executor"])
def test_a_drain_ends_although_a_thread_does_not(start: Any, queue: TaskQ, task: str) -> None:
    job = put(queue, task)
    worker = start("jobs:app", "--drain-timeout", "0")
    worker.until("HERE")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert "left behind" in worker.errors
    assert look(queue, job) == (State.READY, 0)


def test_a_third_signal_ends_a_process_whose_loop_is_stuck(start: Any, queue: TaskQ) -> None:
    put(queue, "blocks")
    worker = start("jobs:app")
    worker.until("HERE")
    for _ in range(SECONDS * 10):
        worker.signal(signal.SIGTERM)
        try:
            worker.popen.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    assert worker.end() == 128 + signal.SIGTERM


def test_a_killed_workers_job_is_recovered_by_the_next_and_the_banner_says_so(
    start: Any, queue: TaskQ, tmp_path: Path
) -> None:
    job = put(queue, "gate")
    first = start("jobs:app")
    assert first.until("HERE") == "HERE 1"
    first.signal(signal.SIGKILL)
    first.popen.wait(SECONDS)
    second = start("jobs:app", "--burst")
    second.until("1 in-flight job of")
    assert second.until("HERE") == "HERE 2"
    (tmp_path / "gate").write_text("go on\n")
    assert second.end() == 0
    assert look(queue, job) == (State.SUCCEEDED, 2)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("mistyped:ap", "taskq: module 'mistyped' has no 'ap': did you mean mistyped:app?\n"),
        ("mistyped:app --master mistyped.py", "add --executor spark"),
        ("mistyped:app --py-files mistyped.py", "add --executor spark"),
    ],
)
def test_what_is_wrong_is_a_line_on_stderr_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, error: str
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "mistyped.py").write_text(JOBS)
    done = CliRunner().invoke(main, ["worker", *words.split()])
    assert (done.exit_code, done.stdout) == (2, "")
    assert error in done.stderr


def test_a_directory_that_cannot_be_used_is_one_message_and_exit_code_1(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("not a directory")
    worker = start("jobs:app")
    assert worker.end() == 1
    assert worker.errors.startswith("taskq: ")
    assert "Traceback" not in worker.errors


def test_a_job_that_outlasts_the_drain_is_named_and_counted_as_given_back(
    start: Any, queue: TaskQ
) -> None:
    job = put(queue, "gate")
    worker = start("jobs:app", "--drain-timeout", "0.1")
    worker.until("HERE")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    late = worker.lines.index("0.1 s are over: 1 running job cancelled and given back")
    assert worker.lines[late + 1].startswith(f"  jobs.gate  {job}  running for ")
    assert worker.lines[-1].endswith(": 1 job given back")


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
    start: Any, queue: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "logs.py").write_text(LOGS)
    ids = [queue.enqueue_by_name_sync(f"logs.{n}").id for n in ("loop", "thread", "process")]
    worker = start("logs", "--burst", "--log-level", "info")
    assert worker.end() == 0
    assert sorted(worker.errors.splitlines()) == sorted(
        [
            f"taskq: INFO: job {ids[0]} (logs.loop, attempt 1): here",
            f"taskq: INFO: job {ids[1]} (logs.thread, attempt 1): here",
            f"taskq: INFO: job {ids[2]} (logs.process, attempt 1): here",
            f"taskq: INFO: job {ids[0]} (logs.loop, attempt 1): in a thread of its own",
            f"taskq: INFO: {ids[2]} names itself",
        ]
    )


def test_the_level_may_be_a_setting(start: Any, queue: TaskQ, tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text(LOGS)
    job = queue.enqueue_by_name_sync("logs.thread").id
    worker = start("logs", "--burst", env=os.environ | {"TASKQ_LOG_LEVEL": "info"})
    assert worker.end() == 0
    assert worker.errors == f"taskq: INFO: job {job} (logs.thread, attempt 1): here\n"


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
    start: Any, queue: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    options = ("--burst", "-c", "1", "--log-format", "json", "--log-prints")
    ids = [queue.enqueue_by_name_sync(f"prints.{n}").id for n in ("loop", "process")]
    worker = start("prints", *options, "--max-jobs", "2")
    assert worker.end() == 0
    values = [json.loads(line) for line in worker.errors.splitlines()]
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
    assert kept == [
        "INFO taskq.print: one",
        "INFO taskq.print: two",
    ]


def test_without_a_level_warnings_are_told_and_all_is_kept(
    start: Any, queue: TaskQ, tmp_path: Path
) -> None:
    (tmp_path / "kept.py").write_text(
        LOGS.replace("@app.task\ndef thread", '@app.task(keep_log="1KB")\ndef thread')
    )
    job = queue.enqueue_by_name_sync("kept.thread").id
    worker = start("kept", "--burst")
    assert worker.end() == 0
    assert worker.errors == ""
    assert _lines(queue, job).endswith(" INFO shop: here")


def _lines(queue: TaskQ, job_id: str) -> str:
    with LogReader.open(str(queue.data_dir)) as reader:
        view = reader.job(reader.parse_id(job_id))
    assert view is not None
    (attempt,) = view.attempts
    return attempt.lines


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("jobz", "taskq: there is no module 'jobz': did you mean 'jobs'?\n"),
        ("logs:app --max-rss-per-child 5", "taskq: --max-rss-per-child is '5', which is 5 bytes"),
    ],
)
def test_what_is_wrong_for_all_of_several_processes_is_said_once(
    start: Any, module: str, error: str
) -> None:
    guard = start(*module.split(), "--processes", "2")
    assert guard.end() == 2
    assert guard.errors.startswith(error)
    assert guard.errors.count("taskq: ") == 1


def test_an_extra_that_each_process_would_miss_ends_the_guard_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("taskq_plugins.prometheus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    given = ["worker", "shop:app", "--processes", "2", "--metrics-port", "0"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2
    assert re.search(r"pip install .*\[metrics\]", result.output)


def test_the_banner_of_several_processes_says_what_that_of_one_says(
    start: Any, queue: TaskQ, tmp_path: Path
) -> None:
    put(queue, "add", a=1, b=2)
    guard = start("jobs", "--processes", "2", "--burst", "-Q", "default,mail")
    assert guard.end() == 0
    assert re.fullmatch(
        r"taskq .* guard, process \d+: 2 worker processes, 8 jobs at a time in each; Ctrl-C drains",
        guard.lines[0],
    )
    for row in (
        f"  directory   {tmp_path / 'data'}",
        "  durability  fsync",
        "  recovered   0 in-flight jobs of processes that died",
        "  queues      default, mail",
        f"  plain jobs  {native.label()}",
    ):
        assert guard.lines.count(row) == 1
    assert sum(line.startswith("  tasks       jobs.add, ") for line in guard.lines) == 1
    stops = [line for line in guard.lines if re.match(r"process \d+ stopped after ", line)]
    assert len(stops) == 2
    assert sum(line.endswith(": 1 job succeeded") for line in stops) == 1
    assert guard.lines[-1].startswith("guard stopped after ")
