"""Event loops that come and go, and a storage thread that meets what nobody thought of."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from taskq.core.errors import LogClosed
from taskq.core.records import Kind
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import Store
from tests.effort import ended
from tests.processes.harness import open_here, put

SPEC = EnqueueSpec()
#: More answers than a loop gets before the log gives it a pipe of its own.
ANSWERS = 40


async def enqueue_some(store: Store, count: int) -> list[object]:
    port = store.port()
    return [await port.enqueue(SPEC, b"x") for _ in range(count)]


def test_threads_with_loops_of_their_own_may_make_them_at_once(tmp_path: Path) -> None:
    """As async_to_sync does in a threaded web server: a loop for each call, in many threads."""
    store = open_here(tmp_path)
    values: list[object] = []
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            for _ in range(40):
                values.extend(asyncio.run(enqueue_some(store, 2)))
        except BaseException as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        ended(thread)
    assert errors == []
    assert len(set(values)) == 8 * 40 * 2
    store.close()


def test_a_claim_served_to_a_loop_that_has_ended_is_given_back(tmp_path: Path) -> None:
    store = open_here(tmp_path)
    waiting = []

    async def leave_a_claim_behind() -> None:
        await enqueue_some(store, ANSWERS)
        deliveries = await store.port().claim(ClaimRequest(ANSWERS))
        done = [Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries]
        assert await store.port().settle(done) == [None] * ANSWERS
        waiting.append(store.port().claim(ClaimRequest(1)))

    asyncio.run(leave_a_claim_behind())
    job = put(store, b"x")
    [delivery] = store.thread_port.claim(ClaimRequest(1)).result(10)
    assert (delivery.job, delivery.attempt) == (job, 1)
    store.close()


def test_an_answer_on_its_way_to_a_loop_that_ends_is_no_lost_job(tmp_path: Path) -> None:
    """The loop ends between the storage thread's ring and the turn that would have told."""
    store = open_here(tmp_path)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(enqueue_some(store, ANSWERS))

    async def claim() -> None:
        port = store.port()
        deliveries = await port.claim(ClaimRequest(ANSWERS))
        await port.settle([Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries])
        port.claim(ClaimRequest(1))

    loop.run_until_complete(claim())
    # The loop stands still, but is not closed: the answer is sent, and never looked at.
    job = put(store, b"x")
    loop.close()
    [delivery] = store.thread_port.claim(ClaimRequest(1)).result(10)
    assert (delivery.job, delivery.attempt) == (job, 1)
    store.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_loop_keeps_nothing_of_a_log_that_was_closed(tmp_path: Path) -> None:
    """A program that opens and closes logs all day, on one loop, runs out of no descriptors."""
    counts = []
    for _ in range(5):
        store = await asyncio.to_thread(open_here, tmp_path)
        await enqueue_some(store, ANSWERS)
        await asyncio.to_thread(store.close)
        await asyncio.sleep(0)  # callbacks that the close has put before the loop
        counts.append(open_descriptors())
    assert counts[-1] == counts[0]


def test_a_storage_thread_that_fails_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "taskq")
    store = open_here(tmp_path)
    port = store.thread_port
    waiting = port.claim(ClaimRequest(1))
    port.stats().result(10)
    peers = store._open.peers
    assert peers is not None

    def fail(interest: int) -> None:
        if interest:
            raise ZeroDivisionError

    monkeypatch.setattr(peers, "announce", fail)
    put(store, b"x")
    [delivery] = waiting.result(10)
    later = port.claim(ClaimRequest(1))
    assert isinstance(later.exception(10), LogClosed)
    with pytest.raises(LogClosed):
        port.enqueue(SPEC, b"y")
    store.close()
    again = open_here(tmp_path)
    [same] = again.thread_port.claim(ClaimRequest(1)).result(10)
    assert same.job == delivery.job
    again.close()
