"""Under trio and eventlet the first use says what to do: their loops and threads are not ours."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from taskq import TaskLog, TaskQ, chain
from taskq.connection.connection import end_at_caller
from taskq.core.rates import rate_of
from taskq.errors import UsageError
from tests.programs import run_python


async def send(to: str) -> str:
    return to


@pytest.fixture
def app(tmp_path: Path) -> TaskQ:
    app = TaskQ(tmp_path / "data", durability="os")
    app.task(name="mail.send")(send)
    return app


def task_of(app: TaskQ) -> Any:
    return app.tasks["mail.send"]


def call(app: TaskQ) -> Any:
    return task_of(app).call("a")


CALLS: list[Callable[[TaskQ], Coroutine[Any, Any, Any]]] = [
    lambda app: app.open(),
    lambda app: task_of(app).enqueue("a"),
    lambda app: app.enqueue_many([call(app)]),
    lambda app: app.enqueue_by_name("mail.send", "a"),
    lambda app: chain(call(app), task_of(app).step()).enqueue(),
    lambda app: app.job(1).result(),
    lambda app: app.job(1).status(),
    lambda app: app.stats(),
    lambda app: app.dead.list(),
    lambda app: app.pause("mail"),
    lambda app: TaskLog.open(app.data_dir).__aenter__(),
]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("ask", CALLS)
def test_a_loop_that_is_not_asyncios_is_told_what_to_use(
    app: TaskQ, ask: Callable[[TaskQ], Coroutine[Any, Any, Any]], is_open: bool
) -> None:
    if is_open:
        task_of(app).enqueue_sync("a")
    try:
        with pytest.raises(UsageError, match="none runs here: under trio use") as refused:
            ask(app).send(None)
    finally:
        app.close_sync()
    assert "\n" not in str(refused.value)


def test_threads_of_eventlet_are_refused_before_anything_hangs(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {"thread"}
    patcher: Any = types.ModuleType("eventlet.patcher")
    patcher.is_monkey_patched = replaced.__contains__
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    line = r"call eventlet.monkey_patch\(thread=False, select=False\)"
    for name in ("thread", "select"):
        replaced.clear()
        replaced.add(name)
        with pytest.raises(UsageError, match=line):
            app.open_sync()
        with pytest.raises(UsageError, match=line):
            asyncio.run(app.stats())
    replaced.clear()
    replaced.add("socket")
    with app:
        assert not app.stats_sync().queues


SCRIPT = """
import asyncio, logging, os, sys
from taskq import State, TaskQ

# In development mode asyncio warns of each turn over 0.1 s: that tells how busy the machine is.
logging.getLogger("asyncio").setLevel(logging.ERROR)

app = TaskQ(sys.argv[1])

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

async def look(job):
    return await app.job(job.id).status()

before = add.enqueue_sync(1)
assert app.dead.count_sync() == 0  # so that the loop for blocking calls runs, too
pids = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = add.enqueue_sync(10 + n)
            also = asyncio.run(add.enqueue_many([(20 + n,)]))[0]
            assert asyncio.run(look(before)) is State.READY
            assert mine.status_sync() is also.status_sync() is State.READY
            assert app.dead.count_sync() == 0
            assert mine.lsn != also.lsn != before.lsn
            app.close_sync()
            code = 0
        finally:
            os._exit(code)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert codes == [0, 0, 0], codes
after = add.enqueue_sync(2)
assert before.status_sync() is after.status_sync() is State.READY

async def count():
    stats = await (await app.open()).store().port().stats()
    return sum(queue.ready for queue in stats.queues)

print(asyncio.run(count()))
app.close_sync()
"""


# From 3.12 on Python warns of every fork beside threads; that it may be done is what is shown here.
@pytest.mark.parametrize("options", [[], ["-X", "dev"]])
def test_an_app_used_before_a_fork_serves_parent_and_children(
    tmp_path: Path, options: list[str]
) -> None:
    done = run_python(*options, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "8"
    assert done.stderr == ""


def _of_program() -> None:
    raise ValueError("in the program's own code")


def _refuse(cause: Callable[[], object]) -> None:
    try:
        cause()
    except (ValueError, UsageError) as error:
        raise UsageError("wrong") from error


@pytest.mark.parametrize(
    ("cause", "is_kept"), [(_of_program, True), (lambda: rate_of("no rate"), False)]
)
def test_a_cause_is_kept_where_the_program_raised_it(
    cause: Callable[[], object], is_kept: bool
) -> None:
    with pytest.raises(UsageError) as caught:
        _refuse(cause)
    end_at_caller(caught.value)
    assert (caught.value.__cause__ is not None) == is_kept
    assert caught.value.__suppress_context__
