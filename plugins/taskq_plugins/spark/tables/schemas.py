"""The columns that the tables' functions hand to each other.

A moment in ``*_ns`` is wall time in nanoseconds, one in ``*_at`` the same as a timestamp, cut to
the microsecond. Where the Python fold has 0, "" or None for "there is none", these tables have
null.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_STRING: Final = StringType()
_LONG: Final = LongType()
_INT: Final = IntegerType()
_TIMESTAMP: Final = TimestampType()
_BINARY: Final = BinaryType()
_BOOLEAN: Final = BooleanType()

#: One attempt within a row of ``jobs``; outcome is null while it runs, else as in the Python fold:
#: succeeded, retried, died, released or lost (its worker's process ended).
ATTEMPT: Final = StructType(
    [
        StructField("number", _INT),
        StructField("owner", _STRING),
        StructField("started_ns", _LONG),
        StructField("ended_ns", _LONG),
        StructField("outcome", _STRING),
        StructField("reason", _STRING),
        StructField("wait_ns", _LONG),
        StructField("run_ns", _LONG),
    ]
)

#: One row per job. ``is_over``: no record can change the row any more.
JOBS: Final = StructType(
    [
        StructField("device", _STRING),
        StructField("log_id", _STRING),
        StructField("job_id", _STRING),
        StructField("job", _LONG),
        StructField("queue", _STRING),
        StructField("task", _STRING),
        StructField("priority", _INT),
        StructField("state", _STRING),
        StructField("attempt", _INT),
        StructField("attempts_max", _INT),
        StructField("enqueued_at", _TIMESTAMP),
        StructField("enqueued_ns", _LONG),
        StructField("due_ns", _LONG),
        StructField("expires_ns", _LONG),
        StructField("first_started_ns", _LONG),
        StructField("settled_ns", _LONG),
        StructField("settled_at", _TIMESTAMP),
        StructField("key", _BINARY),
        StructField("headers", MapType(_STRING, _STRING)),
        StructField("payload", _BINARY),
        StructField("result", _BINARY),
        StructField("reason", _STRING),
        StructField("stores_result", _BOOLEAN),
        StructField("replay_of", _STRING),
        StructField("epoch", _STRING),
        StructField("is_over", _BOOLEAN),
        StructField("attempts", ArrayType(ATTEMPT)),
    ]
)

#: One row per delivery of a job. ``wait_ns`` counts from when it could run, ``run_ns`` is null
#: while it runs; ``is_over`` is that of the job.
ATTEMPTS: Final = StructType(
    [
        StructField("device", _STRING),
        StructField("log_id", _STRING),
        StructField("job_id", _STRING),
        StructField("job", _LONG),
        StructField("queue", _STRING),
        StructField("task", _STRING),
        StructField("key", _BINARY),
        StructField("number", _INT),
        StructField("owner", _STRING),
        StructField("started_ns", _LONG),
        StructField("ended_ns", _LONG),
        StructField("started_at", _TIMESTAMP),
        StructField("ended_at", _TIMESTAMP),
        StructField("outcome", _STRING),
        StructField("reason", _STRING),
        StructField("wait_ns", _LONG),
        StructField("run_ns", _LONG),
        StructField("is_over", _BOOLEAN),
    ]
)

#: One row per segment file of every log on the hub, and one per gap: with ``is_missing`` only
#: device, log_id and segment (the first lsn that is not there) are known. The lsns and times are of
#: the whole frames that were read, null where none was.
SEGMENTS: Final = StructType(
    [
        StructField("device", _STRING),
        StructField("log_id", _STRING),
        StructField("segment", _LONG),
        StructField("size_bytes", _LONG),
        StructField("modified_ns", _LONG),
        StructField("epoch", _STRING),
        StructField("last_lsn", _LONG),
        StructField("next_lsn", _LONG),
        StructField("last_record_ns", _LONG),
        StructField("is_missing", _BOOLEAN),
    ]
)
