"""Tasks: what a declaration makes of a function, and answers to words of other libraries."""

from __future__ import annotations

import asyncio
import os
import pickle
import pydoc
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import taskq
from taskq import TaskQ, chain, current_job, progress
from taskq.app.tasks import TaskChoices
from taskq.calls import habits
from taskq.calls.call import OptionChanges
from taskq.core.records import Flag
from taskq.errors import InvalidCall, UsageError
from taskq.testing import Sandbox, assert_enqueued, assert_not_enqueued
from tests.programs import run_python


def plain(a: int, b: str = "b") -> str:
    """Say b, a times."""
    return b * a


def test_a_task_still_is_its_function(app: TaskQ) -> None:
    task: Any = app.task(plain)
    assert (task(2), task(2, b="c")) == ("bb", "cc")
    assert (task.__name__, task.__doc__) == ("plain", plain.__doc__)
    assert task.__wrapped__ is task.fn is plain
    assert app.task(name="answer")(lambda: 42)() == 42


def test_a_claim_is_durable_if_that_is_asked_for_or_with_one_attempt(app: TaskQ) -> None:
    given: list[dict[str, Any]] = [{"durable_claim": True}, {"retry": 1}, {}]
    for number, options in enumerate(given):
        task: Any = app.task(name=f"{number}", **options)(plain)
        assert bool(task.spec.flags & Flag.DURABLE_CLAIM) is bool(options)


def test_a_task_inside_a_function_is_named_after_both(app: TaskQ) -> None:
    @app.task
    def inner() -> None: ...

    assert inner.name == f"{__name__}.test_a_task_inside_a_function_is_named_after_both.inner"


