"""A record that the log cannot write waits: before the effect, without burning an attempt."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from taskq import TaskQ, current_job, durable
from taskq.errors import AppendFailed, LogFailed, LogGone, LogLocked
from taskq.log.journal.journal import Journal
from taskq.log.machine.disk import LocalDisk
from taskq_workers.slots import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_REFUSED = 3


class Refusals:
    """Let the log refuse some times, once armed."""

    def __init__(self) -> None:
        self.left = self.count = 0

    def arm(self) -> None:
        self.left = _REFUSED

    def due(self) -> bool:
        if not self.left:
            return False
        self.left -= 1
        self.count += 1
        return True


def _full_append(patch: pytest.MonkeyPatch, refusals: Refusals) -> None:
    append = Journal.append

    def refusing(self: Journal, *args: Any) -> None:
        if refusals.due():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, *args)

    patch.setattr(Journal, "append", refusing)


def _little_room(patch: pytest.MonkeyPatch, refusals: Refusals) -> None:
    free = LocalDisk.free_bytes

    def little(self: LocalDisk, path: str) -> int:
        return 0 if refusals.due() else free(self, path)

    patch.setattr(LocalDisk, "free_bytes", little)


def _held_lock(patch: pytest.MonkeyPatch, refusals: Refusals) -> None:
    lock = Journal.lock

    def held(self: Journal) -> None:
        if refusals.due():
            raise LogLocked(self.path, 1, "stopped", 30.0)
        lock(self)

    patch.setattr(Journal, "lock", held)


async def _step(app: TaskQ, effects: list[str]) -> None:
    async def charge() -> None:
        effects.append("charge")

    await durable.step("charge", charge)


async def _step_in_thread(app: TaskQ, effects: list[str]) -> None:
    await asyncio.to_thread(durable.step_sync, "charge", effects.append, "charge")


async def _sleep(app: TaskQ, effects: list[str]) -> None:
    await durable.sleep(1)


async def _event(app: TaskQ, effects: list[str]) -> None:
    assert await durable.event("paid", int) == 5


async def _call(app: TaskQ, effects: list[str]) -> None:
    assert await durable.call(app.tasks["child"].call()) == 7


async def _progress(app: TaskQ, effects: list[str]) -> None:
    current_job().progress(0.5)


async def _child(app: TaskQ, effects: list[str]) -> None:
    current_job().enqueue(app.tasks["child"].call())


async def _enqueue(app: TaskQ, effects: list[str]) -> None:
    await app.tasks["child"].enqueue()


async def _result(app: TaskQ, effects: list[str]) -> None:
    pass


OPERATIONS = [_step, _step_in_thread, _sleep, _event, _call, _progress, _child, _result, _enqueue]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("refuse", [_full_append, _little_room, _held_lock])
async def test_what_the_log_refuses_for_now_waits_and_burns_no_attempt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuse: Callable[[pytest.MonkeyPatch, Refusals], None],
    operation: Callable[[TaskQ, list[str]], Any],
) -> None:
    monkeypatch.setattr(outcomes, "AGAIN_SECONDS", 0)
    app, refusals = TaskQ(tmp_path / "log", durability="os"), Refusals()
    effects: list[str] = []
    armed: list[int] = []

    @app.task(name="child")
    async def child() -> int:
        return 7

    @app.task(name="order", retry=1)
    async def order() -> str:
        if not armed:
            armed.append(1)
            refusals.arm()
        await operation(app, effects)
        return "done"

    refuse(monkeypatch, refusals)
    async with app:
        job = await order.enqueue()
        await app.signal(job, "paid", 5)
        async with app.worker(concurrency=2):
            # The waiting caller would meet the lock first.
            while refuse is _held_lock and (refusals.left or not armed):  # noqa: ASYNC110 - a thread
                await asyncio.sleep(0)
            assert await job.result(20) == "done"
        view = await job.view()
        assert view.attempt == 1
        assert len(effects) <= 1
    assert refusals.count or refuse is _little_room


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS[:5])
async def test_a_log_that_failed_ends_the_run_before_the_effect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: Callable[[TaskQ, list[str]], Any],
    gone: bool,
) -> None:
    """No effect, and no failure of the task: the job is taken up again by the next process."""
    app = TaskQ(tmp_path / "log", durability="os")
    effects: list[str] = []
    lock, failing = Journal.lock, [True]
    raised: list[BaseException] = []

    def failed(self: Journal) -> None:
        if armed and failing[0]:
            raise (LogGone if gone else LogFailed)(self.path, "an fsync failed")
        lock(self)

    armed: list[int] = []
    monkeypatch.setattr(Journal, "lock", failed)

    @app.task(name="child")
    async def child() -> int:
        return 7

    @app.task(name="order", retry=2)
    async def order() -> str:
        if not armed:
            armed.append(1)
            # The next request finds that the log failed, and so must the step.
            with pytest.raises((LogFailed, LogGone)):
                await app.pause("other")
        try:
            await operation(app, effects)
        except BaseException as error:
            raised.append(error)
            raise
        return "done"

    job = await order.enqueue()
    with pytest.raises((LogFailed, LogGone)):
        async with app.worker(concurrency=2) as worker:
            await asyncio.wait_for(worker.stopped.wait(), 20)
    assert not effects
    assert isinstance(raised[0], durable.Suspended)
    await app.close()
    failing[0] = False
    async with TaskQ(tmp_path / "log", durability="os") as again:
        view = await again.job(job.id).view()
        assert not view.reason


async def _alone(act: Callable[[], Any]) -> None:
    await act()


async def _in_group(act: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(act())


async def _beside_an_error(act: Callable[[], Any]) -> None:
    try:
        await act()
    except AppendFailed as error:
        raise ExceptionGroup("both", [ValueError("card"), error]) from None


async def _as_a_cause(act: Callable[[], Any]) -> None:
    try:
        await act()
    except AppendFailed as error:
        raise RuntimeError("cannot charge") from error


@pytest.mark.parametrize("wrap", [_alone, _in_group, _beside_an_error, _as_a_cause])
async def test_an_error_of_the_log_burns_no_attempt_in_groups_and_as_a_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrap: Callable[[Callable[[], Any]], Any],
) -> None:
    """Here the task enqueues; an error of its own beside it costs no attempt either."""
    monkeypatch.setattr(outcomes, "AGAIN_SECONDS", 0)
    app, refusals = TaskQ(tmp_path / "log", durability="os"), Refusals()
    armed: list[int] = []

    @app.task(name="child")
    async def child() -> int:
        return 7

    @app.task(name="order", retry=1)
    async def order() -> str:
        if not armed:
            armed.append(1)
            refusals.arm()

        async def act() -> None:
            await child.enqueue()

        await wrap(act)
        return "done"

    _full_append(monkeypatch, refusals)
    async with app:
        job = await order.enqueue()
        async with app.worker(concurrency=2):
            assert await job.result(20) == "done"
        assert (await job.view()).attempt == 1
