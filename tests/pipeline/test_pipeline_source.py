"""A batch read of task logs: rows, partitions, and errors."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, TimestampType

from taskq.arrow import SCHEMA
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import DataLoss, OptionError, Unreadable
from taskq_plugins.spark.source.readers import Pieces
from tests.fleet.made_logs import MadeLog
from tests.pipeline.kit import lsns, read_batch, rows_read, source, spark_schema


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, MadeLog]:
    logs = {name: MadeLog(tmp_path / name) for name in ("a", "b", "c")}
    for _ in range(4):
        logs["a"].enqueue(3)
    for _ in range(3):
        for _ in range(5):
            logs["b"].enqueue(2)
        logs["b"].rotate()
    return logs


def all_lsns(made: MadeLog) -> list[int]:
    return [lsn for place in made.frames for lsn in range(place.first_lsn, place.next_lsn)]


def test_a_schema_names_the_columns(tmp_path: Path, fleet: dict[str, MadeLog]) -> None:
    """Bytes and details come when they are asked for; times are one column without these."""
    rows = read_batch(tmp_path, "queue", "lsn", "device", "job")
    assert list(rows[0]) == ["queue", "lsn", "device", "job"]
    assert len(rows) == sum(len(all_lsns(made)) for made in fleet.values())
    plain, full = (source(tmp_path, includeDetails=text).schema() for text in ("false", "TRUE"))
    assert read_batch(tmp_path, includeDetails="true")[0]["attempts_max"] == 3
    assert {"attempts_max", "ts_ns"} <= set(full.fieldNames())
    assert [item.name for item in plain if isinstance(item.dataType, TimestampType)] == [
        "timestamp"
    ]
    assert not [name for name in plain.fieldNames() if name.endswith(("_ns", "_max"))]
    assert plain["value"].dataType == StringType()
    schema = pa.schema(
        [pa.field("value", pa.binary()), pa.field("lsn", pa.int64(), nullable=False)]
    )
    wanted = spark_schema(schema)
    assert not wanted["lsn"].nullable
    reader = source(tmp_path).reader(wanted)
    assert {row["value"] for row in rows_read(reader, reader.partitions(), schema)} == {bytes(20)}


def test_devices_are_chosen(tmp_path: Path, fleet: dict[str, MadeLog]) -> None:
    chosen = f"a, {fleet['b'].log_id}"
    rows = read_batch(tmp_path, devices=chosen)
    assert ({row["device"] for row in rows}, list(rows[0])) == ({"a", "b"}, SCHEMA.names)
    assert {row["device"] for row in read_batch(tmp_path, devices='["b"]')} == {"b"}
    assert lsns(read_batch(fleet["b"].path)) == all_lsns(fleet["b"])
    with pytest.raises(OptionError, match=r"option devices: none of them is in .*: nobody"):
        read_batch(tmp_path, devices="nobody")


def parts(path: Path, **options: object) -> list[Any]:
    reader = source(path, **options).reader(spark_schema())
    result = list(reader.partitions())
    assert all(isinstance(item, Pieces) for item in result)
    return result


def test_large_segments_are_cut_at_borders_of_frames(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    for _ in range(400):
        made.enqueue(3, size=600)
    result = parts(tmp_path, targetPartitionBytes="64k")
    sizes = [sum(piece.end - piece.start for piece in part.pieces) for part in result]
    *full, rest = sizes
    assert len(full) > 3
    assert max(sizes) < 1.2 * 65536
    assert min(full) >= 65536 >= rest
    borders = {place.offset for place in made.frames} | {0, made.frames[-1].end}
    assert all({piece.start, piece.end} <= borders for part in result for piece in part.pieces)
    assert lsns(read_batch(tmp_path, targetPartitionBytes="64k")) == all_lsns(made)


def test_a_segment_that_cannot_be_used_is_an_error_or_left_out(tmp_path: Path) -> None:
    made, other = MadeLog(tmp_path / "edge"), MadeLog(tmp_path / "whole")
    for _ in range(3):
        made.enqueue(2)
        made.rotate()
    other.enqueue(1)
    made.frames[1].path.unlink()
    made.frames[1].path.mkdir()
    with pytest.raises(Unreadable, match=r"0003\.log.*corruptMode=skip"):
        read_batch(tmp_path)
    rows = read_batch(tmp_path, corruptMode="skip")
    assert lsns(rows, "edge") == [1, 2, 5, 6]
    assert lsns(rows, "whole") == [1]
    for identity in ("{", "[]", '{"format": 9, "log_id": "x", "created_ns": 1}'):
        (made.path / "taskq.json").write_text(identity)
        with pytest.raises(Unreadable, match=r"edge/taskq\.json.*corruptMode=skip"):
            read_batch(tmp_path)
        assert lsns(read_batch(tmp_path, corruptMode="skip")) == [1]


@pytest.mark.parametrize(("is_gone", "error"), [(True, DataLoss), (False, Unreadable)])
def test_a_segment_that_fails_between_plan_and_read_is_named_or_passed_over(
    tmp_path: Path, fleet: dict[str, MadeLog], is_gone: bool, error: type[Exception]
) -> None:
    option = {"failOnDataLoss": "false"} if is_gone else {"corruptMode": "skip"}
    path = fleet["b"].frames[0].path
    for options in ({}, option):
        reader = source(tmp_path, **options).reader(spark_schema())
        planned = reader.partitions()
        aside = path.rename(path.with_suffix(".aside"))
        if not is_gone:
            path.mkdir()
        if options:
            assert lsns(rows_read(reader, planned), "b") == list(range(11, 31))
        else:
            with pytest.raises(error, match=rf"b/log/0*1\.log.*{next(iter(option))}"):
                rows_read(reader, planned)
        if not is_gone:
            path.rmdir()
        aside.rename(path)


def test_options_are_read_in_any_case_and_form() -> None:
    options = read_options({"PATH": "x"})
    assert options.path == "x"
    assert options.target_partition_bytes == 32 * 1024 * 1024
    assert (options.fail_on_data_loss, options.corrupt_mode) == ("true", "fail")
    assert (options.include_details, options.max_bytes_per_trigger, options.devices) == (
        False, None, None,
    )  # fmt: skip
    assert read_options({"path": "x", "failOnDataLoss": "FALSE"}).fail_on_data_loss == "false"
    sizes = {"1": 1, "64k": 2**16, "32M": 2**25, "2 g": 2**31, "3mb": 3 * 2**20, "1GiB": 2**30}
    for text, size in sizes.items():
        assert read_options({"path": "x", "maxbytespertrigger": text}).max_bytes_per_trigger == size
    for text in ("a,b", " b , a ", '["a", "b"]'):
        assert read_options({"path": "x", "devices": text}).devices == frozenset("ab")
