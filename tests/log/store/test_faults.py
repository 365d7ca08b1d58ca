"""The disk refuses at any step, each call of the machine fails once: answers stay true."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from taskq import TaskLog, TaskQ
from taskq.core.errors import LogClosed, LogError, LogFailed, LogLocked, TaskqError
from taskq.core.model import LATE_SECONDS_MAX, SECOND_NS, Durability, Extras, State
from taskq.core.records import Kind
from taskq.core.views import Serving
from taskq.errors import ResultTimeout
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.machine.threads import Pending
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Request, Settlement
from taskq.log.store import thread
from taskq.log.store.store import Store
from taskq.log.store.thread import seconds_until_due
from tests.effort import at_most, every, grows
from tests.log.store.faults import CODES, ERRORS, Fault, Faults, Site, Sites
from tests.log.world import PLAIN, SMALL, World
from tests.machine.crashable import CrashableDisk
from tests.processes.harness import eventually

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


@pytest.mark.parametrize("held_up", [0.2], indirect=True)
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


# -- sites -----------------------------------------------------------------------------------------


#: Nobody waits longer: a sleeper looks by itself each second, should a wake-up be lost.
_SECONDS: Final = 10
_WAKE_SECONDS: Final = 3.0
_RUN: Final = EnqueueSpec("run", "task")
_STAY: Final = EnqueueSpec("stay", "task")
_QUEUES: Final = frozenset({"run"})
_PIECE: Final = 9_000
#: Small segments, so that there are several.
_CONFIG: Final = LogConfig(segment_bytes=SEGMENT_BYTES_MIN, lock_wait_seconds=_SECONDS)


class Ended(Exception):
    """The log is to be opened again."""


class Party:
    """A program that has the log open, and opens it again when it must."""

    def __init__(self, scene: Pair) -> None:
        self.scene = scene
        self.store = scene.open()

    def ask(self, send: Callable[[Any], Pending[Any]]) -> Any:
        for attempt in range(2):
            try:
                answer = self.wait(send(self.store.thread_port))
                error = next(
                    (item for item in _listed(answer) if isinstance(item, TaskqError)), None
                )
            except TaskqError as problem:
                error = problem
            if error is None:
                return answer
            self.scene.note(error)
            if isinstance(error, LogFailed | LogClosed):
                raise Ended
            assert not attempt, f"refused twice: {error!r}"
        raise AssertionError

    def wait(self, future: Pending[Any]) -> Any:
        """Wait for an answer, which must come."""
        try:
            return future.result(_SECONDS)
        except TimeoutError:
            raise AssertionError("nobody answers") from None

    def put(self, name: str, spec: EnqueueSpec = _STAY, size: int = 0, **more: Any) -> int:
        extras = Extras(**more) if more else None
        output = self.scene.told

        def send(port: Any) -> Pending[Any]:
            body = f"{name} {len(output)} ".encode()
            future: Pending[Any] = port.enqueue(spec, body.ljust(size, b"."), extras)
            output[body] = future
            return future

        answer = self.ask(send)
        return answer if isinstance(answer, int) else answer.lsn

    def claim(self, count: int = 1) -> Any:
        return self.ask(lambda port: port.claim(ClaimRequest(count, _QUEUES, wait_until_ns=0)))

    def settle(self, *deliveries: Any) -> None:
        ends = [Settlement(Kind.SUCCEEDED, delivery, b"done") for delivery in deliveries]
        self.ask(lambda port: port.settle(ends))

    def asleep(self) -> None:
        """Wait until its thread has nothing to do; for a while."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: self.store.mailbox.asleep, _WAKE_SECONDS)

    def again(self) -> None:
        self.store.close()
        self.store = self.scene.open()


