"""Records as Parquet, with the columns of the Spark source, through the decoder of the pipeline."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.cli.errors import Failure
from taskq.cli.export import learn
from taskq.cli.parquet import BATCH_BYTES_MAX, COMPRESSION, pa, parquet
from taskq.core.records import Kind
from taskq.log.format.record import LogRecord
from taskq.reading.record import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from taskq.log.journal.journal import Journal
    from taskq.log.read.reader import LogReader

    Decoder = Callable[[Journal], tuple[Any, Iterator[Any]]]

#: Rows of one group of a file, or fewer, when they come to BATCH_BYTES_MAX.
_GROUP_ROWS: Final = 131_072
#: The entry point that decodes a log, and its group.
_PLUGINS: Final = "taskq.plugins"
_DECODER: Final = "arrow"
_KINDS: Final = {kind.name.lower(): int(kind) for kind in Kind}


class Wanted(NamedTuple):
    """Which records are written; None stands for all."""

    queue: str | None = None
    task: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None


def write_records(reader: LogReader, path: Path, wanted: Wanted) -> int:
    """Write the log's records to a file; returns how many.

    Raises:
        Failure: what decodes them is not installed.
        LogError: a segment cannot be read.
    """
    schema, batches = _decoder()(reader.journal)
    count = 0
    with parquet.ParquetWriter(path, schema, compression=COMPRESSION) as writer:
        for group in _groups(_chosen(reader, batches, wanted)):
            writer.write_table(pa.Table.from_batches(group, schema))
            count += sum(batch.num_rows for batch in group)
    return count


def _decoder() -> Decoder:
    for point in entry_points(group=_PLUGINS, name=_DECODER):
        with suppress(ImportError):
            decoder: Decoder = point.load()
            return decoder
    raise Failure(
        f"records as Parquet need the plugin {_DECODER!r} and the package numpy: "
        f'pip install --upgrade "taskq-local[parquet]", or export --format jsonl'
    )


def _groups(batches: Iterator[Any]) -> Iterator[list[Any]]:
    """Batches that are written together: few and large groups are read again fast."""
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


def _chosen(reader: LogReader, batches: Iterator[Any], wanted: Wanted) -> Iterator[Any]:
    """What is wanted of each batch."""
    by_name = wanted.queue is not None or wanted.task is not None
    choice = Choice(queues=wanted.queue and [wanted.queue], tasks=wanted.task and [wanted.task])
    for batch in batches:
        if by_name:
            mask = [_fits(reader, choice, record, wanted) for record in _records_of(batch)]
            chosen = batch.filter(pa.array(mask, pa.bool_()))
        else:
            chosen = batch.filter(_in_time(batch, wanted))
        if chosen.num_rows:
            yield chosen


def _in_time(batch: Any, wanted: Wanted) -> Any:
    """Which rows are of the time that is wanted."""
    least = -(2**63) if wanted.since_ns is None else wanted.since_ns
    times = batch["ts_ns"].to_numpy()
    mask = times >= least
    if wanted.until_ns is not None:
        mask &= times < wanted.until_ns
    return pa.array(mask)


def _fits(reader: LogReader, choice: Choice, record: LogRecord, wanted: Wanted) -> bool:
    """Whether a record is wanted by the names of its job, which others than it may have told."""
    if wanted.until_ns is not None and record.time_ns >= wanted.until_ns:
        return False
    choice.note(record)
    if wanted.since_ns is not None and record.time_ns < wanted.since_ns:
        return False
    if choice.lacks(record):
        learn(reader, choice, record.job)
    return choice.fits(record) is not None


def _records_of(batch: Any) -> Iterator[LogRecord]:
    """What a choice asks of the records."""
    names = ("kind", "ts_ns", "job", "queue", "task")
    for kind, time_ns, job, queue, task in zip(
        *(batch[name].to_pylist() for name in names), strict=True
    ):
        yield LogRecord(
            _KINDS.get(kind, 0), 0, 0, time_ns, 0, job or 0, queue=(queue or "").encode(),
            task=(task or "").encode(),
        )  # fmt: skip
