"""Reading logs once, as Spark asks for it: the partitions of a batch, and their rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from taskq.arrow import AS_BYTES, DETAILS, SCHEMA, as_bytes
from taskq.errors import UsageError
from taskq_plugins.spark.source.planning import (
    UNLIMITED,
    Following,
    ReadLimits,
    beginning,
    bound_of,
    check_found,
    patiently,
)
from taskq_plugins.spark.source.positions import (
    LogPosition,
    OptionError,
    offsets_from_json,
    offsets_to_json,
)
from taskq_plugins.spark.source.rows import RowReader, read_pieces
from taskq_plugins.spark.source.snapshot import LogInventory, look

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from taskq.arrow import Piece
    from taskq_plugins.spark.source.options import ReadOptions

_log: Final = logging.getLogger("taskq")


class Pieces(InputPartition):
    """Input of one Spark task."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"Pieces({self.pieces!r})"


def read_partition(partition: InputPartition, reading: RowReader) -> Iterator[pa.RecordBatch]:
    pieces = partition.pieces if isinstance(partition, Pieces) else []
    return read_pieces(pieces, reading)


class BatchReader(DataSourceReader):
    """Reads what stands in the logs now.

    Args:
        options: what to read.
        reading: how.
    """

    def __init__(self, options: ReadOptions, reading: RowReader) -> None:
        self._options = options
        self._reading = reading

    def partitions(self) -> list[InputPartition]:
        parts = patiently(self._plan)
        return [Pieces(part) for part in parts] or [Pieces([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._reading)

    def _plan(self) -> list[list[Piece]]:
        options, logs = self._options, Following(self._options)
        sight = look(options)
        check_found(options, sight)
        standings = {standing.log.log_id: standing for standing in sight.standings}
        begins = {log_id: beginning(options, log) for log_id, log in standings.items()}
        logs.end_here({log_id: self._end(log) for log_id, log in standings.items()}, sight)
        ends = logs.next(begins, ReadLimits())
        for end in ends.values():
            if end.held:
                _log.warning("failOnDataLoss=hold: %s", end.held)
        return logs.pieces(begins, ends)

    def _end(self, standing: LogInventory) -> LogPosition:
        bound = self._options.ending_offsets
        end = None if bound is None else bound_of(bound, standing)
        return min(end or standing.latest, standing.latest, key=lambda at: at.place)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads every record once, batch by batch.

    An offset is how far each log was read, by log id: a log that is not in it begins with the batch
    in which it is first seen. A device that was reinstalled has another log, and that is a stream
    of its own.

    Args:
        options: what to read.
        reading: how.
    """

    def __init__(self, options: ReadOptions, reading: RowReader) -> None:
        if options.ending_offsets is not None:
            raise OptionError("endingOffsets", " is for batches: a stream has no end")
        self._options = options
        self._reading = reading
        self._logs = Following(options)

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions, RowReader]]:
        # Tasks need not carry the driver's knowledge of the logs.
        return StreamReader, (self._options, self._reading)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return offsets_to_json(self._logs.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_files_per_trigger is not None:
            return ReadMaxFiles(self._options.max_files_per_trigger)
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        self._logs.end_here()

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        return offsets_to_json(self._logs.next(offsets_from_json(start), self._limits(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """Return what stands in the progress as ``latestOffset``: how much there is to read yet.

        PySpark asks a source that is written in Python neither for metrics nor for a description
        (Java's name of an object stands there), so this is where both go.
        """
        return self._logs.behind()

    def _limits(self, limit: ReadLimit) -> ReadLimits:
        if isinstance(limit, ReadAllAvailable):
            return ReadLimits()
        size = self._options.max_bytes_per_trigger or UNLIMITED
        files = self._options.max_files_per_trigger or UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            size = min(size, limit.max_bytes)
        if isinstance(limit, ReadMaxFiles):
            files = min(files, limit.max_files)
        records = self._options.max_records_per_trigger or UNLIMITED
        if isinstance(limit, ReadMaxRows):
            records = min(records, limit.max_rows)
        return ReadLimits(size, files, records)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what lies between two offsets; raises as ``Following.pieces``."""
        parts = self._logs.pieces(offsets_from_json(start), offsets_from_json(end))
        return [Pieces(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._reading)


def spark_schema(*, details: bool, binary: bool = False) -> StructType:
    ours = DETAILS if details else SCHEMA
    schema: StructType = from_arrow_schema(as_bytes(ours) if binary else ours)
    return schema


def arrow_schema(wanted: StructType) -> pa.Schema:
    """Return the columns that Spark asks for, as batches must have them to the letter."""
    schema = to_arrow_schema(wanted, timezone="UTC")
    for field in schema:
        if field.name not in DETAILS.names:
            raise UsageError(
                f"the schema asks for column {field.name!r}, which the source taskq does not have: "
                f"it has {', '.join(DETAILS.names)}"
            )
        ours = DETAILS.field(field.name)
        as_bytes_too = field.name in AS_BYTES and field.type.equals(pa.binary())
        if not field.type.equals(ours.type) and not as_bytes_too:
            raise UsageError(
                f"the schema asks for column {field.name!r} as {field.type}, but it is {ours.type}"
            )
    return schema
