from __future__ import annotations

import asyncio
import importlib.util
import pydoc
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import taskq
from taskq import Task, TaskQ, progress, retry
from taskq.app.tasks import TaskChoices
from taskq.core.records import Flag
from taskq.errors import UsageError


def plain(a: int, b: str = "b") -> str:
    """Say b, a times."""
    return b * a


def test_a_task_still_is_its_function(app: TaskQ) -> None:
    task: Any = app.task(plain)
    assert (task(2), task(2, b="c")) == ("bb", "cc")
    assert (task.__name__, task.__doc__) == ("plain", plain.__doc__)
    assert task.__wrapped__ is task.fn is plain
    assert app.task(name="answer")(lambda: 42)() == 42


def test_a_task_without_options_has_the_defaults(app: TaskQ) -> None:
    task = app.task(plain)
    assert (task.name, task.queue, task.timeout) == (f"{__name__}.plain", "default", None)
    assert task.retry == retry.exponential(attempts=5, base=1, cap=300, jitter="full")
    assert (task.spec.queue, task.spec.priority, task.spec.attempts) == ("default", 5, 5)
    assert task.spec.task == task.name
    assert (task.store_result, task.runs_in, task.is_async) == (True, "thread", False)
    assert not task.spec.flags & Flag.DURABLE_CLAIM
    assert app.task(name="3", retry=3)(plain).retry == retry.exponential(attempts=3)
    once = app.task(name="once", retry=retry.never())(plain)
    assert once.spec.flags & Flag.DURABLE_CLAIM, "one attempt implies a durable claim"
    assert not app.data_dir.exists()


def test_options_are_kept_in_the_logs_units(app: TaskQ) -> None:
    task = app.task(
        name="mail.send",
        queue="mail",
        priority=7,
        retry=retry.fixed(attempts=9, delay=2),
        timeout="30s",
        expires="1d",
        delay=timedelta(seconds=2),
        headers={"team": "a"},
        store_result=False,
        durable_claim=True,
        runs_in="thread",
        aliases=["send", "old.send"],
    )(plain)
    assert (task.name, task.queue, task.timeout) == ("mail.send", "mail", 30.0)
    assert (task.spec.queue, task.spec.priority, task.spec.attempts) == ("mail", 7, 9)
    assert task.spec.flags & Flag.DROP_RESULT
    assert task.spec.flags & Flag.DURABLE_CLAIM
    extras = task.call(1).extras
    assert extras is not None
    assert (extras.due_ns, extras.expires_ns) == (2 * 10**9, 86_400 * 10**9)
    assert extras.headers == {"team": "a"}
    assert app.tasks["mail.send"] is app.tasks["send"] is app.tasks["old.send"] is task
    assert task.encode_result("text") is None


def test_a_task_inside_a_function_is_named_after_both(app: TaskQ) -> None:
    @app.task
    def inner() -> None: ...

    assert inner.name == f"{__name__}.test_a_task_inside_a_function_is_named_after_both.inner"


def test_a_module_may_be_loaded_again(app: TaskQ, tmp_path: Path) -> None:
    """A reload defines the same functions at the same lines: the later ones win."""
    path = tmp_path / "again.py"
    path.write_text("def setup(app):\n    @app.task\n    def job(): ...\n    return job\n")
    loaded: list[Task[..., Any]] = []
    for _ in range(2):
        spec = importlib.util.spec_from_file_location("again", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded.append(module.setup(app))
    assert app.tasks["again.setup.job"] is loaded[1]


def test_a_script_names_its_tasks_as_a_worker_imports_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from taskq import TaskQ\napp = TaskQ('d')\n@app.task\ndef job(): ...\n"
    (tmp_path / "jobs.py").write_text(source)
    package = tmp_path / "bazaar"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "jobs.py").write_text(source)
    (package / "__main__.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    as_script = _run_main(tmp_path / "jobs.py")
    assert as_script["job"].name == "jobs.job"
    as_module = runpy.run_module("bazaar.jobs", run_name="__main__", alter_sys=True)
    assert as_module["job"].name == "bazaar.jobs.job"
    as_package = runpy.run_module("bazaar", run_name="__main__", alter_sys=True)
    assert as_package["job"].name == "bazaar.job"


def _run_main(path: Path) -> dict[str, Any]:
    import types  # noqa: PLC0415 - beside the one use

    kept = sys.modules["__main__"]
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    try:
        exec(compile(path.read_text(), str(path), "exec"), main.__dict__)  # noqa: S102 - our script
    finally:
        sys.modules["__main__"] = kept
    return main.__dict__


def test_tasks_without_an_app_share_one_that_the_settings_configure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from taskq.app.app import default_app  # noqa: PLC0415 - beside the one use

    monkeypatch.setenv("TASKQ_DATA_DIR", str(tmp_path / "elsewhere"))
    default_app.cache_clear()
    try:
        first = taskq.task(plain)
        second = taskq.task(name="second", queue="q")(plain)
        assert first.app is second.app is default_app()
        assert first.app.data_dir == tmp_path / "elsewhere"
        assert second.queue == "q"
        assert list(first.app.tasks) == [first.name, "second"]
    finally:
        default_app.cache_clear()


def test_annotations_may_name_what_is_defined_further_down(app: TaskQ) -> None:
    task = app.task(later)
    assert task.call(Later()).body == b'{"value":{"n":1}}'


def later(value: Later) -> None: ...


from dataclasses import dataclass  # noqa: E402 - that it comes later is the point


@dataclass
class Later:
    n: int = 1


def test_a_worker_that_is_not_installed_is_explained(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "taskq_workers", None)
    with pytest.raises(UsageError, match="needs the package taskq_workers"):
        app.worker()


def test_help_of_the_decorator_lists_its_keywords(app: TaskQ) -> None:
    text = pydoc.plain(pydoc.render_doc(app.task))
    for name in (*TaskChoices.__annotations__, "queue", "priority"):
        assert f"{name}: " in text


async def test_stats_print_as_a_table(app: TaskQ) -> None:
    await app.enqueue(app.call_by_name("t").options(queue="mail"))
    first, second = str(await app.stats()).splitlines()
    assert first.split()[:3] == ["queue", "scheduled", "ready"]
    assert second.split()[:3] == ["mail", "0", "1"]
    assert len(first) == len(second)


async def test_progress_is_watched_until_the_job_has_ended(app: TaskQ) -> None:
    seen = asyncio.Event()

    @app.task
    async def work() -> None:
        await progress(0.5, "half of it")
        await seen.wait()

    async with app.worker():
        job = await work.enqueue()
        steps = []
        async for step in job.watch(every=0.01):
            steps.append((step.fraction, step.message))
            seen.set()
    assert steps == [(0.5, "half of it")]
    assert [step async for step in app.job(job.id).watch()] == []
