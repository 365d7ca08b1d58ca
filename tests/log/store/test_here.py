"""Commits on the caller's own thread, locks of handlers, and lines of jobs in the mailbox."""

import ast
import asyncio
import dis
import errno
import fcntl
import functools
import gc
import logging
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
from typing import Any, Final, TypeAlias

import pytest

import taskq.log
from taskq import TaskQ
from taskq.connection.blocking import blocking
from taskq.core.errors import DiskFull, LogClosed, OutcomeUnknown, UsageError
from taskq.core.model import Conflict, Durability, Extras
from taskq.core.records import Flag, Kind
from taskq.log.commit.committer import Committer
from taskq.log.commit.room import Room
from taskq.log.config import BATCH_BYTES_MAX, MAILBOX_MAX, LogConfig
from taskq.log.decide.enqueue import Run
from taskq.log.journal.journal import Journal, Tail
from taskq.log.machine.inside import inside
from taskq.log.machine.threads import REPORTS_MAX, Aside, Pending
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Request
from taskq.log.state import facets
from taskq.log.store import caller_commit
from taskq.log.store import thread as storage
from taskq.log.store.caller_commit import Handlers
from taskq.log.store.mailbox import Mailbox
from taskq.log.store.port import LoopPort, ThreadPort
from taskq.log.store.store import Store
from taskq.log.store.thread import StorageThread
from tests.effort import ended, every, grows, within
from tests.log.world import World, fixed_ids
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


@pytest.mark.parametrize("durability", list(Durability))
def test_a_thread_that_blocks_commits_for_itself(
    stores: Callable[[LogConfig], Store], committers: list[int], durability: Durability
) -> None:
    store = stores(LogConfig(durability=durability, interval_seconds=2 * SECONDS))
    asleep(store)
    committers.clear()

    def call() -> tuple[int, bool]:
        future = store.thread_port.enqueue(SPEC, b"x")
        return threading.get_ident(), future.done()

    thread, is_done = on_thread(call)
    assert (committers, is_done) == ([thread], True)


