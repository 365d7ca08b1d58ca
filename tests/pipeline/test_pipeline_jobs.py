"""``jobs`` and ``attempts`` equal the Python fold of the same log, to the row."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

from taskq.core.records import Kind
from taskq.core.views import AttemptView
from taskq.log.format.carried import encode_history
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.tables.fold import JobRows, rows_of
from taskq_plugins.spark.tables.logs import Log, log_rows, logs_of
from tests.effort import grows, some
from tests.log.mix import CONFIGS, History, Mix
from tests.log.simulation import Simulation
from tests.log.world import fill_segment, tend
from tests.pipeline import kit

pytestmark = [pytest.mark.timeout(240), grows]
SECOND: Final = 10**9
SEEDS: Final = range(some(2, 6))
DAMAGED: Final = range(some(4, 12))
BATCHES: Final = some(2, 4)
#: Attempts that a record keeps which carries a job.
CARRIED_MAX: Final = 20


def _mixed(seed: int, acts: int) -> Mix:
    mix = Mix(seed, CONFIGS[seed % len(CONFIGS)], locked=False)
    for _ in range(acts):
        mix.act()
    return mix


def _logs(path: Path) -> Iterator[kit.JobLog]:
    yield kit.of_clocks(path)
    for seed in SEEDS:
        yield kit.of_world(_mixed(seed, 150).world, path / f"mix-{seed}")
        simulation = Simulation(seed, steps_of_clock=True, faults=bool(seed % 2))
        simulation.run(120)
        yield kit.of_world(simulation.world, path / f"simulation-{seed}")
        history = History(seed, steps_of_clock=True, small=bool(seed % 2))
        history.run(20)
        if seed % 2:
            history.compact()
            history.run(20)
        yield kit.of_world(history.world, path / f"history-{seed}")
    yield from _damaged(path)


def _damaged(path: Path) -> Iterator[kit.JobLog]:
    """Yield a log with flipped bits: only what is whole by its own CRC is salvaged."""
    mix = _mixed(1, 120)
    for seed in DAMAGED:
        chance = random.Random(seed)
        directory = path / f"damaged-{seed}"
        kit.of_world(mix.world, directory)
        file = chance.choice(sorted((directory / "log").glob("*.log")))
        data = bytearray(file.read_bytes())
        for _ in range(3):
            data[chance.randrange(64, len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        yield kit.of_directory(directory)


def _grown(path: Path, seed: int) -> kit.JobLog:
    """Return all records that a log ever had, compacted ones included; and its jobs now."""
    history = History(seed, steps_of_clock=bool(seed % 2), small=True)
    seen = []
    for turn in range(3):
        history.run(12)
        for again in range(2):
            fill_segment(history.processes[0])
            seen.append(kit.of_world(history.world, path / f"{turn}-{again}" / f"grown-{seed}"))
            tend(history.processes[0])
    seen.append(kit.of_world(history.world, path / f"grown-{seed}"))
    parts, last_lsn = [], 0
    for log in seen:
        lsns = log.records["lsn"]
        parts.append(log.records.filter(pa.compute.greater(lsns, last_lsn)))
        last_lsn = max(last_lsn, lsns[-1].as_py())
    return kit.JobLog(pa.concat_tables(parts), seen[-1].jobs)


def _cut(log: kit.JobLog, chance: random.Random) -> list[pa.Table]:
    count = len(log.records)
    ends = [0, *sorted(chance.randint(0, count) for _ in range(BATCHES - 1)), count]
    return [log.records.slice(start, end - start) for start, end in pairwise(ends)]


class Folded(NamedTuple):
    """Many logs in one table: their jobs by the logs, folded at once, and batch by batch."""

    logs: list[kit.JobLog]
    at_once: kit.Jobs
    by_batch: kit.Jobs
    attempts: list[kit.Row]
    kept: list[kit.Row]


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Folded:
    path, chance = tmp_path_factory.mktemp("logs"), random.Random(7)
    logs = [log for log in _logs(path) if len(log.records)]
    logs += [_grown(path, seed) for seed in SEEDS]
    every = pa.concat_tables(log.records for log in logs)
    order = list(range(len(every)))
    chance.shuffle(order)  # a fold goes by the lsn
    lake = Lake.open(tmp_path_factory.mktemp("lake"), create=True)
    cut = [_cut(log, chance) for log in logs]
    for number in range(BATCHES):
        kit.add_records(lake, pa.concat_tables(parts[number] for parts in cut))
        kit.fold_here(lake)
    return Folded(
        logs,
        kit.by_job(kit.folded_rows(every.take(order)).jobs),
        kit.by_job(kit.plain(lake.dataset("jobs").to_table())),
        lake.dataset("attempts").to_table().to_pylist(),
        lake.dataset("_open").to_table().to_pylist(),
    )


def test_folded_jobs_equal_the_jobs_of_their_logs(folded: Folded) -> None:
    """Records written again by compaction; a log that was read as it grew has others besides."""
    for log in folded.logs:
        name = log.records["log_id"][0].as_py()
        shown = {key for key in folded.at_once if key[0] == name}
        assert shown >= log.jobs.keys() if name.startswith("grown") else shown == log.jobs.keys()
        for key, row in log.jobs.items():
            got = kit.comparable(folded.at_once[key])
            if len(got["attempts"]) <= CARRIED_MAX:
                assert {name: got[name] for name in row} == row, key


def test_batches_cut_anywhere_give_the_jobs_of_a_fold_at_once(folded: Folded) -> None:
    assert folded.by_batch.keys() == folded.at_once.keys()
    for key, row in folded.at_once.items():
        assert folded.by_batch[key] == row


def test_a_log_alone_is_folded_as_among_others(folded: Folded) -> None:
    for log in folded.logs:
        alone = kit.by_job(kit.folded_rows(log.records).jobs)
        assert alone == {key: folded.at_once[key] for key in alone}


def test_these_logs_have_all_kinds_of_life_in_them(folded: Folded) -> None:
    kinds = {kind for log in folded.logs for kind in log.records["kind"].to_pylist()}
    of_jobs = {kind.name.lower() for kind in Kind if Kind.ENQUEUED <= kind <= Kind.CLOCK}
    assert not (of_jobs | {"cancel_asked"}) - kinds
    rows = folded.at_once.values()
    states = {row["state"] for row in rows}
    assert states == {"scheduled", "ready", "running", "succeeded", "dead", "cancelled", "expired"}
    outcomes = {item["outcome"] for row in rows for item in row["attempts"]}
    assert outcomes == {None, "succeeded", "retried", "dead", "released", "lost", "cancelled"}


def test_there_is_a_row_for_each_attempt(folded: Folded) -> None:
    names = ("number", "owner", "started_ns", "ended_ns", "outcome", "reason", "wait_ns", "run_ns")
    shown = Counter(
        (row["log_id"], row["job"], row["is_over"], *(row[name] for name in names))
        for row in folded.attempts
    )
    assert shown == Counter(
        (*key, row["is_over"], *(item[name] for name in names))
        for key, row in folded.at_once.items()
        for item in row["attempts"]
    )


def test_steps_of_the_clock_are_no_waits_and_no_runs(folded: Folded) -> None:
    """Twenty seconds passed, and the clock was set by years."""
    tries = [
        item
        for (name, _), row in folded.at_once.items()
        for item in row["attempts"]
        if name == kit.clocks_that_are_set.__name__
    ]
    assert len(tries) > 7
    assert {item["wait_ns"] for item in tries} <= {0, 10 * SECOND, 20 * SECOND}
    assert {item["run_ns"] for item in tries} <= {None, 0}


def test_what_is_kept_is_of_open_jobs_but_for_clocks_and_what_was_read(folded: Folded) -> None:
    """One of a job's copies by repeated compaction is kept."""
    jobs_open = {key for key, row in folded.by_batch.items() if not row["is_over"]}
    of_jobs = [row for row in folded.kept if row["kind"] not in {"clock", "position", "finished"}]
    assert {(row["log_id"], row["job"]) for row in of_jobs} == jobs_open
    assert {row["kind"] for row in of_jobs} & {"owner", "extended", "paused"} == set()
    positions = {row["log_id"] for row in folded.kept if row["kind"] == "position"}
    assert positions >= {row["log_id"] for row in folded.kept}
    for kind in ("finished", "carried"):
        shown = [(row["log_id"], row["job"]) for row in folded.kept if row["kind"] == kind]
        assert shown
        assert len(shown) == len(set(shown))
        assert kind == "carried" or not set(shown) & jobs_open


