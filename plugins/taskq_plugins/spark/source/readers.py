"""The readers that Spark calls: plan the partitions of a batch, and read their rows."""

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
    SupportsTriggerAvailableNow,
)

from taskq.arrow import AS_BYTES, DETAILS, SCHEMA
from taskq.errors import UsageError
from taskq_plugins.spark.source import logs, plan
from taskq_plugins.spark.source.plan import UNLIMITED, Plan
from taskq_plugins.spark.source.positions import positions_from_json, positions_to_json
from taskq_plugins.spark.source.rows import RowReader, read_pieces

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from taskq.arrow import Piece
    from taskq_plugins.fleet.places import Position
    from taskq_plugins.spark.source.options import ReadOptions

_log: Final = logging.getLogger("taskq")


class Pieces(InputPartition):
    """Input of one Spark task."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces


class _Reader:
    """Common part of both readers.

    Args:
        options: options of the source.
        reading: reader of the rows.
    """

    def __init__(self, options: ReadOptions, reading: RowReader) -> None:
        self._options = options
        self._reading = reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        pieces = partition.pieces if isinstance(partition, Pieces) else []
        return read_pieces(pieces, self._reading)


class BatchReader(_Reader, DataSourceReader):
    """Reads the current records of the logs."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        sight = logs.look(options.path, options.devices)
        plan.check_found(options, sight)
        planned = plan.plan(options, {}, sight=sight)
        for problem in planned.problems.values():
            _log.warning("left out: %s", problem)
        return [Pieces(part) for part in planned.pieces] or [Pieces([])]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads every record once, batch by batch.

    An offset has the position in each log, by log id. A new log begins with the first batch that
    sees it. A reinstalled or restored device has another log, which is read from its beginning.
    """

    def __init__(self, options: ReadOptions, reading: RowReader) -> None:
        super().__init__(options, reading)
        self._targets: dict[str, Position] | None = None
        self._planned: Plan | None = None
        self._count = 0

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions, RowReader]]:
        # Tasks do not need the driver's snapshot of the logs.
        return StreamReader, (self._options, self._reading)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        sight = logs.look(self._options.path, self._options.devices)
        self._targets = {log_id: log.end for log_id, log in sight.logs.items()}

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        size = UNLIMITED
        if not isinstance(limit, ReadAllAvailable):
            size = self._options.max_bytes_per_trigger or UNLIMITED
            size = min(size, limit.max_bytes) if isinstance(limit, ReadMaxBytes) else size
        begins, options = positions_from_json(start), self._options
        sight = logs.look(options.path, options.devices)
        self._count = len(sight.logs)
        planned = plan.plan(options, begins, size, sight, self._targets)
        for log_id, problem in planned.problems.items():
            if self._planned is None or log_id not in self._planned.problems:
                _log.warning("left out: %s", problem)
        self._planned = planned
        return positions_to_json(planned.ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """Return the unread rest, which Spark shows in the progress as ``latestOffset``.

        PySpark asks a Python source neither for metrics nor for a description, so this is the only
        place for both.
        """
        if self._planned is None:
            return None
        rest = self._planned.left
        return {
            "source": f"taskq {self._options.path}",
            "recordsBehind": rest.records,
            "bytesBehind": rest.size_bytes,
            "logs": self._count,
            "logsBehind": rest.logs,
            "logsHeld": sum(bool(end.held) for end in self._planned.ends.values()),
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions between two offsets; raises like ``plan.between``."""
        parts = plan.between(self._options, positions_from_json(start), positions_from_json(end))
        return [Pieces(part) for part in parts]


def spark_schema(*, details: bool) -> StructType:
    schema: StructType = from_arrow_schema(DETAILS if details else SCHEMA)
    return schema


def arrow_schema(wanted: StructType) -> pa.Schema:
    """Return the schema that batches must have exactly for Spark's columns."""
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
