"""Kill -9 while large payloads go to files: what was acknowledged reads back, leftovers go."""

from __future__ import annotations

import hashlib
import os
import random
from typing import TYPE_CHECKING

import pytest

from taskq import TaskLog
from taskq.log.machine.disk import LocalDisk
from taskq.log.segments.spill import collect, old_files
from tests.processes.harness import Child
from tests.processes.scripts.spill_many import body

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def kill_spillers(path: Path, chance: random.Random, number: int) -> Iterator[tuple[str, int]]:
    """Kill two processes that put; gives what they were told was kept."""
    with (
        Child("spill_many.py", path, number * 1_000) as first,
        Child("spill_many.py", path, number * 1_000 + 500) as second,
    ):
        lines = [first.line(), second.line()]
        lines += [first.line() for _ in range(chance.randrange(6))]
        for child in (first, second):
            child.kill()
            lines += child.rest()
    for line in lines:
        job_id, told = line.split()
        yield job_id, int(told)


async def check(path: Path, acknowledged: dict[str, int]) -> None:
    async with TaskLog.open(path) as log:
        for job_id, number in acknowledged.items():
            assert (await log.get(job_id)).payload == body(number)
        # Those who wait are whole too, acknowledged or not.
        for delivery in await log.claim(1_000):
            assert len(await log.payload(delivery)) == 1_060_000
            await log.release(delivery)


def collect_leftovers(path: Path) -> None:
    """As if an hour had passed, with records that name every finished file."""
    spill = path / "spill"
    for file in spill.iterdir():
        os.utime(file, (1, 1))
    disk = LocalDisk()
    steps = old_files(disk, str(path), 10**18)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found = end.value
    named = {file.digest for file in found if file.digest}
    for _ in collect(disk, str(path), found, named):
        pass
    for file in spill.iterdir():
        assert len(file.name) == 64
        assert file.stat().st_size > 1_000_000
    assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name


@pytest.mark.parametrize("rounds", [2, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
async def test_what_was_acknowledged_reads_back_after_a_kill(tmp_path: Path, rounds: int) -> None:
    chance = random.Random(rounds)
    acknowledged: dict[str, int] = {}
    for number in range(rounds):
        acknowledged.update(kill_spillers(tmp_path, chance, number))
        await check(tmp_path, acknowledged)
        collect_leftovers(tmp_path)
    assert len(acknowledged) >= 2 * rounds
    await check(tmp_path, acknowledged)
