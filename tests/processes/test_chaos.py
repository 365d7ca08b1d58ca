"""Processes that are killed, stopped and started while they do all there is to do."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.core.folds.dedup import key_hash
from taskq.core.kinds import after, legal
from taskq.core.model import LIVE_STATES, Durability, State
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.frames import segment_name
from taskq.log.format.record import Record
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, Settlement
from taskq.log.state.facets import Facets
from taskq.log.store.store import open_store
from tests.effort import grows, some
from tests.log.world import fold_of, told
from tests.processes.harness import Child, eventually, log_records, open_here, put

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


@pytest.mark.disk
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


class Run:
    """Two processes that are killed in turn, and their answers."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.chance = random.Random(seed)
        self.started = 0
        self.told: dict[str, list[str]] = {
            "delayed": [], "held": [], "succeeded": [], "dead": [],
        }  # fmt: skip

    def note(self, lines: list[str]) -> None:
        for line in lines:
            word, _, rest = line.partition(" ")
            if word in self.told:
                self.told[word].append(rest)

    def start(self) -> Child:
        self.started += 1
        child = Child("tidy.py", self.path, self.started)
        child.expect("open")
        return child

    def go(self, kills: int) -> None:
        children = [self.start(), self.start()]
        try:
            for _ in range(kills):
                for _ in range(self.chance.randrange(20, 400)):
                    self.note([self.chance.choice(children).line()])
                victim = children.pop(0)
                victim.kill()
                self.note(victim.rest())
                victim.__exit__()
                children.append(self.start())
            while not self.is_tidied():
                self.note([self.chance.choice(children).line()])
            for child in children:
                child.say("stop")
            for child in children:
                self.note(child.rest())
                assert child.wait() == 0
        finally:
            for child in children:
                child.__exit__()

    def is_tidied(self) -> bool:
        """Return whether there was time for upkeep, of which a busy machine leaves little."""
        made = [*(self.path / "snapshot").glob("*.snap"), *(self.path / "log").glob("*.idx")]
        return bool(made) and not (self.path / "log" / segment_name(1)).exists()

    def jobs(self, word: str) -> list[int]:
        return [int(rest.split()[0]) for rest in self.told[word]]


def check(run: Run) -> None:
    with LogReader.open(str(run.path)) as reader:
        facets = Facets(reader.journal)
        agenda, dedup = facets.need_agenda(), facets.need_dedup()
        assert not facets.damage
        for job in run.jobs("delayed"):
            assert agenda.table.state(job) is State.SCHEDULED, f"job {job} was lost"
        ended = run.jobs("succeeded") + run.jobs("dead")
        assert len(set(ended)) == len(ended), "a job ended twice"
        for job in ended:
            assert agenda.table.state(job) is State.ABSENT, f"job {job} came back"
        for job in run.jobs("dead"):
            assert agenda.dead.find(job) is not None, f"dead letter {job} was lost"
            view = reader.job(job)
            assert view is not None
            assert view.reason == "why"
        for rest in run.told["held"]:
            number, key = rest.split()
            assert dedup.until_ns(key_hash(b"keep", key.encode()), int(number)), (
                f"key {key} is free"
            )
        assert agenda.floor_lsn > 1, "nothing was compacted"


def compact(path: Path) -> None:
    config = LogConfig(
        durability=Durability.OS, segment_bytes=SEGMENT_BYTES_MIN, keep_bytes=8 * SEGMENT_BYTES_MIN
    )
    store = open_store(str(path), config)
    store.thread_port.compact(None, dry_run=False).result(60)
    store.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 4), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(2, 6))],
)
def test_kills_in_the_midst_of_upkeep_lose_nothing_and_bring_nothing_back(
    tmp_path: Path, seed: int, kills: int
) -> None:
    run = Run(tmp_path / "log", seed)
    run.go(kills)
    check(run)
    compact(run.path)
    check(run)
    assert len(list((run.path / "log").glob("*.log"))) < 40


def ingest(directory: Path, lines: int, step: int, seconds: float, seed: int) -> int:
    """Ingest a file by programs that are killed after a while each; returns how many were."""
    chance, kills = random.Random(seed), 0
    source, path = directory / "lines.txt", directory / "log"
    source.write_text("".join(f"line {number}\n" for number in range(lines)))
    while True:
        with Child(
            "actors.py", "ingest_file", path, source, chance.uniform(0, seconds), step
        ) as child:
            code = child.wait()
        if not code:
            return kills
        assert code == -signal.SIGALRM
        kills, seconds = kills + 1, seconds * 1.3  # also the slowest machine comes to the end


def payloads(path: Path) -> list[str]:
    taken: list[str] = []
    with TaskLog.open(path) as log:
        while deliveries := log.claim_sync(10_000):
            taken += [delivery.payload.decode() for delivery in deliveries]
    return taken


@grows
@pytest.mark.parametrize("seed", range(some(2, of=40)))
def test_a_kill_at_any_moment_leaves_each_line_of_a_file_once(tmp_path: Path, seed: int) -> None:
    kills = ingest(tmp_path, 2_000, 20, 0.02, seed)
    assert kills >= 2
    assert payloads(tmp_path / "log") == [f"line {number}" for number in range(2_000)]


if __name__ == "__main__":
    COUNT = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        killed = ingest(Path(name), COUNT, 100, 0.5, 1)
        assert payloads(Path(name, "log")) == [f"line {number}" for number in range(COUNT)]
    sys.stdout.write(f"{COUNT} lines: each once, {killed} programs were killed\n")
