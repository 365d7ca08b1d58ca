"""A process that stands still, a disk that answers late, a mailbox that is full or closes."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, cast

import pytest

from taskq.core.errors import LogClosed, LogLocked, TaskqError
from taskq.core.model import SECOND_NS, Durability, Extras
from taskq.core.records import Kind
from taskq.log.config import MAILBOX_MAX, LogConfig
from taskq.log.journal.lock import WriterLock
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.threads import Pending
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.port import ThreadPort
from taskq.log.store.store import Store, open_store
from tests.effort import at_most, ended, spread
from tests.processes.harness import (
    SCRIPTS,
    Child,
    Pause,
    eventually,
    log_records,
    of_kind,
    open_here,
    preloaded,
    put,
)
from tests.programs import run_python

SPEC = EnqueueSpec()
LIMIT_SECONDS = 0.5
#: The watcher looks eight times per limit, and the machine has other things to do.
PATIENCE_SECONDS = at_most(3.0)


def open_impatient(path: Path) -> Store:
    config = LogConfig(durability=Durability.OS, lock_wait_seconds=LIMIT_SECONDS)
    return open_store(str(path), config)


def bodies(path: Path) -> list[bytes]:
    return [record.body or b"" for record in of_kind(log_records(path), Kind.ENQUEUED)]


@pytest.mark.posix("stops a process")
@pytest.mark.parametrize("place", ["before", "half", "after"])
def test_a_process_stopped_in_the_lock_is_named_to_others(tmp_path: Path, place: str) -> None:
    """They get a clear error after the limit; when it goes on, nothing is lost or broken."""
    store = open_impatient(tmp_path)
    port = store.thread_port
    put(store, b"first")
    with Child("actors.py", "stop", tmp_path, place) as stopped:
        stopped.expect("inside")
        eventually(lambda: stopped.state() == "T")
        began = time.monotonic()
        refused = port.enqueue(SPEC, b"refused").exception(PATIENCE_SECONDS)
        waited = time.monotonic() - began
        assert isinstance(refused, LogLocked)
        assert refused.holder_pid == stopped.pid
        assert f"process {stopped.pid} (stopped" in str(refused)
        assert LIMIT_SECONDS <= waited < PATIENCE_SECONDS
        assert isinstance(port.enqueue(SPEC, b"too").exception(PATIENCE_SECONDS), LogLocked)
        # Reading needs no lock, and a frame that is half there is not there.
        readable = [b"first", b"stopped"] if place == "after" else [b"first"]
        assert bodies(tmp_path) in ([b"first"], readable)
        assert LogReader.open(str(tmp_path)).verify().damage == ()
        with Child(
            "actors.py", "answer", tmp_path, f"lock_wait_seconds={LIMIT_SECONDS}"
        ) as newcomer:
            refusal = newcomer.expect("refused", PATIENCE_SECONDS)
            assert f"process {stopped.pid} (stopped" in refusal
        stopped.send(signal.SIGCONT)
        lsns = [int(stopped.expect("enqueued")) for _ in range(2)]
        lsns.append(put(store, b"last"))
        assert stopped.wait() == 0
    assert lsns == sorted(set(lsns))
    assert bodies(tmp_path) == [b"first", b"stopped", b"later", b"last"]
    assert LogReader.open(str(tmp_path)).verify().damage == ()
    store.close()


@pytest.mark.posix("stops a process")
def test_a_process_stopped_at_the_turnstile_is_named_to_the_others(tmp_path: Path) -> None:
    store = open_impatient(tmp_path)
    with Child("actors.py", "stop", tmp_path, "turnstile") as next_in_line:
        next_in_line.expect("open")
        with Child("actors.py", "stop", tmp_path, "before") as holder:
            holder.expect("inside")
            eventually(lambda: holder.state() == "T")
            next_in_line.say("go")
            next_in_line.expect("inside")
            eventually(lambda: next_in_line.state() == "T")
            holder.send(signal.SIGCONT)
            first = int(holder.expect("enqueued"))
        refused = store.thread_port.enqueue(SPEC, b"refused").exception(PATIENCE_SECONDS)
        assert isinstance(refused, LogLocked)
        assert f"process {next_in_line.pid} (stopped" in str(refused)
        next_in_line.send(signal.SIGCONT)
        second = int(next_in_line.expect("enqueued"))
        assert next_in_line.wait() == 0
    last = put(store, b"last")
    assert first < second < last
    store.close()


def test_waiting_at_the_turnstile_and_for_the_lock_is_one_wait(tmp_path: Path) -> None:
    disk = LocalDisk()
    first, second = (WriterLock(disk, str(tmp_path), pid) for pid in (1, 2))
    in_the_way = [first._gate, first._file]
    for descriptor in in_the_way:
        assert disk.try_lock(descriptor)
    began: list[float] = []

    def make_way() -> None:
        began.append(second.waiting_since)
        disk.unlock(in_the_way.pop(0))

    second.on_wait = make_way
    second.acquire()
    assert len(began) == 2
    assert began[0] == began[1] > 0
    assert second.waiting_since == 0
    assert second.waits.largest > 0
    for lock in (second, first):
        lock.close()


@pytest.mark.posix("stops a process")
def test_settlements_and_claims_outlive_a_long_wait(tmp_path: Path) -> None:
    """A worker's outcomes are not thrown away because the lock was not to be had in time."""
    store = open_impatient(tmp_path)
    port = store.thread_port
    first, second = put(store, b"first"), put(store, b"second")
    [delivery] = port.claim(ClaimRequest(1)).result()
    with Child("actors.py", "stop", tmp_path, "before") as stopped:
        stopped.expect("inside")
        errors: list[TaskqError] = []
        claim: Pending[list[Delivery]] = port.claim(ClaimRequest(1))
        port.settle_soon(
            [Settlement(Kind.SUCCEEDED, delivery)], lambda _, error: errors.append(error)
        )
        assert isinstance(port.cancel(second).exception(PATIENCE_SECONDS), LogLocked)
        assert not claim.done()
        stopped.send(signal.SIGCONT)
        assert stopped.wait() == 0
    [other] = claim.result()
    assert other.job == second
    assert port.settle([Settlement(Kind.SUCCEEDED, other)]).result() == [None]
    assert errors == []
    done = [item.job for item in of_kind(log_records(tmp_path), Kind.SUCCEEDED)]
    assert done == [first, second]
    store.close()


