"""Steps that fail: refused by the log, given up, undone."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from taskq import Discard, JobHandle, State, TaskQ, current_job, durable, retry
from taskq.core.exceptions import NO_TEXT
from taskq.durable.attempt import undoing_here
from taskq.errors import AppendFailed, JobCancelled, LogFailed, LogGone, LogLocked
from taskq.log.journal.journal import Journal
from taskq.log.machine.disk import LocalDisk
from taskq.testing import Sandbox
from taskq_workers.slots import outcomes

_FOR_EVER = 1_000_000_000


#: The replaced function, and its error or result during a refusal.
REFUSALS: dict[str, tuple[type, str, Any]] = {
    "full": (Journal, "append", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "little room": (LocalDisk, "free_bytes", 0),
    "held lock": (Journal, "lock", LogLocked("data", 1, "stopped", 30.0)),
}


class Refusals:
    """Refuses the next calls once ``left`` is set."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, refusal: Any) -> None:
        self.left = self.count = 0
        plain = getattr(owner, name)

        def refusing(*args: Any) -> Any:
            if not self.left:
                return plain(*args)
            self.left -= 1
            self.count += 1
            if isinstance(refusal, Exception):
                raise refusal
            return refusal

        patch.setattr(owner, name, refusing)


async def _same(awaited: Awaitable[object], expected: object) -> None:
    assert await awaited == expected


async def _with_child(app: TaskQ) -> None:
    current_job().enqueue(app.tasks["child"].call())


async def _in_group(app: TaskQ) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(app.tasks["child"].enqueue())


async def _beside_an_error(app: TaskQ) -> None:
    """An error of its own beside it costs no attempt either."""
    try:
        await app.tasks["child"].enqueue()
    except AppendFailed as error:
        raise ExceptionGroup("both", [ValueError("card"), error]) from None


async def _as_a_cause(app: TaskQ) -> None:
    try:
        await app.tasks["child"].enqueue()
    except AppendFailed as error:
        raise RuntimeError("cannot charge") from error


#: Acts of a job; some return an awaitable.
OPERATIONS: dict[str, Callable[[TaskQ, list[str]], Any]] = {
    "step": lambda _, done: durable.step("charge", done.append, "charge"),
    "step in a thread": lambda _, done: asyncio.to_thread(
        durable.step_sync, "charge", done.append, "charge"
    ),
    "sleep": lambda *_: durable.sleep(1),
    "event": lambda *_: _same(durable.event("paid", int), 5),
    "call": lambda app, _: _same(durable.call(app.tasks["child"].call()), 7),
    "progress": lambda *_: current_job().progress(0.5),
    "child": lambda app, _: _with_child(app),
    "result": lambda *_: None,
    "enqueue": lambda app, _: app.tasks["child"].enqueue(),
    "in a group": lambda app, _: _in_group(app),
    "beside an error": lambda app, _: _beside_an_error(app),
    "as a cause": lambda app, _: _as_a_cause(app),
}


async def _operate(name: str, app: TaskQ, effects: list[str]) -> None:
    given = OPERATIONS[name](app, effects)
    if given is not None:
        await given


class Order:
    """A job that arms refusals of the log at its first attempt, and then does one operation."""

    def __init__(self, path: Path, operation: str, refusals: Refusals, count: int) -> None:
        self.app, self.is_armed = TaskQ(path, durability="os"), False
        self.effects, self.raised = list[str](), list[BaseException]()

        @self.app.task(name="child")
        async def child() -> int:
            return 7

        @self.app.task(name="order", retry=1)
        async def order() -> str:
            if not self.is_armed:
                self.is_armed, refusals.left = True, count
                if count == _FOR_EVER:
                    # The next request finds that the log failed, and so must the step.
                    with pytest.raises((LogFailed, LogGone)):
                        await self.app.pause("other")
            try:
                await _operate(operation, self.app, self.effects)
            except BaseException as error:
                self.raised.append(error)
                raise
            return "done"

        self.task = order


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", REFUSALS)
async def test_what_the_log_refuses_for_now_waits_and_burns_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, operation: str
) -> None:
    monkeypatch.setattr(outcomes, "AGAIN_SECONDS", 0)
    refusals = Refusals(monkeypatch, *REFUSALS[kind])
    order = Order(tmp_path / "log", operation, refusals, 3)
    async with order.app as app:
        job = await order.task.enqueue()
        await app.signal(job, "paid", 5)
        async with app.worker(concurrency=2):
            # The waiting caller would meet the lock first.
            while kind == "held lock" and (refusals.left or not order.is_armed):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await job.result(20) == "done"
        assert (await job.view()).attempt == 1
    assert len(order.effects) == operation.startswith("step")
    assert refusals.count or kind == "little room"


@pytest.mark.parametrize("error", [LogFailed, LogGone])
@pytest.mark.parametrize("operation", [*OPERATIONS][:5])
async def test_a_log_that_failed_ends_the_run_before_the_effect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    error: type[LogFailed | LogGone],
) -> None:
    """No effect, and no failure of the task: the job is taken up again by the next process."""
    path = tmp_path / "log"
    refusals = Refusals(monkeypatch, Journal, "lock", error(str(path), "an fsync failed"))
    order = Order(path, operation, refusals, _FOR_EVER)
    job = await order.task.enqueue()
    with pytest.raises(error):
        async with order.app.worker(concurrency=2) as worker:
            await asyncio.wait_for(worker.stopped.wait(), 20)
    assert not order.effects
    assert isinstance(order.raised[0], durable.Suspended)
    await order.app.close()
    refusals.left = 0
    async with TaskQ(path, durability="os") as again:
        assert not (await again.job(job.id).view()).reason


