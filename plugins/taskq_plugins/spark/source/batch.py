"""Reading logs once, as Spark asks for it: the partitions of a batch, and their rows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from taskq_plugins.spark.source.going_on import Stretch, break_before, go_on, stretches, whole_until
from taskq_plugins.spark.source.planning import beginning, bound_of, check_found, pack, patiently
from taskq_plugins.spark.source.problems import DataLoss, loss_handler
from taskq_plugins.spark.source.rows import Reading, read_pieces
from taskq_plugins.spark.source.standing import Standing, look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from taskq.arrow import Piece
    from taskq.errors import LogError
    from taskq_plugins.spark.source.options import ReadOptions
    from taskq_plugins.spark.source.positions import Position

_log: Final = logging.getLogger("taskq")


class Pieces(InputPartition):
    """What one Spark task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"Pieces({self.pieces!r})"


def read_partition(partition: InputPartition, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Return the rows of one partition; Spark gives one of its own making when there is none."""
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
        planned = patiently(self._plan)
        parts = pack(planned, self._options.target_partition_bytes)
        return [Pieces(part) for part in parts] or [Pieces([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition, in batches of about 8 000."""
        return read_partition(partition, self._reading)

    def _plan(self) -> list[Stretch]:
        options = self._options
        sight = look(options)
        check_found(options, sight)
        on_loss = loss_handler(options.fail_on_data_loss)
        planned: list[Stretch] = []
        for standing in sight.standings:
            try:
                planned += self._of_log(standing, on_loss)
            except DataLoss as error:
                if options.fail_on_data_loss != "hold":
                    raise
                _log.warning("failOnDataLoss=hold: %s", error)
                start, end = self._bounds(standing)
                end = whole_until(standing, start, end)
                planned += stretches(standing, start, end.place, on_loss)
        return planned

    def _of_log(self, standing: Standing, on_loss: Callable[[LogError], None]) -> list[Stretch]:
        start, end = self._bounds(standing)
        if start.is_at(end):
            return []
        here = go_on(standing, start, on_loss)
        if here is None or here.place >= end.place:
            return []
        behind = break_before(standing, start, here)
        return list(stretches(standing, here, end.place, on_loss, behind))

    def _bounds(self, standing: Standing) -> tuple[Position, Position]:
        start, latest = beginning(self._options, standing), standing.latest
        ending = self._options.ending_offsets
        if ending is not None:
            end = bound_of(ending, standing)
            latest = latest if end is None else min(end, latest, key=lambda bound: bound.place)
        return start, latest
