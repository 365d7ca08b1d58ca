"""Two workers: no job waits in one for over a second while the other has nothing to do."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskq import JobHandle, TaskQ
from taskq.core.records import Kind
from tests.processes.harness import eventually, log_records
from tests.processes.test_guard import opened, start_guard

SLOTS = 2
HELD_SECONDS_MAX = 1.0
#: Allowance for the two clocks, of records and of tasks, and for a busy machine.
SLACK_SECONDS = 0.3


@dataclass(frozen=True)
class Span:
    """Something that one process did, in wall seconds."""

    pid: int
    begin: float
    end: float


def put(app: TaskQ, task: str, seconds: list[float]) -> list[JobHandle[Any]]:
    call = app.call_by_name
    return app.enqueue_many_sync(
        [call(f"guarded.{task}", moment).options(attempts=1) for moment in seconds]
    )


def spans(path: Path) -> tuple[list[Span], list[Span]]:
    """(runs, waits of claimed jobs for a slot), read from the records and the results."""
    records = log_records(path)
    runs, held = [], []
    results = {r.job: json.loads(r.body) for r in records if r.type == Kind.SUCCEEDED and r.body}
    claims: dict[int, float] = {}
    owners: dict[int, int] = {}
    released: list[tuple[int, float, float]] = []
    for record in records:
        moment = record.time_ns / 1e9
        if record.type == Kind.CLAIMED:
            claims[record.job] = moment
            owners[record.job] = record.token
        elif record.type == Kind.RELEASED:
            released.append((owners[record.job], claims.pop(record.job), moment))
    pids = {}
    for job, (pid, begin, end) in results.items():
        pids[owners[job]] = pid
        runs.append(Span(pid, begin, end))
        held.append(Span(pid, claims[job], begin))
    held += [Span(pids.get(owner, 0), begin, end) for owner, begin, end in released]
    return runs, held


def hoarded(path: Path) -> list[tuple[Span, float]]:
    """Waits that went on for over a second beside an idle process, and from when it was idle."""
    runs, held = spans(path)
    of = defaultdict(list)
    for run in runs:
        of[run.pid].append(run)
    seen = []
    for wait in held:
        moment = wait.begin + HELD_SECONDS_MAX + SLACK_SECONDS
        while moment < wait.end:
            for pid, others in of.items():
                busy = sum(other.begin - SLACK_SECONDS <= moment <= other.end for other in others)
                if pid != wait.pid and busy < SLOTS:
                    seen.append((wait, moment))
                    break
            moment += 0.05
    return seen


@pytest.mark.parametrize(
    "task",
    [
        "timed",
        pytest.param("threaded", marks=pytest.mark.slow),
        pytest.param("stands", marks=pytest.mark.slow),
    ],
)
def test_long_jobs_among_short_ones_are_not_hoarded(tmp_path: Path, task: str) -> None:
    """Short jobs let a worker claim hundreds ahead, and then the long ones come."""
    options = ("-c", SLOTS, "--drain-timeout", 0)
    with opened(tmp_path) as app, start_guard(tmp_path, *options) as first:
        first.expect("  ready")
        long = 2.2 if task == "stands" else 1.2
        jobs = put(app, "timed", [0.0] * 1_500)
        jobs += put(app, task, [0.0] * 20 + [long] * 8)
        jobs += put(app, "timed", [0.0] * 30 + [1.2] * 4 + [0.0] * 30)
        with start_guard(tmp_path, *options) as second:
            second.expect("  ready")
            jobs[-1].result_sync(25)
            eventually(lambda: app.stats_sync().queues[0].succeeded == len(jobs), 25)
    assert hoarded(tmp_path) == []
