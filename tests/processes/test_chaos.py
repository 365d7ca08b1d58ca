"""Everything at once: processes that do all there is to do are killed, stopped and started."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from taskq.core.kinds import after, legal
from taskq.core.model import LIVE_STATES, Durability, State
from taskq.core.records import Cause, Kind
from taskq.log.format.record import Record
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, Settlement
from tests.log.told import fold_of, told
from tests.processes.harness import Child, eventually, log_records, open_here, put

pytestmark = pytest.mark.disk
PROCESSES = 3
ENDS = {"succeeded": Kind.SUCCEEDED, "dead": Kind.DEAD}


class Chaos:
    """Processes that come and go, and their answers."""

    def __init__(self, path: Path, durability: Durability, seed: int) -> None:
        self.path = path
        self.durability = durability
        self.random = random.Random(seed)
        self.started = 0
        self.children: list[tuple[int, Child]] = []
        self.killed: set[int] = set()
        self.enqueued: dict[int, str] = {}
        self.ended: dict[int, Kind] = {}
        self.stale: set[int] = set()

    def run(self, rounds: int) -> None:
        try:
            while len(self.children) < PROCESSES:
                self.start()
            for _ in range(rounds):
                self.listen(self.random.randrange(1, 60))
                self.strike()
            self.finish()
        finally:
            for _, child in self.children:
                child.__exit__()

    def start(self) -> None:
        self.started += 1
        child = Child("chaos.py", self.path, self.durability, self.started)
        self.children.append((int(child.expect("open")), child))

    def listen(self, count: int) -> None:
        for _, child in self.children:
            for _ in range(count):
                self.note(child.line())

    def note(self, line: str) -> None:
        word, number, *rest = line.split()
        lsn = int(number)
        if word == "enqueued":
            assert lsn not in self.enqueued
            self.enqueued[lsn] = rest[0]
        elif word in ENDS:
            assert lsn not in self.ended, "a job ended twice"
            self.ended[lsn] = ENDS[word]
        elif word == "stale":
            self.stale.add(lsn)

    def strike(self) -> None:
        owner, victim = self.random.choice(self.children)
        if self.random.random() < 0.4:
            # It may stand anywhere, also inside the lock; the others wait for it.
            victim.stop()
            for _, child in self.children:
                for line in child.lines_so_far():
                    self.note(line)
            victim.send(signal.SIGCONT)
            return
        victim.kill()
        for line in victim.rest():
            self.note(line)
        victim.__exit__()
        self.killed.add(owner)
        self.children.remove((owner, victim))
        self.start()

    def finish(self) -> None:
        """End one in good order and the others, perhaps inside the lock, by a kill."""
        (_, last), *others = self.children
        last.say("stop")
        for owner, child in others:
            child.kill()
            self.killed.add(owner)
        for _, child in self.children:
            for line in child.rest():
                if line != "closed":
                    self.note(line)
        assert last.wait() == 0


def check_story(chaos: Chaos, records: list[Record]) -> None:
    """Every record is legal after those before it, and only the killed lost their jobs."""
    states: dict[int, State] = {}
    claims: dict[int, Record] = {}
    keys: dict[bytes, int] = {}
    last = 0
    for record in records:
        assert record.lsn > last
        last = record.lsn
        if not record.job:
            continue
        job, kind = record.job, Kind(record.type)
        state = states.get(job, State.ABSENT)
        if state is State.SCHEDULED and kind is Kind.CLAIMED:
            state = State.READY  # its time had come
        assert legal(state, kind), f"{kind.name} of job {job}, which is {state.name}"
        states[job] = after(state, kind, waits=record.due_ns > record.time_ns)
        if kind is Kind.CLAIMED:
            claims[job] = record
        elif kind is not Kind.ENQUEUED and record.token:
            assert record.token == claims[job].lsn
        if record.cause == str(Cause.OWNER_LOST):
            assert claims[job].token in chaos.killed, "the owner was alive"
        if record.extras is not None and record.extras.key is not None:
            holder = keys.get(record.extras.key)
            assert holder is None or states[holder] not in LIVE_STATES
            keys[record.extras.key] = job


def check_acknowledged(chaos: Chaos, records: list[Record]) -> None:
    bodies = {
        record.lsn: (record.body or b"").decode().strip()
        for record in records
        if record.type == Kind.ENQUEUED
    }
    assert len(set(bodies.values())) == len(bodies)
    assert chaos.enqueued.items() <= bodies.items()
    ends = {record.job: record.type for record in records if record.type in ENDS.values()}
    assert chaos.ended.items() <= ends.items()


def check_snapshots(path: Path) -> None:
    now_ns = time.time_ns()
    with LogReader.open(str(path)) as reader:
        some, every = (fold_of(reader.journal, trusts_snapshots=trusts) for trusts in (True, False))
        assert told(some, now_ns) == told(every, now_ns)
        assert some.caught_up < every.caught_up
    # Two of each facet are kept, and a kill may come before the oldest of three is removed.
    assert 2 <= len(list((path / "snapshot").glob("*.snap"))) <= 6


def check_that_it_serves(path: Path) -> None:
    store = open_here(path)
    port = store.thread_port
    fresh = put(store, b"fresh", priority=9)
    taken = port.claim(ClaimRequest(2, wait_until_ns=0)).result(10)
    assert taken[0].job == fresh
    ends = [Settlement(Kind.SUCCEEDED, delivery) for delivery in taken]
    assert port.settle(ends).result(10) == [None] * len(taken)
    store.close()


@pytest.mark.parametrize(
    ("durability", "seed", "rounds"),
    [
        (Durability.FSYNC, 1, 4),
        (Durability.OS, 3, 3),
        *(
            pytest.param(durability, seed, 30, marks=pytest.mark.slow)
            for durability in Durability
            for seed in range(3)
        ),
    ],
)
def test_chaos_leaves_a_log_in_which_everything_told_is_true(
    tmp_path: Path, durability: Durability, seed: int, rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills and stops at random: no answer is taken back and no living worker loses its job."""
    chaos = Chaos(tmp_path, durability, seed)
    chaos.run(rounds)
    records = log_records(tmp_path)
    check_story(chaos, records)
    check_acknowledged(chaos, records)
    check_snapshots(tmp_path)
    check_that_it_serves(tmp_path)
    assert "is passed over" not in caplog.text
    report = LogReader.open(str(tmp_path)).verify()
    assert report.damage == ()
    eventually(lambda: not any(owner.alive for owner in LogReader.open(str(tmp_path)).owners()))
    print(  # noqa: T201 - figures
        f"{len(chaos.killed)} kills, {len(chaos.enqueued)} jobs, {len(chaos.ended)} ends, "
        f"{len(chaos.stale)} stale, {report.segments} segments"
    )
