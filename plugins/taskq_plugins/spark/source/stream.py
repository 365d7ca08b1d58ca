"""Reading logs as they grow, as Spark asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from taskq_plugins.spark.source.allotting import UNLIMITED, Limits
from taskq_plugins.spark.source.batch import Pieces, read_partition
from taskq_plugins.spark.source.planning import Following
from taskq_plugins.spark.source.positions import offsets_from_json, offsets_to_json
from taskq_plugins.spark.source.problems import OptionError
from taskq_plugins.spark.source.rows import Reading

if TYPE_CHECKING:
    from taskq_plugins.spark.source.options import ReadOptions


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads every record once, batch by batch.

    An offset is how far each log was read, by log id: a log that is not in it begins with the batch
    in which it is first seen. A device that was reinstalled has another log, and that is a stream
    of its own.

    Args:
        options: what to read.
        reading: how.
    """

    def __init__(self, options: ReadOptions, reading: Reading) -> None:
        if options.ending_offsets is not None:
            raise OptionError("endingOffsets", " is for batches: a stream has no end")
        self._options = options
        self._reading = reading
        self._logs = Following(options)

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions, Reading]]:
        # What the driver knows of the logs is nothing that every task should carry.
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

    def _limits(self, limit: ReadLimit) -> Limits:
        if isinstance(limit, ReadAllAvailable):
            return Limits()
        size = self._options.max_bytes_per_trigger or UNLIMITED
        files = self._options.max_files_per_trigger or UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            size = min(size, limit.max_bytes)
        if isinstance(limit, ReadMaxFiles):
            files = min(files, limit.max_files)
        records = self._options.max_records_per_trigger or UNLIMITED
        if isinstance(limit, ReadMaxRows):
            records = min(records, limit.max_rows)
        return Limits(size, files, records)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what lies between two offsets; raises as ``Following.pieces``."""
        parts = self._logs.pieces(offsets_from_json(start), offsets_from_json(end))
        return [Pieces(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._reading)
