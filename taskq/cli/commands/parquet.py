"""Jobs as Parquet, in batches of some thousand rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from taskq import engine, extras
from taskq.cli.errors import Failure
from taskq.reading.record import Choice

if TYPE_CHECKING:
    from taskq import views

try:
    extras.import_arrow()
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as _error:
    _lacking = extras.missing("Parquet", _error.name, "parquet")
    raise Failure(f"{_lacking}, or export --format jsonl") from _error

__all__ = ["BATCH_BYTES_MAX", "COMPRESSION", "JOBS", "JobsFile", "job_row", "pa", "parquet"]

#: Rows that are collected and written together.
BATCH_ROWS: Final = 8_192
#: Fewer rows are written if their payloads and results reach this size.
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
#: Metadata of every file.
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
    """Writes jobs to a file until it is closed.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._writer = parquet.ParquetWriter(path, JOBS, compression=COMPRESSION)
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def job(self, view: views.JobView) -> None:
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


def job_row(view: views.JobView) -> dict[str, Any]:
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


def _attempt(attempt: views.AttemptView) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "owner": attempt.owner,
        "started_at": _time(attempt.started_ns),
        "ended_at": _time(attempt.ended_ns),
        "outcome": attempt.outcome or None,
        "reason": attempt.reason or None,
    }


def _time(moment_ns: int) -> int | None:
    """Return microseconds since 1970, None for never."""
    return moment_ns // 1_000 if moment_ns else None


# Records as Parquet, with the columns of the Spark source.

#: Rows of one group of a file; fewer if they reach BATCH_BYTES_MAX.
_GROUP_ROWS: Final = 131_072
_KINDS: Final = {row.name: kind for kind, row in engine.kinds.ROWS.items()}


def write_records(reader: engine.LogReader, path: Path, choice: Choice) -> int:
    """Write the log's records to a file; return their number.

    Raises:
        Failure: pyarrow or numpy is not installed.
        LogError: a segment cannot be read.
    """
    try:
        from taskq.arrow.decoder import batches_of  # noqa: PLC0415 - records are seldom asked for
    except ImportError as error:
        lacking = extras.missing("Parquet of records", error.name, "parquet")
        raise Failure(f"{lacking}, or export --format jsonl") from error
    schema, batches = batches_of(reader)
    count = 0
    with parquet.ParquetWriter(path, schema, compression=COMPRESSION) as writer:
        for group in _groups(_chosen(reader, batches, choice)):
            writer.write_table(pa.Table.from_batches(group, schema))
            count += sum(batch.num_rows for batch in group)
    return count


def _groups(batches: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield batches that are written together: few, large groups are read faster."""
    group: list[Any] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _GROUP_ROWS or size >= BATCH_BYTES_MAX:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _chosen(reader: engine.LogReader, batches: Iterator[Any], choice: Choice) -> Iterator[Any]:
    for batch in batches:
        if choice.is_by_name:
            mask = [choice.names(row, reader) is not None for row in _rows(batch)]
            chosen = batch.filter(pa.array(mask, pa.bool_()))
        else:
            chosen = batch.filter(_in_time(batch, choice))
        if chosen.num_rows:
            yield chosen


def _in_time(batch: Any, choice: Choice) -> Any:
    least = -(2**63) if choice.since_ns is None else choice.since_ns
    times = batch["ts_ns"].to_numpy()
    mask = times >= least
    if choice.until_ns is not None:
        mask &= times < choice.until_ns
    return pa.array(mask)


class _Row(NamedTuple):
    type: int
    time_ns: int
    job: int
    queue: str
    task: str


def _rows(batch: Any) -> Iterator[_Row]:
    names = ("kind", "ts_ns", "job", "queue", "task")
    for kind, time_ns, job, queue, task in zip(
        *(batch[name].to_pylist() for name in names), strict=True
    ):
        yield _Row(_KINDS.get(kind, 0), time_ns, job or 0, queue or "", task or "")