def test_a_script_names_tasks_as_a_worker_imports_them(
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
    as_script = runpy.run_path(str(tmp_path / "jobs.py"), run_name="__main__")
    assert as_script["job"].name == "jobs.job"
    as_module = runpy.run_module("bazaar.jobs", run_name="__main__", alter_sys=True)
    assert as_module["job"].name == "bazaar.jobs.job"
    as_package = runpy.run_module("bazaar", run_name="__main__", alter_sys=True)
    assert as_package["job"].name == "bazaar.job"


def test_tasks_without_an_app_share_the_app_of_the_settings(
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
    assert task.call(Later(n=1)).body == b'{"value":{"n":1}}'


def later(value: Later) -> None: ...


class Later(BaseModel):
    n: int = 1


def test_a_worker_not_installed_is_explained(app: TaskQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "taskq_workers", None)
    with pytest.raises(UsageError, match="needs the package taskq_workers"):
        app.worker()


def test_help_of_the_decorator_lists_its_keywords(app: TaskQ) -> None:
    text = pydoc.plain(pydoc.render_doc(app.task))
    for name in (*TaskChoices.__annotations__, "queue", "priority"):
        assert f"{name}: " in text


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


def send(to: str, count: int = 1) -> int:
    return count


@pytest.fixture
def task(app: TaskQ) -> Any:
    return app.task(name="mail.send")(send)


def test_what_is_not_there_is_the_same_error_in_another_process(task: Any) -> None:
    with pytest.raises(AttributeError) as refused:
        task.delay(1)
    assert refused.typename == "AttributeError"
    error = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - our own
    assert (type(error), str(error)) == (AttributeError, str(refused.value))


async def test_a_job_is_awaited_for_its_result(app: TaskQ, task: Any) -> None:
    async with app, app.worker():
        job = await task.enqueue("a", 3)
        assert await job == 3
        assert list(await asyncio.gather(job, await task.enqueue("b"))) == [3, 1]
        flow = await chain(task.call("a"), app.task(name="up")(abs_of).step()).enqueue()
        assert await flow == 1


def abs_of(number: int) -> int:
    return abs(number)


def test_an_assertion_about_a_task_that_nobody_knows_is_refused(app: TaskQ, task: Any) -> None:
    for check in (assert_enqueued, assert_not_enqueued):
        with pytest.raises(UsageError, match=r"no task 'mail.sned'.*did you mean 'mail.send'"):
            check("mail.sned", taskq_app=app)
        with pytest.raises(UsageError, match=r"\): there are no tasks$"):
            check("mail.send", taskq_app=TaskQ(app.data_dir.with_name("bare"), durability="os"))
    assert_not_enqueued("mail.send", taskq_app=app)
    with app:
        app.enqueue_by_name_sync("others.task", 1)
        assert_enqueued("others.task", 1, taskq_app=app)


SCRIPT = """
import sys
from taskq import TaskQ
app = TaskQ(sys.argv[1])
@app.task
async def work(n: int) -> int:
    return n
async def main() -> None:
    {line}
import asyncio
asyncio.run(main())
"""


@pytest.mark.parametrize("line", [
    "await work.enqueue('x')", "work.delay(1)", "await app.enqueue(work, 1)",
    "TaskQ(sys.argv[1], kep='7d')",
])  # fmt: skip
def test_the_line_of_a_wrong_call_is_last_in_its_traceback(tmp_path: Path, line: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(line=line))
    done = run_python(script, tmp_path / "data", env={**os.environ, "PYTHON_COLORS": "0"})
    assert done.returncode == 1
    lines = [shown for shown in done.stderr.splitlines() if set(shown.strip()) - set("^~")]
    assert lines[-1].startswith("AttributeError:" if ".delay" in line else "taskq."), done.stderr
    assert lines[-2].strip() == line, done.stderr
    assert "/taskq/" not in "".join(shown for shown in lines if shown.lstrip().startswith("File"))
    assert "direct cause" not in done.stderr
    assert "During handling" not in done.stderr


# -- habits ----------------------------------------------------------------------------------------


def mail(to: str) -> None: ...


def test_what_every_table_advises_exists_here() -> None:
    known = {*TaskChoices.__annotations__, *OptionChanges.__annotations__, "give_up_on"}
    worker = {"concurrency", "max_jobs_per_child", "max_rss_per_child"}
    for words, _ in habits.OPTIONS.values():
        assert {*words} <= known | worker


async def test_names_of_other_task_queues_raise_with_what_to_write(app: TaskQ) -> None:
    task, contexts = app.task(name="mail.send")(mail), list[object]()

    @app.task(name="ask")
    async def ask() -> None:
        contexts.append(current_job())

    async with Sandbox(app) as box:
        await ask.enqueue()
        await box.drain()
    tables = [
        (app, habits.APPS), (task, habits.TASKS), (app.job("a-1"), habits.JOBS),
        (task.call("a"), habits.CALLS), (task.step(), habits.STEPS),
        (contexts[0], habits.CONTEXTS),
    ]  # fmt: skip
    for thing, table in tables:
        for name in table:
            with pytest.raises(AttributeError, match=f"has no '{name}': write "):
                getattr(thing, name)
    assert not {*habits.IMPORTS} & {*taskq.__all__}


def test_a_ctx_parameter_as_in_arq_is_refused_with_advice(app: TaskQ) -> None:
    def download(ctx: Any, url: str) -> None: ...

    with pytest.raises(InvalidCall, match=r"'url' .*missing.*current_job\(\)") as refused:
        app.task(name="download")(download).call("https://a.example")  # type: ignore[call-arg]
    assert "\n" not in str(refused.value)


def test_a_keyword_may_have_the_name_of_a_methods_own_parameter(app: TaskQ) -> None:
    @app.task(name="total")
    def total(**counts: int) -> int:
        return sum(counts.values())

    counts = {"self": 1, "args": 2, "kwargs": 4}
    assert total(**counts) == 7
    assert total.call(**counts).body == b'{"**":{"self":1,"args":2,"kwargs":4}}'
    assert total.enqueue_sync(**counts).id
