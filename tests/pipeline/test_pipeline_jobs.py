"""``jobs`` and ``attempts`` equal the Python fold of the same log, to the row."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

pytest.importorskip("pyarrow")

from taskq.core.records import Kind
from tests.effort import grows, some
from tests.log.mix import CONFIGS, History, Mix
from tests.log.simulation import Simulation
from tests.pipeline.joblogs import (
    JobLog,
    Jobs,
    by_job,
    check_equal,
    folded_rows,
    joined,
    of_directory,
    of_world,
)
from tests.pipeline.jobstories import STORIES, bodies, world_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

pytestmark = [pytest.mark.timeout(240), grows]
SECOND: Final = 10**9
SEEDS: Final = range(some(2, 6))
DAMAGED: Final = range(some(4, 12))


class Folded(NamedTuple):
    """Many logs in one table, folded at once."""

    logs: dict[str, JobLog]
    jobs: Jobs
    attempts: pa.Table

    def check(self, *names: str) -> None:
        assert names
        for name in names:
            shown = {key: row for key, row in self.jobs.items() if key[0] == name}
            check_equal(shown, self.logs[name].jobs)


def _logs(path: Path) -> Iterator[JobLog]:
    for story in STORIES:
        yield of_world(world_of(story), path / story)
    asyncio.run(bodies(path / "bodies"))
    yield of_directory(path / "bodies")
    for seed in SEEDS:
        mix = Mix(seed, CONFIGS[seed % len(CONFIGS)], locked=False)
        for _ in range(150):
            mix.act()
        yield of_world(mix.world, path / f"mix-{seed}")
        simulation = Simulation(seed, steps_of_clock=True, faults=bool(seed % 2))
        simulation.run(120)
        yield of_world(simulation.world, path / f"simulation-{seed}")
        history = History(seed, steps_of_clock=True, small=bool(seed % 2))
        history.run(20)
        if seed % 2:
            history.compact()
            history.run(20)
        yield of_world(history.world, path / f"history-{seed}")
    yield from _damaged(path)


def _damaged(path: Path) -> Iterator[JobLog]:
    """Yield a log with flipped bits: only what is whole by its own CRC is salvaged."""
    mix = Mix(1, CONFIGS[1], locked=False)
    for _ in range(120):
        mix.act()
    for seed in DAMAGED:
        chance = random.Random(seed)
        directory = path / f"damaged-{seed}"
        of_world(mix.world, directory)
        file = chance.choice(sorted((directory / "log").glob("*.log")))
        data = bytearray(file.read_bytes())
        for _ in range(3):
            data[chance.randrange(64, len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        yield of_directory(directory)


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Folded:
    """Return every log of this file, folded at once."""
    path = tmp_path_factory.mktemp("logs")
    logs = {log.records["log_id"][0].as_py(): log for log in _logs(path) if len(log.records)}
    # In no order at all: a fold goes by the lsn.
    table = joined(logs.values()).records
    order = list(range(len(table)))
    random.Random(7).shuffle(order)
    rows = folded_rows(table.take(order))
    return Folded(logs, by_job(rows.jobs), rows.attempts)


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_told_as_the_log_tells_it(story: str, folded: Folded) -> None:
    folded.check(story)


def test_bodies_are_as_they_were_given(folded: Folded) -> None:
    folded.check("bodies")
    rows = [row for (log_id, _), row in folded.jobs.items() if log_id == "bodies"]
    assert len(rows) == 9
    assert all(row["payload"] == row["result"] for row in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_logs_are_told_as_they_tell_it(seed: int, folded: Folded) -> None:
    folded.check(f"mix-{seed}", f"simulation-{seed}", f"history-{seed}")


def test_damaged_logs_are_told_as_they_tell_it(folded: Folded) -> None:
    folded.check(*(f"damaged-{seed}" for seed in DAMAGED))


def test_these_logs_have_all_kinds_of_life_in_them(folded: Folded) -> None:
    kinds = Counter(
        kind for log in folded.logs.values() for kind in log.records["kind"].to_pylist()
    )
    of_jobs = {kind.name.lower() for kind in Kind if Kind.ENQUEUED <= kind <= Kind.CLOCK}
    assert not of_jobs - kinds.keys()
    rows = folded.jobs.values()
    states = {row["state"] for row in rows}
    assert states == {"scheduled", "ready", "running", "succeeded", "dead", "cancelled", "expired"}
    outcomes = {item["outcome"] for row in rows for item in row["attempts"]}
    assert outcomes == {None, "succeeded", "retried", "dead", "released", "lost", "cancelled"}
    assert "cancel_asked" in kinds


def test_there_is_a_row_for_each_attempt(folded: Folded) -> None:
    shown = folded.attempts.to_pylist()
    wanted = [
        (key, item["number"], item["started_ns"], item["outcome"], item["reason"], row["is_over"])
        for key, row in folded.jobs.items()
        for item in row["attempts"]
    ]
    names = ("number", "started_ns", "outcome", "reason", "is_over")
    result = [((item["log_id"], item["job"]), *(item[name] for name in names)) for item in shown]
    assert Counter(result) == Counter(wanted)


def _times(folded: Folded, log_id: str, job: int) -> list[tuple[float | None, float | None]]:
    """Return seconds of wait and run of each attempt of a job."""
    attempts_of = folded.jobs[log_id, job]["attempts"]
    return [(_seconds(item["wait_ns"]), _seconds(item["run_ns"])) for item in attempts_of]


def _seconds(span_ns: int | None) -> float | None:
    return None if span_ns is None else span_ns / SECOND


def test_a_wait_counts_from_the_enqueue_and_not_from_before_a_job_is_due(folded: Folded) -> None:
    first = folded.logs["jobs_that_succeed_wait_and_run"].jobs
    waits = [_times(folded, *key)[0][0] for key in sorted(first) if first[key]["attempts"]]
    assert waits == [5, 4, 3, 2]
    [job] = [key for key, row in folded.jobs.items() if row["result"] == b"at last"]
    assert [wait for wait, _ in _times(folded, *job)] == [0, 61, 1, 61]


def test_steps_of_the_clock_are_no_waits_and_no_runs(folded: Folded) -> None:
    """Twenty seconds passed, and the clock was set by years."""
    rows = folded.logs["clocks_that_are_set"].jobs
    times = [times for key in rows for times in _times(folded, *key)]
    assert len(times) > 7
    assert {wait for wait, _ in times} <= {0, 10, 20}
    assert {run for _, run in times} <= {None, 0}


def test_waiting_jobs_are_looked_at_when_the_caller_says(folded: Folded) -> None:
    log = folded.logs["retries_with_and_without_delay"]
    [(key, row)] = [job for job in log.jobs.items() if job[1]["state"] == "scheduled"]
    at_once = folded_rows(log.records, {key[0]: row["due_ns"]})
    shown = by_job(at_once.jobs)
    assert (shown[key]["state"], shown[key]["due_ns"]) == ("ready", None)
