"""Commits on the caller's own thread: who makes them, and what an interrupted one leaves."""

from __future__ import annotations

import asyncio
import dis
import fcntl
import functools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

from taskq.core.errors import OutcomeUnknown, UsageError
from taskq.core.model import Durability, Extras
from taskq.core.records import Kind
from taskq.log.commit.committer import Committer
from taskq.log.config import LogConfig
from taskq.log.journal.journal import Tail
from taskq.log.machine.threads import Pending
from taskq.log.requests import EnqueueSpec
from taskq.log.store import caller_commit
from taskq.log.store.caller_commit import Handlers
from taskq.log.store.port import ThreadPort
from taskq.log.store.store import Store
from taskq.log.store.thread import StorageThread
from tests.effort import every, grows
from tests.processes.harness import eventually, log_records

SPEC: Final = EnqueueSpec()
SECONDS: Final = 20
SENT_STEPS: Final = 1_000
_LEAVING: Final = ("LOAD_CONST", "PRECALL", "CALL")
OS: Final = LogConfig(durability=Durability.OS)


def on_thread(call: Callable[[], Any]) -> Any:
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(SECONDS)


def in_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return on_thread(lambda: asyncio.run(main()))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[[LogConfig], Store]]:
    """Open the log as several processes do."""
    opened: list[Store] = []

    def make(config: LogConfig = OS) -> Store:
        store = Store(str(tmp_path), config)
        store.wait_open()
        opened.append(store)
        store.thread_port.enqueue(SPEC, b"first").result(SECONDS)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def committers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the threads that committed something, one for each batch."""
    threads: list[int] = []
    commit = Committer.commit

    def noted(self: Committer, requests: list[Any], needs: Any = None) -> None:
        if requests:
            threads.append(threading.get_ident())
        commit(self, requests, needs)

    monkeypatch.setattr(Committer, "commit", noted)
    # A machine that has much else to do is no slow disk.
    monkeypatch.setattr(caller_commit, "_SLOW_SECONDS", SECONDS)
    return threads


def asleep(store: Store) -> None:
    """Wait until the storage thread sleeps, and callers may commit."""
    eventually(lambda: store.mailbox.asleep and not store.mailbox.has_work)


# -- who commits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", list(Durability))
def test_a_thread_that_blocks_commits_for_itself(
    stores: Callable[[LogConfig], Store], committers: list[int], durability: Durability
) -> None:
    store = stores(LogConfig(durability=durability))
    asleep(store)
    committers.clear()

    def call() -> tuple[int, bool]:
        future = store.thread_port.enqueue(SPEC, b"x")
        return threading.get_ident(), future.done()

    thread, is_done = on_thread(call)
    assert (committers, is_done) == ([thread], True)


@pytest.mark.parametrize("durability", list(Durability))
def test_a_loop_commits_for_itself_where_no_answer_waits_for_the_disk(
    stores: Callable[[LogConfig], Store], committers: list[int], durability: Durability
) -> None:
    store = stores(LogConfig(durability=durability, interval_seconds=60))

    async def main() -> int:
        await store.port().enqueue(SPEC, b"x")
        asleep(store)
        committers.clear()
        await store.port().enqueue(SPEC, b"y")
        return threading.get_ident()

    thread = in_loop(main)
    assert (committers == [thread]) == (durability is not Durability.FSYNC)


def test_a_loop_leaves_a_slow_disk_to_the_storage_thread(
    stores: Callable[[LogConfig], Store], committers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_commit, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(caller_commit, "_PATIENCE", 10**6)
    store = stores(OS)

    async def main() -> int:
        asleep(store)
        committers.clear()
        for _ in range(3):
            await store.port().enqueue(SPEC, b"x")
            asleep(store)
        return threading.get_ident()

    thread = in_loop(main)
    assert [committer == thread for committer in committers] == [True, False, False]


def test_jobs_that_come_together_are_one_batch(
    stores: Callable[[LogConfig], Store], committers: list[int]
) -> None:
    store = stores(OS)

    async def caller() -> None:
        for _ in range(3):
            await store.port().enqueue(SPEC, b"x")

    async def main() -> None:
        asleep(store)
        committers.clear()
        await asyncio.gather(*(caller() for _ in range(40)))

    in_loop(main)
    assert len(committers) < 20


def test_whoever_enqueues_on_and_on_lets_others_run(stores: Callable[[LogConfig], Store]) -> None:
    store = stores(OS)

    async def main() -> bool:
        others_turn = asyncio.Event()
        asyncio.get_running_loop().call_later(0, others_turn.set)
        for _ in range(100):
            await store.port().enqueue(SPEC, b"x")
        return others_turn.is_set()

    assert in_loop(main)


def test_nobody_waits_in_a_loop_for_another_process(
    stores: Callable[[LogConfig], Store], tmp_path: Path
) -> None:
    store = stores(OS)
    descriptor = os.open(tmp_path / "write.lock", os.O_RDWR)

    async def main() -> None:
        await store.port().enqueue(SPEC, b"x")
        asleep(store)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        asked = store.port().enqueue(SPEC, b"y")  # returns, though the lock is not to be had
        assert not asked.done()
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        await asked

    try:
        in_loop(main)
    finally:
        os.close(descriptor)


def test_what_a_caller_committed_is_synced_in_time(
    stores: Callable[[LogConfig], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores(LogConfig(durability=Durability.INTERVAL, interval_seconds=0.01))
    synced = threading.Event()
    sync = Tail.sync
    asleep(store)

    def noted(self: Tail) -> None:
        sync(self)
        synced.set()

    monkeypatch.setattr(Tail, "sync", noted)
    on_thread(store.thread_port.enqueue(SPEC, b"x").result)
    assert synced.wait(SECONDS)


class Naps:
    """Stands for a storage thread that sleeps, each time for the next of these seconds in vain."""

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.slept = counts, list[float]()
        self.count, self.in_doubt, self.asleep, self.has_work = 0, False, False, False
        self.here = self.peers = self._mailbox = self
        self.take = self.leave = lambda: None

    def sleep(self, interest: int, seconds: float) -> bool:
        del interest
        self.slept.append(seconds)
        self.count += self.counts.pop(0)
        return False


@pytest.mark.parametrize(
    ("counts", "slept"),
    [([0], [1]), ([3, 0], [1, 2]), ([3, 1, 2, 2], [1, 2, 4, 4]), ([1, 0, 9], [1, 2])],
    ids=str,
)
def test_the_thread_sleeps_on_while_callers_commit_but_not_for_ever(
    counts: list[int], slept: list[float]
) -> None:
    thread: Any = Naps(counts)
    StorageThread._sleep(thread, 0, 1, 10)
    assert thread.slept == slept
    assert not thread.asleep


def test_a_rest_after_a_callers_commit_leaves_a_sync_point(
    stores: Callable[[LogConfig], Store],
) -> None:
    store = stores(OS)
    journal = store._open.journal
    on_thread(lambda: store.thread_port.enqueue(SPEC, b"x").result(SECONDS))
    eventually(lambda: journal.durable_lsn == journal.next_lsn)


# -- signal handlers -------------------------------------------------------------------------------


@pytest.fixture
def no_handlers() -> Iterator[None]:
    """Be a program without handlers: the test runner has one, and other libraries leave theirs."""
    left = {number: signal.getsignal(number) for number in signal.valid_signals()}
    mine = {number: handler for number, handler in left.items() if callable(handler)}
    for number in mine:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in mine.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("no_handlers")
def test_a_programs_own_handlers_leave_the_main_thread_to_the_storage_thread() -> None:
    """Their errors would be taken for errors of the disk; asyncio's raise none."""
    handlers = Handlers()
    assert handlers.are_calm()
    assert asyncio.run(_calm_within(handlers))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    assert not handlers.are_calm()
    assert on_thread(handlers.are_calm)
    signal.signal(signal.SIGUSR1, before)


