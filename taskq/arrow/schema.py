"""The columns of a task log's records, and what is to be decoded: pieces of segment files."""

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
        # the first lsn of the segment, and where the record starts in its file
        ("segment", _LONG),
        ("offset", _LONG),
        ("lsn", _LONG),
        # as taskq.core.records.Kind, in lower case; "unknown", "break"
        ("kind", _TEXT),
        ("job_id", _TEXT),
        # only in records that name them
        ("task", _TEXT),
        ("queue", _TEXT),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        # as taskq shows it
        ("key", _TEXT),
        # attempts after the record, for records about a job
        ("attempt", _INT),
        ("priority", _INT),
        # who claimed the job, of carried ones too; of "owner" records themselves
        ("owner", _TEXT),
        ("epoch", _TEXT),
        # payload, result, reason, or an owner's description in JSON, as it was given; what is no
        # UTF-8 stands in value_bytes
        ("value", _TEXT),
        ("value_bytes", _BYTES),
        # null where there are none
        ("headers", pa.map_(_TEXT, _TEXT)),
    ]
)
DETAILS: Final = pa.schema(
    [
        *SCHEMA,
        pa.field("ts_ns", _LONG),
        pa.field("job", _LONG),
        # lsn of the claim; of "compacted" the first lsn that is kept
        pa.field("token", _LONG),
        pa.field("cause", _TEXT),
        pa.field("attempts_max", _INT),
        pa.field("due_ns", _LONG),
        pa.field("expires_ns", _LONG),
        # 1: due_ns is wall time and does not shift with the clock; 2: expires_ns is
        pa.field("moments", _INT),
        # flags of the record; for a carried job of its ENQUEUED record
        pa.field("flags", _INT),
        # of a carried record its job's; of a step its form: step, sleep, event, timeout, call
        pa.field("state", _TEXT),
        pa.field("enqueued_ns", _LONG),
        pa.field("ended_ns", _LONG),
        # of carried records: result or reason, beside the payload
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
        # which of its job's steps it is, from 0
        pa.field("place", _LONG),
        pa.field("began_ns", _LONG),
        # why value or result is missing although there is one
        pa.field("problem", _TEXT),
    ]
)

#: Columns of text that can be decoded as raw bytes.
AS_BYTES: Final = frozenset({"key", "value", "result", "concurrency_key"})
#: Columns with the bytes of values that are no text.
BYTES_OF: Final = {"value_bytes": "value", "result_bytes": "result"}


def as_bytes(schema: pa.Schema) -> pa.Schema:
    """Return the schema with columns of bytes where users' own bytes are shown as text."""
    return pa.schema(
        pa.field(field.name, _BYTES) if field.name in AS_BYTES else field
        for field in schema
        if field.name not in BYTES_OF
    )


#: Rows of a batch, unless fewer are left.
ROWS_MAX: Final = 8_192
#: ``kind`` of records of unknown skippable types ...
UNKNOWN: Final = "unknown"
#: ... and of a row that says what is missing before the records after it.
BREAK: Final = "break"
#: A break where bytes are no whole frame.
DAMAGED: Final = "damaged"


class Break(NamedTuple):
    """A break in the sequence of records; its reason is in ``value``, as JSON.

    Attributes:
        what: "gap": records are missing; "damaged": they are there and do not read.
        lsn: of the first of them.
        goes_on: the first lsn after a gap.
        end_lsn: where the device's log ended when it declared the break; None: it did not.
        cause: text of the declaration.
    """

    what: str
    lsn: int
    goes_on: int | None = None
    end_lsn: int | None = None
    cause: str | None = None


class Piece(NamedTuple):
    """Bytes of a segment, from one border of frames to another.

    Attributes:
        path: of the segment file.
        device: name of the log.
        log_id: UUID of the log that wrote the segment.
        tag: of that log.
        segment: first lsn of the segment.
        start, end: bytes of the file; the segment's header is checked unless ``start`` is after it.
        behind: the break before its records, if there is one.
    """

    path: str
    device: str
    log_id: str
    tag: Tag
    segment: int
    start: int
    end: int
    behind: Break | None = None


class Corrupt(StrEnum):
    """Ways to treat bytes that are no whole frame."""

    #: raise an error
    FAIL = "fail"
    #: give the records that are whole by their own CRC, as every reader of a log does
    SKIP = "skip"
    #: likewise, and a row of kind "break" in place of the others
    BREAK = "break"