@pytest.mark.parametrize("hindrance", ["its keys are not read yet", "the disk is full"])
def test_a_callers_commit_that_is_put_off_or_refused_leaves_the_log_to_others(
    stores: Callable[[LogConfig], Store], monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    held: list[bool] = []
    commit_here = StorageThread.commit_here

    def noted(self: StorageThread, *given: Any, **options: Any) -> bool:
        is_due = commit_here(self, *given, **options)
        held.append(self.journal.writer.held)
        return is_due

    monkeypatch.setattr(StorageThread, "commit_here", noted)
    store = stores(OS)
    asleep(store)
    held.clear()
    extras = None
    if hindrance == "the disk is full":
        monkeypatch.setattr(Room, "admit", lambda _, requests, needs: (requests, needs, []))
        monkeypatch.setattr(Room, "may_try", lambda *_: False)
        assert store.mailbox.here is not None
        room = store.mailbox.here._committer.room
        room.left, room.refused = -1, OSError(errno.ENOSPC, "full")
    else:
        monkeypatch.setattr(facets, "AT_ONCE_BYTES", 0)
        extras = Extras(key=b"k", window_ns=1)
    with suppress(DiskFull):
        on_thread(lambda: store.thread_port.enqueue(SPEC, b"x", extras).result(SECONDS))
    assert held == [False]


@pytest.mark.posix("loops have no channel to commit by themselves")
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


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the storage thread rest after a batch for as long as nobody wakes it."""
    for name in ("_KEEP_SECONDS", "_LOOK_SECONDS", "_RESTING_SECONDS"):
        monkeypatch.setattr(storage, name, SECONDS)


async def enqueued(port: LoopPort, count: int, body: bytes = b"x") -> None:
    async def one() -> None:
        await port.enqueue(SPEC, body)

    await asyncio.gather(*(one() for _ in range(count)))


async def rested(store: Store) -> LoopPort:
    """Return a port while the storage thread rests after a batch."""
    port = store.port()
    await enqueued(port, 300)
    eventually(lambda: store.mailbox.asleep and store.mailbox.rests)
    return port


async def emptied(store: Store) -> LoopPort:
    """Return a port while all jobs are claimed, and the storage thread rests."""
    port = await rested(store)
    await port.claim(ClaimRequest(count=4_000))
    eventually(lambda: store.mailbox.asleep and store.mailbox.rests)
    return port


async def claimed(port: LoopPort, count: int) -> None:
    asked = port.claim(ClaimRequest(count=count))
    await enqueued(port, count)
    port.succeed_soon(await asked, lambda *_: None)
    await enqueued(port, 2)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize(
    ("send", "is_here"),
    [
        (lambda port: enqueued(port, 3), True),
        (lambda port: enqueued(port, 300), False),
        (lambda port: enqueued(port, 3, bytes(30_000)), False),
        (lambda port: claimed(port, 2), True),
        (lambda port: port.enqueue_many([(SPEC, b"x", None)]), False),
    ],
    ids=("few", "many", "large", "cycle", "another request"),
)
@pytest.mark.usefixtures("resting")
def test_a_loop_commits_what_came_in_its_turn_where_that_is_little(
    stores: Callable[[LogConfig], Store], committers: list[int], durability: Durability,
    send: Callable[[LoopPort], Any], is_here: bool,
) -> None:  # fmt: skip
    store = stores(LogConfig(durability=durability, interval_seconds=2 * SECONDS))

    async def main() -> int:
        port = await emptied(store)
        committers.clear()
        await send(port)
        return threading.get_ident()

    thread = in_loop(main)
    assert (set(committers) == {thread}) == (is_here and durability is not Durability.FSYNC)


@pytest.mark.usefixtures("resting")
def test_a_job_that_may_not_run_twice_is_claimed_once_its_claim_is_on_disk(
    stores: Callable[[LogConfig], Store], committers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores(OS)
    once = EnqueueSpec(attempts=1, flags=Flag.DURABLE_CLAIM)
    synced: list[int] = []
    sync = Tail.sync

    def noted(self: Tail) -> None:
        synced.append(threading.get_ident())
        sync(self)

    async def main() -> tuple[list[int], int]:
        port = await emptied(store)
        monkeypatch.setattr(Tail, "sync", noted)
        committers.clear()
        asked = port.claim(ClaimRequest(count=9))
        await port.enqueue(once, b"x")
        await asked
        return list(synced), threading.get_ident()

    threads, loop = in_loop(main)
    assert loop in committers
    assert threads
    assert loop not in threads


@pytest.mark.usefixtures("resting")
def test_what_an_interrupted_loop_had_sent_is_answered_all_the_same(
    stores: Callable[[LogConfig], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, append = stores(OS), Journal.append

    def interrupted(self: Journal, *args: Any) -> None:
        append(self, *args)
        raise KeyboardInterrupt

    asked: list[Any] = []
    refused: list[Any] = []

    async def send() -> None:
        port = await rested(store)
        (delivery, *_) = await port.claim(ClaimRequest(count=4_000))
        eventually(lambda: store.mailbox.asleep and store.mailbox.rests)
        monkeypatch.setattr(Journal, "append", interrupted)
        port.succeed_soon([delivery], lambda _, error: refused.append(error))
        asked.extend(port.enqueue(SPEC, b"y") for _ in range(2))
        asked.append(port.claim(ClaimRequest(count=1)))
        await asyncio.sleep(SECONDS)

    def run() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(send())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        monkeypatch.setattr(Journal, "append", append)
        refused.extend(loop.run_until_complete(asyncio.gather(*asked, return_exceptions=True)))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()

    on_thread(run)
    assert list(map(type, refused)) == [OutcomeUnknown] * 4
    assert store.thread_port.enqueue(SPEC, b"z").result(SECONDS)


def test_enqueueing_in_a_loop_lets_other_coroutines_run(
    stores: Callable[[LogConfig], Store],
) -> None:
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


def test_no_commit_is_made_where_to_wake_the_dead_would_be_death() -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert not Handlers().are_calm()
        assert not on_thread(Handlers().are_calm)
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_a_call_from_inside_a_commit_does_not_deadlock(
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

    def __init__(self, at: int, port: ThreadPort) -> None:
        self.at, self.port, self.steps, self.has_raised = at, port, 0, False
        self.answer: Pending[Any] | None = None

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


class Enqueuer(Raiser):
    """Enqueues once, at a byte code of this thread's calls, like a signal handler."""

    def act(self) -> None:
        with suppress(UsageError):  # refused within a commit
            self.answer = self.port.enqueue(SPEC, b"handler %d" % self.at)


def plain(port: ThreadPort, body: bytes) -> Pending[Any]:
    return port.enqueue(SPEC, body)


def keyed(port: ThreadPort, body: bytes) -> Pending[Any]:
    return port.enqueue(SPEC, body, Extras(key=body))


def together(port: ThreadPort, body: bytes) -> Pending[Any]:
    return port.enqueue_many([(SPEC, body, None), (SPEC, body + b"+", None)])


Send: TypeAlias = Callable[[ThreadPort, bytes], Pending[Any]]


class Sweep:
    """One call, interrupted at one byte code after another, and the log after each."""

    def __init__(self, store: Store, other: Store, send: Send, handler: type[Raiser]) -> None:
        self.store, self.other, self.send, self.handler = store, other, send, handler
        self.told: list[bytes] = []
        self.interrupted: list[bytes] = []
        self.causes: Counter[type | None] = Counter()

    def step(self, at: int) -> bool:
        if self.send is keyed:  # while all folds stand
            self.store.thread_port.look(lambda _: None, needs_keys=True).result(SECONDS)
        asleep(self.store)
        raiser, body = self.handler(at, self.store.thread_port), b"at %d" % at
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
        if raiser.answer is not None:
            raiser.answer.result(SECONDS)
            self.told.append(b"handler %d" % at)
        for number, store in enumerate((self.other, self.store)):
            body = b"behind %d %d" % (number, at)
            self.told.append(body)
            store.thread_port.enqueue(SPEC, body).result(SECONDS)
        # The storage thread may have been awake: to send the request takes a tenth of the steps.
        return raiser.has_raised or raiser.steps < SENT_STEPS


def counts_of(store: Store) -> Any:
    queues = store.thread_port.stats().result(SECONDS).queues
    return [(queue.queue, queue.ready, queue.running, queue.succeeded) for queue in queues]


@grows
@pytest.mark.parametrize(
    ("send", "durability", "nth", "handler"),
    [
        (plain, Durability.OS, 17, Raiser),
        (plain, Durability.FSYNC, 61, Raiser),
        (keyed, Durability.OS, 53, Raiser),
        (together, Durability.OS, 53, Raiser),
        (plain, Durability.OS, 37, Enqueuer),
        (plain, Durability.FSYNC, 61, Enqueuer),
    ],
)
def test_the_log_is_right_wherever_a_handler_raises_or_enqueues(
    stores: Callable[[LogConfig], Store], tmp_path: Path, send: Send, durability: Durability,
    nth: int, handler: type[Raiser],
) -> None:  # fmt: skip
    """At every byte code of a commit: nothing told is lost, nothing comes twice, all go on."""
    config = LogConfig(durability=durability)
    store, other = stores(config), stores(config)
    swept = Sweep(store, other, send, handler)

    def run() -> int:
        swept.step(10**9)
        at = 1
        while swept.step(at):
            # Folds are made anew after each step, so calls with folds take longer and longer.
            at += max(every(nth), 5 * (send is keyed))
        return at

    with futures.ThreadPoolExecutor(1) as pool:
        steps = pool.submit(run).result()
    assert steps > 1.5 * SENT_STEPS  # Python 3.14 has fewer byte codes for the same call
    bodies = Counter(
        record.body for record in log_records(tmp_path) if record.type == Kind.ENQUEUED
    )
    assert all(bodies[body] == 1 for body in swept.told)
    if handler is Raiser:
        assert swept.causes[OutcomeUnknown] > len(swept.interrupted) // 2
        kept = [body for body in swept.interrupted if bodies[body]]
        assert 0 < len(kept) < len(swept.interrupted)
        assert max(bodies[body] for body in kept) == 1
    if send is together:
        assert all(bodies[body] == bodies[body + b"+"] for body in swept.interrupted)
    fresh = stores(config)
    assert counts_of(store) == counts_of(fresh) == [("default", sum(bodies.values()) + 1, 0, 0)]


def sources() -> Iterator[Path]:
    return Path(taskq.log.__path__[0]).rglob("*.py")


def test_no_module_of_the_log_logs_or_warns_but_by_reports() -> None:
    reporting = [path for path in sources() if path.name != "threads.py"]
    for path in reporting:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"logging", "warnings"} & set(names), path


