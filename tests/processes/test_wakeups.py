"""Waiting processes are woken by writers, at once, and cost nothing meanwhile."""

from __future__ import annotations

import struct
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import pytest

from taskq.core.model import SECOND_NS, Durability, Extras
from taskq.core.records import Kind
from taskq.log.machine.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from tests.processes.harness import Child, eventually, open_here, put

SLOT = struct.Struct("<QB7x")
ROUNDS = 40
MEDIAN_SECONDS_MAX = 0.010
#: A timer's precision, and what a busy machine adds.
DUE_SECONDS_MAX = 0.25
DUE_ROUNDS = 5
IDLE_SHARE_MAX = 0.01


def sleeps_for(path: Path, owner: int, interest: int) -> bool:
    data = (path / "owners" / "board").read_bytes()
    return (owner, interest) in SLOT.iter_unpack(data)


def check_wait(what: str, seconds: list[float]) -> None:
    p99 = quantiles(seconds, n=100)[98]
    print(f"{what}: median {median(seconds) * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")  # noqa: T201
    assert median(seconds) < MEDIAN_SECONDS_MAX


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_a_waiting_claim_gets_another_processs_job_at_once(
    tmp_path: Path, durability: Durability
) -> None:
    store = open_here(tmp_path, durability)
    waits = []
    with Child("answer.py", tmp_path, f"durability={durability}") as claimer:
        owner = int(claimer.expect("open"))
        for _ in range(ROUNDS):
            claimer.say("claim")
            claimer.expect("waiting")
            eventually(lambda: sleeps_for(tmp_path, owner, INTEREST_READY))
            put(store, str(time.monotonic_ns()).encode())
            waits.append(int(claimer.expect("claimed").split()[2]) / 1e9)
        claimer.say("settle")
        claimer.expect("settled")
    check_wait(f"claim, {durability}", waits)
    store.close()


def test_who_was_alone_until_then_wakes_who_came(tmp_path: Path) -> None:
    """Alone a process looks for no sleepers; the first that opens the log is seen."""
    store = open_here(tmp_path)
    writer = store._open.writer
    for _ in range(3):
        put(store, b"x")
    eventually(lambda: writer.is_alone)
    for delivery in store.thread_port.claim(ClaimRequest(3)).result(10):
        store.thread_port.settle([Settlement(Kind.SUCCEEDED, delivery, b"")]).result(10)
    with Child("answer.py", tmp_path) as claimer:
        owner = int(claimer.expect("open"))
        claimer.say("claim")
        claimer.expect("waiting")
        eventually(lambda: sleeps_for(tmp_path, owner, INTEREST_READY))
        put(store, b"x")
        claimer.expect("claimed")
        assert not writer.is_alone
        claimer.say("settle")
        claimer.expect("settled")
    store.close()


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_whoever_waits_for_an_outcome_elsewhere_gets_it_at_once(
    tmp_path: Path, durability: Durability
) -> None:
    store = open_here(tmp_path, durability)
    port = store.thread_port
    waits = []
    with Child("answer.py", tmp_path, f"durability={durability}") as waiter:
        owner = int(waiter.expect("open"))
        for _ in range(ROUNDS):
            job = put(store, b"x")
            [delivery] = port.claim(ClaimRequest(1)).result(10)
            waiter.say(f"outcome {job}")
            waiter.expect("waiting")
            eventually(lambda: sleeps_for(tmp_path, owner, INTEREST_OUTCOME))
            result = str(time.monotonic_ns()).encode()
            port.settle([Settlement(Kind.SUCCEEDED, delivery, result)]).result(10)
            state, ago, _ = waiter.expect("outcome").split()
            assert state == "SUCCEEDED"
            waits.append(int(ago) / 1e9)
    check_wait(f"outcome, {durability}", waits)
    store.close()


def test_a_job_that_was_settled_before_anyone_asked_is_told_at_once(tmp_path: Path) -> None:
    store = open_here(tmp_path)
    port = store.thread_port
    job = put(store, b"x")
    [delivery] = port.claim(ClaimRequest(1)).result(10)
    port.settle([Settlement(Kind.SUCCEEDED, delivery, b"done")]).result(10)
    with Child("answer.py", tmp_path) as waiter:
        waiter.say(f"outcome {job}")
        assert waiter.expect("outcome").endswith(" done")
        waiter.say(f"outcome {job + 1}")
        assert waiter.expect("error").startswith("JobNotFound")
        waiter.say(f"outcome {job + 1_000}")
        assert waiter.expect("error").startswith("JobNotFound")
    store.close()


def test_a_due_job_wakes_a_waiting_claim_without_help(tmp_path: Path) -> None:
    store = open_here(tmp_path)
    delay_ns, waits = SECOND_NS // 20, []
    with Child("answer.py", tmp_path) as claimer:
        claimer.expect("open")
        for _ in range(DUE_ROUNDS):
            claimer.say("claim")
            claimer.expect("waiting")
            due = str(time.monotonic_ns() + delay_ns).encode()
            store.thread_port.enqueue(EnqueueSpec(), due, Extras(due_ns=delay_ns)).result(10)
            waits.append(int(claimer.expect("claimed").split()[2]) / 1e9)
    print(f"{median(waits) * 1e3:.1f} ms after it was due")  # noqa: T201 - a figure
    assert min(waits) >= 0
    assert median(waits) < DUE_SECONDS_MAX
    store.close()


def test_every_waiting_process_gets_its_share(tmp_path: Path) -> None:
    """One transaction with a job for each of six sleepers, in one process or another."""
    store = open_here(tmp_path)
    with ExitStack() as stack:
        claimers = [stack.enter_context(Child("answer.py", tmp_path)) for _ in range(6)]
        for claimer in claimers:
            owner = int(claimer.expect("open"))
            claimer.say("claim")
            claimer.expect("waiting")
            eventually(lambda: sleeps_for(tmp_path, owner, INTEREST_READY))  # noqa: B023
        now = str(time.monotonic_ns()).encode()
        store.thread_port.enqueue_many([(EnqueueSpec(), now, None)] * 6).result(10)
        seen = [claimer.expect("claimed").split() for claimer in claimers]
        assert sorted(int(line[0]) for line in seen) == [1, 2, 3, 4, 5, 6]
        assert max(int(line[2]) for line in seen) < SECOND_NS
    store.close()


@pytest.mark.parametrize("beside", ["nothing", "a running job", "an outcome"])
def test_waiting_costs_no_cpu(tmp_path: Path, beside: str) -> None:
    store = open_here(tmp_path)
    put(store, b"x")
    [delivery] = store.thread_port.claim(ClaimRequest(1)).result(10)
    if beside == "nothing":
        store.thread_port.settle([Settlement(Kind.SUCCEEDED, delivery)]).result(10)
    with Child("idle.py", tmp_path, 2, delivery.job if beside == "an outcome" else 0) as waiter:
        share = float(waiter.expect("share"))
    print(f"waiting beside {beside}: {share:.2%} of a core")  # noqa: T201 - a figure
    assert share < IDLE_SHARE_MAX
    store.close()
