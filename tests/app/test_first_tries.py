"""A user's first guesses are answered with the right code, on one line."""

from __future__ import annotations

import asyncio
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from taskq import TaskQ, chain, telemetry
from taskq.errors import InvalidCall, UsageError
from taskq.testing import assert_enqueued, assert_not_enqueued
from tests.programs import run_python


def send(to: str, count: int = 1) -> int:
    return count


class Mailer:
    """Has its function in a class."""

    def send(self, to: str) -> None: ...

    @classmethod
    def post(cls, to: str) -> None: ...

    @staticmethod
    def fax(to: str) -> None: ...


@pytest.fixture
def task(app: TaskQ) -> Any:
    return app.task(name="mail.send")(send)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"delay": "5m"}, "For the option write send.options(delay=...).enqueue(...)"),
        ({"countdown": 5}, "For the option write send.options(delay=...).enqueue(...)"),
        ({"priority": 9}, "For the option write send.options(priority=...).enqueue(...)"),
        ({"cuont": 2}, "there is no parameter 'cuont' (did you mean 'count'?)"),
    ],
)
def test_an_option_among_the_arguments_is_told_where_it_goes(
    task: Any, arguments: dict[str, Any], line: str
) -> None:
    with pytest.raises(InvalidCall) as refused:
        task.call("a", **arguments)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("delay", "write await send.enqueue(...), or send.enqueue_sync(...) where no event"),
        ("send", "write await send.enqueue(...)"),
        ("apply_async", 'write await send.options(delay="5m").enqueue(...)'),
        ("s", "write send.call(...)"),
    ],
)
def test_what_tasks_have_elsewhere_is_told_with_its_name_here(
    task: Any, name: str, line: str
) -> None:
    for thing in (task, task.options(priority=3)):
        with pytest.raises(AttributeError, match=r"^a task has no ") as refused:
            getattr(thing, name)
        assert line in str(refused.value)
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = thing.nonsense


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


async def test_what_is_no_call_is_told_how_it_is_enqueued(app: TaskQ, task: Any) -> None:
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((task, 1), r"write await app.enqueue\(send.call\(1\)\), or await send.enqueue\(1\)"),
        (("mail.send", 1), r"write await app.enqueue_by_name\('mail.send', 1\)"),
        ((send, 1), "send is no task: decorate it with @app.task"),
        ((task.call("a"), 1), r"give arguments to task.call\(...\)"),
        ((3,), "got 3"),
    ]
    twin: Any = app.enqueue_sync
    for given, line in wrong:
        with pytest.raises(UsageError, match=line):
            await app.enqueue(*given)
        with pytest.raises(UsageError, match="takes one call"):
            await asyncio.to_thread(twin, *given)
        async with app.transaction() as tx:
            with pytest.raises(UsageError, match="takes one call"):
                tx.enqueue(*given)
    assert not (await app.stats()).queues
    await app.close()


def test_a_worker_that_is_run_like_a_coroutine_says_how_it_is_run(app: TaskQ) -> None:
    wrong: Any = app.worker()
    with pytest.raises((ValueError, TypeError), match=r"async with app.worker\(\).*run_worker\(\)"):
        asyncio.run(wrong)
    with pytest.raises(UsageError, match="a worker is not awaited: write"):
        wrong.__await__()
    with pytest.raises(UsageError, match="no option 'concurency': did you mean 'concurrency'"):
        app.worker(concurency=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("max_tries", "retry"), ("attempts", "retry"), ("qeue", "queue")],
)
def test_a_wrong_word_for_an_option_names_the_right_one(app: TaskQ, given: str, meant: str) -> None:
    choices: Any = {given: 3}
    with pytest.raises(UsageError, match=f"@task has no option {given!r}: did you mean {meant!r}"):
        app.task(**choices)(send)
    with pytest.raises(UsageError, match="there is no option 'retry': did you mean 'attempts'"):
        app.task(send).options(retry=3)  # type: ignore[call-arg]


