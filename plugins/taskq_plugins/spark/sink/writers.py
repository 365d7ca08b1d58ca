"""The writers that Spark calls: on executors to write rows, on the driver to publish them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from taskq.errors import UsageError
from taskq_plugins.spark.sink.ingest import Part, Upload
from taskq_plugins.spark.sink.options import SinkOptions, parse_options, shape_of
from taskq_plugins.spark.sink.rows import RowCalls

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


#: Properties of a stream's Spark task: its query, named by the checkpoint, and its batch.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class TaskOutput(WriterCommitMessage):
    """Output of one task.

    Attributes:
        stream: the query; "" outside a stream.
        parts: the files that the task wrote.
    """

    stream: str
    parts: tuple[Part, ...]


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    return BatchWriter(_checked(options, schema, overwrite=overwrite))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    checked = _checked(options, schema, overwrite=overwrite)
    if checked.upload:
        raise UsageError(
            "a stream is known by its checkpoint, and each batch by its number in it: leave out "
            "option 'upload'"
        )
    return StreamWriter(checked)


class BatchWriter(DataSourceArrowWriter):
    """Enqueues the rows of a data frame as jobs, once even if it is written again under its name.

    Args:
        options: target and defaults of the rows.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        name = options.upload or f"batch-{secrets.token_hex(8)}"
        self._upload = Upload(options.data_dir, f"upload-{name}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        return TaskOutput("", _written(self._options, self._upload, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        done = self._upload.finish(_parts(messages))
        if not done.is_new and done.jobs:
            _say(
                f"upload {self._options.upload!r} was written before, so its {done.jobs} jobs were "
                f"not enqueued again; give another name to enqueue them once more"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages  # failed tasks have none
        self._upload.discard()


class StreamWriter(DataSourceStreamArrowWriter):
    """Enqueues the batches of a stream as jobs, each once even if Spark repeats it.

    Args:
        options: target and defaults of the rows.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        stream, batch_id = _stream_batch()
        upload = Upload(self._options.data_dir, f"stream-{stream}", batch_id)
        return TaskOutput(stream, _written(self._options, upload, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        streams = {message.stream for message in messages if isinstance(message, TaskOutput)}
        for stream in streams:
            done = Upload(self._options.data_dir, f"stream-{stream}", batchId).finish(
                _parts(messages)
            )
            if not done.is_new and done.jobs:
                _say(
                    f"batch {batchId} of stream {stream} was written before, so its {done.jobs} "
                    f"jobs were not enqueued again; a checkpoint that was copied, or set back, "
                    f"numbers new rows as old ones: begin a new one then"
                )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        streams = {message.stream for message in messages if isinstance(message, TaskOutput)}
        for stream in streams:
            Upload(self._options.data_dir, f"stream-{stream}", batchId).discard()


def _checked(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise UsageError(
            'the sink "taskq" only adds jobs: use mode("append"); to be rid of waiting ones, '
            "see taskq cancel --queue"
        )
    checked = parse_options(options)
    # Any time zone will do, but Spark needs one.
    shape_of(to_arrow_schema(schema, timezone="UTC"), task=checked.task)
    checked.load_app()  # also here, so that a wrong name fails before any row is read
    return checked


def _written(
    options: SinkOptions, upload: Upload, batches: Iterator[pa.RecordBatch]
) -> tuple[Part, ...]:
    rows = RowCalls(options, options.load_app())
    return tuple(upload.write_parts(chain.from_iterable(map(rows.calls, batches))))


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [
        part for message in messages if isinstance(message, TaskOutput) for part in message.parts
    ]


def _stream_batch() -> tuple[str, int]:
    context = TaskContext.get()
    stream = context and context.getLocalProperty(_QUERY_ID)
    batch = context and context.getLocalProperty(_BATCH_ID)
    if not stream or not batch:
        raise UsageError(
            "Spark does not name the stream and batch of this task, so a batch that is "
            "written again could not be known: write from foreachBatch instead, with option "
            "'upload' naming the batch"
        )
    return stream, int(batch)


def _say(text: str) -> None:
    sys.stderr.write(f"taskq: {text}\n")
