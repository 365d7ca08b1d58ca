"""The table ``steps``: a row for each finished step, as in ``taskq show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from taskq_plugins.spark.lake.state import RECORD
from taskq_plugins.spark.tables import queries
from tests.pipeline.tablerows import NOON, SECOND

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
