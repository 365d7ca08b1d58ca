"""A log that was open when its process forked: both sides go on, and no lock is inherited."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from taskq.core.records import Kind
from taskq.log.machine.peers import owner_alive
from tests.effort import grows, some
from tests.processes.harness import Child, eventually, log_records, of_kind, open_here, put

HOW = ["os", "fork", "spawn"]
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


def is_open(pid: int, name: str) -> bool:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links.append(entry.readlink().name)
    return name in links


@grows
@pytest.mark.parametrize("how", HOW)
def test_both_sides_of_a_fork_enqueue_as_owners_of_their_own(tmp_path: Path, how: str) -> None:
    """Forks at any moment of the storage thread's work; nobody waits for a lock of the other."""
    with family(tmp_path, how, CHILDREN) as (_, answer):
        assert len(set(answer.owners.values())) == CHILDREN + 1
        assert len(set(answer.lsns)) == CHILDREN + 1
        directory = tmp_path / "owners"
        assert all(owner_alive(directory, owner) for owner in answer.owners.values())


@pytest.mark.parametrize("how", HOW)
def test_children_do_not_keep_a_killed_parent_alive(tmp_path: Path, how: str) -> None:
    """Its owner is dead at once, the writer lock is free, and the children go on as they were."""
    with family(tmp_path, how, 2) as (parent, answer):
        parent.kill()
        directory = tmp_path / "owners"
        assert not owner_alive(directory, answer.owners[parent.pid])
        if how != "os":
            # Children of multiprocessing that are daemons do not notice a kill either.
            assert all(Path(f"/proc/{pid}").exists() for pid in answer.children)
        for pid in answer.children:
            assert owner_alive(directory, answer.owners[pid])
        store = open_here(tmp_path, lock_wait_seconds=2.0)
        put(store, b"beside the orphans")
        store.close()
        answer.kill_children()
        for pid in answer.children:
            eventually(lambda: not owner_alive(directory, answer.owners[pid]))  # noqa: B023


@pytest.mark.parametrize("how", HOW)
def test_children_keep_no_descriptor_of_their_parent(tmp_path: Path, how: str) -> None:
    """Neither of its owner's lock nor, more than their own, of the writer lock."""
    with family(tmp_path, how, 2) as (parent, answer):
        name = f"{answer.owners[parent.pid]:016x}"
        assert is_open(parent.pid, f"{name}.lock")
        for pid in answer.children:
            assert is_open(pid, f"{answer.owners[pid]:016x}.lock")
            assert not is_open(pid, f"{name}.lock")
            assert not is_open(pid, f"{name}.pipe")
            for lock in ("write.lock", "turnstile.lock"):
                files = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115
                assert sum(file.endswith(f"/{lock}") for file in files) == 1


def test_a_preloading_server_and_its_workers_run_jobs_on_loops_of_their_own(
    tmp_path: Path,
) -> None:
    """The log is used on a loop, the process forks, and every child and the parent use it again."""
    with Child("fork_async.py", tmp_path, 3) as server:
        owners = [server.expect("served").split()[1] for _ in range(5)]
        assert server.wait() == 0
    assert len(set(owners)) == 4  # the parent serves twice
    result = log_records(tmp_path)
    assert len(of_kind(result, Kind.ENQUEUED)) == len(of_kind(result, Kind.SUCCEEDED)) == 100


@pytest.mark.slow
def test_forking_at_any_moment_leaks_nothing(tmp_path: Path) -> None:
    """Four hundred forks beside busy threads: no child hangs, and none keeps a lock."""
    for number in range(10):
        path = tmp_path / str(number)
        with family(path, "os", 40) as (parent, answer):
            parent.kill()
            store = open_here(path, lock_wait_seconds=2.0)
            put(store, b"beside the orphans")
            store.close()
            assert len(set(answer.owners.values())) == 41


def test_a_fork_while_logs_open_and_close_inherits_no_lock(tmp_path: Path) -> None:
    with Child("fork_opening.py", tmp_path, 60) as parent:
        assert parent.expect("inherited") == "0"
        assert parent.wait() == 0
