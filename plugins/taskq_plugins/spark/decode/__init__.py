"""Log bytes to Arrow batches, with numpy and pyarrow alone."""

from taskq_plugins.spark.decode.decoder import decode
from taskq_plugins.spark.decode.errors import (
    SegmentDamaged,
    SegmentMissing,
    SegmentUnreadable,
    WrongSegment,
)
from taskq_plugins.spark.decode.schema import DETAILS, ROWS_MAX, SCHEMA, Corrupt, Piece

__all__ = [
    "DETAILS",
    "ROWS_MAX",
    "SCHEMA",
    "Corrupt",
    "Piece",
    "SegmentDamaged",
    "SegmentMissing",
    "SegmentUnreadable",
    "WrongSegment",
    "decode",
]
