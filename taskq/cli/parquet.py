"""Jobs and records as Parquet, in batches of some thousand rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from taskq.cli.errors import Failure

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise Failure(
        'Parquet needs the package pyarrow: pip install "taskq-local[parquet]", '
        "or export --format jsonl"
    ) from error

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.core.model import AttemptView, JobView
    from taskq.record import Record

#: Rows that are held until they are written together.
BATCH_ROWS: Final = 8_192
#: ... or fewer, when their payloads and results come to so many bytes.
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = pa.string()
_ATTEMPT: Final = pa.struct(
    {
        "number": pa.int32(),
        "owner": pa.uint64(),
        "started_at": _TIME,
        "ended_at": _TIME,
        "outcome": _TEXT,
        "reason": _TEXT,
    }
)
JOBS: Final = pa.schema(
    {
        "id": _TEXT,
        "lsn": pa.int64(),
        "state": pa.dictionary(pa.int8(), _TEXT),
        "queue": _TEXT,
        "task": _TEXT,
        "priority": pa.int8(),
        "attempt": pa.int32(),
        "attempts_max": pa.int32(),
        "enqueued_at": _TIME,
        "due_at": _TIME,
        "expires_at": _TIME,
        "settled_at": _TIME,
        "key": pa.binary(),
        "headers": pa.map_(_TEXT, _TEXT),
        "payload": pa.binary(),
        "result": pa.binary(),
        "reason": _TEXT,
        "problem": _TEXT,
        "attempts": pa.list_(_ATTEMPT),
    }
)
RECORDS: Final = pa.schema(
    {
        "lsn": pa.int64(),
        "epoch": pa.uint64(),
        "time": _TIME,
        "kind": pa.dictionary(pa.int8(), _TEXT),
        "id": _TEXT,
        "queue": _TEXT,
        "task": _TEXT,
        "priority": pa.int8(),
        "attempt": pa.int32(),
        "attempts_max": pa.int32(),
        "owner": pa.uint64(),
        "cause": _TEXT,
        "due_at": _TIME,
        "expires_at": _TIME,
        "key": pa.binary(),
        "headers": pa.map_(_TEXT, _TEXT),
        "payload": pa.binary(),
        "result": pa.binary(),
        "reason": _TEXT,
        "state": _TEXT,
        "step_ns": pa.int64(),
        "problem": _TEXT,
    }
)


class ParquetSink:
    """Writes rows to a file until it is left.

    Args:
        path: of the file.
        is_jobs: whether the rows are jobs; else they are records.
    """

    def __init__(self, path: Path, *, is_jobs: bool) -> None:
        self._schema = JOBS if is_jobs else RECORDS
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def job(self, view: JobView) -> None:
        """Write one job."""
        self._add(job_row(view), view.payload, view.result)

    def record(self, record: Record) -> None:
        """Write one record."""
        self._add(record_row(record), record.payload, record.result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def _add(self, row: dict[str, Any], *bodies: bytes | None) -> None:
        self._rows.append(row)
        self._size += sum(len(body) for body in bodies if body is not None)
        if len(self._rows) >= BATCH_ROWS or self._size >= BATCH_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            batch = pa.RecordBatch.from_pylist(self._rows, schema=self._schema)
            self._writer.write_batch(batch)
        self._rows, self._size = [], 0


def job_row(view: JobView) -> dict[str, Any]:
    """A job's columns."""
    return {
        "id": view.job_id,
        "lsn": view.lsn,
        "state": view.state.name.lower(),
        "queue": view.queue,
        "task": view.task or None,
        "priority": view.priority,
        "attempt": view.attempt,
        "attempts_max": view.attempts_max or None,
        "enqueued_at": _time(view.enqueued_ns),
        "due_at": _time(view.due_ns),
        "expires_at": _time(view.expires_ns),
        "settled_at": _time(view.settled_ns),
        "key": view.key,
        "headers": list(view.headers.items()),
        "payload": view.payload,
        "result": view.result,
        "reason": view.reason or None,
        "problem": view.problem or None,
        "attempts": [_attempt(attempt) for attempt in view.attempts],
    }


def record_row(record: Record) -> dict[str, Any]:
    """A record's columns."""
    return {
        "lsn": record.lsn,
        "epoch": record.epoch,
        "time": _time(record.time_ns),
        "kind": record.kind,
        "id": record.job_id or None,
        "queue": record.queue or None,
        "task": record.task or None,
        "priority": record.priority,
        "attempt": record.attempt,
        "attempts_max": record.attempts_max or None,
        "owner": record.owner or None,
        "cause": record.cause or None,
        "due_at": _time(record.due_ns),
        "expires_at": _time(record.expires_ns),
        "key": record.key,
        "headers": list(record.headers.items()),
        "payload": record.payload,
        "result": record.result,
        "reason": record.reason or None,
        "state": record.state or None,
        "step_ns": record.step_ns or None,
        "problem": record.problem or None,
    }


def _attempt(attempt: AttemptView) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "owner": attempt.owner,
        "started_at": _time(attempt.started_ns),
        "ended_at": _time(attempt.ended_ns),
        "outcome": attempt.outcome or None,
        "reason": attempt.reason or None,
    }


def _time(moment_ns: int) -> int | None:
    """Microseconds since 1970, None for never."""
    return moment_ns // 1_000 if moment_ns else None
