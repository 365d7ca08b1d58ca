"""Any refusal of the disk, at any step: every call is answered in time, and truly."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.errors import LogError, LogLocked, TaskqError
from taskq.core.model import LATE_SECONDS_MAX, SECOND_NS, Durability, Extras
from taskq.core.records import Kind
from taskq.errors import ResultTimeout
from taskq.log.format import codec
from taskq.log.requests import ClaimRequest, Op, Request, Settlement
from taskq.log.store.thread import seconds_until_due
from tests.effort import at_most, every, grows
from tests.log.store.faults import CODES, Fault, Faults
from tests.log.world import PLAIN, SMALL, World
from tests.machine.crashable import CrashableDisk

pytestmark = grows

_LIMIT_SECONDS: Final = 1
_WRITES: Final = ("plain", "keyed", "many", "late", "acked", "cancelled")
#: Requests refused for want of room may wait for it, if they have no limit.
_FULL: Final = frozenset({errno.ENOSPC})


class Case(NamedTuple):
    """Which call of the disk is refused, and how."""

    durability: Durability
    #: whether the process has folded nothing of the log yet
    cold: bool
    number: int
    code: int
    fault: Fault


class Scene:
    """A log with some past, a process that comes to it, and what is asked of that."""

    def __init__(self, durability: Durability = Durability.FSYNC, *, cold: bool = True) -> None:
        self.world = World(config=replace(SMALL, durability=durability))
        other = self.world.process()
        self.acked = other.enqueue(b"to be acked")
        while len(self.world.segments()) == 1:
            other.enqueue(b"x" * 9_000)
        self.cancelled = other.enqueue(b"to be cancelled")
        (self.delivery,) = other.claim()
        assert self.delivery.job == self.acked
        self.process = self.world.process() if cold else other
        self.faults = Faults(self.process.disk)
        self.asked: dict[str, Future[Any]] = {}

    def send(self, **operands: tuple[Op, Any]) -> None:
        requests: list[Request] = []
        for name, (op, operand) in operands.items():
            future: Future[Any] = Future()
            self.asked[name] = future
            requests.append((op, None, future, operand))
        self.process.commit(requests)
        self.sync()

    def sync(self) -> None:
        self.process.sync()
        if self.process.committer.unsynced and not self.process.journal.gone:
            self.process.committer.sync()

    def act(self) -> None:
        until_ns = self.world.clock.steady_ns() + _LIMIT_SECONDS * SECOND_NS
        self.send(
            plain=(Op.ENQUEUE, (PLAIN, b"plain", None)),
            keyed=(Op.ENQUEUE, (PLAIN, b"keyed", Extras(key=b"k"))),
            many=(Op.ENQUEUE_MANY, [(PLAIN, b"many", None), (PLAIN, b"many more", None)]),
            limited=(Op.CLAIM, ClaimRequest(1, frozenset({"none"}), wait_until_ns=until_ns)),
            unlimited=(Op.CLAIM, ClaimRequest(1, frozenset({"none"}))),
            ready=(Op.CLAIM, ClaimRequest(1, wait_until_ns=until_ns)),
            extended=(Op.EXTEND, (self.delivery, SECOND_NS)),
            outcome=(Op.OUTCOME, self.cancelled),
            stats=(Op.LOOK, (lambda process: process.journal.next_lsn, True)),
        )
        self.send(
            acked=(Op.SETTLE, [Settlement(Kind.SUCCEEDED, self.delivery, b"done")]),
            cancelled=(Op.CANCEL, self.cancelled),
            late=(Op.ENQUEUE, (PLAIN, b"late", None)),
        )

    def pass_time(self) -> None:
        """Let the limits pass, and the process wake up when it says that something is due."""
        self.world.clock.advance(_LIMIT_SECONDS)
        for _ in range(2):
            self.process.commit([])
            self.sync()

    def kept(self) -> set[str]:
        """Return the names of those requests that changed the log."""
        bodies = [record.body for record in self.world.records() if record.type == Kind.ENQUEUED]
        kept = {name for name in _WRITES if name.encode() in bodies}
        for name, job in (("acked", self.acked), ("cancelled", self.cancelled)):
            view = self.world.view(job)
            assert view is not None
            if view.settled_ns:
                kept.add(name)
        return kept

    def outcome(self, name: str) -> str:
        """Return what became of a request: done, refused, unknown, or it waits."""
        future = self.asked[name]
        if not future.done():
            return "waits"
        answer: object = future.exception(0) or future.result(0)
        for error in answer if isinstance(answer, list) else [answer]:
            if isinstance(error, BaseException):
                break
        else:
            return "done"
        assert isinstance(error, TaskqError), f"{name}: {error!r}"
        return error.outcome if isinstance(error, LogError) else f"refused ({error})"


def _calls(durability: Durability, *, cold: bool) -> list[tuple[str, object]]:
    scene = Scene(durability, cold=cold)
    scene.act()
    assert {name for name in scene.asked if scene.outcome(name) != "done"} == {
        "limited",
        "unlimited",
    }
    assert scene.kept() == set(_WRITES)
    return scene.faults.calls


def _cases(step: int, durability: Durability = Durability.FSYNC) -> list[Case]:
    """Return one case of ``step``: of each call of the disk, each code, each kind of fault."""
    every = [
        Case(durability, cold, number, code, fault)
        for cold in (True, False)
        for number in range(len(_calls(durability, cold=cold)))
        for code in CODES
        for fault in Fault
    ]
    return every[::step]


def _played(case: Case) -> Scene:
    scene = Scene(case.durability, cold=case.cold)
    scene.faults.fail_at(case.number, case.code, case.fault)
    scene.act()
    scene.pass_time()
    return scene


def _check_answers(case: Case) -> None:
    scene = _played(case)
    may_wait = {"unlimited"}
    if case.code in _FULL or scene.outcome("cancelled") != "done":
        may_wait.add("outcome")
    waits = {name for name in scene.asked if scene.outcome(name) == "waits"}
    assert waits <= may_wait, scene.faults.calls[case.number]
    assert seconds_until_due(scene.process.committer) > 0, "it would not sleep"


def _check_truth(case: Case, *, power_fails: bool) -> None:
    scene = _played(case)
    seen = {name: scene.outcome(name) for name in _WRITES}
    scene.process.kill()
    if power_fails:
        scene.world.lose_power()
    scene.world.process()
    kept = scene.kept()
    for name, outcome in seen.items():
        if outcome == "done":
            assert name in kept, f"{name} was done, and is not kept"
        elif outcome.startswith("refused"):
            assert name not in kept, f"{name} was {outcome}, and is kept"


def test_every_call_is_answered_within_its_limit_whatever_the_disk_refuses() -> None:
    for case in _cases(every(83)):
        _check_answers(case)


@pytest.mark.parametrize("durability", list(Durability))
def test_done_is_kept_and_refused_is_not_whatever_the_disk_refuses(durability: Durability) -> None:
    for case in _cases(every(157), durability):
        _check_truth(case, power_fails=False)
        if durability is Durability.FSYNC:
            _check_truth(case, power_fails=True)


@pytest.mark.parametrize("missing", range(1, 8))
def test_a_job_whose_frame_lacks_zeros_alone_is_not_called_refused(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    process = world.process()
    process.enqueue(b"first")

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if data[:4] == codec.FRAME_MAGIC_BYTES:
            assert not any(data[-missing:])
            CrashableDisk.write(process.disk, descriptor, data[:-missing], offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return CrashableDisk.write(process.disk, descriptor, data, offset)

    def truncate(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(process.disk, "write", write)
    monkeypatch.setattr(process.disk, "truncate", truncate)
    body = b"x" * 13  # seven zeros are to follow the record
    answer = process.send(Op.ENQUEUE, (PLAIN, body, None)).exception(0)
    assert isinstance(answer, LogError)
    process.kill()
    world.process()
    kept = body in [record.body for record in world.records()]
    assert kept == (answer.outcome == "unknown")


@pytest.mark.slow
@pytest.mark.parametrize("durability", list(Durability))
def test_the_same_of_every_call_code_and_durability(durability: Durability) -> None:
    for case in _cases(1, durability):
        _check_answers(case)
        _check_truth(case, power_fails=False)
        if durability is Durability.FSYNC:
            _check_truth(case, power_fails=True)


# -- a log that does not answer at all -------------------------------------------------------------


@pytest.fixture
def held_up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskQ]:
    """Yield a log whose lock another process keeps; callers wait ``seconds`` for it."""
    app, limit = TaskQ(tmp_path), getattr(request, "param", 30.0)
    app._connection.config = replace(app._connection.config, lock_wait_seconds=limit)
    app.enqueue_by_name_sync("never.run")
    with (tmp_path / "write.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield app
    app.close_sync()


@pytest.mark.parametrize("held_up", [1.0], indirect=True)
async def test_a_claim_is_not_told_that_there_is_nothing_while_the_log_is_held_up(
    held_up: TaskQ,
) -> None:
    log = TaskLog(held_up._connection)
    with pytest.raises(LogLocked, match="the writer lock is held"):
        await log.claim(wait=0.1)


async def test_a_result_is_waited_for_no_longer_than_said_though_the_log_is_held_up(
    held_up: TaskQ,
) -> None:
    job = held_up.job(f"{held_up._connection.tag}-1")
    start = time.monotonic()
    with pytest.raises(ResultTimeout, match=r"after 0\.1 s"):
        await job.result(timeout=0.1)
    with pytest.raises(ResultTimeout, match=r"after 0\.1 s"):
        await asyncio.to_thread(job.result_sync, 0.1)
    assert time.monotonic() - start < at_most(2 * (0.1 + 2 * LATE_SECONDS_MAX))
