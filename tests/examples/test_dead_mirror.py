"""The example plugin: it mirrors dead letters, each once, and takes nothing past the doors."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from examples.dead_mirror import mirror as example
from taskq import TaskLog, TaskQ, retry

DOORS = {"taskq", "taskq.engine", "taskq.errors", "taskq.views"}


def test_it_imports_nothing_but_the_doors() -> None:
    tree = ast.parse(Path(example.__file__).read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == DOORS


async def mirrored(path: Path) -> list[dict[str, Any]]:
    async with await TaskLog.open(path) as log:
        views = await log.peek(queue=example.QUEUE)
    return [json.loads(view.payload) for view in views]


async def test_each_letter_is_mirrored_once_also_one_that_nobody_told(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "jobs")

    @app.task(name="mail.send", retry=retry.exponential(attempts=1))
    async def send(to: str) -> None:
        raise ValueError(f"no such address: {to}")

    async def run() -> None:
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()

    async with app:
        first = await send.enqueue("a@b.c")
        await run()
        example.mirror(app)
        second = await send.enqueue("d@e.f")
        await run()
        assert len(await mirrored(tmp_path / "jobs-dead")) == 2
        await run()  # which finds both again
    letters = await mirrored(tmp_path / "jobs-dead")
    assert [letter["job"] for letter in letters] == [first.id, second.id]
    assert {letter["task"] for letter in letters} == {"mail.send"}
    assert [letter["message"] for letter in letters] == [
        "no such address: a@b.c", "no such address: d@e.f",
    ]  # fmt: skip
    assert letters[0]["error"] == "ValueError"
    assert json.loads(letters[0]["payload"]) == {"to": "a@b.c"}