def test_a_misspelt_variable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_ENDPOINT_URL", "x")
    TaskQ(tmp_path)
    monkeypatch.setenv("TASKQ_KEP", "7d")
    with pytest.raises(UsageError, match="TASKQ_KEP, which is no setting: did you mean TASKQ_KEEP"):
        TaskQ(tmp_path)


def test_no_provider_of_spans_is_told() -> None:
    wrong: Any = 3
    with pytest.raises(UsageError, match=r"use\(\) takes a TracerProvider .* not 3"):
        telemetry.use(wrong)


def test_a_concurrency_key_without_a_limit_is_refused(app: TaskQ, task: Any) -> None:
    for options in (task.options, task.call("a").options):
        with pytest.raises(UsageError, match=r"mail.send: concurrency_key is given, but the task"):
            options(concurrency_key="a")
    app.task(name="limited", concurrency=1)(send).call("a").options(concurrency_key="a")


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


# -- what a worker could not run -------------------------------------------------------------------


@dataclass
class Item:
    """A part of an order."""

    name: str
    count: int


@dataclass
class Order:
    """Holds another dataclass."""

    items: list[Item]


class Limited(BaseModel):
    """A model with a rule, which ``model_construct`` passes by."""

    count: int = Field(gt=0)


def ship(order: Order | None = None, limited: Limited | None = None, *more: Item) -> int:
    return 0 if order is None else sum(item.count for item in order.items)


WRONG: Any = "many"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ((Order([Item("a", WRONG)]),), "'order' .*cannot be read .*at .*'items'.*0.*'count'"),
        ((Order([WRONG]),), "'order' .*cannot be read .*at .*'items'"),
        ((None, Limited.model_construct(count=-1)), "'limited' .*cannot be read .*at .*'count'"),
        ((None, None, Item("a", WRONG)), "'.more.0.' .*cannot be read .*at .*'count'"),
    ],
)
def test_a_wrong_value_deep_in_an_argument_is_refused_at_the_call(
    app: TaskQ, given: tuple[Any, ...], place: str
) -> None:
    task = app.task(ship)
    for enqueue in (task.call, task.enqueue_sync, task.options(key="k").call):
        with pytest.raises(InvalidCall, match=place):
            enqueue(*given)
    assert not app.stats_sync().queues
    app.close_sync()


def test_a_right_value_deep_in_an_argument_is_taken(app: TaskQ) -> None:
    task = app.task(ship)
    args, kwargs = task.decode(
        task.call(Order([Item("a", 3)]), Limited(count=1), Item("b", 1)).body
    )
    assert ship(*args, **kwargs) == 3


def test_a_function_that_needs_an_object_is_no_task(app: TaskQ) -> None:
    with pytest.raises(UsageError, match=r"Mailer.send takes self, which no worker.*@staticmethod"):
        app.task(Mailer.send)
    with pytest.raises(UsageError, match=r"Mailer.send is a method of an object"):
        app.task(Mailer().send)
    for fn in (Mailer.post, Mailer.fax):
        assert app.task(fn).call("a").name.endswith(fn.__name__)


# -- the traceback ---------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    "line",
    [
        "await work.enqueue('x')",
        "await work.enqueue(1, delay='5m')",
        "work.delay(1)",
        "work.options(retries=3)",
        "await app.enqueue(work, 1)",
        "work.enqueue_many_sync([1])",
        "TaskQ(sys.argv[1], kep='7d')",
    ],
)
def test_a_wrong_call_that_ends_a_program_shows_the_line_of_it_last(
    tmp_path: Path, line: str
) -> None:
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


def test_on_windows_the_first_import_says_what_to_use() -> None:
    code = "import sys; sys.platform = 'win32'; import taskq"
    done = run_python("-c", code)
    wanted = "ImportError: taskq runs on Linux and macOS; on Windows use WSL2"
    assert done.stderr.splitlines()[-1] == wanted
