"""The disk refuses at any step, each call of the machine fails once: answers stay true."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final, NamedTuple
from unittest.mock import Mock

import pytest

from taskq import TaskLog
from taskq.core.errors import LogClosed, LogError, LogFailed, LogLocked, TaskqError
from taskq.core.model import SECOND_NS, Durability, Extras, State
from taskq.core.records import Kind
from taskq.core.views import Serving
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format import codec
from taskq.log.machine import forks, owners, peers, posix
from taskq.log.machine.access import replace_file
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.ports import Disk
from taskq.log.machine.threads import Pending
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Request, Settlement
from taskq.log.store import thread
from taskq.log.store.store import Store
from taskq.log.store.thread import StorageThread, seconds_until_due
from tests.effort import every, grows
from tests.log.world import PLAIN, SMALL, World
from tests.machine.crashable import CrashableDisk
from tests.processes.harness import eventually

pytestmark = grows


CODES: Final = (
    errno.EIO, errno.EACCES, errno.ENOSPC, errno.EMFILE, errno.ENOENT, errno.ENOTDIR, errno.EROFS,
)  # fmt: skip
#: Calls that fail only in broken programs: a close, and requests for nothing.
_SURE: Final = frozenset({"close", "boot_id", "identity", "was_restored"})
_CALLS: Final = sorted(
    name for name in vars(Disk) if not name.startswith("_") and name not in _SURE
)


class Fault(Enum):
    #: this one
    ONCE = auto()
    #: and all of its name that follow
    FOR_GOOD = auto()
    #: and all later ones
    DEAD = auto()
    #: it did what it was to do, and fails all the same
    AFTER = auto()
    #: the same, and what would undo it fails, too
    AFTER_FOR_GOOD = auto()
    #: it did a part of it, and what would undo it fails, too
    TORN = auto()


class Faults:
    """Counts the calls of one disk from now on, and refuses some.

    Attributes:
        calls: (name, what it is about) of each so far.
    """

    def __init__(self, disk: CrashableDisk) -> None:
        self.calls: list[tuple[str, object]] = []
        self._at = -1
        self._code = 0
        self._fault = Fault.ONCE
        self._failing: set[str] = set()
        for name in _CALLS:
            call = functools.partial(self._call, name, getattr(disk, name))
            setattr(disk, name, call)

    def fail_at(self, number: int, code: int, fault: Fault) -> None:
        self._at, self._code, self._fault = number, code, fault

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        number = len(self.calls)
        self.calls.append((name, args[0] if args else None))
        fault = self._fault
        if number == self._at:
            if fault is Fault.TORN and name == "write":
                call(args[0], args[1][: len(args[1]) // 2], args[2])
            elif fault in (Fault.AFTER, Fault.AFTER_FOR_GOOD):
                call(*args, **options)
            if fault is Fault.FOR_GOOD:
                self._failing.add(name)
            elif fault in (Fault.TORN, Fault.AFTER_FOR_GOOD):
                self._failing.add("truncate")
            elif fault is Fault.DEAD:
                self._failing.update(_CALLS)
        elif name not in self._failing:
            return call(*args, **options)
        raise OSError(self._code, os.strerror(self._code))


#: Errors of writers, and of readers; then each call's own.
_WRITING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_LOOKS: Final = (errno.EIO, errno.ESTALE, errno.ENOMEM)
_NAMES: Final = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)
_LOCKS: Final = (errno.ENOLCK, errno.EIO)
_OPENS: Final = (errno.EMFILE, errno.EACCES, errno.ENOSPC, errno.EIO)
#: Call -> errors that the system may answer it with.
ERRORS: Final = {
    "open": _OPENS, "open_file": _OPENS, "open_pipe": _OPENS, "make_pipe": _OPENS,
    "write": (*_WRITING, errno.EFBIG), "write_at": _WRITING, "pwrite": _WRITING,
    "read": _LOOKS, "pread": _LOOKS, "size": _LOOKS, "status": _LOOKS, "stat": _LOOKS,
    "names": _LOOKS, "identity": _LOOKS, "modified_ns": _LOOKS, "free_bytes": _LOOKS,
    "total_bytes": _LOOKS, "files": _LOOKS, "was_restored": _LOOKS, "fstat": _LOOKS,
    "read_file": (*_LOOKS, errno.EMFILE), "replace_file": (*_WRITING, errno.EMFILE),
    "truncate": _WRITING, "allocate": _WRITING, "sync": _WRITING, "sync_directory": _WRITING,
    "rename": _NAMES, "link": _NAMES, "remove": _NAMES, "make_directory": _NAMES,
    "lock": _LOCKS, "try_lock": _LOCKS, "unlock": _LOCKS, "lock_owner": _LOCKS, "is_owned": _LOCKS,
    "ring": (*_WRITING, errno.ENOMEM), "poll": (errno.ENOMEM,),
    "close": (errno.EIO, errno.ENOSPC),
}  # fmt: skip
#: These have done what they were to do when they fail: a full disk refuses a pipe its new time,
#: after the byte is in it, and a network its close.
_DONE: Final = {"close": (errno.EIO, errno.ENOSPC), "ring": _WRITING}
#: System calls of peers, besides their bells.
_PEERS_CALLS: Final = (
    "write_at", "pread", "pwrite", "rename", "remove", "lock_owner", "is_owned",
)  # fmt: skip
#: Functions that lead to a call which are part of its site.
_DEPTH: Final = 3
_CODE: Final = f"{os.sep}taskq{os.sep}log{os.sep}"
#: The port answers for these: a close is looked at below it.
_NEVER_FAIL: Final = {"boot_id", "close"}
_DISK_CALLS: Final = sorted(
    name for name in vars(Disk) if not name.startswith("_") and name not in _NEVER_FAIL
)


class Site(NamedTuple):
    """A call of the machine, and who makes it, the nearest first."""

    call: str
    callers: tuple[str, ...]

    def __str__(self) -> str:
        return " < ".join((self.call, *self.callers))


class Sites:
    """Notes where the machine is called, and lets the first call at one site fail.

    Attributes:
        seen: the sites so far, in order.
        hit: whether that call came.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[Site, None] = {}
        self.hit = False
        self._at: Site | None = None
        self._code = 0
        self._guard = threading.Lock()
        sites = self

        class Watched(LocalDisk):
            def __init__(self) -> None:
                super().__init__()
                for name in _DISK_CALLS:
                    setattr(self, name, sites._watched(name, getattr(self, name)))

        monkeypatch.setattr(thread, "LocalDisk", Watched)
        self._watch_peers(monkeypatch)

    def fail(self, site: Site | None, code: int = 0) -> None:
        self._at, self._code, self.hit = site, code, False

    def fail_no_more(self) -> None:
        self._at = None

    def _watch_peers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Reader(posix.Reader):
            read = self._watched("read", posix.Reader.read)

        def module(of: Any, **calls: Callable[..., Any]) -> Any:
            watched = {name: self._watched(name, call) for name, call in calls.items()}
            return SimpleNamespace(**{**vars(of), **watched})

        calls = module(posix, **{name: getattr(posix, name) for name in _PEERS_CALLS})
        calls.Reader = Reader
        monkeypatch.setattr(peers, "system", calls)
        monkeypatch.setattr(posix, "write", self._watched("ring", posix.write))
        for name in ("open_pipe", "make_pipe"):
            monkeypatch.setattr(posix, name, self._watched(name, getattr(posix, name)))
        monkeypatch.setattr(peers, "os", module(os, fstat=os.fstat, close=os.close))
        monkeypatch.setattr(forks, "os", module(os, close=os.close))
        monkeypatch.setattr(peers, "Path", self._watched_path())
        for name in ("open_file", "make_directory", "read_file"):
            monkeypatch.setattr(peers, name, self._watched(name, getattr(peers, name)))
        monkeypatch.setattr(owners, "replace_file", self._watched("replace_file", replace_file))

    def _watched_path(self) -> Any:
        path = type(Path())

        class Watched(path):  # type: ignore[misc, valid-type]
            stat = self._watched("stat", path.stat)

        return Watched

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **options: Any) -> Any:
            site = Site(name, _callers())
            with self._guard:
                self.seen[site] = None
                fails = site == self._at and not self.hit
                self.hit = self.hit or fails
            if not fails:
                return call(*args, **options)
            if self._code in _DONE.get(name, ()):
                call(*args, **options)
            raise OSError(self._code, os.strerror(self._code))

        return watched


