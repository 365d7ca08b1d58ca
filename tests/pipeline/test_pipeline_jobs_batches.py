"""Jobs folded batch by batch equal one fold at once, for every cut of the records."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from taskq_plugins.spark.lake.store import Lake
from tests.effort import grows, some
from tests.log.mix import CONFIGS, History, Mix
from tests.log.world import fill_segment, tend
from tests.pipeline.joblogs import (
    JobLog,
    Jobs,
    Row,
    by_job,
    comparable,
    folded_rows,
    joined,
    of_world,
    plain,
)
from tests.pipeline.jobstories import STORIES, world_of
from tests.pipeline.lakes import add_records, fold_here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(240), grows]
BATCHES: Final = some(2, 4)
SEEDS: Final = range(some(1, 3))
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


def _logs(path: Path) -> Iterator[JobLog]:
    for seed in SEEDS:
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
    logs = list(_logs(tmp_path_factory.mktemp("logs")))
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
