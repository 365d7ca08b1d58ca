from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset

from taskq import TaskLog
from taskq_plugins.spark.lake import OPEN, Batch, Lake, LakeWriter
from taskq_plugins.spark.lake.errors import CheckpointMismatch
from taskq_plugins.spark.lake.progress import log_progress
from taskq_plugins.spark.run.tablenames import DERIVED
from tests.pipeline.rowmaking import cut, last_lsns, live, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
Row = dict[str, Any]
HOURS = 30
HOUR_NS = 3_600 * 1_000_000_000


class Logs(NamedTuple):
    """Two logs, and their rows in three parts: before, of, and behind a compaction of one."""

    root: Path
    parts: tuple[pa.Table, pa.Table, pa.Table]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    root = tmp_path_factory.mktemp("journals")
    asyncio.run(live(root / "edge-1", 1, 30))
    asyncio.run(live(root / "edge-2", 2, 15))
    before = rows_of(root)
    asyncio.run(live(root / "edge-1", 3, 0, keep="0s"))
    carried = rows_of(root, last_lsns(before))
    asyncio.run(live(root / "edge-1", 4, 10))
    behind = rows_of(root, last_lsns(before) | last_lsns(carried))
    assert "succeeded" in carried["state"].to_pylist(), "a finished job is carried"
    return Logs(root, (before, carried, later(behind, HOURS)))


def later(rows: pa.Table, hours: int) -> pa.Table:
    """The rows as if they had been written so many hours later."""
    shifted = pc.add(rows["ts_ns"], hours * HOUR_NS)
    return rows.set_column(rows.schema.get_field_index("ts_ns"), "ts_ns", shifted)