class Handler(logging.Handler):
    """Enqueues a job for each line, while other threads wait for its lock."""

    def __init__(self, enqueue: Callable[[], object]) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.was_inside = False
        self._enqueue = enqueue

    def emit(self, _record: logging.LogRecord) -> None:
        self.was_inside |= threading.get_ident() in inside
        if len(self.threads) < 5:
            self.threads.add(threading.get_ident())
            self._enqueue()


def test_a_handler_that_enqueues_never_waits_for_one_that_waits_for_it(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def alert() -> None: ...

    monkeypatch.setattr("taskq.log.journal.journal.SLOW_SYNC_NS", -1)
    handler = Handler(alert.enqueue_sync)
    logging.getLogger("taskq").addHandler(handler)
    try:
        threads = [threading.Thread(target=alert.enqueue_sync, daemon=True) for _ in range(8)]
        with handler.lock or threading.Lock():
            for thread in threads:
                thread.start()
            for thread in threads:
                ended(thread)
        eventually(lambda: handler.threads)
    finally:
        logging.getLogger("taskq").removeHandler(handler)
        app.close_sync()
    assert not handler.was_inside


def on_storage_thread(app: TaskQ, call: Callable[[], Any]) -> Any:
    answer: Pending[Any] = Pending()

    def make() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is asked for
            answer.set_exception(error)

    app.store().between_batches(make)
    return answer.result(20)


async def _pause(app: TaskQ) -> bool:
    return await app.pause("mail")


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.connection.thread_port().stats(),
        lambda app: app.enqueue_by_name_sync("task"),
        lambda app: app.pause_sync("mail"),
        blocking(_pause),
        lambda app: app.close_sync(),
        lambda app: app.store().close(),
        lambda app: TaskQ(app.data_dir / "other").stats_sync(),
    ],
)
def test_what_a_finalizer_asks_on_the_storage_thread_is_refused_at_once(
    app: TaskQ, call: Callable[[TaskQ], object]
) -> None:
    """The collector runs finalizers on whichever thread it likes."""
    app.task(name="task")(lambda: None)
    with pytest.raises(UsageError, match="finalizer"):
        on_storage_thread(app, lambda: call(app))
    assert app.enqueue_by_name_sync("task").id
    app.close_sync()


