"""Plain enqueues of one event loop wait in a line, which the storage thread takes as runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskq.core.errors import LogClosed
from taskq.log.config import BATCH_BYTES_MAX, MAILBOX_MAX, LogConfig
from taskq.log.decide.enqueue import Run
from taskq.log.requests import ClaimRequest, EnqueueSpec, Op, Request, Settlement
from taskq.log.store.mailbox import Mailbox
from taskq.log.store.port import LoopPort
from taskq.log.store.store import open_store

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


def test_a_run_holds_no_more_than_a_batch_but_for_its_last_job(
    mailbox: Mailbox, port: LoopPort
) -> None:
    for _ in range(10):
        port.enqueue(MAIL, bytes(BATCH_BYTES_MAX // 3), None)
    sizes = [len(bodies(request)) for request in taken(mailbox)]
    assert sizes == [3, 3, 3, 1]


def test_each_job_of_a_line_counts_for_the_limit_of_the_mailbox(port: LoopPort) -> None:
    for _ in range(MAILBOX_MAX - 2):  # the request for all of them counts, too
        port.enqueue(MAIL, b"", None)
    assert not port.full
    port.enqueue(MAIL, b"", None)
    assert port.full


def test_jobs_are_decided_by_spec_in_their_order() -> None:
    specs = [MAIL, MAIL, SMS, MAIL, SMS, SMS]
    run = Run(specs, [b"%d" % number for number in range(6)], [None] * 6)
    parts = list(run.by_spec())
    assert [spec for spec, _ in parts] == [MAIL, SMS, MAIL, SMS]
    assert [part for _, part in parts] == [[b"0", b"1"], [b"2"], [b"3"], [b"4", b"5"]]


def test_a_caller_that_gave_up_in_time_leaves_no_job(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(str(tmp_path / "log"), LogConfig())
        port = store.port()
        asked = [port.enqueue(MAIL, b"%d" % number) for number in range(5)]
        asked[1].cancel()
        asked[4].cancel()
        lsns = [await asked[number] for number in (0, 2, 3)]
        stats = await port.stats()
        written = [view.payload for view in await port.peek(10)]
        assert lsns == sorted(lsns)
        # Unless the thread was there first, which writes them; never one for another.
        assert stats.queues[0].ready == len(written)
        assert [body for body in written if body in (b"0", b"2", b"3")] == [b"0", b"2", b"3"]
        await asyncio.to_thread(store.close)

    asyncio.run(main())


def test_the_others_are_answered_when_one_of_them_ends_the_program(tmp_path: Path) -> None:
    answered: list[Any] = []

    async def one(port: LoopPort, number: int) -> None:
        lsn = await port.enqueue(MAIL, b"", None)
        answered.append(lsn)
        if number == 1:
            raise KeyboardInterrupt

    async def main() -> None:
        store = open_store(str(tmp_path / "log"), LogConfig())
        loop = asyncio.get_running_loop()
        tasks.extend(loop.create_task(one(store.port(), number)) for number in range(5))
        stores.append(store)
        await asyncio.wait(tasks)

    tasks: list[asyncio.Task[None]] = []
    stores: list[Any] = []
    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    loop.run_until_complete(asyncio.wait([task for task in tasks if not task.done()]))
    assert len(answered) == 5
    assert len(set(answered)) == 5
    assert isinstance(tasks[1].exception(), KeyboardInterrupt)
    for task in asyncio.all_tasks(loop):
        loop.run_until_complete(task)
    stores[0].close()
    loop.close()


def test_those_who_come_after_the_end_are_all_refused(mailbox: Mailbox, port: LoopPort) -> None:
    loop = port.loop
    before = [port.enqueue(MAIL, b"") for _ in range(3)]
    mailbox.end()
    after = [port.enqueue(MAIL, b"") for _ in range(3)]
    loop.run_until_complete(asyncio.wait([*before, *after], timeout=5))
    assert all(isinstance(future.exception(), LogClosed) for future in (*before, *after))


def test_a_success_that_comes_twice_is_refused_once_and_the_others_stand(tmp_path: Path) -> None:
    refused: list[Settlement] = []

    async def main() -> None:
        store = open_store(str(tmp_path / "log"), LogConfig())
        port = store.port()
        await asyncio.gather(*(port.enqueue(MAIL, b"") for _ in range(20)))
        deliveries = await port.claim(ClaimRequest(20))
        port.succeed_soon([*deliveries, deliveries[7]], lambda item, _: refused.append(item))
        (stats,) = (await port.stats()).queues
        assert (stats.succeeded, stats.running, stats.ready) == (20, 0, 0)
        await asyncio.to_thread(store.close)
        assert [settlement.delivery for settlement in refused] == [deliveries[7]]

    asyncio.run(main())
