"""Writes of others wake a waiter at any step of its thread."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

import pytest

from taskq.core.model import SECOND_NS, Durability, Extras
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.machine.threads import Pending
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store import thread
from taskq.log.store.port import Bell
from taskq.log.store.store import Store
from tests.effort import spread
from tests.processes.harness import Pause, eventually, put

#: Calls of the thread between one batch and its sleep.
STEPS = [
    "_take", "_cycle", "_hand_out", "_build", "_keep_up", "_after_batch", "_idle", "_timeout",
    "_until_rest", "_interest", "committer.commit", "_until_upkeep",
    "peers.announce", "_has_news", "journal.has_grown", "peers.sleep",
]  # fmt: skip
SECONDS = 10
#: Calls that begin the wait, and calls that end it.
Wait: TypeAlias = "tuple[Callable[[], Pending[Any]], Callable[[], object]]"


@pytest.fixture(autouse=True)
def _writes_on_a_storage_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the other log's calls wait there, which user code may not."""
    for module in ("port", "caller_commit"):
        monkeypatch.setattr(f"taskq.log.store.{module}.refuse_inside", lambda _: None)


class Logs:
    def __init__(self, path: Path) -> None:
        config = LogConfig(durability=Durability.OS)
        self.waiter, self.writer = Store(str(path), config), Store(str(path), config)
        self.waiter.wait_open()
        self.writer.wait_open()
        self.waits, self.writes = self.waiter.thread_port, self.writer.thread_port
        self.job = put(self.writer, b"first")

    def for_a_job(self) -> Wait:
        self.writes.cancel(self.job).result(SECONDS)
        return lambda: self.waits.claim(ClaimRequest(1)), lambda: put(self.writer, b"second")

    def for_a_due_job(self) -> Wait:
        self.writes.cancel(self.job).result(SECONDS)
        soon = Extras(due_ns=SECOND_NS // 1_000)
        return (
            lambda: self.waits.claim(ClaimRequest(1)),
            lambda: self.writes.enqueue(EnqueueSpec(), b"second", soon).result(SECONDS),
        )

    def for_an_outcome(self) -> Wait:
        [delivery] = self.writes.claim(ClaimRequest(1)).result(SECONDS)
        settled = [Settlement(Kind.SUCCEEDED, delivery)]
        return lambda: self.waits.outcome(self.job), lambda: self.writes.settle(settled).result()

    def for_growth(self) -> Wait:
        end = self.job + 1
        return lambda: self.waits.extent(end), lambda: put(self.writer, b"second")

    def for_a_cancel(self) -> Wait:
        """Somebody else wants a job over that runs here."""
        self.waits.claim(ClaimRequest(1)).result(SECONDS)

        def listen() -> Pending[Any]:
            asked: Pending[Any] = Pending()
            asks = self.waiter._open.committer.operations.asks
            asks.listen(self.waits, lambda ask, _: asked.set_result(ask))
            return asked

        return listen, lambda: self.writes.cancel(self.job).result(SECONDS)

    def close(self) -> None:
        self.waiter.close()
        self.writer.close()


WAITS = [
    Logs.for_a_job, Logs.for_a_due_job, Logs.for_an_outcome, Logs.for_growth, Logs.for_a_cancel,
]  # fmt: skip


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    """Nobody looks around by himself: a wake-up that is lost is never made up for."""
    monkeypatch.setattr(thread, "LOOK_AROUND_NS", 10**15)
    monkeypatch.setattr(thread, "_REST_SECONDS", 10**6)
    logs = Logs(tmp_path)
    yield logs
    logs.close()


def have_act(target: object, name: str, act: Callable[[], object], *, before: bool) -> Event:
    """Let the next call of a method, and only that, act before it begins or when it is done."""
    method, reached = getattr(target, name), Event()

    def stepped(*args: object) -> object:
        setattr(target, name, method)
        if before:
            reached.set()
            act()
        value = method(*args)
        if not before:
            reached.set()
            act()
        return value

    setattr(target, name, stepped)
    return reached


@spread(3)
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("waits", WAITS, ids=lambda waits: waits.__name__)
def test_a_write_at_any_step_wakes_a_waiter(
    logs: Logs, waits: Callable[[Logs], Wait], step: str, *, before: bool
) -> None:
    """The same thread looks at the log for other reasons, too, and forgets nobody then."""
    begin, act = waits(logs)
    owner, _, name = f"_open.{step}".rpartition(".")
    pause = Pause(logs.waiter)
    answer = begin()
    logs.waits.view(logs.job)
    reached = have_act(attrgetter(owner)(logs.waiter), name, act, before=before)
    pause.end()
    # A sleeper before that step needs a wake-up.
    mailbox = logs.waiter.mailbox
    while not reached.is_set():
        eventually(lambda: reached.is_set() or mailbox.asleep)
        mailbox.poke()
    assert answer.result(SECONDS)


@pytest.mark.parametrize("looks", ["a caller", "upkeep", "rest"])
@pytest.mark.parametrize("waits", WAITS, ids=lambda waits: waits.__name__)
def test_another_read_of_the_log_hides_nothing_from_a_waiter(
    logs: Logs, waits: Callable[[Logs], Wait], looks: str
) -> None:
    begin, act = waits(logs)
    answer = begin()
    logs.waits.view(logs.job).result(SECONDS)
    storage = logs.waiter._open
    look = {
        "a caller": lambda: logs.waits.view(logs.job),
        "upkeep": storage.journal.refresh,
        "rest": storage._rest,
    }[looks]
    logs.waiter.between_batches(lambda: (act(), look()))
    assert answer.result(SECONDS)


@pytest.mark.posix("loops read no pipes")
def test_a_bell_whose_loop_has_closed_gives_its_pipe_back_when_it_goes() -> None:
    loop = asyncio.new_event_loop()
    bell = Bell(loop, lambda: None)
    pipe = bell._read, bell._write
    loop.close()
    del bell
    gc.collect()
    for descriptor in pipe:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
