"""A worker's process says why it waits, survives closed streams, is interrupted silently."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.errors import UsageError
from taskq_workers import pool
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

    monkeypatch.setattr(pool, "SILENCE_SECONDS", 0.0)
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
