"""The mailbox and the end: everything is answered, whenever it comes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from taskq.core.errors import LogClosed
from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import MAILBOX_MAX
from taskq.log.machine.threads import Pending
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from tests.effort import ended
from tests.processes.harness import Child, Pause, log_records, of_kind, open_here, put

SPEC = EnqueueSpec()


def test_a_full_mailbox_makes_threads_wait(tmp_path: Path) -> None:
    """``room`` blocks while the mailbox is full; in the end everything is answered."""
    store = open_here(tmp_path)
    port = store.thread_port
    pause = Pause(store)
    futures = [port.enqueue(SPEC, b"x") for _ in range(MAILBOX_MAX)]
    assert port.full
    roomy = threading.Event()

    def wait_for_room() -> None:
        port.room()
        roomy.set()

    threads = [threading.Thread(target=wait_for_room) for _ in range(4)]
    for thread in threads:
        thread.start()
    pause.end()
    assert roomy.wait(10)
    for thread in threads:
        ended(thread)
    assert [future.result(10) for future in futures] == list(range(1, MAILBOX_MAX + 1))
    assert not store.mailbox.requests
    store.close()


async def test_a_full_mailbox_makes_coroutines_wait(tmp_path: Path) -> None:
    store = await asyncio.to_thread(open_here, tmp_path)
    port = store.port()
    pause = await asyncio.to_thread(Pause, store)
    futures = [port.enqueue(SPEC, b"x") for _ in range(MAILBOX_MAX)]
    waits = [asyncio.ensure_future(port.room()) for _ in range(4)]
    await asyncio.sleep(0)
    assert port.full
    assert not any(wait.done() for wait in waits)
    pause.end()
    await asyncio.wait_for(asyncio.gather(*waits), 10)
    assert len(await asyncio.gather(*futures)) == MAILBOX_MAX
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


def test_whoever_sends_while_it_closes_is_answered(tmp_path: Path) -> None:
    """Threads that hammer the log while it closes get a job or LogClosed, never silence."""
    for number in range(20):
        store = open_here(tmp_path / str(number))
        port = store.thread_port
        answers: list[object] = []
        started = threading.Barrier(5)

        def hammer() -> None:
            started.wait()  # noqa: B023 - joined before the next round
            try:
                while True:
                    answers.append(port.enqueue(SPEC, b"x").result(10))  # noqa: B023
            except LogClosed as error:
                answers.append(error)  # noqa: B023

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        store.close()
        for thread in threads:
            ended(thread)
        assert sum(isinstance(answer, LogClosed) for answer in answers) == 4


def test_a_request_that_slips_in_after_the_end_is_answered(tmp_path: Path) -> None:
    """A sender that saw the log open, and wrote to the mailbox after the last look at it."""
    store = open_here(tmp_path)
    port = store.thread_port
    store.close()
    store.mailbox.usable = True  # the sender's observations
    future = port.enqueue(SPEC, b"x")
    assert isinstance(future.exception(5), LogClosed)
    port.room()


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


def test_cancelling_while_answers_come_breaks_nothing(tmp_path: Path) -> None:
    """Futures of threads may be cancelled at any moment; claimed jobs are not lost with them."""
    store = open_here(tmp_path)
    port = store.thread_port
    for _ in range(300):
        job = put(store, b"x")
        claims: list[Pending[list[Delivery]]] = [port.claim(ClaimRequest(1)) for _ in range(8)]
        crossed = [claim for claim in claims if not claim.cancel()]
        if not crossed:
            crossed = [port.claim(ClaimRequest(1))]
        [delivery] = crossed[0].result(10)
        assert delivery.job == job
        assert port.settle([Settlement(Kind.SUCCEEDED, delivery)]).result(10) == [None]
    store.close()


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
    [delivery] = port.claim(ClaimRequest(1)).result(10)
    assert cancelled.cancelled()
    assert (delivery.job, delivery.attempt) == (job, 1)
    store.close()


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_leaving_without_close_loses_nothing_acknowledged(tmp_path: Path, durability: str) -> None:
    with Child("answer.py", tmp_path, f"durability={durability}") as child:
        child.expect("open")
        for number in range(3):
            child.say(f"enqueue {number}")
            child.expect("enqueued")
        child.say("exit")
        assert child.wait() == 0
    assert len(of_kind(log_records(tmp_path), Kind.ENQUEUED)) == 3
    assert not list((tmp_path / "owners").glob("*.lock"))