class Shop:
    """An app whose steps note what they did and undid."""

    def __init__(self, path: Path) -> None:
        self.app = TaskQ(path / "log")
        self.done: list[str] = []
        self.fails = 0

        @self.app.task(name="order", retry=retry.fixed(2, delay=1))
        async def order(end: str) -> str:
            receipt = await durable.step("charge", self.do, "charge")
            async with durable.undo("refund", self.undo, receipt):
                await durable.step("pack", self.do, "pack")
                async with durable.undo("unpack", self.undo, "pack", retry=retry.fixed(3, "1h")):
                    await durable.step("load", self.do, "load")
                    if end == "fail":
                        raise OSError("no truck")
                    if end == "discard":
                        raise Discard("no such place")
                    await durable.event("address", str)
                await durable.step("ship", self.do, "ship")
                if end == "fail late":
                    raise OSError("lost")
            return "shipped"

        self.order = order

    def do(self, what: str) -> str:
        self.done.append(what)
        return what

    async def undo(self, what: str) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("no line")
        self.done.append(f"un{what}")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
async def box(shop: Shop) -> AsyncIterator[Sandbox]:
    async with Sandbox(shop.app) as sandbox:
        yield sandbox


BEFORE = ["charge", "pack", "load"]


async def ended(job: JobHandle[Any]) -> tuple[State, str]:
    view = await job.view()
    return view.state, view.reason or ""


@pytest.mark.parametrize(
    ("end", "done", "words"),
    [
        ("fail", ["unpack", "uncharge"], "undone: unpack#1\nundone: refund#1"),
        ("discard", ["unpack", "uncharge"], "undone: unpack#1\nundone: refund#1"),
        ("fail late", ["ship", "uncharge"], "undone: refund#1"),
        ("", ["ship"], ""),
    ],
)
async def test_a_job_that_fails_for_good_undoes_what_is_not_over(
    shop: Shop, box: Sandbox, end: str, done: list[str], words: str
) -> None:
    job = await shop.order.enqueue(end)
    await box.signal(job, "address", "Kyoto")
    await box.drain(with_scheduled=True, raises=False)
    assert shop.done == [*BEFORE, *done]
    state, reason = await ended(job)
    assert state is (State.DEAD if end else State.SUCCEEDED)
    assert words in reason


async def test_a_job_that_waits_and_is_cancelled_undoes_what_it_did_with_tries(
    shop: Shop, box: Sandbox
) -> None:
    job = await shop.order.enqueue("wait")
    await box.drain()
    assert await job.cancel()
    assert await job.status() is State.READY
    shop.fails = 1
    await box.drain()
    assert "the next try of step 'unpack'" in (await job.why()).text
    await box.drain(with_scheduled=True)
    assert shop.done == [*BEFORE, "unpack", "uncharge"]
    assert (await ended(job))[0] is State.CANCELLED


class Mute(ValueError):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ValueError("glued"), "ValueError: glued"),
        (Mute(), f"Mute: {NO_TEXT}"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError: "),
        (BaseExceptionGroup("all", [KeyboardInterrupt()]), "BaseExceptionGroup: all (1 sub-except"),
        (durable.Suspended("raised by hand"), "Suspended: raised by hand"),
    ],
    ids=["error", "mute", "exit", "cancelled", "group", "suspended"],
)
async def test_a_step_that_cannot_undo_is_named_and_the_others_go_on(
    shop: Shop, box: Sandbox, error: BaseException, named: str
) -> None:
    @shop.app.task(retry=1)
    async def order() -> None:
        refund = durable.undo("refund", shop.undo, "charge")
        async with refund, durable.undo("unpack", fail, retry=1):
            raise OSError("no truck")

    def fail() -> None:
        raise error

    job = await order.enqueue()
    await box.drain(raises=False)
    _, reason = await ended(job)
    assert "no truck" in reason
    assert f"not undone: unpack#1 ({named}" in reason
    assert ")\nundone: refund#1" in reason
    assert shop.done == ["uncharge"]


async def test_an_undo_that_is_cut_off_runs_again_at_once(
    shop: Shop, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, room = shop.app.connection, shop.app.connection.ready_for_step
    ends = [LogLocked("data", 1, "stopped", 30.0)]

    async def ready() -> None:
        if ends and undoing_here.get():
            raise ends.pop()
        await room()

    monkeypatch.setattr(connection, "ready_for_step", ready)

    def undo() -> None:
        shop.done.append("unpack")

    @shop.app.task(retry=1)
    async def order() -> None:
        async with durable.undo("unpack", undo):
            raise OSError("no truck")

    job = await order.enqueue()
    await box.drain(raises=False)
    assert (shop.done, (await ended(job))[0]) == (["unpack"], State.DEAD)


async def test_a_job_that_runs_and_is_cancelled_undoes_what_it_did(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    began = asyncio.Event()

    @shop.app.task(name="runs")
    async def runs() -> None:
        async with durable.undo("refund", shop.undo, "charge"):
            await durable.step("charge", shop.do, "charge")
            began.set()
            await asyncio.Event().wait()

    async with shop.app, shop.app.worker():
        job = await runs.enqueue()
        await began.wait()
        assert await job.cancel()
        with pytest.raises(JobCancelled, match="cancelled"):
            await job.result(20)
    assert shop.done == ["charge", "uncharge"]
