"""Records of a log as Arrow batches, many at a time, with numpy and pyarrow from an extra.

Begin with ``decoder``; ``schema`` has the columns and the unit of work, a piece of a segment file.
``frames`` finds records, ``rows`` gathers their fields and options, ``decoder``, ``arrays`` and
``values`` build columns. The package may import the log and lower layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.arrow.decoder import break_row, decode, decode_together, is_small
    from taskq.arrow.problems import SegmentDamaged, SegmentMissing, WrongSegment
    from taskq.arrow.schema import (
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
    from taskq.arrow.values import LEFT_OUT, UNLIMITED, attempts_in, without_reasons

__all__ = [
    "AS_BYTES",
    "BREAK",
    "DETAILS",
    "LEFT_OUT",
    "ROWS_MAX",
    "SCHEMA",
    "UNLIMITED",
    "Break",
    "Corrupt",
    "Piece",
    "SegmentDamaged",
    "SegmentMissing",
    "WrongSegment",
    "as_bytes",
    "attempts_in",
    "break_row",
    "decode",
    "decode_together",
    "is_small",
    "without_reasons",
]

_HOMES: Final = {
    "taskq.arrow.decoder": "break_row decode decode_together is_small",
    "taskq.arrow.problems": "SegmentDamaged SegmentMissing WrongSegment",
    "taskq.arrow.schema": "AS_BYTES BREAK DETAILS ROWS_MAX SCHEMA Break Corrupt Piece as_bytes",
    "taskq.arrow.values": "LEFT_OUT UNLIMITED attempts_in without_reasons",
}

if not TYPE_CHECKING:  # a type checker would accept any name otherwise
    __getattr__ = lazily(__name__, _HOMES)
