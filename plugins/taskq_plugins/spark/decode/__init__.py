"""Log bytes to Arrow batches, with numpy and pyarrow alone."""

from taskq_plugins.fleet.problems import SegmentDamaged, SegmentMissing, WrongSegment
from taskq_plugins.spark.decode.decoder import decode
from taskq_plugins.spark.decode.schema import (
    AS_BYTES,
    BREAK,
    DETAILS,
    ROWS_MAX,
    SCHEMA,
    Break,
    Corrupt,
    Piece,
    as_bytes,
)

__all__ = [
    "AS_BYTES",
    "BREAK",
    "DETAILS",
    "ROWS_MAX",
    "SCHEMA",
    "Break",
    "Corrupt",
    "Piece",
    "SegmentDamaged",
    "SegmentMissing",
    "WrongSegment",
    "as_bytes",
    "decode",
]
