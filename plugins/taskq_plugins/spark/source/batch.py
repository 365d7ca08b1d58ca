"""Reading logs once, as Spark asks for it: the partitions of a batch, and their rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from taskq_plugins.spark.source.allotting import Limits
from taskq_plugins.spark.source.planning import (
    Following,
    beginning,
    bound_of,
    check_found,
    patiently,
)
from taskq_plugins.spark.source.positions import Position
from taskq_plugins.spark.source.rows import Reading, read_pieces
from taskq_plugins.spark.source.standing import Standing, look

if TYPE_CHECKING:
    from taskq.arrow import Piece
    from taskq_plugins.spark.source.options import ReadOptions

_log: Final = logging.getLogger("taskq")


class Pieces(InputPartition):
    """What one Spark task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"Pieces({self.pieces!r})"


def read_partition(partition: InputPartition, reading: Reading) -> Iterator[pa.RecordBatch]:
    pieces = partition.pieces if isinstance(partition, Pieces) else []
    return read_pieces(pieces, reading)


class BatchReader(DataSourceReader):
    """Reads what stands in the logs now.

    Args:
        options: what to read.
        reading: how.
    """

    def __init__(self, options: ReadOptions, reading: Reading) -> None:
        self._options = options
        self._reading = reading

    def partitions(self) -> list[InputPartition]:
        """Return pieces of all segments, about 32 MB in each partition.

        Raises:
            FleetError: there is no log to read.
            DataLoss: one is not whole.
        """
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
        ends = logs.next(begins, Limits())
        for end in ends.values():
            if end.held:
                _log.warning("failOnDataLoss=hold: %s", end.held)
        return logs.pieces(begins, ends)

    def _end(self, standing: Standing) -> Position:
        bound = self._options.ending_offsets
        end = None if bound is None else bound_of(bound, standing)
        return min(end or standing.latest, standing.latest, key=lambda at: at.place)