LOG = {"device": "edge", "log_id": "a", "segment": 1, "epoch": "e", "job": 1}


def made(*rows: dict[str, Any], read: tuple[int, int] = (1, 999)) -> JobRows:
    plain = {"job_id": "a-1", "queue": "q", "priority": 5, "flags": 0, "moments": 0}
    return rows_of(
        pa.Table.from_pylist([LOG | plain | row for row in rows], kit.COLUMNS),
        {"a": Log(9**9, [], [read])},
    )


def test_of_many_attempts_the_latest_are_shown() -> None:
    rows: list[dict[str, Any]] = [{"lsn": 1, "kind": "enqueued", "ts_ns": 0}]
    for turn in range(130):
        claim = {"lsn": 2 + 2 * turn, "kind": "claimed", "ts_ns": turn, "attempt": turn}
        rows += [claim, claim | {"lsn": 3 + 2 * turn, "kind": "retried", "cause": "caller"}]
    assert made(*rows).attempts["number"].to_pylist() == list(range(30, 130))
    assert not any(table.num_rows for table in rows_of(kit.COLUMNS.empty_table(), {}))


TRIED = AttemptView(number=1, owner=7, started_ns=11, ended_ns=14, outcome="retried", reason="no")
RUNNING = AttemptView(number=2, owner=7, started_ns=20)
CARRIED = {
    "lsn": 20, "kind": "carried", "ts_ns": 90, "attempt": 2, "state": "running", "enqueued_ns": 5,
    "history": encode_history([TRIED, RUNNING]),
}  # fmt: skip


