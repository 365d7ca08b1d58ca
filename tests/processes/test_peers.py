"""Peers of a process, and the programs that these tests start."""

import json
import os
import struct
import threading
from pathlib import Path

import pytest

from taskq.log.machine.peers import LocalPeers
from taskq.log.machine.ports import INTEREST_OUTCOME, INTEREST_READY
from taskq.log.read.reader import LogReader
from tests.processes.harness import Child, eventually, open_here, put

SLOT = struct.Struct("<QB7x")


def board(path: Path) -> dict[int, int]:
    data = (path / "owners" / "board").read_bytes()
    return {owner: wanted for owner, wanted in SLOT.iter_unpack(data) if owner}


def test_a_wake_reaches_only_processes_that_sleep_for_it(tmp_path: Path) -> None:
    """An owner asleep for jobs is not woken for an outcome."""
    first, second = (LocalPeers(str(tmp_path), "") for _ in range(2))
    second.announce(INTEREST_READY)
    first.wake(INTEREST_OUTCOME)
    assert not second.sleep(0, 0)
    first.wake(INTEREST_READY)
    assert second.sleep(0, 1)
    second.sleep(INTEREST_READY, 0)
    second.announce(0)
    first.wake(INTEREST_READY)
    assert not second.sleep(0, 0)
    first.close()
    second.close()


def test_an_owner_is_named_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program, name in (("/bin/shop", "shop"), ("/lib/taskq/__main__.py", "taskq")):
        monkeypatch.setattr("sys.argv", [program])
        peers = LocalPeers(str(tmp_path), "")
        assert json.loads(peers.description)["name"] == name
        peers.close()


def test_a_full_pipe_is_no_trouble(tmp_path: Path) -> None:
    first, second = (LocalPeers(str(tmp_path), "") for _ in range(2))
    second.announce(INTEREST_READY)
    for _ in range(100_000):
        first.wake(INTEREST_READY)
    assert second.sleep(INTEREST_READY, 0)
    while second.sleep(INTEREST_READY, 0):  # the rest of it
        pass
    first.wake(INTEREST_READY)
    assert second.sleep(INTEREST_READY, 0), "it is not taken for dead"
    first.close()
    second.close()


def test_a_dead_owners_pipe_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its byte would cost each wake-up a look; an owner that comes in its place keeps its own."""
    peers = LocalPeers(str(tmp_path), "")
    with (tmp_path / "owners" / "board").open("ab") as file:
        file.write(SLOT.pack(12345, INTEREST_READY))
    rung: list[int] = []
    arrived: list[LocalPeers] = []
    ring = LocalPeers._ring

    def ring_while_another_comes(self: LocalPeers, owner: int) -> bool:
        rung.append(owner)
        if owner == 12345:
            arrived.append(LocalPeers(str(tmp_path), ""))
            arrived[0].announce(INTEREST_READY)
        return ring(self, owner)

    monkeypatch.setattr(LocalPeers, "_ring", ring_while_another_comes)
    peers.wake(INTEREST_READY)
    (successor,) = arrived
    assert board(tmp_path) == {peers.owner: 0, successor.owner: INTEREST_READY}
    for _ in range(2):
        peers.wake(INTEREST_READY)
    assert successor.sleep(0, 1)
    assert rung == [12345, successor.owner, successor.owner]
    for item in (peers, successor):
        item.close()


def test_a_poke_after_the_end_writes_to_nobody(tmp_path: Path) -> None:
    """The descriptor's number may belong to another file of the process by then."""
    peers = LocalPeers(str(tmp_path), "")
    assert peers._bell is not None
    number = peers._bell.pipe
    peers.close()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    if writer != number:
        os.dup2(writer, number)
    peers.poke()
    for descriptor in {writer, number}:
        os.close(descriptor)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_signal_handler_may_poke_in_the_middle_of_a_poke(tmp_path: Path) -> None:
    peers = LocalPeers(str(tmp_path), "")
    poked = threading.Event()

    def poke_within_a_poke() -> None:
        with peers._pipe_guard:
            peers.poke()
        poked.set()

    threading.Thread(target=poke_within_a_poke, daemon=True).start()
    assert poked.wait(5)
    peers.close()


@pytest.mark.posix("a pipe wakes a sleeper")
def test_waking_a_killed_sleeper_harms_nobody(tmp_path: Path) -> None:
    """Also in a program that asked for death by SIGPIPE, as tools that print to pipes do."""
    with Child("actors.py", "sigpipe", tmp_path) as producer:
        producer.expect("open")
        with Child("actors.py", "answer", tmp_path) as claimer:
            owner = int(claimer.expect("open"))
            claimer.say("claim")
            eventually(lambda: board(tmp_path)[owner] == INTEREST_READY)
            producer.say("enqueue")
            claimer.expect("claimed")
            claimer.say("claim")
            eventually(lambda: board(tmp_path)[owner] == INTEREST_READY)
            claimer.kill()
        for _ in range(3):
            producer.say("enqueue")
            producer.expect("enqueued")


def test_files_and_slots_of_killed_processes_are_reused(tmp_path: Path) -> None:
    """Their files go and their places on the board are used again."""
    for _ in range(5):
        with Child("actors.py", "answer", tmp_path) as child:
            child.expect("open")
            child.kill()
    store = open_here(tmp_path)
    put(store, b"x")
    names = sorted(file.name for file in (tmp_path / "owners").iterdir())
    own = [".lock"] if os.name == "nt" else [".lock", ".pipe"]
    assert names == sorted([*(f"{store.owner:016x}{suffix}" for suffix in own), "board"])
    assert list(board(tmp_path)) == [store.owner]
    store.close()
    assert [file.name for file in (tmp_path / "owners").iterdir()] == ["board"]


def test_strange_files_among_the_owners_are_left_alone(tmp_path: Path) -> None:
    """A backup tool's or a person's file is no owner, and no reason not to open."""
    store = open_here(tmp_path)
    store.close()
    (tmp_path / "owners" / "copy of something.lock").touch()
    store = open_here(tmp_path)
    put(store, b"x")
    store.close()
    assert LogReader.open(str(tmp_path)).owners() == []
    assert (tmp_path / "owners" / "copy of something.lock").exists()
