"""Dedup keys that several processes race for: one job each, and the same answer for all."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskq.core.model import Conflict, Durability, Extras
from taskq.core.records import Kind
from taskq.log.requests import Duplicate, EnqueueSpec
from tests.log.reference import Reference
from tests.processes.harness import MODES, Child, log_records, of_kind, open_here

KEYS = 60
PROCESSES = 4
THREADS = 4


def race(
    path: Path, durability: Durability, conflict: Conflict = Conflict.FIRST, keys: int = KEYS
) -> tuple[dict[str, set[int]], Counter[str]]:
    jobs: dict[str, set[int]] = {}
    new: Counter[str] = Counter()
    with ExitStack() as stack:
        racers = [
            stack.enter_context(Child("race_keys.py", path, durability, keys, THREADS, conflict))
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


@pytest.mark.parametrize("durability", MODES)
def test_racing_processes_make_one_job_per_key(tmp_path: Path, durability: Durability) -> None:
    jobs, new = race(tmp_path, durability)
    assert len(jobs) == KEYS
    assert all(len(job) == 1 for job in jobs.values())
    assert set(new.values()) == {1}
    enqueued = of_kind(log_records(tmp_path), Kind.ENQUEUED)
    assert {job.lsn for job in enqueued} == {lsn for job in jobs.values() for lsn in job}
    # Nobody has the log open any more; the next opener gets the same answers.
    store = open_here(tmp_path, durability)
    for key, item in jobs.items():
        future = store.thread_port.enqueue(EnqueueSpec(), b"x", Extras(key=key.encode()))
        assert future.result(10) == Duplicate(min(item))
    store.close()
    again, new_again = race(tmp_path, durability)
    assert again == jobs
    assert new_again.total() == 0


def test_racing_processes_that_replace_leave_one_job_per_key(tmp_path: Path) -> None:
    jobs, new = race(tmp_path, Durability.OS, Conflict.REPLACE, 40)
    assert set(new.values()) == {PROCESSES * THREADS}
    reference = Reference.of(log_records(tmp_path), lambda _: False, may_fall=False)
    live = {lsn for lsn in reference.jobs if reference.is_live(lsn)}
    assert live == {max(job) for job in jobs.values()}
    assert len(reference.jobs) == PROCESSES * THREADS * 40


def test_of_racing_processes_that_raise_one_gets_each_key(tmp_path: Path) -> None:
    jobs, new = race(tmp_path, Durability.OS, Conflict.RAISE)
    assert all(len(job) == 1 for job in jobs.values())
    assert set(new.values()) == {1}
