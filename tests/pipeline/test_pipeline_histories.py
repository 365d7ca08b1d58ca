"""The tables do not depend on how a fleet was read: sizes of batches, kills, changes of the logs.

Devices write, are set back to backups and cloned. A fold in plain Python, which shares no code with
the pipeline's, gives the rows.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest

from taskq_plugins.spark.lake.state import lineage_of, positions_of
from taskq_plugins.spark.lake.store import Lake, LakeWriter
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run import pipeline
from taskq_plugins.spark.run.pipeline import RunOptions
from tests.effort import grows, some, spread
from tests.fleet.made_logs import MadeLog, claimed, succeeded
from tests.pipeline.kit import Follower, folded_rows, no_spark, table_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from taskq_plugins.spark.tables.logs import Lineage

BASE = ("records", "jobs", "attempts", "_open")
UNLIMITED = 2**62


class Fleet:
    """Three devices with a random history below ``hub``."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self.live = [MadeLog(root / "hub" / f"dev-{number}", self._log_id()) for number in range(3)]
        self._backups: list[tuple[int, MadeLog, dict[int, int]]] = []
        self._jobs: list[dict[int, int]] = [{}, {}, {}]
        self._count = 0

    def _log_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.chance.getrandbits(128), version=4)

    def act(self) -> None:
        chance, at = self.chance, self.chance.randrange(len(self.live))
        made, jobs = self.live[at], self._jobs[at]
        self._count += 1
        act = chance.choice([*["write"] * 3, *["work"] * 5, "rotate", "backup", "back", "clone"])
        if act == "write":
            first = made.next_lsn
            made.enqueue(chance.randint(1, 4), size=chance.choice([10, 400, 3000]))
            jobs |= dict.fromkeys(range(first, made.next_lsn), 0)
        elif act == "work" and jobs:
            job = chance.choice(sorted(jobs))
            if not jobs[job]:
                jobs[job] = made.next_lsn
                made.frame(claimed(job))
            else:
                made.frame(succeeded(job, jobs.pop(job), made.next_lsn))
        elif act == "rotate":
            made.rotate()
        elif act == "backup" and made.next_lsn > made.begins:
            backup = made.child(self.root / f"backup-{self._count}", self._log_id())
            self._backups.append((at, backup, dict(jobs)))
        elif act == "back" and self._backups:
            at, backup, jobs = self._backups.pop(chance.randrange(len(self._backups)))
            self.live[at], self._jobs[at] = self.live[at].replace(backup), jobs
        elif act == "clone" and made.next_lsn > made.begins:
            clone = made.child(self.root / "hub" / f"clone-{self._count}", self._log_id())
            self.live.append(clone)
            self._jobs.append(dict(jobs))

    def live_on(self, read: Callable[[int], object]) -> None:
        """Let some time pass; ``read`` gets a limit of bytes now and then."""
        for _ in range(self.chance.randint(10, 40)):
            self.act()
            if self.chance.randrange(6) == 0:
                read(self.chance.choice([1, 300, 4000]))


class Row(NamedTuple):
    """What a row of ``jobs`` says, by its log and number."""

    state: str
    continued_in: str | None
    attempts: int


Rows = dict[tuple[str, int], Row]


def shown(rows: Iterable[dict[str, Any]]) -> Rows:
    listed = list(rows)
    made = {
        (row["log_id"], row["job"]): Row(row["state"], row["continued_in"], len(row["attempts"]))
        for row in listed
    }
    assert len(made) == len(listed)
    return made


