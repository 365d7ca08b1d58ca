from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from taskq_plugins.spark.lake import Lake
from taskq_plugins.spark.lake.errors import CheckpointMismatch
from taskq_plugins.spark.lake.manifest import Batch
from taskq_plugins.spark.lake.progress import log_progress
from tests.pipeline.rowmaking import cut, last_lsns, live, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

Row = dict[str, Any]


class Logs(NamedTuple):
    """Two logs, and their rows in three parts: before, of, and behind a compaction of one."""

    root: Path
    parts: tuple[pa.Table, pa.Table, pa.Table]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    root = tmp_path_factory.mktemp("journals")
    asyncio.run(live(root / "edge-1", 1, 40))
    asyncio.run(live(root / "edge-2", 2, 25))
    before = rows_of(root)
    asyncio.run(live(root / "edge-1", 3, 0, keep="0s"))
    carried = rows_of(root, last_lsns(before))
    asyncio.run(live(root / "edge-1", 4, 15))
    behind = rows_of(root, last_lsns(before) | last_lsns(carried))
    assert "succeeded" in carried["state"].to_pylist(), "a finished job is carried"
    return Logs(root, (before, carried, behind))


def fold(spark: SparkSession, path: Path, batches: Sequence[pa.Table]) -> Lake:
    from taskq_plugins.spark.run.folding import fold_batch  # noqa: PLC0415 - imports pyspark
    from taskq_plugins.spark.run.storage import prepare  # noqa: PLC0415
    from taskq_plugins.spark.run.stream import FOLDS  # noqa: PLC0415

    prepare(spark)
    lake = Lake.open(path, create=True)
    with lake.writer() as writer:
        for number, rows in enumerate(batches):
            batch = Batch("stream", number, f"offsets {number}")
            fold_batch(spark, writer, FOLDS, spark.createDataFrame(rows), batch)
    return lake


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
def small_batches(
    spark: SparkSession, logs: Logs, tmp_path_factory: pytest.TempPathFactory
) -> Lake:
    before, carried, behind = logs.parts
    batches = [*cut(before, 3), carried, behind]
    return fold(spark, tmp_path_factory.mktemp("small") / "lake", batches)


@pytest.mark.timeout(180)
def test_many_small_batches_make_the_tables_that_one_large_one_makes(
    spark: SparkSession, logs: Logs, small_batches: Lake, tmp_path: Path
) -> None:
    whole = fold(spark, tmp_path / "whole", [pa.concat_tables(logs.parts)])
    for small, large in zip(base_tables(small_batches), base_tables(whole), strict=True):
        assert small == large
    assert small_batches.manifest().version == 5
    states = {row["state"] for row in base_tables(small_batches)[1].values()}
    assert {"succeeded", "dead", "cancelled", "ready", "scheduled"} <= states


@pytest.mark.timeout(120)
def test_open_records_are_no_more_than_what_is_open(logs: Logs, small_batches: Lake) -> None:
    kept = small_batches.dataset("_open").to_table(columns=["log_id", "job", "kind"])
    opened = small_batches.dataset("jobs", "open").to_table(columns=["log_id", "job", "is_over"])
    assert not any(opened["is_over"].to_pylist())
    of_jobs = {(row["log_id"], row["job"]) for row in kept.to_pylist() if row["job"] is not None}
    assert of_jobs == {(row["log_id"], row["job"]) for row in opened.to_pylist()}
    others = sorted(row["kind"] for row in kept.to_pylist() if row["job"] is None)
    assert others == ["origin", "origin", "position", "position"]
    progress = log_progress(small_batches, logs.root)
    assert [(log.device, log.left_bytes) for log in progress] == [("edge-1", 0), ("edge-2", 0)]


@pytest.mark.timeout(120)
def test_a_batch_that_the_lake_has_is_passed_over_and_another_under_its_number_refused(
    spark: SparkSession, logs: Logs, small_batches: Lake
) -> None:
    from taskq_plugins.spark.run.folding import fold_batch  # noqa: PLC0415 - imports pyspark
    from taskq_plugins.spark.run.stream import FOLDS  # noqa: PLC0415

    before = small_batches.manifest()
    rows = spark.createDataFrame(logs.parts[0])
    with small_batches.writer() as writer:
        for number in (4, 3, 0):
            again = Batch("stream", number, f"offsets {number}")
            assert fold_batch(spark, writer, FOLDS, rows, again) is None
        with pytest.raises(CheckpointMismatch, match="plans other records for batch 4"):
            fold_batch(spark, writer, FOLDS, rows, Batch("stream", 4, "others"))
        with pytest.raises(CheckpointMismatch, match="not the one that the tables"):
            fold_batch(spark, writer, FOLDS, rows, Batch("other", 5, "offsets 5"))
    assert small_batches.manifest() == before


@pytest.mark.timeout(120)
def test_rollups_of_touched_hours_equal_those_of_everything(
    spark: SparkSession, logs: Logs, tmp_path: Path
) -> None:
    from taskq_plugins.spark.run.derived import refresh_tables  # noqa: PLC0415 - imports pyspark
    from taskq_plugins.spark.run.folding import fold_batch  # noqa: PLC0415
    from taskq_plugins.spark.run.stream import FOLDS  # noqa: PLC0415
    from taskq_plugins.spark.run.tablenames import DERIVED  # noqa: PLC0415

    before, carried, behind = logs.parts
    lake = fold(spark, tmp_path / "lake", [before])
    with lake.writer() as writer:
        assert refresh_tables(spark, writer, ["rollup_hour"], None) == ["rollup_hour"]
        rest = spark.createDataFrame(pa.concat_tables([carried, behind]))
        fold_batch(spark, writer, FOLDS, rest, Batch("stream", 1, "offsets 1"))
        assert refresh_tables(spark, writer, DERIVED, logs.root) == list(DERIVED)
        version = lake.manifest().version
        assert refresh_tables(spark, writer, DERIVED, logs.root) == []
        assert lake.manifest().version == version
    by_hour = table(lake, "rollup_hour", "device", "queue", "task", "hour")
    jobs = table(lake, "jobs", "log_id", "job").values()
    assert sum(row["enqueued"] for row in by_hour.values()) == len(jobs)
    settled = [row for row in jobs if row["settled_ns"] is not None]
    assert sum(row["settled"] for row in by_hour.values()) == len(settled)
    assert {row["device"] for row in lake.dataset("device_lag").to_table().to_pylist()} == {
        "edge-1",
        "edge-2",
    }