def _callers() -> tuple[str, ...]:
    """Name the functions of the log that led here, without the watchers themselves."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(names) < _DEPTH:
        if _CODE in frame.f_code.co_filename:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return tuple(names)


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
            view = self.world.job(job)
            if view.settled_ns:
                kept.add(name)
        return kept

    def outcome(self, name: str) -> str:
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


@pytest.mark.parametrize("durability", list(Durability))
def test_every_call_is_answered_within_its_limit_whatever_the_disk_refuses(
    durability: Durability,
) -> None:
    for case in _cases(every(249), durability):
        _check_answers(case)


@pytest.mark.parametrize("durability", list(Durability))
def test_done_is_kept_and_refused_is_not_whatever_the_disk_refuses(durability: Durability) -> None:
    for case in _cases(every(157), durability):
        _check_truth(case, power_fails=False)
        if durability is Durability.FSYNC:
            _check_truth(case, power_fails=True)


@pytest.mark.parametrize("code", [errno.EFBIG, errno.EBADF, errno.EIO])
def test_an_end_that_this_process_cannot_write_is_refused_and_one_of_a_bad_disk_is_held(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    process, answers = World().process(), list[TaskqError]()
    process.enqueue(b"x")
    ends = [Settlement(Kind.SUCCEEDED, delivery) for delivery in process.claim()]
    refuse = Mock(side_effect=OSError(code, os.strerror(code)))
    monkeypatch.setattr(process.disk, "write", refuse)
    for _ in range(2):
        operand = ends, lambda _, error: answers.append(error)
        process.commit([(Op.SETTLE_NOWAIT, None, None, operand)])
    if code == errno.EIO:
        assert not answers
        assert caplog.text.count("ended jobs wait for the disk") == 1
    else:
        assert [type(error) for error in answers] == [LogError, LogError]
        assert "this process" in str(answers[0])


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
    assert (kept, answer.outcome) == (True, "unknown")


async def test_a_claim_does_not_return_empty_while_the_log_is_stalled(tmp_path: Path) -> None:
    """Another process keeps its lock."""
    async with TaskLog.open(tmp_path, lock_wait=0.2) as log:
        await log.put(b"never run")
        with (tmp_path / "write.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(LogLocked, match="the writer lock is held"):
                await log.claim(wait=0.1)


def test_the_disk_may_take_longer_to_open_a_log_than_another_process_may_have_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, opened = threading.Semaphore(0), StorageThread.open

    def slow(storage: StorageThread) -> None:
        looks.acquire()
        looks.acquire()
        opened(storage)

    monkeypatch.setattr(StorageThread, "open", slow)
    store = Store(str(tmp_path), LogConfig(lock_wait_seconds=0.001))
    wait = store._opened.wait

    def look(seconds: float) -> bool:
        looks.release()
        return wait(seconds)

    monkeypatch.setattr(store._opened, "wait", look)
    store.wait_open()
    store.close()


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


def _fault(text: str, site: Site) -> str:
    if site.call == "sync":
        return ""  # nobody knows what is on disk: the log is to be opened again
    ended = {"LogFailed", "LogClosed"} & set(text.split(", "))
    return "the log ended" if ended else ""


@grows
def test_one_call_that_fails_loses_doubles_and_hangs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log ends only where an fsync failed. With ``-s`` it prints the table of all."""
    monkeypatch.setattr(thread, "_REST_SECONDS", 0.02)
    sweep, bad = Sweep(Sites(monkeypatch)), list[str]()
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