async def _calm_within(handlers: Handlers) -> bool:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, print)
    return handlers.are_calm()


def test_a_look_at_the_handlers_calls_nothing_written_in_python() -> None:
    handlers, calls = Handlers(), []
    handlers.are_calm()
    sys.setprofile(lambda frame, event, _: calls.append(frame) if event == "call" else None)
    try:
        handlers.are_calm()
    finally:
        sys.setprofile(None)
    assert len(calls) <= 3


def test_no_commit_is_made_where_to_wake_the_dead_would_be_death() -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert not Handlers().are_calm()
        assert not on_thread(Handlers().are_calm)
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_who_comes_in_the_midst_of_a_commit_does_not_wait_for_himself(
    stores: Callable[[LogConfig], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a finalizer: it may send, and must not block."""
    store = stores(OS)
    sent: list[Any] = []
    log_time = type(store._open.journal).log_time

    async def main() -> list[Any]:
        port = store.port()
        await port.enqueue(SPEC, b"x")
        asleep(store)

        def nested(self: Any) -> tuple[int, int]:
            if not sent:
                with pytest.raises(UsageError, match="in the midst"):
                    store.thread_port.enqueue(SPEC, b"blocks")
                sent.append(port.enqueue(SPEC, b"sends"))
            return log_time(self)

        monkeypatch.setattr(type(store._open.journal), "log_time", nested)
        first = await port.enqueue(SPEC, b"y")
        return [first, await sent[0]]

    first, second = in_loop(main)
    assert second > first


@functools.cache
def leaving(code: CodeType) -> frozenset[int]:
    """Return where the steps begin that leave a ``with``: between them Python calls no handler."""
    steps = list(dis.get_instructions(code))
    ends: set[int] = set()
    for number in range(len(steps) - 4):
        five = steps[number : number + 5]
        nones = [step.argval is None and step.opname == "LOAD_CONST" for step in five[:3]]
        if all(nones):
            ends |= {step.offset for step in five if step.opname in _LEAVING}
            if steps[number - 1].opname == "SWAP":  # the return value stays below
                ends.add(steps[number - 1].offset)
    return frozenset(ends)


class Raiser:
    """Raises once, at a byte code of this thread's calls, like a signal handler."""

    def __init__(self, at: int) -> None:
        self.at, self.steps, self.has_raised = at, 0, False

    @contextmanager
    def around(self) -> Iterator[None]:
        try:
            sys.settrace(self._called)
            yield
        except KeyboardInterrupt:
            assert self.has_raised
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Any:
        if frame.f_code.co_filename in (__file__, contextmanager.__code__.co_filename):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "opcode" and frame.f_lasti not in leaving(frame.f_code):
            self.steps += 1
            if self.steps == self.at:
                self.has_raised = True
                self.act()
        return self._step

    def act(self) -> None:
        raise KeyboardInterrupt


class Sweep:
    """One call, interrupted at one byte code after another, and the log after each."""

    def __init__(self, store: Store, other: Store) -> None:
        self.store, self.other = store, other
        self.told: list[bytes] = []
        self.interrupted: list[bytes] = []
        self.causes: Counter[type | None] = Counter()

    def send(self, port: ThreadPort, body: bytes) -> Pending[Any]:
        return port.enqueue(SPEC, body)

    def step(self, at: int) -> bool:
        asleep(self.store)
        raiser, body = Raiser(at), b"at %d" % at
        answer: Any = None
        with raiser.around():
            try:
                answer = self.send(self.store.thread_port, body)
            except KeyboardInterrupt as error:
                self.causes[type(error.__cause__)] += 1
                raise
        if answer is None:
            self.interrupted.append(body)
        else:
            answer.result(SECONDS)
            self.told.append(body)
        for number, store in enumerate((self.other, self.store)):
            body = b"behind %d %d" % (number, at)
            self.told.append(body)
            store.thread_port.enqueue(SPEC, body).result(SECONDS)
        # The storage thread may have been awake: to send the request takes a tenth of the steps.
        return raiser.has_raised or raiser.steps < SENT_STEPS


class Keyed(Sweep):
    """With a key, while all folds stand."""

    def send(self, port: ThreadPort, body: bytes) -> Pending[Any]:
        return port.enqueue(SPEC, body, Extras(key=body))

    def step(self, at: int) -> bool:
        self.store.thread_port.look(lambda _: None, needs_keys=True).result(SECONDS)
        return super().step(at)


class Many(Sweep):
    """A transaction."""

    def send(self, port: ThreadPort, body: bytes) -> Pending[Any]:
        return port.enqueue_many([(SPEC, body, None), (SPEC, body + b"+", None)])


def counts_of(store: Store) -> Any:
    queues = store.thread_port.stats().result(SECONDS).queues
    return [(queue.queue, queue.ready, queue.running, queue.succeeded) for queue in queues]


@grows
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sweep", "durability", "nth"),
    [
        (Sweep, Durability.OS, 17),
        (Sweep, Durability.FSYNC, 61),
        (Keyed, Durability.OS, 53),
        (Many, Durability.OS, 53),
    ],
)
def test_the_log_is_right_wherever_a_handler_raises(
    stores: Callable[[LogConfig], Store],
    tmp_path: Path,
    sweep: type[Sweep],
    durability: Durability,
    nth: int,
) -> None:
    """At every byte code of a commit: nothing told is lost, nothing comes twice, all go on."""
    config = LogConfig(durability=durability)
    store, other = stores(config), stores(config)
    swept = sweep(store, other)

    def run() -> int:
        swept.step(10**9)
        at = 1
        while swept.step(at):
            # Folds are made anew after each step, so calls with folds take longer and longer.
            at += max(every(nth), 5 * (sweep is Keyed))
        return at

    with futures.ThreadPoolExecutor(1) as pool:
        steps = pool.submit(run).result()
    assert steps > 2 * SENT_STEPS
    assert swept.causes[OutcomeUnknown] > len(swept.interrupted) // 2
    bodies = Counter(
        record.body for record in log_records(tmp_path) if record.type == Kind.ENQUEUED
    )
    assert all(bodies[body] == 1 for body in swept.told)
    kept = [body for body in swept.interrupted if bodies[body]]
    assert 0 < len(kept) < len(swept.interrupted)
    assert max(bodies[body] for body in kept) == 1
    if sweep is Many:
        assert all(bodies[body] == bodies[body + b"+"] for body in swept.interrupted)
    fresh = stores(config)
    assert counts_of(store) == counts_of(fresh) == [("default", sum(bodies.values()) + 1, 0, 0)]


def ready_in(store: Store) -> int:
    return sum(ready for _, ready, *_ in counts_of(store))


class Enqueuer(Raiser):
    """Enqueues once, at a byte code of this thread's calls, like a signal handler."""

    def __init__(self, at: int, port: ThreadPort) -> None:
        super().__init__(at)
        self.port = port
        self.answer: Pending[Any] | None = None

    def act(self) -> None:
        with suppress(UsageError):  # refused within a commit
            self.answer = self.port.enqueue(SPEC, b"handler %d" % self.at)


@grows
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("durability", "nth"), [(Durability.OS, 7), (Durability.FSYNC, 31)])
def test_the_log_is_right_wherever_a_handler_enqueues(
    stores: Callable[[LogConfig], Store], durability: Durability, nth: int
) -> None:
    """At every byte code of a commit its job is kept or refused, and the lock stays whole."""
    store = stores(LogConfig(durability=durability))
    before = ready_in(store)

    def run() -> int:
        kept, at, has_steps = 0, 1, True
        while has_steps:
            asleep(store)
            handler = Enqueuer(at, store.thread_port)
            with handler.around():
                answer = store.thread_port.enqueue(SPEC, b"%d" % at)
            answer.result(SECONDS)
            kept += 1
            if handler.answer is not None:
                handler.answer.result(SECONDS)
                kept += 1
            has_steps = handler.has_raised or handler.steps < SENT_STEPS
            at += every(nth)
        return kept

    with futures.ThreadPoolExecutor(1) as pool:
        kept = pool.submit(run).result()
    assert ready_in(store) == before + kept
