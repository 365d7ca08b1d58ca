"""What the README shows runs as it stands there."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskq.cli.main import main as command_line

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
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


async def eval_block(code: Any, names: dict[str, Any]) -> None:
    result = eval(code, names)  # noqa: S307 - it is our own text
    if inspect.isawaitable(result):
        await result


def test_every_command_of_the_readme_is_there() -> None:
    named = set(re.findall(r"`taskq ([a-z]+)", README))
    known = {*command_line.list_commands(None), *entry_points(group="taskq.commands").names}  # type: ignore[arg-type]
    assert named <= known