@pytest.mark.posix("stops a process")
def test_a_claim_with_a_time_limit_does_not_wait_for_the_lock_for_ever(tmp_path: Path) -> None:
    store = open_impatient(tmp_path)
    port = store.thread_port
    with Child("actors.py", "stop", tmp_path, "before", "waits") as stopped:
        stopped.expect("open")
        moment = store.steady_ns() + SECOND_NS
        before: Pending[list[Delivery]] = port.claim(ClaimRequest(1, wait_until_ns=moment))
        port.stats().result()
        stopped.say("go on")
        stopped.expect("inside")
        limited: Pending[list[Delivery]] = port.claim(ClaimRequest(1, wait_until_ns=moment))
        patient: Pending[list[Delivery]] = port.claim(ClaimRequest(1))
        for claim in (limited, before):
            assert isinstance(claim.exception(1 + PATIENCE_SECONDS), LogLocked)
        assert not patient.done()
        stopped.send(signal.SIGCONT)
        assert stopped.wait() == 0
    [delivery] = patient.result()
    assert delivery.payload == b"stopped"
    store.close()


@pytest.mark.posix("stops a process")
def test_close_answers_everything_though_the_lock_is_not_to_be_had(tmp_path: Path) -> None:
    store = open_impatient(tmp_path)
    port = store.thread_port
    job = put(store, b"first")
    idle: Pending[list[Delivery]] = port.claim(ClaimRequest(1, frozenset({"empty"})))
    outcome = port.outcome(job)
    assert port.view(job).result()
    with Child("actors.py", "stop", tmp_path, "before") as stopped:
        stopped.expect("inside")
        claim: Pending[list[Delivery]] = port.claim(ClaimRequest(1))
        sent = [port.enqueue(SPEC, b"refused") for _ in range(3)]
        closer = threading.Thread(target=store.close)
        closer.start()
        ended(closer)
        futures: list[Pending[Any]] = [*sent, claim, idle, outcome]
        for future in futures:
            assert isinstance(future.exception(0), TaskqError)
        stopped.send(signal.SIGCONT)
        assert stopped.wait() == 0
    # The job was not claimed for somebody who had been sent away.
    again = open_here(tmp_path)
    [delivery] = again.thread_port.claim(ClaimRequest(1)).result()
    assert (delivery.job, delivery.attempt) == (job, 1)
    assert bodies(tmp_path) == [b"first", b"stopped", b"later"]
    again.close()


