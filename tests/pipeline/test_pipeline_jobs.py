"""``jobs`` and ``attempts`` equal the Python fold of the same log, to the row."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pytest

from taskq.core.records import Kind
from taskq.core.views import AttemptView
from taskq.log.format.carried import encode_history
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.tables.fold import rows_of
from taskq_plugins.spark.tables.logs import Log, log_rows, logs_of
from tests.effort import grows, some
from tests.log.mix import CONFIGS, History, Mix
from tests.log.simulation import Simulation
from tests.log.world import fill_segment, tend
from tests.pipeline.kit import (
    COLUMNS,
    STORIES,
    JobLog,
    Jobs,
    Row,
    add_records,
    bodies,
    by_job,
    check_equal,
    comparable,
    fold_here,
    folded_rows,
    joined,
    of_directory,
    of_world,
    plain,
    world_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from taskq_plugins.spark.tables.fold import JobRows

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


BATCHES: Final = some(2, 4)
SEEDS_BATCHED: Final = range(some(1, 3))
#: Attempts that a record keeps which carries a job.
CARRIED_MAX: Final = 20


def _ever(worlds: Iterator[JobLog]) -> JobLog:
    """Return all records that a log ever had, compacted ones included; and its jobs now."""
    parts: list[pa.Table] = []
    last_lsn = 0
    seen: JobLog | None = None
    for seen in worlds:
        lsns = seen.records["lsn"]
        if not len(lsns):
            continue
        parts.append(seen.records.filter(pa.compute.greater(lsns, last_lsn)))
        last_lsn = max(last_lsn, lsns[-1].as_py())
    assert seen is not None
    return JobLog(pa.concat_tables(parts), seen.jobs)


def _grown(path: Path, seed: int, *, reads: bool = True) -> Iterator[JobLog]:
    history = History(seed, steps_of_clock=bool(seed % 2), small=True)
    for turn in range(3):
        history.run(12)
        process = history.processes[0]
        for again in range(2):
            fill_segment(process)
            if reads:
                yield of_world(history.world, path / f"{turn}-{again}" / f"history-{seed}")
            tend(process)
    yield of_world(history.world, path / f"history-{seed}")


def _mixed(path: Path, seed: int) -> JobLog:
    """Return a log that several processes compacted before anybody read it."""
    mix = Mix(seed, CONFIGS[seed % len(CONFIGS)], locked=False)
    for _ in range(150):
        mix.act()
    return of_world(mix.world, path / f"mix-{seed}")


def _logs_batched(path: Path) -> Iterator[JobLog]:
    for seed in SEEDS_BATCHED:
        yield _ever(_grown(path / f"{seed}", seed))
        yield _mixed(path, seed)
    for story in STORIES:
        yield of_world(world_of(story), path / story)


def _cut(log: JobLog, chance: random.Random) -> list[pa.Table]:
    count = len(log.records)
    ends = [0, *sorted(chance.randint(0, count) for _ in range(BATCHES - 1)), count]
    return [log.records.slice(start, end - start) for start, end in pairwise(ends)]


class Run(NamedTuple):
    """Jobs at once, batch by batch, and by the logs; and the rows that were kept."""

    at_once: Jobs
    by_batch: Jobs
    attempts: list[Row]
    of_logs: Jobs
    kept: list[Row]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    chance = random.Random(4)
    logs = list(_logs_batched(tmp_path_factory.mktemp("logs")))
    whole = joined(logs)
    cut = [_cut(log, chance) for log in logs]
    lake = Lake.open(tmp_path_factory.mktemp("lake"), create=True)
    for number in range(BATCHES):
        add_records(lake, pa.concat_tables(parts[number] for parts in cut))
        fold_here(lake)
    at_once = folded_rows(whole.records)
    return Run(
        by_job(at_once.jobs),
        by_job(plain(lake.dataset("jobs").to_table())),
        lake.dataset("attempts").to_table().to_pylist(),
        whole.jobs,
        lake.dataset("_open").to_table().to_pylist(),
    )


def test_batches_cut_anywhere_give_the_jobs_of_a_fold_at_once(run: Run) -> None:
    assert run.by_batch.keys() == run.at_once.keys()
    for key, row in run.at_once.items():
        assert run.by_batch[key] == row
    assert len(run.attempts) == sum(len(row["attempts"]) for row in run.at_once.values())


def test_jobs_that_a_log_tells_still_are_as_it_tells_them(run: Run) -> None:
    """Though some were written again, and others have gone from the log since."""
    assert run.of_logs.keys() <= run.at_once.keys()
    for key, row in run.of_logs.items():
        got = comparable(run.by_batch[key])
        if len(got["attempts"]) <= CARRIED_MAX:
            assert {name: got[name] for name in row} == row, key


def test_attempts_are_those_of_the_jobs(run: Run) -> None:
    names = ("number", "owner", "started_ns", "ended_ns", "outcome", "reason", "wait_ns", "run_ns")
    shown = Counter(
        (row["log_id"], row["job"], *(row[name] for name in names)) for row in run.attempts
    )
    assert shown == Counter(
        (*key, *(item[name] for name in names))
        for key, row in run.by_batch.items()
        for item in row["attempts"]
    )


def test_what_is_kept_is_of_open_jobs_but_for_clocks_and_what_was_read(run: Run) -> None:
    jobs_open = {key for key, row in run.by_batch.items() if not row["is_over"]}
    of_jobs = [row for row in run.kept if row["kind"] not in {"clock", "position", "told"}]
    assert {(row["log_id"], row["job"]) for row in of_jobs} == jobs_open
    assert {row["kind"] for row in of_jobs} & {"owner", "extended", "paused"} == set()
    positions = {row["log_id"] for row in run.kept if row["kind"] == "position"}
    assert positions >= {row["log_id"] for row in run.kept}
    shown = [(row["log_id"], row["job"]) for row in run.kept if row["kind"] == "told"]
    assert len(shown) == len(set(shown))
    assert not set(shown) & jobs_open


def test_a_job_is_brought_by_one_of_the_records_that_carry_it(run: Run) -> None:
    """Copies that compaction makes time and again do not pile up."""
    carried = [(row["log_id"], row["job"]) for row in run.kept if row["kind"] == "carried"]
    assert carried
    assert len(carried) == len(set(carried))


LOG = {"device": "edge", "log_id": "a", "segment": 1, "epoch": "e", "job": 1}


def made(*rows: dict[str, Any], read: tuple[int, int] = (1, 999)) -> JobRows:
    plain = {"job_id": "a-1", "queue": "q", "priority": 5, "flags": 0, "moments": 0}
    return rows_of(
        pa.Table.from_pylist([LOG | plain | row for row in rows], COLUMNS),
        {"a": Log(9**9, [], [read])},
    )


def test_of_many_attempts_the_latest_are_shown() -> None:
    rows: list[dict[str, Any]] = [{"lsn": 1, "kind": "enqueued", "ts_ns": 0}]
    for turn in range(130):
        claim = {"lsn": 2 + 2 * turn, "kind": "claimed", "ts_ns": turn, "attempt": turn}
        rows += [claim, claim | {"lsn": 3 + 2 * turn, "kind": "retried", "cause": "caller"}]
    assert made(*rows).attempts["number"].to_pylist() == list(range(30, 130))


def test_no_records_make_no_rows() -> None:
    assert not any(table.num_rows for table in rows_of(COLUMNS.empty_table(), {}))


TRIED = AttemptView(number=1, owner=7, started_ns=11, ended_ns=14, outcome="retried", reason="no")
RUNNING = AttemptView(number=2, owner=7, started_ns=20)
CARRIED = {
    "lsn": 20, "kind": "carried", "ts_ns": 90, "attempt": 2, "state": "running", "enqueued_ns": 5,
    "history": encode_history([TRIED, RUNNING]),
}  # fmt: skip


def test_attempts_that_a_record_carries_tell_how_long_they_waited_and_ran() -> None:
    end = {"lsn": 21, "kind": "retried", "cause": "caller", "ts_ns": 33, "attempt": 2}
    rows = made(CARRIED, end, read=(15, 999)).attempts
    assert rows["number"].to_pylist() == [1, 2]
    assert rows["wait_ns"].to_pylist() == [6, 6]
    assert rows["run_ns"].to_pylist() == [3, 13]
    assert rows["outcome"].to_pylist() == ["retried", "retried"]


def test_what_was_told_before_is_not_told_again() -> None:
    over = {"kind": "told"}
    assert not made(over, {"lsn": 1, "kind": "enqueued", "ts_ns": 0}).jobs.num_rows
    assert not made(CARRIED).jobs.num_rows
    assert made(CARRIED, read=(15, 999)).jobs["state"].to_pylist() == ["running"]


def test_what_was_read_is_one_stretch_in_whatever_order_its_segments_come() -> None:
    """Two logs have segments of the same numbers; one of them lacks a record."""
    ends = [("b", 5, 9), ("a", 5, 9), ("b", 1, 4), ("a", 1, 3), ("a", 1, 2), ("b", 5, 6)]
    rows = [
        {"log_id": log_id, "segment": segment, "lsn": lsn, "ts_ns": lsn, "kind": ""}
        for log_id, segment, lsn in ends
    ]
    logs = logs_of(log_rows(pa.Table.from_pylist(rows, COLUMNS)))
    assert {key: (log.stretches, log.now_ns) for key, log in logs.items()} == {
        "a": ([(1, 3), (5, 9)], 9),
        "b": ([(1, 9)], 9),
    }