class Loop(asyncio.SelectorEventLoop):
    was_inside = False

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.was_inside |= threading.get_ident() in inside
        return super().call_soon_threadsafe(*args, **kwargs)

    def create_future(self) -> Any:
        loop = self

        class Future(asyncio.Future[Any]):
            def done(self) -> bool:
                loop.was_inside |= threading.get_ident() in inside
                return super().done()

        return Future(loop=self)


def test_no_code_of_an_event_loop_runs_on_the_storage_thread(app: TaskQ) -> None:
    async def use() -> None:
        async with within(), app:
            await asyncio.gather(*(app.stats() for _ in range(5)))

    loop = Loop()
    loop.run_until_complete(use())
    loop.close()
    assert not loop.was_inside


def test_reports_are_bounded_and_all_that_fit_are_made() -> None:
    aside, made, gate = Aside("test"), list[int](), threading.Event()
    begun = threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait()

    aside.put(hold)
    assert begun.wait(20)
    for number in range(REPORTS_MAX + 50):
        aside.put(lambda number=number: made.append(number))  # type: ignore[misc]
    assert aside.dropped == 50
    gate.set()
    aside.drain(20)
    assert made == list(range(REPORTS_MAX))
    gc.collect()


MAIL = EnqueueSpec("mail")
SMS = EnqueueSpec("sms")


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox("somewhere")


