"""Processes that are killed, stopped and started while they do all there is to do."""

import random
import signal
import time
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.core.folds.dedup import key_hash
from taskq.core.model import Durability, State
from taskq.core.records import Cause, Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.frames import segment_name
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, Settlement
from taskq.log.state.facets import Facets
from taskq.log.store.store import open_store
from tests.effort import grows, some
from tests.log.reference import Reference
from tests.log.world import fold_of, told
from tests.processes.harness import Child, eventually, log_records, of_kind, open_here, put
from tests.processes.striker import STRUCK

PROCESSES = 3
#: Claims before this record came in turn; to see it takes a walk over all jobs each.
ORDERED_MAX = 4_000
ENDS = {"succeeded": Kind.SUCCEEDED, "dead": Kind.DEAD}
BORN = {"enqueued", "delayed", "held"}


class Chaos:
    def __init__(self, path: Path, durability: Durability, seed: int, keep_bytes: int = 0) -> None:
        self.path = path
        self.options = durability, keep_bytes
        self.random = random.Random(seed)
        self.started = 0
        self.children: list[tuple[int, Child]] = []
        self.killed: set[int] = set()
        #: the answer to each enqueue: a word, the body, and the key if it is held
        self.born: dict[int, list[str]] = {}
        self.ended: dict[int, Kind] = {}
        #: jobs in whose place no other was enqueued
        self.duplicates: set[int] = set()

    def run(self, rounds: int) -> None:
        try:
            while len(self.children) < PROCESSES:
                self.start()
            for _ in range(rounds):
                self.listen(self.random.randrange(1, 60))
                self.strike()
            while not self.is_tidied():
                self.listen(10)
            self.finish()
        finally:
            for _, child in self.children:
                child.__exit__()

    def start(self) -> None:
        self.started += 1
        durability, keep_bytes = self.options
        child = Child("chaos.py", self.path, durability, self.started, keep_bytes)
        self.children.append((int(child.expect("open")), child))

    def listen(self, count: int) -> None:
        for _, child in self.children:
            for _ in range(count):
                self.note(child.line())

    def note(self, line: str) -> None:
        word, number, *rest = line.split()
        lsn = int(number)
        if word in BORN:
            assert lsn not in self.born
            self.born[lsn] = [word, *rest]
        elif word == "duplicate":
            self.duplicates.add(lsn)
        elif word in ENDS:
            assert lsn not in self.ended, "a job ended twice"
            self.ended[lsn] = ENDS[word]

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

    def is_tidied(self) -> bool:
        """Return whether there was time for upkeep, of which a busy machine leaves little."""
        if not self.options[1]:
            return True
        made = [*(self.path / "snapshot").glob("*.snap"), *(self.path / "log").glob("*.idx")]
        return bool(made) and not (self.path / "log" / segment_name(1)).exists()

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


def check_records(chaos: Chaos) -> None:
    """Every record is legal after those before it, and only the killed lost their jobs."""
    records = log_records(chaos.path)
    reference = Reference.of(records, lambda lsn: lsn < ORDERED_MAX, may_fall=False)
    owners = {record.lsn: record.token for record in of_kind(records, Kind.CLAIMED)}
    assert len({*owners.values()}) > 1, "one process had all the work"
    lost = [record for record in records if record.cause == str(Cause.OWNER_LOST)]
    assert {owners[record.token] for record in lost} <= chaos.killed, "the owner was alive"
    bodies = {lsn: job.body.decode().strip() for lsn, job in reference.jobs.items()}
    assert len(set(bodies.values())) == len(bodies)
    assert {lsn: body for lsn, (_, body, *_) in chaos.born.items()}.items() <= bodies.items()
    for lsn, kind in chaos.ended.items():
        assert reference.jobs[lsn].state.name == kind.name
    assert chaos.duplicates
    assert all(reference.jobs[lsn].key for lsn in chaos.duplicates)


