"""Kill -9 while processes seal, index, snapshot and compact: nothing is lost or comes back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from taskq.core.folds.dedup import key_hash
from taskq.core.model import Durability, State
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.read.reader import LogReader
from taskq.log.state.facets import Facets
from taskq.log.store.store import open_store
from tests.processes.harness import Child


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
            for child in children:
                child.say("stop")
            for child in children:
                self.note(child.rest())
                assert child.wait() == 0
        finally:
            for child in children:
                child.__exit__()

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
    made = [*(run.path / "snapshot").glob("*.snap"), *(run.path / "log").glob("*.idx")]
    assert made, "nothing was indexed, and no snapshot taken"
    check(run)
    compact(run.path)
    check(run)
    assert len(list((run.path / "log").glob("*.log"))) < 40
