"""What the README shows runs as it stands there."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskq import State, TaskLog, TaskQ
from taskq.cli.main import main as command_line
from taskq.logoptions import LogOptions
from taskq.settings import Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMING_FROM = "Coming from LedgerQ, sej or codeQ"
TOML_BLOCKS = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def mailer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The quickstart as a module, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("mailer")
    monkeypatch.setitem(sys.modules, "mailer", module)
    exec(compile(BLOCKS[0], "mailer.py", "exec"), vars(module))  # noqa: S102 - it is our own text
    return module


def test_the_quickstart_sends_its_mail(tmp_path: Path) -> None:
    """A worker in one process, the program in another, as the README says."""
    (tmp_path / "mailer.py").write_text(BLOCKS[0])
    taskq = [sys.executable, "-m", "taskq"]
    worker = subprocess.Popen([*taskq, "worker", "-q", "mailer:app"], cwd=tmp_path)
    try:
        run = subprocess.run(
            [sys.executable, "mailer.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
    finally:
        worker.terminate()
        assert worker.wait(20) == 0
    job_id, result = run.stdout.split()
    assert result == "5"
    shown = subprocess.run(
        [*taskq, "ls", "-d", "mail-data"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert job_id in shown.stdout


async def test_the_other_lines_of_the_readme_run(mailer: ModuleType) -> None:
    names: dict[str, Any] = {"app": mailer.app, "send": mailer.send}
    code = compile(BLOCKS[1], "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with mailer.app:
        await eval_block(code, names)
        stats = await mailer.app.store().port().stats()
    assert [(queue.ready, queue.scheduled) for queue in stats.queues] == [(3, 1)]


async def test_the_lines_on_dead_letters_run(mailer: ModuleType) -> None:
    (block,) = [block for block in BLOCKS if "app.dead" in block]
    code = compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with mailer.app:
        await mailer.send.enqueue("ada@example.org", subject="x")
        await eval_block(code, {"app": mailer.app})
        (queue,) = (await mailer.app.store().port().stats()).queues
    assert (queue.queue, queue.cancelled, queue.paused) == ("mail", 1, True)


async def test_the_lines_on_streams_run(mailer: ModuleType) -> None:
    """They wait for more at the end, until somebody ends them."""
    (block,) = [block for block in BLOCKS if "app.stream" in block]
    code = compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    billed: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()

    def bill(*record: Any) -> None:
        billed.put_nowait(record)

    async with mailer.app, mailer.app.worker():
        reading = asyncio.create_task(eval_block(code, {"app": mailer.app, "bill": bill}))
        job = await mailer.send.options(attempts=0).enqueue("ada@example.org", subject="hello")
        assert await billed.get() == (job.id, "mailer.send", b"5")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        (reader,) = await mailer.app.readers()
    assert (reader.name, reader.is_alive) == ("billing", False)


async def test_the_lines_on_bytes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in BLOCKS if "TaskLog.open" in block]
    await eval_block(compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
    assert capsys.readouterr().out == f"{State.SUCCEEDED}\n"
    async with TaskLog.open("scans") as log:
        assert [job.queue for job in await log.peek()] == ["index"]


@pytest.mark.parametrize("block", TOML_BLOCKS)
def test_the_settings_that_are_shown_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taskq.toml").write_text(block)
    settings = TaskQ().settings
    assert settings.model_fields_set
    assert settings.queues


async def eval_block(code: Any, names: dict[str, Any]) -> None:
    result = eval(code, names)  # noqa: S307 - it is our own text
    if inspect.isawaitable(result):
        await result


def section(title: str) -> str:
    """The text under a heading."""
    _, _, rest = README.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def test_every_command_is_told_and_each_that_is_told_is_there() -> None:
    known = {*command_line.list_commands(None), *entry_points(group="taskq.commands").names}  # type: ignore[arg-type]
    rows = "".join(line for line in section("Command line").splitlines() if line.startswith("|"))
    assert set(re.findall(r"`taskq ([a-z]+)", rows)) == known
    assert set(re.findall(r"`taskq ([a-z]+)", README)) <= known


def test_every_setting_is_told_and_each_that_is_told_is_there() -> None:
    """A row of the table names one or more; a log takes the same, but for the worker's."""
    rows = [line.split("|")[1] for line in section("Settings").splitlines() if line[:3] == "| `"]
    told = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert told == set(Settings.model_fields)
    assert told - {"data_dir", "log_level"} == set(LogOptions.__annotations__)


def test_every_test_that_is_named_is_there() -> None:
    """In the table for those who come from other systems: its name links to its file."""
    named = re.findall(r"\[([^\]]+)\]\((tests/[^)]+)\)", section(COMING_FROM))
    assert len(named) > 60
    for title, path in named:
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert f"test_{title.replace(' ', '_')}" in functions, f"{path} has no test of that name"


def test_each_line_of_what_others_do_names_a_test_or_says_that_it_is_to_come() -> None:
    rows = [line for line in section(COMING_FROM).splitlines() if line.startswith("|")]
    for row in rows:
        is_heading = row.endswith("| here | held by |") or set(row) <= set("|-")
        assert is_heading or "](tests/" in row or "not yet" in row, row


def test_what_holds_the_promises_is_there() -> None:
    """A bare file name stands in any folder of the tests."""
    names = re.findall(
        r"`(?:tests/)?([\w/]*test_\w+\.py)`", section("Promises and what holds them")
    )
    assert len(names) > 40
    for name in names:
        assert list((ROOT / "tests").rglob(name)), f"there is no tests/**/{name}"