def by_hand(records: Iterable[dict[str, Any]], lineage: Lineage) -> Rows:
    """Fold records log by log, each with its parents' records before it."""
    own: dict[str, list[dict[str, Any]]] = {}
    for row in records:
        own.setdefault(row["log_id"], []).append(row)
    device = {
        log_id: max(rows, key=lambda row: row["lsn"])["device"] for log_id, rows in own.items()
    }
    made: Rows = {}
    for log_id, rows in own.items():
        parents = lineage.get(log_id, [])
        begins, first = 0, 0
        history = list(rows)
        for parent, begins in parents:
            history += [row for row in own.get(parent, ()) if first <= row["lsn"] < begins]
            first = begins
        children = [
            (lsn, child)
            for child, chain in lineage.items()
            for parent, lsn in chain[-1:]
            if parent == log_id and child in own
        ]
        jobs: dict[int, list[dict[str, Any]]] = {}
        for row in sorted(history, key=lambda row: row["lsn"]):
            if row["job"] is not None:
                jobs.setdefault(row["job"], []).append(row)
        for job, events in jobs.items():
            kind = events[-1]["kind"]
            state = {"enqueued": "ready", "claimed": "running"}.get(kind, kind)
            if kind == "succeeded" and events[-1]["lsn"] < begins:
                continue
            heirs = sorted(child for child in children if job < child[0])
            goes_on = heirs[-1][1] if heirs and kind != "succeeded" else None
            is_replaced = any(device[child] == device[log_id] for _, child in children)
            if kind != "succeeded" and goes_on is None and is_replaced:
                state = "lost"
            made[log_id, job] = Row(state, goes_on, sum(row["kind"] == "claimed" for row in events))
    return made


@grows
@pytest.mark.parametrize("seed", range(some(20, of=300)))
def test_what_is_read_and_folded_depends_neither_on_sizes_nor_on_moments(
    tmp_path: Path, seed: int
) -> None:
    """By the planner and the fold alone, without a lake."""
    fleet = Fleet(tmp_path, random.Random(seed))
    now_and_then, at_once = Follower(tmp_path / "hub"), Follower(tmp_path / "hub")

    def read(max_bytes: int) -> None:
        at_once.drain()
        now_and_then.drain(max_bytes)

    fleet.live_on(read)
    read(700)
    assert not now_and_then.problems
    assert sorted(now_and_then.read()) == sorted(set(at_once.read())) == sorted(at_once.read())
    fresh = Follower(tmp_path / "hub").drain()
    for follower in (now_and_then, fresh):
        jobs = folded_rows(follower.records, lineage=follower.parents).jobs
        assert shown(jobs) == by_hand(follower.rows, follower.parents)
    assert set(fresh.read()) <= set(at_once.read())


def step(root: Path, lake: Path, max_bytes: int, spark: SparkSession | None = None) -> bool:
    """Read and fold one batch, as a run does; return whether there was one."""
    options = RunOptions(journals=root / "hub", max_bytes=max_bytes)
    opened, session = Lake.open(lake, create=True), spark or mock.Mock()
    with opened.writer() as writer, nullcontext() if spark else no_spark():
        committed, finished = opened.reached()
        if committed > finished:
            batches.fold_batch(session, writer)
        planned = pipeline._read(session, writer, options, (None, None))
        assert not planned.problems
        if planned.pieces:
            batches.fold_batch(session, writer)
        return bool(planned.pieces)


def drain(root: Path, lake: Path, max_bytes: int, spark: SparkSession | None = None) -> None:
    while step(root, lake, max_bytes, spark):
        pass


def check_lakes(root: Path, seed: int, spark: SparkSession | None = None) -> None:
    """Let a fleet live, and fill two lakes from it: one in small batches, one in large ones."""

    def read(max_bytes: int) -> None:
        drain(root, root / "small", max_bytes, spark)
        drain(root, root / "large", UNLIMITED, spark)

    Fleet(root, random.Random(seed)).live_on(read)
    read(700)
    lake = Lake.open(root / "small", create=True)
    if lake.has("jobs"):
        assert table_rows(root / "small", *BASE[:-1]) == table_rows(root / "large", *BASE[:-1])
        records, jobs = (lake.dataset(name).to_table().to_pylist() for name in BASE[:2])
        assert shown(jobs) == by_hand(records, lineage_of(positions_of(lake)))


@grows
@pytest.mark.parametrize("seed", range(some(2, of=60)))
def test_tables_depend_neither_on_sizes_nor_on_numbers_of_batches(
    tmp_path: Path, seed: int
) -> None:
    check_lakes(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 103))
def test_nor_do_they_when_spark_fills_them(tmp_path: Path, seed: int, spark: SparkSession) -> None:
    check_lakes(tmp_path, seed, spark)


