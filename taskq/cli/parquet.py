"""Jobs as Parquet, in batches of some thousand rows."""

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

    from taskq.core.views import AttemptView, JobView

__all__ = ["BATCH_BYTES_MAX", "COMPRESSION", "JOBS", "JobsFile", "job_row", "pa", "parquet"]

#: Rows that are held until they are written together.
BATCH_ROWS: Final = 8_192
#: ... or fewer, when their payloads and results come to so many bytes.
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
#: Of every file.
COMPRESSION: Final = "zstd"
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


class JobsFile:
    """Writes jobs to a file until it is left.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._writer = parquet.ParquetWriter(path, JOBS, compression=COMPRESSION)
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def job(self, view: JobView) -> None:
        """Write one job."""
        self._rows.append(job_row(view))
        self._size += len(view.payload or b"") + len(view.result or b"")
        if len(self._rows) >= BATCH_ROWS or self._size >= BATCH_BYTES_MAX:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            batch = pa.RecordBatch.from_pylist(self._rows, schema=JOBS)
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
