"""Cells that are run again and modules that are reloaded, while a worker of the app runs."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskq import State, TaskQ
from taskq.conditions import condition
from taskq.errors import UsageError

SECONDS = 30
_NUMBERS = itertools.count()


class Notebook:
    """Cells as IPython runs them: each compiled under a name of its own, all in one module."""

    def __init__(self, app: TaskQ) -> None:
        self.module = ModuleType("__main__")
        self.names: dict[str, Any] = vars(self.module)
        self.names["app"] = app

    def run(self, cell: str) -> None:
        code = compile(cell, f"<ipython-input-{next(_NUMBERS)}>", "exec")
        exec(code, self.names)  # noqa: S102 - our own text

    async def result(self, name: str = "double", value: int = 2) -> Any:
        job = await self.names[name].enqueue(value)
        return await job.result(timeout=SECONDS)


@pytest.fixture
def notebook(app: TaskQ, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    book = Notebook(app)
    monkeypatch.setitem(sys.modules, "__main__", book.module)
    return book


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Writes the module ``renewed_jobs`` anew and gives it, imported or reloaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Two versions of one second and length would share their compiled form.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # for child processes

    def load(text: str) -> ModuleType:
        (tmp_path / "renewed_jobs.py").write_text(text)
        importlib.invalidate_caches()
        known = sys.modules.get("renewed_jobs")
        return importlib.reload(known) if known else importlib.import_module("renewed_jobs")

    yield load
    sys.modules.pop("renewed_jobs", None)


def cell(body: str, options: str = "") -> str:
    return f"@app.task{options}\nasync def double(value: int) -> int:\n    return {body}\n"


async def test_a_running_worker_takes_the_new_form_of_a_cell_from_its_next_job_on(
    app: TaskQ, notebook: Notebook
) -> None:
    notebook.run(cell("value * 2"))
    async with app, app.worker():
        assert await notebook.result() == 4
        notebook.run("# it has moved\n\n" + cell("value * 20"))
        assert await notebook.result() == 40
        notebook.run(cell("value * 200"))
        assert await notebook.result() == 400


async def test_an_idle_worker_runs_a_task_of_a_cell_that_came_later(
    app: TaskQ, notebook: Notebook
) -> None:
    """It waits for work with the names that it knew, and asks anew."""
    notebook.run(cell("value * 2"))
    async with app, app.worker():
        assert await notebook.result() == 4
        notebook.run(cell("value * 3").replace("double", "triple"))
        assert await notebook.result("triple") == 6


def test_a_worker_on_a_thread_takes_the_new_form_too(app: TaskQ, notebook: Notebook) -> None:
    notebook.run(cell("value * 2"))
    with app, app.worker_thread():
        for factor in range(3):
            notebook.run(cell(f"value * {factor}"))
            job = notebook.names["double"].enqueue_sync(5)
            assert job.result_sync(timeout=SECONDS) == 5 * factor


async def test_a_reloaded_module_replaces_its_tasks_though_lines_have_moved(
    app: TaskQ, write: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "shared", app, raising=False)
    head = f"from {__name__} import shared as app\n"
    module = write(head + cell("value * 2", "(aliases=['twice'])"))
    async with app, app.worker():
        assert await (await module.double.enqueue(2)).result(timeout=SECONDS) == 4
        module = write(head + "\n\n\n" + cell("value + 1"))
        assert await (await module.double.enqueue(2)).result(timeout=SECONDS) == 3
        # Jobs of its earlier name may wait still.
        job = await app.enqueue_by_name("twice", 2)
        assert await job.result(timeout=SECONDS) == 3


async def test_child_processes_import_a_reloaded_module_anew(
    tmp_path: Path, write: Callable[[str], ModuleType]
) -> None:
    (tmp_path / "renewed_app.py").write_text("from taskq import TaskQ\napp = TaskQ('data')\n")
    head = "from renewed_app import app\n"
    text = head + cell("value * 2", "(runs_in='process')")
    module = write(text)
    app = module.app
    app.data_dir = tmp_path / "data"
    try:
        async with app, app.worker(process_limit=1):
            assert await (await module.double.enqueue(2)).result(timeout=SECONDS) == 4
            module = write(text.replace("* 2", "* 7"))
            assert await (await module.double.enqueue(2)).result(timeout=SECONDS) == 14
    finally:
        sys.modules.pop("renewed_app", None)


async def test_what_the_new_form_requires_holds_from_then_on(
    app: TaskQ, notebook: Notebook
) -> None:
    asked = asyncio.Event()

    def is_open() -> bool:
        loop.call_soon_threadsafe(asked.set)
        return False

    loop = asyncio.get_running_loop()
    notebook.names["is_open"] = condition(is_open, name="the shop is open")
    notebook.run(cell("value"))
    async with app, app.worker():
        assert await notebook.result() == 2
        notebook.run(cell("value", "(requires=[is_open])"))
        job = await notebook.names["double"].enqueue(3)
        async with asyncio.timeout(SECONDS):
            await asked.wait()
        assert await job.status() is State.READY
        notebook.run(cell("value"))
        assert await job.result(timeout=SECONDS) == 3


def test_what_stands_twice_in_one_run_of_a_module_is_a_mistake(
    app: TaskQ, write: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "shared", app, raising=False)
    head = f"from {__name__} import shared as app\n"
    with pytest.raises(UsageError, match=r"'renewed_jobs\.double' is taken"):
        write(head + cell("1") + cell("2"))


def test_another_modules_function_never_replaces_a_task(
    app: TaskQ, notebook: Notebook, write: Callable[[str], ModuleType]
) -> None:
    module = write("async def double(value: int) -> int:\n    return 0\n")
    notebook.run(cell("value", "(name='double')"))
    with pytest.raises(UsageError, match=r"'double' is taken by __main__\.double"):
        app.task(name="double")(module.double)


def test_a_cell_that_declares_all_there_is_may_run_again(app: TaskQ, notebook: Notebook) -> None:
    """Schedules of tasks and of calls, hooks, lifespans and breakers: each is there once."""
    text = (
        "@app.every('{n}m')\n"
        + cell("value")
        + "@app.on_dead\ndef tell(letter): ...\n"
        + "app.on_dead(lambda letter: 1)\n"
        + "app.on_dead(lambda letter: 2)\n"
        + "@app.lifespan\nasync def resource():\n    yield {n}\n"
        + "app.schedule('later', double.call(1), every='{n}m')\n"
        + "app.breaker('mail', failures={n}, is_failure=lambda error: True)\n"
    )
    for number in (1, 2, 2):
        notebook.run(text.replace("{n}", str(number)))
    hooks = [hook for hook, _ in app.hooks.deaths]
    assert [hook.__name__ for hook in hooks] == ["tell", "<lambda>", "<lambda>"]
    assert hooks[0] is notebook.names["tell"]
    assert [hook(None) for hook in hooks[1:]] == [1, 2]  # type: ignore[arg-type]
    assert len(app.hooks.lifespans) == 1
    assert {schedule.rule.rule for schedule in app.hooks.schedules.all.values()} == {
        b"every 120000000000"
    }
    assert app.hooks.breakers["mail"].failures == 2