def test_what_two_logs_share_is_counted_once(tmp_path: Path) -> None:
    """A job that ran and died before the fork has its attempt in the parent's rows alone."""
    made = MadeLog(tmp_path / "hub" / "dev")
    made.enqueue(3)
    made.frame(claimed(1))
    made.frame(succeeded(1, 4, 5))
    made.frame(claimed(2))
    child = made.child(tmp_path / "hub" / "clone")
    child.frame(succeeded(2, 6, 7))
    drain(tmp_path, tmp_path / "lake", UNLIMITED)
    jobs = Lake.open(tmp_path / "lake").dataset("jobs").to_table().to_pylist()
    ids = [str(made.log_id), str(child.log_id)]
    names = ("enqueued_in", "settled_in", "continued_in")
    rows = {
        (ids.index(row["log_id"]), row["job"]): (
            row["state"],
            *(None if row[name] is None else ids.index(row[name]) for name in names),
        )
        for row in jobs
    }
    assert rows == {
        (0, 1): ("succeeded", 0, 0, None),
        (0, 2): ("running", 0, None, 1),
        (0, 3): ("ready", 0, None, 1),
        (1, 2): ("succeeded", 0, 1, None),
        (1, 3): ("ready", 0, None, None),
    }
    attempts = Lake.open(tmp_path / "lake").dataset("attempts").to_table().to_pylist()
    ended = Counter((ids.index(row["log_id"]), row["job"]) for row in attempts if row["ended_ns"])
    assert ended == {(0, 1): 1, (1, 2): 1}


# -- a batch that was begun is finished from the lake alone ----------------------------------------


class Killed(BaseException):
    """A process that ends at once."""


def killing(table: str, *, before: bool) -> Any:
    real = LakeWriter.commit

    def commit(self: LakeWriter, name: str, *args: Any, **options: Any) -> bool:
        if name == table and before:
            raise Killed
        done = real(self, name, *args, **options)
        if name == table:
            raise Killed
        return done

    return mock.patch.object(LakeWriter, "commit", commit)


def compacted(fleet: Path, made: MadeLog) -> None:
    """Let segments go that were read, as compaction does."""
    made.rotate()
    made.enqueue(1)
    first = min((made.path / "log").iterdir())
    first.unlink()


def restored(fleet: Path, made: MadeLog) -> None:
    made.replace(made.child(fleet / "backup")).enqueue(4)


def removed(fleet: Path, made: MadeLog) -> None:
    shutil.rmtree(made.path)


def damaged(fleet: Path, made: MadeLog) -> None:
    for segment in (made.path / "log").iterdir():
        segment.write_bytes(segment.read_bytes()[:60] + b"\x00" * 300)


CHANGES = (compacted, restored, removed, damaged)
TABLES = ("_positions", "records", "attempts", "jobs", "steps", "_open")
STEPS = [(table, before) for table in TABLES for before in (True, False)]


@spread(5)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("table", "before"), STEPS)
def test_a_batch_that_was_begun_is_finished_from_the_lake_alone(
    tmp_path: Path, table: str, before: bool, change: Callable[[Path, MadeLog], None]
) -> None:
    made, healthy = MadeLog(tmp_path / "hub" / "dev"), MadeLog(tmp_path / "hub" / "healthy")
    for log in (made, healthy):
        log.enqueue(5)
        log.frame(claimed(1))
    drain(tmp_path, tmp_path / "lake", UNLIMITED)
    for log in (made, healthy):
        log.enqueue(2)
        log.frame(succeeded(1, 6, 9))
    shutil.copytree(tmp_path / "lake", tmp_path / "undisturbed")
    with killing(table, before=before), pytest.raises(Killed):
        step(tmp_path, tmp_path / "lake", UNLIMITED)
    step(tmp_path, tmp_path / "undisturbed", UNLIMITED)
    is_begun = (table, before) not in {
        ("_positions", True),
        ("_positions", False),
        ("records", True),
    }
    if is_begun:
        change(tmp_path, made)
        with no_spark(), Lake.open(tmp_path / "lake").writer() as writer:
            if writer.lake.reached()[0] > writer.lake.reached()[1]:
                batches.fold_batch(mock.Mock(), writer)
    else:
        step(tmp_path, tmp_path / "lake", UNLIMITED)
    assert table_rows(tmp_path / "lake", *BASE) == table_rows(tmp_path / "undisturbed", *BASE)


def test_records_of_the_lake_name_their_batch(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "hub" / "dev")
    for _ in range(3):
        made.enqueue(2)
        drain(tmp_path, tmp_path / "lake", UNLIMITED)
    rows = Lake.open(tmp_path / "lake").dataset("records").to_table(columns=["lsn", "batch"])
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == [
        (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2),
    ]  # fmt: skip
