"""The columns of a log's records, and the unit of decoding: a piece of a segment file."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa

from taskq.core.parsing import Tag

_TEXT: Final = pa.string()
_LONG: Final = pa.int64()
_INT: Final = pa.int32()
_BYTES: Final = pa.binary()

#: One row per record, null for fields that a record does not have.
SCHEMA: Final = pa.schema(
    [
        ("device", _TEXT),
        ("log_id", _TEXT),
        # the first lsn of the segment, and the record's offset in its file
        ("segment", _LONG),
        ("offset", _LONG),
        ("lsn", _LONG),
        # as taskq.core.records.Kind, in lower case; "unknown", "break"
        ("kind", _TEXT),
        ("job_id", _TEXT),
        # only in records that contain them
        ("task", _TEXT),
        ("queue", _TEXT),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        # in the form that taskq shows
        ("key", _TEXT),
        # attempts after the record, for records about a job
        ("attempt", _INT),
        ("priority", _INT),
        # the owner of the claim, also of a carried claim; in "owner" records the owner itself
        ("owner", _TEXT),
        ("epoch", _TEXT),
        # payload, result, reason, or an owner's description in JSON, as it was given; values that
        # are no UTF-8 are in value_bytes
        ("value", _TEXT),
        ("value_bytes", _BYTES),
        # null without headers
        ("headers", pa.map_(_TEXT, _TEXT)),
    ]
)
DETAILS: Final = pa.schema(
    [
        *SCHEMA,
        pa.field("ts_ns", _LONG),
        pa.field("job", _LONG),
        # lsn of the claim; in "compacted" records the first kept lsn
        pa.field("token", _LONG),
        pa.field("cause", _TEXT),
        pa.field("attempts_max", _INT),
        pa.field("due_ns", _LONG),
        pa.field("expires_ns", _LONG),
        # 1: due_ns is wall time and does not shift with the clock; 2: expires_ns is wall time
        pa.field("moments", _INT),
        # flags of the record; in a carried record, flags of its ENQUEUED record
        pa.field("flags", _INT),
        # state of a carried record's job; form of a step: see ``StepDone``
        pa.field("state", _TEXT),
        pa.field("enqueued_ns", _LONG),
        pa.field("ended_ns", _LONG),
        # result or reason in carried records, besides the payload
        pa.field("result", _TEXT),
        pa.field("result_bytes", _BYTES),
        pa.field("step_ns", _LONG),
        pa.field("history", _BYTES),
        pa.field("key_hash", _LONG),
        pa.field("replaces", _LONG),
        pa.field("concurrency_key", _TEXT),
        pa.field("lease_ns", _LONG),
        # name#number of a step, name of a signal
        pa.field("step", _TEXT),
        # index of the step in its job, from 0
        pa.field("place", _LONG),
        pa.field("began_ns", _LONG),
        # why value or result is missing although the record has one
        pa.field("problem", _TEXT),
    ]
)

#: Columns of text that can be decoded as raw bytes.
AS_BYTES: Final = frozenset({"key", "value", "result", "concurrency_key"})
#: Columns with the bytes of values that are no UTF-8.
BYTES_OF: Final = {"value_bytes": "value", "result_bytes": "result"}


def as_bytes(schema: pa.Schema) -> pa.Schema:
    """Return the schema with bytes columns in place of text columns of users' bytes."""
    return pa.schema(
        pa.field(field.name, _BYTES) if field.name in AS_BYTES else field
        for field in schema
        if field.name not in BYTES_OF
    )


#: Rows of a batch, except the last.
ROWS_MAX: Final = 8_192
#: ``kind`` of records of unknown skippable types.
UNKNOWN: Final = "unknown"
#: ``kind`` of a row for missing or damaged records.
BREAK: Final = "break"
#: A break because bytes are no whole frame.
DAMAGED: Final = "damaged"


class Break(NamedTuple):
    """A break in the sequence of records; its reason is in ``value``, as JSON.

    Attributes:
        what: "gap": records are missing; "damaged": they exist and cannot be read.
        lsn: lsn of the first missing or damaged record.
        next_lsn: the first lsn after a gap.
        end_lsn: the end of the device's log when the device declared the break; None: undeclared.
        cause: text of the declaration.
    """

    what: str
    lsn: int
    next_lsn: int | None = None
    end_lsn: int | None = None
    cause: str | None = None


class Piece(NamedTuple):
    """Bytes of a segment, from one boundary between frames to another.

    Attributes:
        path: path of the segment file.
        device: name of the log.
        log_id: UUID of the log that wrote the segment.
        tag: tag of that log.
        segment: first lsn of the segment.
        start, end: bytes of the file; the header is checked unless ``start`` is after the header.
        break_before: the break before its records, None for none.
    """

    path: str
    device: str
    log_id: str
    tag: Tag
    segment: int
    start: int
    end: int
    break_before: Break | None = None


class Corrupt(StrEnum):
    """Ways to treat bytes that are no whole frame."""

    #: raise an error
    FAIL = "fail"
    #: return the records that are whole by their own CRC, as every reader of a log does
    SKIP = "skip"
    #: like SKIP, with a row of kind "break" for the damaged records
    BREAK = "break"