@pytest.mark.posix("stops a process")
def test_a_process_ends_though_the_lock_is_not_to_be_had(tmp_path: Path) -> None:
    with Child("actors.py", "answer", tmp_path, f"lock_wait_seconds={LIMIT_SECONDS}") as child:
        child.expect("open")
        with Child("actors.py", "stop", tmp_path, "before") as stopped:
            stopped.expect("inside")
            child.say("enqueue refused")
            assert child.expect("error").startswith("LogLocked")
            child.say("exit")
            assert child.wait(LIMIT_SECONDS + 1 + PATIENCE_SECONDS) == 0


#: After a slow call the loop waits for calls for at most this part of its time.
_SHARE_MAX: Final = 1 / 20
ROUNDS: Final = 10


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preloaded(tmp_path_factory.mktemp("slow"), "slow.c")


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no LD_PRELOAD")
@pytest.mark.skipif(sys.maxsize < 2**32, reason="calls of 64 bits are exchanged")
@pytest.mark.skipif(shutil.which("cc") is None, reason="the slow calls are compiled")
@spread(8)
@pytest.mark.parametrize("call", ["pwrite", "pread", "flock", "statx"])
@pytest.mark.parametrize("milliseconds", [50, 5])
def test_a_slow_call_stalls_no_loop(
    tmp_path: Path, slow: Path, call: str, milliseconds: int
) -> None:
    done = run_python(
        SCRIPTS / "stand_still.py", *(tmp_path, call, milliseconds, ROUNDS),
        env={**os.environ, "LD_PRELOAD": str(slow)}, check=True,
    )  # fmt: skip
    calls, waits, seconds = map(float, done.stdout.split())
    assert calls >= ROUNDS
    # The storage thread may have made the slow call before; the loop then finds out in one commit.
    waits -= min(waits, calls / ROUNDS)
    assert waits * milliseconds / 1_000 <= _SHARE_MAX * seconds


async def test_a_full_mailbox_makes_threads_and_coroutines_wait(tmp_path: Path) -> None:
    """``room`` waits while the mailbox is full; in the end everything is answered."""
    store = await asyncio.to_thread(open_here, tmp_path)
    port = store.thread_port
    pause = await asyncio.to_thread(Pause, store)
    futures = [port.enqueue(SPEC, b"x") for _ in range(MAILBOX_MAX)]
    assert port.full
    waits = [asyncio.ensure_future(store.port().room()) for _ in range(4)]
    waits += [asyncio.ensure_future(asyncio.to_thread(port.room)) for _ in range(4)]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    pause.end()
    await asyncio.wait_for(asyncio.gather(*waits), 10)
    answers = [await asyncio.to_thread(future.result, 10) for future in futures]
    assert answers == list(range(1, MAILBOX_MAX + 1))
    assert not store.mailbox.requests
    await asyncio.to_thread(store.close)


def test_close_answers_everything(tmp_path: Path) -> None:
    store = open_here(tmp_path, Durability.FSYNC)
    port = store.thread_port
    job = put(store, b"x")
    held: Pending[list[Delivery]] = port.claim(ClaimRequest(1, frozenset({"no such queue"})))
    outcome = port.outcome(job)
    pause = Pause(store)
    sent = [port.enqueue(SPEC, b"y") for _ in range(1_000)]
    look = port.view(job)
    closer = threading.Thread(target=store.close)
    closer.start()
    pause.end()
    ended(closer)
    assert len({future.result(0) for future in sent}) == 1_000
    assert look.result(0)
    for waiting in (held, outcome):
        assert isinstance(waiting.exception(0), LogClosed)
    store.close()
    with pytest.raises(LogClosed):
        port.enqueue(SPEC, b"z")
    with pytest.raises(LogClosed):
        port.claim(ClaimRequest(1))
    assert len(of_kind(log_records(tmp_path), Kind.ENQUEUED)) == 1_001