def check_folds(chaos: Chaos) -> None:
    """Answers hold in the folds, also if compaction took the records."""
    with LogReader.open(str(chaos.path)) as reader:
        facets = Facets(reader.journal)
        agenda, dedup = facets.need_agenda(), facets.need_dedup()
        assert not facets.damage
        for lsn, (word, *rest) in chaos.born.items():
            if word == "delayed":
                assert agenda.table.state(lsn) is State.SCHEDULED, f"job {lsn} was lost"
            elif word == "held":
                key = key_hash(b"default", rest[1].encode())
                assert dedup.until_ns(key, lsn), f"key {key} is free"
        for lsn, kind in chaos.ended.items():
            assert agenda.table.state(lsn) is State.ABSENT, f"job {lsn} came back"
            if kind is Kind.DEAD:
                assert agenda.dead.find(lsn) is not None, f"dead letter {lsn} was lost"
                view = reader.job(lsn)
                assert view is not None
                assert view.reason == "enough"
        assert (agenda.floor_lsn > 1) == bool(chaos.options[1]), "nothing was compacted"


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
    taken = port.claim(ClaimRequest(2, wait_until_ns=0)).result()
    assert taken[0].job == fresh
    ends = [Settlement(Kind.SUCCEEDED, delivery) for delivery in taken]
    assert port.settle(ends).result() == [None] * len(taken)
    store.close()


def check_end(path: Path) -> None:
    report = LogReader.open(str(path)).verify()
    assert report.damage == ()
    eventually(lambda: not any(owner.alive for owner in LogReader.open(str(path)).owners()))


@pytest.mark.disk
@pytest.mark.parametrize(("durability", "seed", "rounds"), [
    (Durability.FSYNC, 1, 4),
    (Durability.OS, 3, 3),
    *(
        pytest.param(durability, seed, 30, marks=pytest.mark.slow)
        for durability in Durability
        for seed in range(3)
    ),
])  # fmt: skip
def test_chaos_leaves_a_log_that_keeps_every_answer(
    tmp_path: Path, durability: Durability, seed: int, rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills and stops at random: no answer is taken back and no living worker loses its job."""
    chaos = Chaos(tmp_path, durability, seed)
    chaos.run(rounds)
    check_records(chaos)
    check_folds(chaos)
    check_snapshots(tmp_path)
    check_that_it_serves(tmp_path)
    assert "is passed over" not in caplog.text
    check_end(tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("seed", "rounds"), [
    (1, 4), *(pytest.param(seed, 60, marks=pytest.mark.slow) for seed in range(2, 6)),
])  # fmt: skip
def test_kills_amid_upkeep_lose_nothing(tmp_path: Path, seed: int, rounds: int) -> None:
    chaos = Chaos(tmp_path, Durability.OS, seed, 3 * SEGMENT_BYTES_MIN)
    chaos.run(rounds)
    check_folds(chaos)
    config = LogConfig(
        durability=Durability.OS, segment_bytes=SEGMENT_BYTES_MIN, keep_bytes=8 * SEGMENT_BYTES_MIN
    )
    store = open_store(str(tmp_path), config)
    store.thread_port.compact(None, dry_run=False).result()
    store.close()
    check_folds(chaos)
    check_end(tmp_path)


def ingest(directory: Path, lines: int, seed: int) -> int:
    chance, kills, most = random.Random(seed), 0, 20.0
    source, path = directory / "lines.txt", directory / "log"
    source.write_text("".join(f"line {number}\n" for number in range(lines)))
    while True:
        milliseconds = 1 + chance.randrange(int(most))
        with Child("actors.py", "ingest_file", path, source, milliseconds) as child:
            code = child.wait()
        if not code:
            return kills
        assert code in STRUCK
        kills, most = kills + 1, most * 1.3  # also the slowest machine comes to the end


def payloads(path: Path) -> list[str]:
    taken: list[str] = []
    with TaskLog.open(path) as log:
        while deliveries := log.claim_sync(10_000):
            taken += [delivery.payload.decode() for delivery in deliveries]
    return taken


@grows
@pytest.mark.parametrize("seed", range(some(2, of=40)))
def test_a_kill_at_any_moment_leaves_each_line_of_a_file_once(tmp_path: Path, seed: int) -> None:
    kills = ingest(tmp_path, 2_000, seed)
    assert kills >= 2
    assert payloads(tmp_path / "log") == [f"line {number}" for number in range(2_000)]
