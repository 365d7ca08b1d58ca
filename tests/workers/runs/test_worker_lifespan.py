"""Resources that an app opens when its worker starts, and their use by tasks."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest

from taskq import Inject, TaskQ, injected
from taskq.errors import InvalidCall, TaskqError, UsageError
from taskq_workers import Worker
from taskq_workers.runs import lifespans
from taskq_workers.runs.lifespans import LifespanHolder
from tests.workers.afar_jobs import LENT
from tests.workers.afar_jobs import lent as app


@dataclass
class Database:
    url: str
    rows: list[int]


@dataclass
class Mailer:
    host: str


@runtime_checkable
class HasRows(Protocol):
    rows: list[int]


def put_lifespan(app: TaskQ, events: list[str]) -> Database:
    database = Database("sqlite://", [])

    @app.lifespan
    async def opened(given: TaskQ) -> AsyncIterator[Database]:
        assert given is app
        events.append("open")
        try:
            yield database
        finally:
            events.append("close")

    return database


async def test_a_call_cannot_give_an_injected_parameter_and_a_plain_one_must(app: TaskQ) -> None:
    """Neither by name nor by place: it is the worker's to fill in; a key function lacks it."""

    @app.task(key=lambda row: f"row-{row}")
    async def store(row: int, db: Inject[Database] = injected()) -> None:
        db.rows.append(row)

    assert store.call(1).extras is not None
    with pytest.raises(InvalidCall, match="there is no parameter 'db'"):
        store.call(1, db=Database("", []))
    with pytest.raises(InvalidCall, match="takes 1 positional"):
        store.call(1, Database("", []))
    with pytest.raises(InvalidCall, match="'db'"):
        store.decode(b'{"row":1,"db":{"url":"","rows":[]}}')
    database = Database("", [])
    await store(3, database)
    assert database.rows == [3]
    with pytest.raises(UsageError, match="only workers fill in"):
        await store(3)


async def test_several_stack_and_a_later_one_may_take_of_the_earlier(app: TaskQ) -> None:
    """Entered before the first job, left in the opposite order; a tuple is several resources."""
    events: list[str] = []
    database = put_lifespan(app, events)

    @app.lifespan
    @contextlib.asynccontextmanager
    async def more(db: Inject[Database]) -> AsyncIterator[tuple[Mailer, int]]:
        events.append(f"more at {db.url}")
        yield Mailer("localhost"), 42
        events.append("less")

    @app.task
    async def look(
        *, has: Inject[HasRows] = injected(), mailer: Inject[Mailer] = injected(),
        number: Inject[int] = injected(), missing: Inject[str | None] = injected(),
    ) -> str:  # fmt: skip
        events.append("job")
        assert has is database
        assert missing is None
        return f"{mailer.host} {number}"

    async with app:
        job = await look.enqueue()
        assert (await job.view()).payload == b"{}"
        async with app.worker():
            assert await job.result(timeout=30) == "localhost 42"
    assert events == ["open", "more at sqlite://", "job", "less", "close"]


@pytest.mark.parametrize("count", [0, 2])
async def test_a_resource_that_is_missing_or_twice_there_stops_the_start(
    app: TaskQ, count: int
) -> None:
    @app.lifespan
    async def mailers() -> AsyncIterator[tuple[Any, ...]]:
        yield Database("", []), *[Mailer("a")] * count

    @app.task(name="mail.send")
    async def send(*, mailer: Inject[Mailer] = injected()) -> None: ...

    with pytest.raises(UsageError) as caught:
        await Worker(app).start()
    text = str(caught.value)
    assert text.startswith(f"mail.send: parameter 'mailer' takes {__name__}.Mailer, ")
    if count:
        assert "and the app's lifespans yield 2 of it (Mailer, Mailer)" in text
    else:
        assert text.endswith("lifespans yield Database: yield one in an @app.lifespan")
    await app.close()


