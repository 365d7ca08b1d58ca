"""One directory, opened twice: in one process, in two, and for one process alone."""

import itertools
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from taskq.core.errors import LogClosed, LogError, LogLocked, UsageError
from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.machine.peers import LocalPeers
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.log.store import thread as storage
from taskq.log.store.store import open_store
from tests.effort import at_most, ended, every, grows
from tests.processes.harness import Child, Pause, log_records, of_kind, open_here, put
from tests.processes.striker import KILLED

SPEC = EnqueueSpec()


def test_a_second_open_in_one_process_shares_the_log(tmp_path: Path) -> None:
    first = open_here(tmp_path / "log")
    owner = first.owner
    (tmp_path / "link").symlink_to(tmp_path / "log")
    second = open_here(tmp_path / "link")
    assert second is first
    with pytest.raises(UsageError, match="other options"):
        open_here(tmp_path / "log", Durability.FSYNC)
    first.close()
    assert put(second, b"x") == 1
    second.close()
    with pytest.raises(LogClosed):
        second.thread_port.enqueue(SPEC, b"y")
    again = open_here(tmp_path / "log")
    assert again.owner != owner
    assert put(again, b"y") == 2
    again.close()


def test_threads_that_open_at_once_share_one_log(tmp_path: Path) -> None:
    barrier = threading.Barrier(16)
    stores = []

    def hold() -> None:
        barrier.wait()
        stores.append(open_here(tmp_path))

    threads = [threading.Thread(target=hold) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 16
    assert len(set(stores)) == 1
    for store in stores:
        assert store.usable
        store.close()
    assert not stores[0].usable


def test_processes_that_open_at_once_make_one_log(tmp_path: Path) -> None:
    """A fresh directory and five processes: one log id, and ids that differ."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child("actors.py", "answer", tmp_path)) for _ in range(5)]
        for child in children:
            child.expect("open")
            child.say("enqueue x")
        assert len({child.expect("enqueued") for child in children}) == 5


@grows
@pytest.mark.parametrize("how", ["fresh", "shared"])
def test_a_process_may_be_killed_at_any_step_of_its_life(tmp_path: Path, how: str) -> None:
    """While it makes, opens, uses or closes a log: the next open succeeds, and tidies up."""
    acknowledged: list[int] = []
    for step in itertools.count(1, every(4)):
        path = tmp_path / str(step) if how == "fresh" else tmp_path
        acknowledged = [] if how == "fresh" else acknowledged
        with Child("actors.py", "live", path, step) as child:
            acknowledged += map(int, child.rest())
            if not child.wait():
                break
            assert child.wait() == KILLED
        store = open_here(path, Durability.FSYNC)
        acknowledged.append(put(store, b"x"))
        store.close()
        lsns = [record.lsn for record in of_kind(log_records(path), Kind.ENQUEUED)]
        assert {*acknowledged} <= {*lsns}
        assert acknowledged[-1] == max(lsns)
        assert [file.name for file in (path / "owners").iterdir()] == ["board"]
    assert step > 15


#: Nobody waits in a test for as long as that process would for the lock.
PATIENT = "lock_wait_seconds=3600"


def test_exclusive_keeps_others_out_at_once_and_names_the_holder(tmp_path: Path) -> None:
    """Another process's open fails without waiting; after the holder's close it succeeds."""
    with Child("actors.py", "answer", tmp_path, "exclusive=True") as holder:
        holder.expect("open")
        holder.say("enqueue x")
        assert holder.expect("enqueued") == "1"
        with Child("actors.py", "answer", tmp_path, PATIENT) as other:
            refusal = other.expect("refused")
            assert refusal.startswith("LogLocked: ")
            assert f"process {holder.pid} " in refusal
            assert other.wait() == 0
        with pytest.raises(LogLocked) as caught:
            open_here(tmp_path)
        assert caught.value.holder_pid == holder.pid
        assert caught.value.waited_seconds < at_most(1)
        holder.say("close")
        holder.expect("closed")
        store = open_here(tmp_path)
        assert store.thread_port.enqueue(SPEC, b"y").result() == 2
        store.close()


def test_exclusive_holds_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def join_slowly(*given: Any) -> LocalPeers:
        with Child("actors.py", "answer", tmp_path, PATIENT) as other:
            assert other.expect("refused").startswith("LogLocked: ")
        return LocalPeers(*given)

    monkeypatch.setattr(storage, "LocalPeers", join_slowly)
    config = LogConfig(durability=Durability.OS, exclusive=True)
    store = open_store(str(tmp_path), config)
    put(store, b"x")
    store.close()


def test_a_failed_exclusive_open_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> LocalPeers:
        raise LogError(f"{given}")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "LocalPeers", fail)
        with pytest.raises(LogError):
            open_store(str(tmp_path), LogConfig(durability=Durability.OS, exclusive=True))
    store = open_here(tmp_path)
    put(store, b"x")
    store.close()


def test_two_threads_may_close_at_once(tmp_path: Path) -> None:
    store = open_here(tmp_path)
    pause = Pause(store)
    closers = [threading.Thread(target=store.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    threading.Event().wait(0.1)  # enough for a close that does not wait
    assert all(closer.is_alive() for closer in closers)
    pause.end()
    for closer in closers:
        ended(closer)
    assert not store.usable


def test_a_killed_exclusive_holder_keeps_nobody_out(tmp_path: Path) -> None:
    with Child("actors.py", "answer", tmp_path, "exclusive=True") as holder:
        holder.expect("open")
        holder.process.kill()
        holder.rest()  # its end is seen, but it is not reaped
        with (
            Child("actors.py", "answer", tmp_path) as first,
            Child("actors.py", "answer", tmp_path) as second,
        ):
            first.expect("open")
            second.expect("open")


def test_an_exclusive_open_locks_out_earlier_processes_without_waiting(tmp_path: Path) -> None:
    """Taking a log for oneself while another has it open shuts that one out, with a clear error."""
    with Child("actors.py", "answer", tmp_path, "lock_wait_seconds=0.5") as earlier:
        earlier.expect("open")
        config = LogConfig(durability=Durability.OS, exclusive=True)
        store = open_store(str(tmp_path), config)
        earlier.say("enqueue x")
        assert earlier.expect("error").startswith("LogLocked: ")
        store.close()
        earlier.say("enqueue x")
        assert earlier.expect("enqueued") == "1"


def test_looking_at_the_owners_keeps_them_alive(tmp_path: Path) -> None:
    """A reader in the owner's own process must not end the lock that says it lives."""
    store = open_here(tmp_path)
    reader = LogReader.open(str(tmp_path))
    [view] = reader.owners()
    assert view.owner == store.owner
    assert view.alive
    with Child("actors.py", "owners", tmp_path) as other:
        assert other.line() == f"{store.owner} True"
    store.close()


_OPENER = """
import sys
from taskq.log.machine import disk
disk._boot = lambda: int(sys.argv[2])
from taskq import TaskQ
app = TaskQ(sys.argv[1], durability="os")
with app:
    for line in sys.stdin:
        app.enqueue_by_name_sync("task", line.strip())
        print("written", flush=True)
"""


def test_processes_that_guess_another_boot_each_agree_while_one_lives(tmp_path: Path) -> None:
    """Without /proc a clock that was set changes the guess: each would distrust the other's end."""
    path = tmp_path / "log"
    with ExitStack() as stack:
        words = (sys.executable, "-c", _OPENER, path)
        openers = [stack.enter_context(Child(*words, boot)) for boot in (7, 8)]
        for turn in range(6):
            openers[turn % 2].say("x")
            assert openers[turn % 2].line() == "written"
        for opener in openers:
            opener.process.stdin.close()  # type: ignore[union-attr]
            assert opener.wait() == 0
    assert len(list((path / "log").glob("*.log"))) == 1
