"""Filters that Spark hands down: the same rows as without, and less is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from taskq.arrow import DETAILS
from taskq_plugins.spark.source.pushing import PushingReader
from tests.fleet.made_logs import BEGAN_NS, SECOND, MadeLog, claimed, damage
from tests.pipeline.source_tools import read_batch, rows_of, source, spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.source_tools import Row

BEGAN = datetime.fromtimestamp(BEGAN_NS // SECOND, UTC)


@pytest.fixture
def logs(tmp_path: Path) -> list[MadeLog]:
    """Two devices of three segments of six frames, a second apart; the clock goes back once."""
    made = [MadeLog(tmp_path / name) for name in "ab"]
    for log in made:
        for segment in range(3):
            for frame in range(3):
                place = log.enqueue(3, queue=("mail", "reports")[frame % 2])
                log.frame(claimed(place.first_lsn))
            if segment == 1:
                log.time_ns -= 8 * SECOND
            log.rotate()
    return made


def pushed(path: Path, *filters: Filter) -> tuple[list[Row], list[Filter], int]:
    """Return (rows, filters that are left to Spark, bytes of the plan)."""
    reader = source(path, pushdown="true").reader(spark_schema(DETAILS))
    assert isinstance(reader, PushingReader)
    left = list(reader.pushFilters(list(filters)))
    partitions: list[Any] = reader.partitions()
    size = sum(piece.end - piece.start for part in partitions for piece in part.pieces)
    return rows_of(reader, partitions, DETAILS), left, size


CASES: list[tuple[list[Filter], Callable[[Row], bool]]] = [
    ([EqualTo(("device",), "b")], lambda row: row["device"] == "b"),
    ([In(("device",), ("b", None, "c"))], lambda row: row["device"] == "b"),
    ([EqualTo(("log_id",), "nobody")], lambda _: False),
    ([EqualTo(("segment",), 13)], lambda row: row["segment"] == 13),
    ([GreaterThan(("lsn",), 20), IsNotNull(("lsn",))], lambda row: row["lsn"] > 20),
    ([GreaterThanOrEqual(("lsn",), 20)], lambda row: row["lsn"] >= 20),
    ([LessThan(("lsn",), 4)], lambda row: row["lsn"] < 4),
    ([LessThanOrEqual(("lsn",), 4)], lambda row: row["lsn"] <= 4),
    ([EqualTo(("lsn",), 17)], lambda row: row["lsn"] == 17),
    ([In(("lsn",), (1, 17, 36))], lambda row: row["lsn"] in {1, 17, 36}),
    (
        [GreaterThan(("ts_ns",), BEGAN_NS + 5 * SECOND)],
        lambda row: row["ts_ns"] > BEGAN_NS + 5 * SECOND,
    ),
    (
        [
            GreaterThanOrEqual(("timestamp",), BEGAN + timedelta(seconds=6)),
            LessThan(("timestamp",), BEGAN + timedelta(seconds=9)),
        ],
        lambda row: 6 <= (row["timestamp"] - BEGAN).total_seconds() < 9,
    ),
    ([EqualTo(("kind",), "claimed")], lambda row: row["kind"] == "claimed"),
    ([EqualTo(("queue",), "reports")], lambda row: row["queue"] == "reports"),
    ([IsNotNull(("queue",))], lambda row: row["queue"] is not None),
    (
        [EqualTo(("device",), "a"), GreaterThan(("lsn",), 15), In(("queue",), ("mail",))],
        lambda row: row["device"] == "a" and row["lsn"] > 15 and row["queue"] == "mail",
    ),
]


@pytest.mark.parametrize(("filters", "fits"), CASES)
def test_a_filter_that_is_taken_over_gives_the_rows_that_fit(
    tmp_path: Path, logs: list[MadeLog], filters: list[Filter], fits: Callable[[Row], bool]
) -> None:
    assert logs
    rows, left, _ = pushed(tmp_path, *filters)
    assert not left
    assert rows == [row for row in read_batch(tmp_path, includeDetails="true") if fits(row)]


def test_other_filters_are_left_to_spark(tmp_path: Path, logs: list[MadeLog]) -> None:
    assert logs
    others: list[Filter] = [
        Not(EqualTo(("device",), "a")),
        IsNull(("queue",)),
        EqualTo(("attempt",), 1),
        EqualTo(("headers", "run"), "x"),
    ]
    rows, left, _ = pushed(tmp_path, *others, EqualTo(("device",), "b"))
    assert left == others
    assert rows == read_batch(tmp_path, devices="b", includeDetails="true")


def test_devices_and_segments_that_are_ruled_out_are_not_planned(
    tmp_path: Path, logs: list[MadeLog]
) -> None:
    assert logs
    whole = pushed(tmp_path)[2]
    assert pushed(tmp_path, EqualTo(("device",), "b"))[2] == whole // 2
    assert pushed(tmp_path, EqualTo(("segment",), 13))[2] < whole // 2.5
    assert pushed(tmp_path, LessThan(("lsn",), 13))[2] < whole // 2.5
    assert not pushed(tmp_path, GreaterThan(("lsn",), 10**9))[2] > whole // 2.5


def test_frames_that_are_ruled_out_are_not_read(tmp_path: Path, logs: list[MadeLog]) -> None:
    """Nobody meets the damage in one of them."""
    damage(logs[0].frames[2])
    rows, _, _ = pushed(tmp_path, EqualTo(("device",), "a"), GreaterThan(("lsn",), 8))
    assert [row["lsn"] for row in rows] == list(range(9, 37))
    with pytest.raises(Exception, match="corruptMode"):
        pushed(tmp_path, GreaterThan(("lsn",), 4))
