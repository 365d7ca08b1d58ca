"""The sink without Spark: rows into a log, and the records that came of them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from taskq.core.records import Kind
from taskq.log.read.jobs import entries
from taskq.log.read.reader import open_journal
from taskq_plugins.spark.sink.ingest import Upload
from taskq_plugins.spark.sink.options import parse_options
from taskq_plugins.spark.sink.rows import RowCalls

if TYPE_CHECKING:
    from pathlib import Path

    from taskq import TaskQ
    from taskq.log.format.record import Record
    from taskq_plugins.spark.sink.ingest import Ingested

#: Size before a record, CRC after it.
_LENGTH = 4
_CRC = 4


def table(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def sink(
    rows: list[dict[str, Any]] | pa.RecordBatch,
    data_dir: Path,
    known: TaskQ | None = None,
    **options: str,
) -> Ingested:
    batch = rows if isinstance(rows, pa.RecordBatch) else table(rows)
    checked = parse_options({"path": str(data_dir), **options})
    upload = Upload(data_dir, f"upload-{checked.upload or secrets.token_hex(8)}")
    return upload.finish(upload.write_parts(RowCalls(checked, known).calls(batch)))


def enqueued(data_dir: Path) -> list[bytes]:
    journal = open_journal(str(data_dir))
    try:
        return [
            entry.data[_LENGTH:-_CRC] for entry in entries(journal) if entry.type == Kind.ENQUEUED
        ]
    finally:
        journal.close()


def jobs(data_dir: Path) -> list[Record]:
    journal = open_journal(str(data_dir))
    try:
        return [entry for entry in entries(journal) if entry.type == Kind.ENQUEUED]
    finally:
        journal.close()
