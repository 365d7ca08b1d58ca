"""The source's readers called as Spark calls them, without Spark."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from pyspark_taskq import DefaultSource
from taskq.arrow import DETAILS, SCHEMA, Corrupt
from taskq_plugins.spark.lake.state import READ
from taskq_plugins.spark.source import plan as planning
from taskq_plugins.spark.source.logs import look
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import positions_from_json, positions_to_json
from taskq_plugins.spark.source.readers import StreamReader
from taskq_plugins.spark.source.rows import RowReader, read_pieces
from tests.fleet.made_logs import MadeLog

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from taskq_plugins.spark.source.plan import Plan, Positions

Row = dict[str, Any]


def spark_schema(schema: pa.Schema = SCHEMA) -> StructType:
    converted: StructType = from_arrow_schema(schema)
    return converted


def source(path: Path, **options: object) -> DefaultSource:
    return DefaultSource(
        {"path": str(path)} | {name: str(option) for name, option in options.items()}
    )


def rows_of(
    reader: DataSourceReader | DataSourceStreamReader, partitions: Any, schema: pa.Schema = SCHEMA
) -> list[Row]:
    """Return what all partitions hold; each goes through pickle, as to another process."""
    rows: list[Row] = []
    for load in pickle.loads(pickle.dumps(partitions)):  # noqa: S301 - our own bytes
        for batch in batches_of(pickle.loads(pickle.dumps(reader)), load):  # noqa: S301 - likewise
            assert batch.schema.equals(schema)
            rows += batch.to_pylist()
    return rows


def batches_of(
    reader: DataSourceReader | DataSourceStreamReader, partition: InputPartition
) -> list[pa.RecordBatch]:
    result: list[Any] = list(reader.read(partition))
    return result


def read_batch(path: Path, *columns: str, **options: object) -> list[Row]:
    wanted = pa.schema([DETAILS.field(name) for name in columns]) if columns else SCHEMA
    if not columns and options.get("includeDetails"):
        wanted = DETAILS
    reader = source(path, **options).reader(spark_schema(wanted))
    return rows_of(reader, reader.partitions(), wanted)


class Stream:
    """A streaming query: ``step`` is one trigger, ``restart`` another process with its offsets."""

    def __init__(self, path: Path, **options: object) -> None:
        self._path, self._options = path, options
        self.restart()
        self.start: dict[str, Any] = _through_json(self.reader.initialOffset())
        self.end = self.start

    def restart(self) -> None:
        reader = source(self._path, **self._options).streamReader(spark_schema())
        assert isinstance(reader, StreamReader)
        self.reader = reader

    def advance(self, limit: ReadLimit | None = None) -> bool:
        self.start = self.end
        limit = limit or self.reader.getDefaultReadLimit()
        self.end = _through_json(self.reader.latestOffset(self.start, limit))
        return self.end != self.start

    def rows(self) -> list[Row]:
        return rows_of(self.reader, self.reader.partitions(self.start, self.end))

    def step(self, limit: ReadLimit | None = None) -> list[Row]:
        return self.rows() if self.advance(limit) else []

    def drain(self) -> list[Row]:
        rows: list[Row] = []
        while self.advance():
            rows += self.rows()
        return rows


def _through_json(offset: dict[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = json.loads(json.dumps(offset))
    return restored


def lsns(rows: list[Row], device: str | None = None) -> list[int]:
    records = [row for row in rows if row.get("kind") != "break"]
    return [row["lsn"] for row in records if device in {None, row["device"]}]


ALL = ReadAllAvailable()


def begun(path: Path, **options: object) -> tuple[MadeLog, Stream]:
    made = MadeLog(path / "edge")
    for _ in range(3):
        for _ in range(4):
            made.enqueue(1, size=1000)
        made.rotate()
    made.enqueue(1)
    stream = Stream(path, **options)
    assert lsns(stream.step(ReadMaxBytes(6 * 1130))) == [1, 2, 3, 4, 5, 6]
    return made, stream


def segment(made: MadeLog, lsn: int) -> Path:
    return next(frame.path for frame in made.frames if frame.first_lsn == lsn)


READING = RowReader(READ, Corrupt.FAIL, payload=True, headers=True, fails_on_loss=True)


class Follower:
    """Reads batches with a limit; checks that a position moves only with bytes that were read."""

    def __init__(self, path: Path, **options: str) -> None:
        self.path = path
        self.options = read_options({"path": str(path), "failOnDataLoss": "hold"} | options)
        self.reading = READING._replace(corrupt=Corrupt(self.options.corrupt_mode))
        self.at: Positions = {}
        self.batches: list[pa.RecordBatch] = []
        self.parents: dict[str, list[tuple[str, int]]] = {}
        self.problems: dict[str, str] = {}

    def step(self, max_bytes: int = planning.UNLIMITED) -> Plan:
        sight = look(self.path)
        self.parents |= {log_id: log.parents for log_id, log in sight.logs.items() if log.parents}
        planned = planning.plan(self.options, self.at, max_bytes, sight)
        read = {piece.log_id for part in planned.pieces for piece in part}
        moved = {
            log_id for log_id, end in planned.ends.items()
            if log_id not in self.at or end.place != self.at[log_id].place
        }  # fmt: skip
        assert moved == read
        for part in planned.pieces:
            self.batches += read_pieces(part, self.reading)
        self.at = positions_from_json(positions_to_json(planned.ends))
        self.problems = planned.problems
        return planned

    def drain(self, max_bytes: int = planning.UNLIMITED) -> Follower:
        while self.step(max_bytes).pieces:
            pass
        return self

    @property
    def records(self) -> pa.Table:
        return pa.Table.from_batches(self.batches, READ)

    @property
    def rows(self) -> list[Row]:
        return list(self.records.to_pylist())

    def read(self) -> list[tuple[str, int]]:
        return [(row["log_id"], row["lsn"]) for row in self.rows if row["kind"] != "break"]