def test_room_is_no_trap_at_the_end(tmp_path: Path) -> None:
    store = open_here(tmp_path)
    port = store.thread_port
    store.close()
    late: Pending[int] = Pending()
    store.mailbox.requests.extend([(0, port, late, None)] * MAILBOX_MAX)
    waiter = threading.Thread(target=port.room, daemon=True)
    waiter.start()
    ended(waiter)
    assert isinstance(late.exception(0), LogClosed)


class CancelledInBetween(Pending[Any]):
    """Its owner cancels it just after the storage thread has seen that it still waits."""

    def done(self) -> bool:
        was_done = super().done()
        self.cancel()
        return was_done


def test_a_claim_cancelled_between_look_and_answer_gives_its_job_back(tmp_path: Path) -> None:
    """The storage thread outlives it, and the job burns no attempt."""
    store = open_here(tmp_path)
    port = store.thread_port
    job = put(store, b"x")
    port._future = CancelledInBetween
    cancelled = port.claim(ClaimRequest(1))
    port._future = Pending
    [delivery] = port.claim(ClaimRequest(1)).result()
    assert cancelled.cancelled()
    assert (delivery.job, delivery.attempt) == (job, 1)
    store.close()


@pytest.mark.parametrize("durability", Durability)
def test_leaving_without_close_loses_nothing_acknowledged(tmp_path: Path, durability: str) -> None:
    with Child("actors.py", "answer", tmp_path, f"durability={durability}") as child:
        child.expect("open")
        for number in range(3):
            child.say(f"enqueue {number}")
            child.expect("enqueued")
        child.say("exit")
        assert child.wait() == 0
    assert len(of_kind(log_records(tmp_path), Kind.ENQUEUED)) == 3
    assert not list((tmp_path / "owners").glob("*.lock"))


def wrong_requests(port: ThreadPort) -> list[Pending[Any]]:
    """None of them passes the types, so that each is a bug of its sender."""
    anything: Any = port
    no_delivery: Any = None
    return [
        anything.enqueue(SPEC, "text"),
        anything.enqueue(SPEC, b"x", Extras(headers={"a": "\ud800"})),
        anything.enqueue(SPEC, b"x", Extras(due_ns=2**70)),
        anything.enqueue(SPEC, None),
        anything.enqueue(None, b"x"),
        anything.enqueue_many([(SPEC, b"part", None), (SPEC, "text", None)]),
        anything.cancel("x"),
        anything.settle([Settlement(Kind.SUCCEEDED, no_delivery)]),
        anything.claim(ClaimRequest(1, queues=5)),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_a_request_that_makes_no_sense_fails_alone(
    tmp_path: Path, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskq")
    store = open_here(tmp_path, durability)
    port, errors, wrong_result = store.thread_port, list[TaskqError](), cast("bytes", "no bytes")
    put(store, b"first")
    [held] = port.claim(ClaimRequest(1)).result()
    pause = Pause(store)
    good = {"before": port.enqueue(SPEC, b"before")}
    wrong = wrong_requests(port)
    port.settle_soon(
        [Settlement(Kind.SUCCEEDED, held, wrong_result)], lambda _, error: errors.append(error)
    )
    claim: Pending[list[Delivery]] = port.claim(ClaimRequest(1))
    good["after"] = port.enqueue(SPEC, b"after")
    pause.end()
    for future in wrong:
        assert isinstance(future.exception(), TaskqError)
    [delivery] = claim.result()
    assert delivery.payload == b"before"
    assert port.settle([Settlement(Kind.SUCCEEDED, held)]).result() == [None]
    assert len(errors) == 1
    seen = {future.result(): name for name, future in good.items()}
    seen |= {held.job: "first", put(store, b"last"): "last"}
    jobs = of_kind(log_records(tmp_path), Kind.ENQUEUED)
    assert {job.lsn: (job.body or b"").decode() for job in jobs} == seen
    store.close()
