"""The table ``steps``: a row for each finished step, as in ``taskq show``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from taskq.engine import LogReader
from taskq_plugins.spark.lake.state import RECORD
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.tables import queries
from tests.cli.helpers import taskq
from tests.pipeline.rowmaking import order_app, work
from tests.pipeline.tablerows import NOON, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS_TOLD = ("job_id", "place", "name", "number", "form", "began_ns", "ended_ns", "attempt")


def told(data_dir: Path, job_ids: list[str]) -> list[tuple[Any, ...]]:
    rows = []
    with LogReader.open(str(data_dir)) as reader:
        for job_id in job_ids:
            for place, step in enumerate(reader.steps(int(job_id.rpartition("-")[2]))):
                name, _, number = step.title.rpartition("#")
                rows.append(
                    (job_id, place, name, int(number), step.form, step.began_ns or None,
                     step.ended_ns, step.attempt, len(step.value or b""))
                )  # fmt: skip
    return sorted(rows)


def shown(lake: Path) -> list[tuple[Any, ...]]:
    rows = Lake.open(lake).dataset("steps").to_table().to_pylist()
    for row in rows:
        took_ns = row["ended_ns"] - row["began_ns"] if row["began_ns"] else None
        assert row["took_ns"] == took_ns
        assert row["date"] == row["ended_at"].date()
    return sorted((*(row[name] for name in COLUMNS_TOLD), row["size_bytes"]) for row in rows)


def run(root: Path, lake: str) -> None:
    done = taskq("pipeline", "run", "--journals", root / "hub", "--lake", root / lake)
    assert done.exit_code == 0, done.output


async def test_the_rows_are_those_of_the_python_fold_from_run_to_run(
    tmp_path: Path, spark: SparkSession
) -> None:
    del spark  # the runs take it
    path = tmp_path / "hub" / "edge"
    async with order_app(path) as app:
        jobs = [await app.enqueue_by_name("order", number) for number in range(3)]
        ids = [job.id for job in jobs]
        await work(app)
        await asyncio.to_thread(run, tmp_path, "lake")
        first = shown(tmp_path / "lake")
        assert first == told(path, ids)
        assert {row[4] for row in first} == {"step", "call"}
        await app.signal(jobs[1], "paid", 7)
        await work(app)
        await asyncio.to_thread(run, tmp_path, "lake")
        await asyncio.to_thread(run, tmp_path, "anew")
        rows = shown(tmp_path / "lake")
        assert rows == told(path, ids) == shown(tmp_path / "anew")
        new = [row[2:5] for row in rows if row not in first]
        assert new == [("paid", 1, "event"), ("ship", 1, "step")]


def record(lsn: int, place: int, /, **details: Any) -> dict[str, Any]:
    plain = {"log_id": "a", "job": 1, "kind": "stepped", "step": f"s#{place + 1}"}
    return plain | {"lsn": lsn, "place": place, "ts_ns": NOON + lsn, "value": b"1"} | details


def made(
    spark: SparkSession, rows: list[dict[str, Any]], known: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    records = spark.createDataFrame(pa.Table.from_pylist(rows, RECORD))
    frame = spark.sql(queries.STEPS, records=records)
    if known is not None:
        keys = pa.schema([("log_id", pa.string()), ("job", pa.int64()), ("place", pa.int64())])
        there = spark.createDataFrame(pa.Table.from_pylist(known, keys))
        frame = spark.sql(queries.NEW_STEPS, steps=frame, known=there)
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["log_id"], row["place"]))


def test_a_step_that_is_written_again_counts_as_it_was_told_first(spark: SparkSession) -> None:
    again = [record(9, 0), record(2, 0), record(3, 1), record(4, 1, log_id="b")]
    rows = made(spark, again)
    assert [(row["place"], row["log_id"], row["ended_ns"] - NOON) for row in rows] == [
        (0, "a", 2), (1, "a", 3), (1, "b", 4),
    ]  # fmt: skip
    rows = made(spark, again, [{"log_id": "a", "job": 1, "place": 0}])
    assert [(row["place"], row["log_id"]) for row in rows] == [(1, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, None),
        (b"", 0),
        (b"12", 2),
        (b'{"left out": {"sha256": "ab", "size": 70000}}', 70_000),
    ],
)
def test_the_size_is_that_of_the_value_also_where_it_was_left_out(
    spark: SparkSession, value: bytes | None, size: int | None
) -> None:
    (row,) = made(spark, [record(1, 0, value=value)])
    assert row["size_bytes"] == size


def test_what_began_behind_its_end_by_the_clock_took_no_time(spark: SparkSession) -> None:
    (row,) = made(spark, [record(1, 0, began_ns=NOON + SECOND)])
    assert row["took_ns"] == 0
    assert made(spark, [record(1, 0, kind="signalled", place=None)]) == []
