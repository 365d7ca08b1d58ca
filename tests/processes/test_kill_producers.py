"""Kill -9 at a random moment: what was acknowledged is there, once, and the log goes on."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.requests import ClaimRequest, Settlement
from tests.effort import grows, some
from tests.processes.harness import Child, log_records, of_kind, open_here, put

if TYPE_CHECKING:
    from pathlib import Path

#: (processes, how each runs its producers, producers in each)
SHAPES = {
    "threads": (1, "threads", 8),
    "coroutines": (1, "coroutines", 8),
    "processes": (4, "threads", 2),
}
#: Where no answer waits for the disk, each commits on its own loop's thread if it gets the lock.
LONE_LOOPS = (4, "coroutines", 1)
CASES = [
    *(pytest.param(Durability.FSYNC, shape, id=f"fsync-{name}") for name, shape in SHAPES.items()),
    pytest.param(Durability.OS, LONE_LOOPS, id="os-lone loops"),
    *(
        pytest.param(Durability.OS, shape, id=f"os-{name}", marks=pytest.mark.slow)
        for name, shape in SHAPES.items()
    ),
]


class Torture:
    """Rounds of producers that are killed, all on one directory."""

    def __init__(self, path: Path, durability: Durability, shape: tuple[int, str, int]) -> None:
        self.path = path
        self.durability = durability
        self.shape = shape
        self.random = random.Random(f"{durability} {shape}")
        self.acknowledged: dict[int, str] = {}
        self.settled: set[int] = set()

    def round(self, number: int) -> None:
        self.kill_producers(number)
        self.open_at_once(number)
        self.check_log()

    def kill_producers(self, number: int) -> None:
        processes, how, count = self.shape
        with ExitStack() as stack:
            children = [
                stack.enter_context(
                    Child("produce.py", self.path, self.durability, f"{number}.{item}", how, count)
                )
                for item in range(processes)
            ]
            for child in children:
                self.note(child.line())
            # The pipes lag behind by a moment that nobody knows: so is the moment of the kill.
            for _ in range(self.random.randrange(200)):
                self.note(children[0].line())
            while children:
                victim = children.pop(self.random.randrange(len(children)))
                victim.kill()
                for line in victim.rest():
                    self.note(line)
                if children:
                    # One that was killed, perhaps inside the lock, must not hold the others up.
                    for _ in range(self.random.randrange(1, 50)):
                        self.note(children[0].line())

    def note(self, line: str) -> None:
        lsn, body = line.split()
        assert int(lsn) not in self.acknowledged
        self.acknowledged[int(lsn)] = body

    def open_at_once(self, number: int) -> None:
        store = open_here(self.path, self.durability)
        port = store.thread_port
        fresh = put(store, f"fresh:{number}".encode(), priority=9)
        [delivery] = port.claim(ClaimRequest(1)).result(10)
        assert delivery.job == fresh
        assert delivery.payload == f"fresh:{number}".encode()
        self.acknowledged[fresh] = f"fresh:{number}"
        [oldest] = port.claim(ClaimRequest(1)).result(10)
        # Older ones may be there that were never acknowledged; settled ones must not come again.
        assert oldest.job <= min(self.acknowledged.keys() - self.settled)
        assert oldest.job not in self.settled
        done = [Settlement(Kind.SUCCEEDED, item) for item in (delivery, oldest)]
        assert port.settle(done).result(10) == [None, None]
        self.settled |= {fresh, oldest.job}
        store.close()

    def check_log(self) -> None:
        jobs = of_kind(log_records(self.path), Kind.ENQUEUED)
        seen = {record.lsn: (record.body or b"").decode() for record in jobs}
        assert len(seen) == len(jobs), "an lsn names two jobs"
        assert len(set(seen.values())) == len(jobs), "a payload is there twice"
        lost = {lsn: body for lsn, body in self.acknowledged.items() if seen.get(lsn) != body}
        assert not lost


@grows
@pytest.mark.parametrize(("durability", "shape"), CASES)
def test_what_was_acknowledged_survives_a_kill(
    tmp_path: Path, durability: Durability, shape: tuple[int, str, int]
) -> None:
    """Producers, killed: the first open serves, nothing is lost, nothing is there twice."""
    test = Torture(tmp_path, durability, shape)
    rounds = some(1, 40)
    for number in range(rounds):
        test.round(number)
    print(f"{rounds} kills, {len(test.acknowledged)} jobs acknowledged")  # noqa: T201 - a figure
