"""A process that stands still: inside the lock it holds the others up, but not in silence."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from taskq.core.errors import LogLocked, TaskqError
from taskq.core.model import SECOND_NS, Durability
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.journal.lock import WriterLock
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.threads import Pending
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from tests.effort import at_most, ended
from tests.processes.harness import Child, eventually, log_records, of_kind, open_here, put

SPEC = EnqueueSpec()
LIMIT_SECONDS = 0.5
#: The watcher looks eight times per limit, and the machine has other things to do.
PATIENCE_SECONDS = 3.0


def open_impatient(path: Path) -> Store:
    config = LogConfig(durability=Durability.OS, lock_wait_seconds=LIMIT_SECONDS)
    return open_store(str(path), config)


def bodies(path: Path) -> list[bytes]:
    return [record.body or b"" for record in of_kind(log_records(path), Kind.ENQUEUED)]


@pytest.mark.parametrize("place", ["before", "half", "after"])
def test_a_process_stopped_inside_the_lock_is_named_to_the_others(
    tmp_path: Path, place: str
) -> None:
    """They get a clear error after the limit; when it goes on, nothing is lost or broken."""
    store = open_impatient(tmp_path)
    port = store.thread_port
    put(store, b"first")
    with Child("stop.py", tmp_path, place) as stopped:
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
        with Child("answer.py", tmp_path, f"lock_wait_seconds={LIMIT_SECONDS}") as newcomer:
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


def test_a_process_stopped_at_the_turnstile_is_named_to_the_others(tmp_path: Path) -> None:
    store = open_impatient(tmp_path)
    with Child("stop.py", tmp_path, "turnstile") as next_in_line:
        next_in_line.expect("open")
        with Child("stop.py", tmp_path, "before") as holder:
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


def test_settlements_and_claims_outlive_a_long_wait(tmp_path: Path) -> None:
    """A worker's outcomes are not thrown away because the lock was not to be had in time."""
    store = open_impatient(tmp_path)
    port = store.thread_port
    first, second = put(store, b"first"), put(store, b"second")
    [delivery] = port.claim(ClaimRequest(1)).result(10)
    with Child("stop.py", tmp_path, "before") as stopped:
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
    [other] = claim.result(10)
    assert other.job == second
    assert port.settle([Settlement(Kind.SUCCEEDED, other)]).result(10) == [None]
    assert errors == []
    done = [item.job for item in of_kind(log_records(tmp_path), Kind.SUCCEEDED)]
    assert done == [first, second]
    store.close()


def test_a_claim_with_a_time_limit_does_not_wait_for_the_lock_for_ever(tmp_path: Path) -> None:
    store = open_impatient(tmp_path)
    port = store.thread_port
    # The other process has to have started by then.
    moment = store.steady_ns() + 4 * SECOND_NS
    before: Pending[list[Delivery]] = port.claim(ClaimRequest(1, wait_until_ns=moment))
    port.stats().result(10)
    with Child("stop.py", tmp_path, "before") as stopped:
        stopped.expect("inside")
        limited: Pending[list[Delivery]] = port.claim(ClaimRequest(1, wait_until_ns=moment))
        patient: Pending[list[Delivery]] = port.claim(ClaimRequest(1))
        for claim in (limited, before):
            assert isinstance(claim.exception(4 + PATIENCE_SECONDS), LogLocked)
        assert not patient.done()
        stopped.send(signal.SIGCONT)
        assert stopped.wait() == 0
    [delivery] = patient.result(10)
    assert delivery.payload == b"stopped"
    store.close()


def test_close_answers_everything_though_the_lock_is_not_to_be_had(tmp_path: Path) -> None:
    store = open_impatient(tmp_path)
    port = store.thread_port
    job = put(store, b"first")
    idle: Pending[list[Delivery]] = port.claim(ClaimRequest(1, frozenset({"empty"})))
    outcome = port.outcome(job)
    assert port.view(job).result(10)
    with Child("stop.py", tmp_path, "before") as stopped:
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
    [delivery] = again.thread_port.claim(ClaimRequest(1)).result(10)
    assert (delivery.job, delivery.attempt) == (job, 1)
    assert bodies(tmp_path) == [b"first", b"stopped", b"later"]
    again.close()


def test_a_process_ends_though_the_lock_is_not_to_be_had(tmp_path: Path) -> None:
    with Child("answer.py", tmp_path, f"lock_wait_seconds={LIMIT_SECONDS}") as child:
        child.expect("open")
        with Child("stop.py", tmp_path, "before") as stopped:
            stopped.expect("inside")
            child.say("enqueue refused")
            assert child.expect("error").startswith("LogLocked")
            child.say("exit")
            assert child.wait(LIMIT_SECONDS + 1 + PATIENCE_SECONDS) == 0


def test_ctrl_z_stops_a_process_between_two_batches(tmp_path: Path) -> None:
    """So that a producer put to sleep by its user never keeps the lock from the others."""
    store = open_impatient(tmp_path)
    with Child("ctrl_z.py", tmp_path) as child:
        child.expect("ready")
        for number in range(20):
            put(store, b"beside")
            child.send(signal.SIGTSTP)
            eventually(lambda: child.state() == "T")
            put(store, f"{number}".encode())
            child.send(signal.SIGCONT)
            eventually(lambda: child.state() != "T")
    assert store._open.writer.waits.largest / SECOND_NS < at_most(LIMIT_SECONDS)
    store.close()
