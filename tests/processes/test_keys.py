"""Dedup keys that several processes race for: one job each, and everyone is told which."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from taskq.core.model import Durability, Extras
from taskq.core.records import Kind
from taskq.log.requests import Duplicate, EnqueueSpec
from tests.processes.harness import Child, log_records, of_kind, open_here

if TYPE_CHECKING:
    from pathlib import Path

KEYS = 200
PROCESSES = 4
THREADS = 4


def race(path: Path, durability: Durability) -> tuple[dict[str, set[int]], Counter[str]]:
    """(key -> the jobs that were told for it, key -> how often somebody was told "new")."""
    jobs: dict[str, set[int]] = {}
    new: Counter[str] = Counter()
    with ExitStack() as stack:
        racers = [
            stack.enter_context(Child("race_keys.py", path, durability, KEYS, THREADS))
            for _ in range(PROCESSES)
        ]
        for racer in racers:
            racer.expect("open")
        for racer in racers:
            racer.say("go")
        for racer in racers:
            while (line := racer.line()) != "finished":
                word, key, lsn = line.split()
                jobs.setdefault(key, set()).add(int(lsn))
                new[key] += word == "new"
    return jobs, new


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_racing_processes_make_one_job_per_key(tmp_path: Path, durability: Durability) -> None:
    """Sixteen producers in four processes: one is told "new", all others the same job."""
    jobs, new = race(tmp_path, durability)
    assert len(jobs) == KEYS
    assert all(len(told) == 1 for told in jobs.values())
    assert set(new.values()) == {1}
    enqueued = of_kind(log_records(tmp_path), Kind.ENQUEUED)
    assert {one.lsn for one in enqueued} == {lsn for told in jobs.values() for lsn in told}
    # Nobody has the log open any more; whoever opens it next is told the same.
    store = open_here(tmp_path, durability)
    for key, told in jobs.items():
        future = store.thread_port.enqueue(EnqueueSpec(), b"x", Extras(key=key.encode()))
        assert future.result(10) == Duplicate(min(told))
    store.close()
    again, new_again = race(tmp_path, durability)
    assert again == jobs
    assert new_again.total() == 0