class Folding:
    """Folds batches into a lake."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        from taskq_plugins.spark.run.storage import prepare  # noqa: PLC0415 - imports pyspark

        prepare(spark)
        self.spark = spark
        self.lake = Lake.open(path, create=True)

    def batch(self, rows: pa.Table, number: int, offsets: str = "", stream: str = "s") -> bool:
        """Whether it was folded: False if the lake had it."""
        from taskq_plugins.spark.run.folding import fold_batch  # noqa: PLC0415
        from taskq_plugins.spark.run.stream import FOLDS  # noqa: PLC0415

        batch = Batch(stream, number, offsets or f"offsets {number}")
        frame = self.spark.createDataFrame(rows)
        with self.lake.writer() as writer:
            return fold_batch(self.spark, writer, FOLDS, frame, batch) is not None

    def refresh(self, names: Sequence[str], journals: Path | None = None) -> list[str]:
        """Which of the derived tables were behind."""
        from taskq_plugins.spark.run.derived import refresh_tables  # noqa: PLC0415

        with self.lake.writer() as writer:
            return refresh_tables(self.spark, writer, names, journals)


def table(lake: Lake, name: str, *keys: str) -> dict[tuple[object, ...], Row]:
    rows: list[Row] = lake.dataset(name).to_table().to_pylist()
    by_key = {tuple(row[key] for key in keys): row for row in rows}
    assert len(by_key) == len(rows), f"{name} has a row twice"
    return by_key


def base_tables(lake: Lake) -> tuple[dict[tuple[object, ...], Row], ...]:
    return (
        table(lake, "records", "log_id", "epoch", "lsn"),
        table(lake, "jobs", "log_id", "job"),
        table(lake, "attempts", "log_id", "job", "number", "started_ns"),
    )


@pytest.fixture(scope="module")
def small(spark: SparkSession, logs: Logs, tmp_path_factory: pytest.TempPathFactory) -> Folding:
    """Two batches, cut anywhere; the rollups are refreshed in between, too."""
    folding = Folding(spark, tmp_path_factory.mktemp("small") / "lake")
    before, carried, behind = logs.parts
    first, second = cut(before, 2)
    assert folding.batch(first, 0)
    assert folding.refresh(["rollup_hour"]) == ["rollup_hour"]
    assert folding.batch(pa.concat_tables([second, carried, behind]), 1)
    assert folding.refresh(DERIVED, logs.root) == list(DERIVED)
    return folding


@pytest.fixture(scope="module")
def whole(spark: SparkSession, logs: Logs, tmp_path_factory: pytest.TempPathFactory) -> Folding:
    folding = Folding(spark, tmp_path_factory.mktemp("whole") / "lake")
    folding.batch(pa.concat_tables(logs.parts), 0)
    folding.refresh(["rollup_hour"])
    return folding


def test_small_batches_make_the_tables_that_one_large_one_makes(
    small: Folding, whole: Folding
) -> None:
    for one, other in zip(base_tables(small.lake), base_tables(whole.lake), strict=True):
        assert one == other
    states = {row["state"] for row in base_tables(small.lake)[1].values()}
    assert {"succeeded", "dead", "cancelled", "ready", "scheduled"} <= states


def test_rollups_of_touched_hours_equal_those_of_everything(small: Folding, whole: Folding) -> None:
    keys = ("device", "queue", "task", "hour")
    by_hour = table(small.lake, "rollup_hour", *keys)
    assert by_hour == table(whole.lake, "rollup_hour", *keys)
    assert len({row["hour"] for row in by_hour.values()}) > 1
    jobs = table(small.lake, "jobs", "log_id", "job")
    assert sum(row["enqueued"] for row in by_hour.values()) == len(jobs)


def test_what_is_kept_of_records_is_of_open_jobs(logs: Logs, small: Folding) -> None:
    kept = small.lake.dataset("_open").to_table(columns=["log_id", "job", "kind"]).to_pylist()
    paths = small.lake.paths("jobs", lambda file: file.part == OPEN)
    opened = dataset.dataset(paths).to_table(columns=["log_id", "job", "is_over"])
    assert not any(opened["is_over"].to_pylist())
    others = {"clock", "position", "told"}
    of_jobs = {(row["log_id"], row["job"]) for row in kept if row["kind"] not in others}
    assert of_jobs == {(row["log_id"], row["job"]) for row in opened.to_pylist()}
    progress = log_progress(small.lake, logs.root)
    assert [(log.device, log.left_bytes) for log in progress] == [("edge-1", 0), ("edge-2", 0)]


def test_what_the_lake_has_is_passed_over_and_others_under_its_number_are_refused(
    logs: Logs, small: Folding
) -> None:
    before = small.lake.holdings()
    rows = logs.parts[0]
    assert not small.batch(rows, 1)
    assert not small.batch(rows, 0)
    with pytest.raises(CheckpointMismatch, match="plans other records for batch 1"):
        small.batch(rows, 1, "others")
    with pytest.raises(CheckpointMismatch, match="not the one that the tables"):
        small.batch(rows, 2, stream="other")
    assert small.refresh(DERIVED, logs.root) == []
    assert small.lake.holdings() == before


@pytest.mark.parametrize(
    "commits", [pytest.param(n, marks=[] if n == 3 else pytest.mark.slow) for n in range(4)]
)
def test_a_crash_between_two_tables_commits_is_made_good(
    spark: SparkSession,
    logs: Logs,
    small: Folding,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commits: int,
) -> None:
    """Whichever tables have the batch already: they pass it over, and the fold is as it was."""
    folding = Folding(spark, tmp_path / "lake")
    before, carried, behind = logs.parts
    first, second = cut(before, 2)
    assert folding.batch(first, 0)
    at_first = base_tables(folding.lake.pinned())
    real = LakeWriter.commit
    done: list[str] = []

    def killed(self: LakeWriter, table: str, *args: Any, **options: Any) -> bool:
        if len(done) == commits:
            raise KeyboardInterrupt
        done.append(table)
        return real(self, table, *args, **options)

    rest = pa.concat_tables([second, carried, behind])
    with monkeypatch.context() as crash:
        crash.setattr(LakeWriter, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            folding.batch(rest, 1)
    assert done == ["records", "attempts", "_open", "jobs"][:commits]
    assert base_tables(Lake.open(folding.lake.path).pinned()) == at_first
    assert folding.batch(rest, 1)
    assert base_tables(folding.lake) == base_tables(small.lake)


async def unused(path: Path, jobs: int) -> None:
    """Records that concern no job, and jobs that nobody claims."""
    async with TaskLog.open(path, durability="os", upkeep=False) as log:
        await log.pause("mail")
        for _ in range(jobs):
            await log.put(b"x")


@pytest.mark.slow
def test_a_batch_without_jobs_and_one_without_attempts_leave_tables_that_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "journals"
    folding = Folding(spark, tmp_path / "the lake")
    asyncio.run(unused(root / "edge-1", 0))
    assert folding.batch(rows := rows_of(root), 0)
    assert folding.refresh(DERIVED, root) == list(DERIVED)
    assert [folding.lake.dataset(name).count_rows() for name in ("jobs", "attempts")] == [0, 0]
    asyncio.run(unused(root / "edge-1", 2))
    assert folding.batch(rows_of(root, last_lsns(rows)), 1)
    assert folding.refresh(["failures", "duplicates"], root) == ["failures", "duplicates"]
    lake = folding.lake
    assert lake.dataset("jobs").to_table(columns=["state"])["state"].to_pylist() == ["ready"] * 2
    assert lake.dataset("attempts").count_rows() == 0
    assert {"number", "outcome"} <= set(lake.schema("attempts").names)
