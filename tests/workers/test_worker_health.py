"""``taskq health``: what scripts and containers ask."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main
from taskq.log.config import LogConfig
from taskq.log.journal.recovery import FAILED_FILE
from taskq.log.upkeep import health
from taskq.log.upkeep.health import check_health


def found(path: Path, config: LogConfig | None = None) -> dict[str, bool]:
    return {check.name: check.ok for check in check_health(path, config)}


def ask(*arguments: object) -> tuple[int, Any]:
    words = ["health", *map(str, arguments), "--json"]
    result = CliRunner().invoke(main, words)
    return result.exit_code, json.loads(result.stdout)


async def test_all_is_well_while_a_worker_claims(app: TaskQ) -> None:
    async with app, app.worker(concurrency=3):
        while not found(app.data_dir)["worker"]:  # noqa: ASYNC110 - a file says so, soon
            await asyncio.sleep(0)
        code, answer = ask("-d", app.data_dir)
        assert code == 0, answer
        assert answer["ok"] is True
        assert all(check["ok"] for check in answer["checks"])
        details = {check["name"]: check["detail"] for check in answer["checks"]}
        assert details["worker"] == "1 worker process, 3 jobs at a time"


async def test_a_process_that_claims_nothing_is_live_and_not_ready(app: TaskQ) -> None:
    async with app:
        assert ask("-d", app.data_dir)[0] == 1
        assert ask("-d", app.data_dir, "--live")[0] == 0
        assert found(app.data_dir)["worker"] is False


def test_nobody_there_is_neither(app: TaskQ) -> None:
    app.store()
    app.close_sync()
    code, answer = ask("-d", app.data_dir, "--live")
    assert code == 1
    assert answer["ok"] is False
    checks = found(app.data_dir)
    expected = {"log": True, "writes": True, "process": False, "worker": False, "jobs": True}
    assert checks == {**expected, "disk": True, "access": True}


async def test_a_failed_write_makes_it_unhealthy(app: TaskQ) -> None:
    async with app, app.worker():
        marker = app.data_dir / FAILED_FILE
        mark(marker)
        assert found(app.data_dir)["writes"] is False
        assert ask("-d", app.data_dir, "--live")[0] == 1
        unmark(marker)


def mark(path: Path) -> None:
    path.write_text("{}")


def unmark(path: Path) -> None:
    path.unlink()


async def test_a_full_disk_is_not_ready_but_live(app: TaskQ) -> None:
    config = LogConfig(min_free_bytes=2**60)
    async with app, app.worker():
        assert found(app.data_dir, config)["disk"] is False


def test_a_directory_that_is_no_log_is_told_and_not_made(tmp_path: Path) -> None:
    code, answer = ask("-d", tmp_path / "nothing")
    assert code == 1
    assert answer["checks"][0]["ok"] is False
    assert not (tmp_path / "nothing").exists()


async def test_a_stopped_process_is_not_live(app: TaskQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "process_state", lambda _: "stopped: python -m taskq")
    async with app, app.worker():
        assert found(app.data_dir)["process"] is False


def opened_elsewhere(path: Path) -> subprocess.Popen[bytes]:
    """Return a process that has the log open until its input ends, and says when."""
    code = (
        "import sys; from taskq import TaskQ; app = TaskQ(sys.argv[1]).open_sync(); "
        "print('open', flush=True); sys.stdin.read(); app.close_sync()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


async def test_a_worker_that_is_stopped_works_on_nothing_though_another_process_runs(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app, app.worker():
        other = opened_elsewhere(app.data_dir)
        with other:
            assert other.stdout is not None
            assert await asyncio.to_thread(other.stdout.readline) == b"open\n"
            assert all(found(app.data_dir).values())
            monkeypatch.setattr(
                health,
                "process_state",
                lambda pid: "stopped" if pid == os.getpid() else "running",
            )
            checks = found(app.data_dir)
            await asyncio.to_thread(other.communicate)
    assert (checks["process"], checks["worker"]) == (True, False)


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


def test_people_get_a_line_for_each_check(app: TaskQ) -> None:
    app.store()
    app.close_sync()
    result = CliRunner().invoke(main, ["health", "-d", str(app.data_dir)])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok      log ")
    assert lines[2].startswith("FAILED  process  no process has the log open; start one with: ")
