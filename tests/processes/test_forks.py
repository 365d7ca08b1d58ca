"""A log in a process that forks, and on several event loops."""

import asyncio
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from taskq.core.errors import LogClosed
from taskq.core.records import Kind
from taskq.log.machine.peers import owner_alive
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store.store import Store
from tests.effort import ended, grows, some
from tests.processes.harness import Child, eventually, log_records, of_kind, open_here, put

#: The number of forks.
CHILDREN = some(3, 6)


class Family:
    """The script's parent and children, as they told of themselves."""

    def __init__(self, parent: Child, count: int) -> None:
        self.owners: dict[int, int] = {}
        self.lsns: list[int] = []
        self.children: list[int] = []
        for _ in range(count + 1):
            who, pid, owner, lsn = parent.line().split()
            self.owners[int(pid)] = int(owner)
            self.lsns.append(int(lsn))
            if who == "child":
                self.children.append(int(pid))
        assert len(self.children) == count

    def kill_children(self) -> None:
        for pid in self.children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def family(path: Path, how: str, count: int) -> Iterator[tuple[Child, Family]]:
    with Child("fork.py", path, how, count) as parent:
        family = Family(parent, count)
        try:
            yield parent, family
        finally:
            family.kill_children()


def locks_of(pid: int) -> Counter[str]:
    links = Counter[str]()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links[entry.readlink().name] += 1
    return links


@grows
@pytest.mark.posix("forks")
@pytest.mark.parametrize("how", ["os", "fork", "spawn"])
def test_both_sides_of_a_fork_go_on_as_owners_of_their_own(tmp_path: Path, how: str) -> None:
    """Forks at any moment of the storage thread's work; nobody waits for a lock of the other."""
    directory = tmp_path / "owners"
    with family(tmp_path, how, CHILDREN) as (parent, answer):
        assert len(set(answer.owners.values())) == CHILDREN + 1
        assert len(set(answer.lsns)) == CHILDREN + 1
        assert all(owner_alive(directory, owner) for owner in answer.owners.values())
        theirs = f"{answer.owners[parent.pid]:016x}"
        assert locks_of(parent.pid)[f"{theirs}.lock"]
        for pid in answer.children:
            links = locks_of(pid)
            assert links[f"{answer.owners[pid]:016x}.lock"]
            assert not links[f"{theirs}.lock"] + links[f"{theirs}.pipe"]
            assert links["write.lock"] == links["turnstile.lock"] == 1
        parent.kill()
        # Its owner is dead at once, the writer lock is free, and the children go on as they were.
        assert not owner_alive(directory, answer.owners[parent.pid])
        if how != "os":
            # Children of multiprocessing that are daemons do not notice a kill either.
            assert all(Path(f"/proc/{pid}").exists() for pid in answer.children)
        assert all(owner_alive(directory, answer.owners[pid]) for pid in answer.children)
        store = open_here(tmp_path, lock_wait_seconds=2.0)
        put(store, b"beside the orphans")
        store.close()
        answer.kill_children()
        for pid in answer.children:
            eventually(lambda: not owner_alive(directory, answer.owners[pid]))  # noqa: B023


@pytest.mark.posix("forks")
def test_a_preloading_server_and_its_workers_run_jobs_on_loops_of_their_own(tmp_path: Path) -> None:
    """The log is used on a loop, the process forks, and every child and the parent use it again."""
    with Child("fork.py", tmp_path, "async", 3) as server:
        owners = [server.expect("served").split()[1] for _ in range(5)]
        assert server.wait() == 0
    assert len(set(owners)) == 4  # the parent serves twice
    result = log_records(tmp_path)
    assert len(of_kind(result, Kind.ENQUEUED)) == len(of_kind(result, Kind.SUCCEEDED)) == 100


@pytest.mark.posix("forks")
def test_a_fork_while_logs_open_and_close_inherits_no_lock(tmp_path: Path) -> None:
    with Child("actors.py", "fork_opening", tmp_path, 60) as parent:
        assert parent.expect("inherited") == "0"
        assert parent.wait() == 0


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


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_claim_of_a_loop_that_ends_gives_its_job_back(tmp_path: Path, is_closed: bool) -> None:
    """The loop ended before, or stands still: the answer is sent, and never looked at."""
    store = open_here(tmp_path)
    loop = asyncio.new_event_loop()

    async def leave_a_claim_behind() -> None:
        await enqueue_some(store, ANSWERS)
        deliveries = await store.port().claim(ClaimRequest(ANSWERS))
        done = [Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries]
        assert await store.port().settle(done) == [None] * ANSWERS
        store.port().claim(ClaimRequest(1))

    loop.run_until_complete(leave_a_claim_behind())
    if is_closed:
        loop.close()
    job = put(store, b"x")
    loop.close()
    [delivery] = store.thread_port.claim(ClaimRequest(1)).result()
    assert (delivery.job, delivery.attempt) == (job, 1)
    store.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.posix("counts descriptors")
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
    port.stats().result()
    peers = store._open.peers
    assert peers is not None

    def fail(interest: int) -> None:
        if interest:
            raise ZeroDivisionError

    monkeypatch.setattr(peers, "announce", fail)
    put(store, b"x")
    [delivery] = waiting.result()
    later = port.claim(ClaimRequest(1))
    assert isinstance(later.exception(), LogClosed)
    with pytest.raises(LogClosed):
        port.enqueue(SPEC, b"y")
    store.close()
    again = open_here(tmp_path)
    [same] = again.thread_port.claim(ClaimRequest(1)).result()
    assert same.job == delivery.job
    again.close()