def test_carried_attempts_have_their_wait_and_run_times_and_a_carried_job_its_result() -> None:
    end = {"lsn": 21, "kind": "retried", "cause": "caller", "ts_ns": 33, "attempt": 2}
    rows = made(CARRIED, end, read=(15, 999)).attempts
    assert rows["number"].to_pylist() == [1, 2]
    assert rows["wait_ns"].to_pylist() == [6, 6]
    assert rows["run_ns"].to_pylist() == [3, 13]
    assert rows["outcome"].to_pylist() == ["retried", "retried"]
    done = made(CARRIED | {"state": "succeeded", "result": b"42"}, read=(15, 999)).jobs
    assert done.select(["result", "reason"]).to_pylist() == [{"result": b"42", "reason": None}]


def test_records_that_were_folded_before_add_no_rows() -> None:
    assert not made({"kind": "finished"}, {"lsn": 1, "kind": "enqueued", "ts_ns": 0}).jobs.num_rows
    assert not made(CARRIED).jobs.num_rows
    assert made(CARRIED, read=(15, 999)).jobs["state"].to_pylist() == ["running"]


def test_what_was_read_is_one_stretch_in_whatever_order_its_segments_come() -> None:
    """Two logs have segments of the same numbers; one of them lacks a record."""
    ends = [("b", 5, 9), ("a", 5, 9), ("b", 1, 4), ("a", 1, 3), ("a", 1, 2), ("b", 5, 6)]
    rows = [
        {"log_id": log_id, "segment": segment, "lsn": lsn, "ts_ns": lsn, "kind": ""}
        for log_id, segment, lsn in ends
    ]
    logs = logs_of(log_rows(pa.Table.from_pylist(rows, kit.COLUMNS)))
    assert {key: (log.stretches, log.now_ns) for key, log in logs.items()} == {
        "a": ([(1, 3), (5, 9)], 9),
        "b": ([(1, 9)], 9),
    }