class Pair:
    """Two that have one log open: they wake each other, fill segments and let them go."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: body of a job -> what its enqueue came to
        self.told: dict[bytes, Pending[Any]] = {}
        self.errors: list[str] = []

    def note(self, error: BaseException) -> None:
        self.errors.append(type(error).__name__)

    def open(self) -> Store:
        for _ in range(2):
            store = Store(self.path, _CONFIG)
            try:
                store.wait_open()
            except LogError as error:
                self.note(error)
            else:
                return store
        raise AssertionError("it does not open")

    def act(self) -> None:
        first, second = Party(self), Party(self)
        try:
            for step in (self._meet, self._wake, self._lose_one, self._grow, self._shrink):
                try:
                    step(first, second)
                except Ended:
                    first.again()
                    second.again()
                    step(first, second)
        finally:
            first.store.close()
            second.store.close()

    def _meet(self, first: Party, second: Party) -> None:
        first.store.serve("worker", Serving(queues=None, tasks=None, slots=1))
        first.put("stays")
        second.put("stays", key=b"key")
        first.ask(lambda port: port.pause("run", paused=True))
        second.ask(lambda port: port.pause("run", paused=False))
        gone = second.put("cancelled")
        first.ask(lambda port: port.cancel(gone))
        first.ask(lambda port: port.stats())
        second.ask(lambda port: port.view(gone))

    def _wake(self, first: Party, second: Party) -> None:
        limit = first.store.steady_ns() + _SECONDS * SECOND_NS // 2
        claim = first.store.thread_port.claim(ClaimRequest(1, _QUEUES, wait_until_ns=limit))
        first.asleep()
        began = time.monotonic()
        job = second.put("wakes", _RUN)
        outcome = second.store.thread_port.outcome(job)
        try:
            deliveries = first.wait(claim)
        except LogError as error:
            self.note(error)
            deliveries = first.claim()
        assert len(deliveries) == 1, "the claim was not served"
        assert time.monotonic() - began < _WAKE_SECONDS, "the claim woke late"
        second.asleep()
        began = time.monotonic()
        first.settle(*deliveries)
        try:
            assert second.wait(outcome).state is State.SUCCEEDED
        except LogError as error:
            self.note(error)
        assert time.monotonic() - began < _WAKE_SECONDS, "the outcome came late"
        for party in (first, second):
            party.asleep()

    def _lose_one(self, first: Party, second: Party) -> None:
        first.put("left", _RUN)
        third = Party(self)
        try:
            third.claim()
        except Ended:
            pass
        finally:
            third.store.close()
        limit = first.store.steady_ns() + _SECONDS * SECOND_NS // 2
        claim = ClaimRequest(1, _QUEUES, wait_until_ns=limit)
        left = second.ask(lambda port: port.claim(claim))
        assert len(left) == 1, "it was not given back"
        second.settle(*left)

    def _grow(self, first: Party, second: Party) -> None:
        for _ in range(12):
            first.put("grows", _RUN, _PIECE)
        for delivery in second.claim(20):
            second.settle(delivery)

    def _shrink(self, first: Party, second: Party) -> None:
        second.ask(lambda port: port.compact(0.0, dry_run=False))
        first.put("stays")

    def check(self) -> None:
        party = Party(self)
        try:
            party.put("stays")
        finally:
            party.store.close()
        with LogReader.open(self.path) as reader:
            assert not reader.verify().damage
            views = reader.jobs(None, None, None, 1_000)
        there = Counter(view.payload.rstrip(b".") for view in views)
        for body, future in self.told.items():
            assert there[body] <= 1, f"{body!r} is doubled"
            if body.startswith(b"stays"):
                error = future.exception(0)
                if error is None:
                    assert there[body], f"{body!r} was done, and is not there"
                elif isinstance(error, LogError) and error.outcome == "refused":
                    assert not there[body], f"{body!r} is there, but: {error!r}"


def _listed(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


class Sweep:
    """Plays the scene again and again, each time with another call that fails."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites

    def cases(self) -> list[tuple[Site, int]]:
        for _ in range(2):
            self.play()
        return [(site, code) for site in self.sites.seen for code in ERRORS.get(site.call, ())]

    def play(self, site: Site | None = None, code: int = 0) -> str:
        path = tempfile.mkdtemp(prefix="taskq-site-")
        try:
            scene = Pair(path)
            self.sites.fail(site, code)
            scene.act()
            self.sites.fail_no_more()
            scene.check()
        finally:
            shutil.rmtree(path)
        return ", ".join(sorted(set(scene.errors)))


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(thread, "_REST_SECONDS", 0.02)
    return Sweep(Sites(monkeypatch))


def _fault(text: str, site: Site) -> str:
    if site.call == "sync":
        return ""  # nobody knows what is on disk: the log is to be opened again
    ended = {"LogFailed", "LogClosed"} & set(text.split(", "))
    return "the log ended" if ended else ""


@grows
def test_one_call_that_fails_loses_doubles_and_hangs_nothing(sweep: Sweep) -> None:
    """The log ends only where an fsync failed. With ``-s`` it prints the table of all."""
    bad: list[str] = []
    for site, code in sweep.cases()[7 :: every(80)]:
        try:
            answer = sweep.play(site, code)
            wrong = _fault(answer, site)
        except (AssertionError, OSError) as error:
            answer, wrong = "", repr(error)
        outcome = wrong or answer or ("nobody noticed" if sweep.sites.hit else "not reached")
        row = f"| {site} | {errno.errorcode[code]} | {outcome} |"
        print(row, flush=True)  # noqa: T201 - the table
        bad += [row] if wrong else []
    assert not bad, "\n".join(bad)
