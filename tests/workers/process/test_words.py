"""A worker's process says what it waits for, minds no stream, and is interrupted in silence."""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import taskq_workers.command
import taskq_workers.process.plain
from taskq import TaskQ
from taskq.cli.main import main
from taskq.errors import LogError, UsageError
from taskq_workers.process.plain import plain_worker
from taskq_workers.services import draining
from tests.programs import run_python, run_taskq

#: Ends a process where Ctrl-C comes while the command is imported.
INTERRUPTED = """
import os, signal, sys, time
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "taskq.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
sys.meta_path.insert(0, Finder())
import taskq_start
taskq_start.main()
"""


def test_ctrl_c_while_the_command_is_imported_prints_nothing() -> None:
    done = run_python("-c", INTERRUPTED)
    assert (done.returncode, done.stderr, done.stdout) == (-signal.SIGINT, "", "")


def test_ctrl_c_is_an_interruption_whatever_python_makes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt within ``__set_name__`` is a RuntimeError to Python 3.11."""

    def interrupted() -> None:
        raise RuntimeError("Error calling __set_name__ on …") from KeyboardInterrupt()

    monkeypatch.setattr(main, "get_command", lambda *_: click.Command("ls", callback=interrupted))
    assert CliRunner().invoke(main, ["ls"]).exit_code == 130


@pytest.mark.parametrize("broken", ["sys.stdout = None", "sys.stdout.close(); sys.stderr = 3"])
def test_a_task_that_breaks_a_stream_costs_no_worker_its_end(tmp_path: Path, broken: str) -> None:
    (tmp_path / "shop.py").write_text(
        "import sys\nfrom taskq import TaskQ\napp = TaskQ('data')\n"
        f"@app.task\ndef work() -> None:\n    {broken}\n"
    )
    with TaskQ(tmp_path / "data") as app:
        app.enqueue_by_name_sync("shop.work")
    done = run_taskq("worker", "shop:app", "--burst", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


async def test_a_drain_that_takes_a_while_names_the_jobs_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may have pressed Ctrl-C, and sit before a program that does nothing."""
    app = TaskQ(tmp_path / "data", durability="os")
    begun, was_told = asyncio.Event(), asyncio.Event()

    @app.task(name="shop.work")
    async def work() -> None:
        begun.set()
        await was_told.wait()

    class Told(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            was_told.set()

    monkeypatch.setattr(draining, "SILENCE_SECONDS", 0.0)
    handler = Told()
    logging.getLogger("taskq.worker").addHandler(handler)
    try:
        async with app, app.worker(drain_timeout=30):
            job = await work.enqueue()
            await begun.wait()
    finally:
        logging.getLogger("taskq.worker").removeHandler(handler)
    line = "the worker stops; running jobs get 30 s to finish (drain_timeout): shop.work"
    assert caplog.messages == [f"{line} {job.id}"]


def test_levels_are_read_as_python_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKQ_LOG_LEVEL", "INFO")
    assert TaskQ("data").settings.log_level == "info"
    monkeypatch.setenv("TASKQ_LOG_LEVEL", "loud")
    with pytest.raises(UsageError, match=r"(?i)log_level"):
        TaskQ("data")
    monkeypatch.delenv("TASKQ_LOG_LEVEL")
    done = CliRunner().invoke(main, ["worker", "nowhere:app", "--log-level", "INFO"])
    assert "no module 'nowhere'" in done.output


USUAL = [
    "shop:app",
    "shop",
    "shop.jobs:app -q --burst",
    "--quiet shop:app -c 3",
    "-c 2 shop:app --concurrency 12",
    "shop:app -Q mail -Q 'bulk, rare'",
    "shop:app --queues mail,bulk -d data/",
    "shop:app --data-dir '/tmp/a b/../c' -Q mail",
]
FOR_CLICK = [
    *("", "--help", "shop:app -h", "shop:app -c", "shop:app -c 0", "shop:app -c x", "-- shop:app"),
    *("shop:app -c-1", "shop:app -c ²", "shop:app --concurrency=3", "shop:app -qc3", "a:b c:d"),
    *("shop:app -Q ''", "shop:app -Q mail,", "shop:app -Q mail=3", "shop:app -d ''", "''"),
    *("shop:app -d eu -d us", "shop:app --nothing", "shop:app -Q -q", "shop:app --processes 2"),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what workers were asked to do, none of which runs."""
    asked: list[Any] = []

    def note(order_for: Callable[..., Any], *rest: Any) -> None:
        *others, log = rest
        order = order_for(print)
        asked.append((order, *others, log("warning", "text"), log("debug", "json")))

    for module in (taskq_workers.command, taskq_workers.process.plain):
        monkeypatch.setattr(module, "run_one", note)
    return asked


@pytest.mark.parametrize("directory", ["", "there"])
@pytest.mark.parametrize("words", USUAL)
def test_the_usual_words_ask_for_what_click_reads_in_them(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, words: str, directory: str
) -> None:
    monkeypatch.setenv("TASKQ_DATA_DIR", directory)
    plain = plain_worker(shlex.split(words))
    assert plain is not None
    plain()
    done = CliRunner().invoke(main, ["worker", *shlex.split(words)])
    assert not done.exit_code, done.output
    first, second = asked
    assert first == second


@pytest.mark.parametrize("words", FOR_CLICK)
def test_rare_and_wrong_words_are_left_to_click(words: str) -> None:
    assert plain_worker(shlex.split(words)) is None


def test_a_shell_that_completes_words_asks_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TASKQ_COMPLETE", "bash_complete")
    assert plain_worker(["shop:app"]) is None


@pytest.mark.parametrize(
    "raised",
    [
        *(UsageError("no such app"), LogError("it is locked"), KeyboardInterrupt()),
        *(FileNotFoundError(2, "No such file or directory", "data"), BrokenPipeError()),
        *(OSError(28, "No space left on device"), ValueError("a bug"), SystemExit(3)),
    ],
    ids=repr,
)
def test_what_ends_a_worker_is_told_as_click_tells_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException
) -> None:
    def end(*_: Any) -> None:
        raise raised

    for module in (taskq_workers.command, taskq_workers.process.plain):
        monkeypatch.setattr(module, "run_one", end)
    monkeypatch.setattr("taskq.cli.errors.silence", lambda _: None)
    plain = plain_worker(["shop:app"])
    assert plain is not None
    ends = []
    for run in (plain, lambda: main(["worker", "shop:app"], prog_name="taskq")):
        with pytest.raises(BaseException) as end_of_it:  # noqa: PT011 - whatever it is
            run()
        code = getattr(end_of_it.value, "code", None)
        ends.append((type(end_of_it.value), str(end_of_it.value), code, capsys.readouterr()))
    assert ends[0] == ends[1]
