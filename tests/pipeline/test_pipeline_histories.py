"""The tables do not depend on how a fleet was read: sizes of batches, kills, changes of the logs.

Without Java: ``fold_batch`` does in this process what Spark's executors do. A fold in plain Python,
which shares no code with the pipeline's, says what the rows are.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest

pytest.importorskip("deltalake")

from taskq_plugins.spark.lake.state import lineage_of, positions_of
from taskq_plugins.spark.lake.store import Lake, LakeWriter
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run import pipeline
from taskq_plugins.spark.run.pipeline import RunOptions
from tests.effort import some
from tests.fleet.made_logs import MadeLog, claimed, succeeded
from tests.pipeline.lakes import no_spark, rows_of

if TYPE_CHECKING:
    from pathlib import Path

BASE = ("records", "jobs", "attempts", "_open")
UNLIMITED = 2**62


class Fleet:
    """Devices that write, are set back to backups and cloned."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self.chance = root, chance
        self.live = [MadeLog(root / "hub" / f"dev-{number}") for number in range(3)]
        self._backups: list[tuple[int, MadeLog, dict[int, int]]] = []
        self._jobs: list[dict[int, int]] = [{}, {}, {}]
        self._count = 0

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
            backup = made.child(self.root / f"backup-{self._count}")
            self._backups.append((at, backup, dict(jobs)))
        elif act == "back" and self._backups:
            at, backup, jobs = self._backups.pop(chance.randrange(len(self._backups)))
            path = self.live[at].path
            shutil.rmtree(path)
            backup.path.rename(path)
            backup.path, backup.file = path, path / "log" / backup.file.name
            self.live[at], self._jobs[at] = backup, jobs
        elif act == "clone" and made.next_lsn > made.begins:
            self.live.append(made.child(self.root / "hub" / f"clone-{self._count}"))
            self._jobs.append(dict(jobs))


def step(root: Path, lake: Path, max_bytes: int) -> bool:
    """Read and fold one batch, as a run does; return whether there was one."""
    options = RunOptions(journals=root / "hub", max_bytes=max_bytes)
    opened = Lake.open(lake, create=True)
    with opened.writer() as writer, no_spark():
        committed, finished = opened.reached()
        if committed > finished:
            batches.fold_batch(mock.Mock(), writer)
        planned = pipeline._read(mock.Mock(), writer, options, (None, None))
        assert not planned.problems
        if planned.pieces:
            batches.fold_batch(mock.Mock(), writer)
        return bool(planned.pieces)


def drain(root: Path, lake: Path, max_bytes: int) -> None:
    while step(root, lake, max_bytes):
        pass


class Row(NamedTuple):
    """What a row of ``jobs`` says, by its log and number."""

    state: str
    continued_in: str | None
    attempts: int


def shown(lake: Path) -> dict[tuple[str, int], Row]:
    rows = Lake.open(lake).dataset("jobs").to_table().to_pylist()
    made = {
        (row["log_id"], row["job"]): Row(row["state"], row["continued_in"], len(row["attempts"]))
        for row in rows
    }
    assert len(made) == len(rows)
    return made


def by_hand(lake: Path) -> dict[tuple[str, int], Row]:
    """Fold what ``records`` has, log by log, each with its parents' records before it."""
    opened = Lake.open(lake)
    lineage = lineage_of(positions_of(opened))
    own: dict[str, list[dict[str, Any]]] = {}
    for row in opened.dataset("records").to_table().to_pylist():
        own.setdefault(row["log_id"], []).append(row)
    device = {
        log_id: max(rows, key=lambda row: row["lsn"])["device"] for log_id, rows in own.items()
    }
    made: dict[tuple[str, int], Row] = {}
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


@pytest.mark.parametrize("seed", range(some(30, 300)))
def test_tables_depend_neither_on_sizes_nor_on_numbers_of_batches(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    fleet = Fleet(tmp_path, chance)
    for _ in range(chance.randint(10, 40)):
        fleet.act()
        if chance.randrange(6) == 0:
            drain(tmp_path, tmp_path / "small", chance.choice([1, 300, 4000]))
            drain(tmp_path, tmp_path / "large", UNLIMITED)
    drain(tmp_path, tmp_path / "small", 700)
    drain(tmp_path, tmp_path / "large", UNLIMITED)
    if not (tmp_path / "small" / "jobs").exists():
        return
    small, large = (rows_of(tmp_path / name, *BASE[:-1]) for name in ("small", "large"))
    assert small == large
    assert shown(tmp_path / "small") == by_hand(tmp_path / "small")


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
    backup = made.child(fleet / "backup")
    shutil.rmtree(made.path)
    backup.path.rename(made.path)
    backup.path, backup.file = made.path, made.path / "log" / backup.file.name
    backup.enqueue(4)


def removed(fleet: Path, made: MadeLog) -> None:
    del fleet
    shutil.rmtree(made.path)


def damaged(fleet: Path, made: MadeLog) -> None:
    del fleet
    for segment in (made.path / "log").iterdir():
        segment.write_bytes(segment.read_bytes()[:60] + b"\x00" * 300)


CHANGES = (compacted, restored, removed, damaged)
TABLES = ("_positions", "records", "attempts", "jobs", "steps", "_open")
STEPS = [(table, before) for table in TABLES for before in (True, False)]


@pytest.fixture(params=STEPS, ids=lambda at: f"{'before' if at[1] else 'after'}-{at[0]}")
def killed(request: pytest.FixtureRequest) -> tuple[str, bool]:
    at: tuple[str, bool] = request.param
    return at


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_that_was_begun_is_finished_from_the_lake_alone(
    tmp_path: Path, killed: tuple[str, bool], change: Any
) -> None:
    table, before = killed
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
    assert rows_of(tmp_path / "lake", *BASE) == rows_of(tmp_path / "undisturbed", *BASE)


def test_records_of_the_lake_name_their_batch(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "hub" / "dev")
    for _ in range(3):
        made.enqueue(2)
        drain(tmp_path, tmp_path / "lake", UNLIMITED)
    rows = Lake.open(tmp_path / "lake").dataset("records").to_table(columns=["batch", "lsn"])
    assert sorted(zip(rows["lsn"].to_pylist(), rows["batch"].to_pylist(), strict=True)) == [
        (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2),
    ]  # fmt: skip
    assert json.dumps(rows["batch"].to_pylist())