@pytest.fixture
def port(mailbox: Mailbox) -> Iterator[LoopPort]:
    loop = asyncio.new_event_loop()
    yield LoopPort(mailbox, loop)
    loop.close()


def taken(mailbox: Mailbox, room: int = BATCH_BYTES_MAX) -> list[Request]:
    requests = []
    while mailbox.requests:
        request = mailbox.next(room)
        if request is not None:
            requests.append(request)
    return requests


def bodies(request: Request) -> list[bytes]:
    op, _, _, operand = request
    return list(operand.bodies) if op == Op.ENQUEUE_RUN else [operand[1]]


def test_two_threads_that_empty_the_mailbox_take_no_job_twice(
    mailbox: Mailbox, port: LoopPort
) -> None:
    count, taken_by = 20_000, (list[bytes](), list[bytes]())
    over = threading.Event()

    def take(mine: list[bytes]) -> None:
        while not over.is_set() or mailbox.requests:
            try:
                request = mailbox.next(5_000)
            except IndexError:
                continue
            mine.extend(bodies(request) if request else ())

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken_by]
    for thread in threads:
        thread.start()
    for number in range(count):
        port.enqueue(MAIL, b"%d" % number, None)
    over.set()
    for thread in threads:
        thread.join()
    assert sorted(map(int, taken_by[0] + taken_by[1])) == list(range(count))


def test_each_job_of_a_run_counts_toward_the_limit_of_the_mailbox(port: LoopPort) -> None:
    for _ in range(MAILBOX_MAX - 2):  # the request for all of them counts, too
        port.enqueue(MAIL, b"", None)
    assert not port.full
    port.enqueue(MAIL, b"", None)
    assert port.full


ODD: Final = (
    Extras(key=b"a"), Extras(due_ns=5), Extras(key=b"a"), Extras(expires_ns=10**18), None,
    Extras(key=b"a", on_conflict=Conflict.REPLACE), Extras(key=b""), Extras(key=b"b"),
    Extras(key=b"b", on_conflict=Conflict.RAISE), Extras(due_ns=2**60, due_is_wall=True),
)  # fmt: skip


@pytest.mark.parametrize("folds", ["none", "agenda"])
def test_jobs_with_options_are_written_among_plain_ones_as_they_are_one_by_one(folds: str) -> None:
    """Records, answers and what is claimed then are the same."""
    kinds = [ODD[number // 3 % len(ODD)] if number % 3 == 0 else None for number in range(60)]
    specs = [(MAIL, SMS)[number % 7 == 0] for number in range(60)]
    outcomes = []
    for is_line in (False, True):
        with fixed_ids():
            world = World()
            process = world.process()
        if folds == "agenda":
            process.send(Op.CLAIM, ClaimRequest(count=1))
        items = [(spec, b"%d" % at, kinds[at]) for at, spec in enumerate(specs)]
        callers: list[Any] = [futures.Future() for _ in items]
        line = [(extras and (spec, extras)) or spec for spec, _, extras in items]
        run = Run(line, [body for _, body, _ in items], callers)
        requests: list[Any] = [
            (Op.ENQUEUE, None, *pair) for pair in zip(callers, items, strict=True)
        ]
        process.commit([(Op.ENQUEUE_RUN, None, run, run)] if is_line else requests)
        process.sync()
        answers = [future.exception() or future.result() for future in callers]
        got = process.send(Op.CLAIM, ClaimRequest(count=100)).result()
        log = [world.machine.content(path) for path in world.segments()]
        outcomes.append(([*map(str, answers)], [str(item.job) for item in got], log))
    assert outcomes[0] == outcomes[1]


def test_requests_after_the_end_of_a_mailbox_are_all_refused(
    mailbox: Mailbox, port: LoopPort
) -> None:
    loop = port.loop
    before = [port.enqueue(MAIL, b"") for _ in range(3)]
    mailbox.end()
    after = [port.enqueue(MAIL, b"") for _ in range(3)]
    loop.run_until_complete(asyncio.wait([*before, *after], timeout=5))
    assert all(isinstance(future.exception(), LogClosed) for future in (*before, *after))
