"""Each call of the machine fails once, with each error that may come there: nobody is harmed."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from taskq.core.errors import LogClosed, LogError, LogFailed, TaskqError
from taskq.core.model import SECOND_NS, Extras, State
from taskq.core.records import Kind
from taskq.core.views import Serving
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.machine.threads import Pending
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store import thread
from taskq.log.store.store import Store
from tests.effort import every, grows
from tests.log.store.sites import ERRORS, Site, Sites
from tests.processes.harness import eventually

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

    def __init__(self, scene: Scene) -> None:
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


class Scene:
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
            scene = Scene(path)
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