async def test_a_task_that_comes_after_the_start_fails_by_itself(app: TaskQ) -> None:
    @app.task
    async def known() -> None: ...

    async with app, app.worker():

        @app.task(retry=1)
        async def late(*, mailer: Inject[Mailer] = injected()) -> None: ...

        await (await known.enqueue()).result(timeout=30)  # the next claim knows both
        job = await late.enqueue()
        with pytest.raises(TaskqError, match="'mailer' takes"):
            await job.result(timeout=30)


async def refuse(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionError("nobody"), "broken failed at its start: ConnectionError: nobody"),
        (asyncio.CancelledError(), "were cancelled as they started"),
    ],
)
async def test_a_failing_lifespan_stops_the_start_and_closes_earlier_ones(
    app: TaskQ, error: BaseException, words: str
) -> None:
    events: list[str] = []
    put_lifespan(app, events)

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        await refuse(error)
        yield

    with pytest.raises(TaskqError, match=words) as caught:
        await Worker(app).start()
    if isinstance(error, Exception):  # our own line comes first
        assert f'File "{__file__}"' in str(caught.value).splitlines()[1]
    assert events == ["open", "close"]
    await app.close()


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_a_lifespan_that_hangs_at_its_end_is_cancelled_and_then_abandoned(
    app: TaskQ, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_deaf: bool
) -> None:
    go_on, ended = asyncio.Event(), asyncio.Event()

    @app.lifespan
    async def hangs() -> AsyncIterator[int]:
        yield 1
        try:
            while not go_on.is_set():
                with contextlib.suppress(asyncio.CancelledError if is_deaf else LookupError):
                    await go_on.wait()
        finally:
            ended.set()

    for name in ("EXIT_SECONDS", "CANCEL_SECONDS"):
        monkeypatch.setattr(lifespans, name, 0.01)
    holder = LifespanHolder(app)
    await holder.enter()
    try:
        await holder.leave()
        assert "did not close within 0.01 s" in caplog.text
        assert ("abandoned" in caplog.text, ended.is_set()) == (is_deaf, not is_deaf)
    finally:
        go_on.set()  # else a failure here would keep the loop of all tests from its end
    await ended.wait()


async def test_what_a_lifespan_raises_at_its_end_is_logged(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ValueError("no way out")

    async with app, app.worker():
        pass
    assert "lifespans failed as they closed: ValueError: no way out" in caplog.text


async def test_a_lifespan_that_dies_while_the_worker_runs_stops_it(app: TaskQ) -> None:
    """As a task group does whose task has failed: it cancels the body that holds it open."""
    fail = asyncio.Event()

    @app.lifespan
    async def group() -> AsyncIterator[int]:
        async def background() -> None:
            await fail.wait()
            raise ConnectionError("gone")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(background())
            yield 1

    worker = Worker(app)
    await worker.start()
    fail.set()
    await worker.stopped.wait()
    with pytest.raises(TaskqError, match="a lifespan ended while the worker ran"):
        await worker.__aexit__(None, None, None)
    await app.close()


async def test_a_lifespan_without_a_context_manager_stops_the_start(app: TaskQ) -> None:
    def plain() -> Any: ...

    app.lifespan(plain)
    with pytest.raises(UsageError, match="plain"):
        await LifespanHolder(app).enter()


SECONDS = 30


async def test_tasks_on_each_executor_take_the_resource_of_their_own_process(
    tmp_path: Path,
) -> None:
    app.data_dir = tmp_path / "data"
    async with app:
        async with Worker(app, process_limit=1):
            seen = [await (await task.enqueue()).result(SECONDS) for task in LENT.values()]
        child, here = seen[-1][0], os.getpid()
        assert child != here
        assert seen == [(here, here, True)] * 3 + [(child, child, True)] * 2
        # A child has as long to close it as a worker.
        assert all((tmp_path / f"closed-{pid}").exists() for pid in (child, here))
