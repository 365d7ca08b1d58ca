"""Rebuild a table that is gone, or older than it was, from the logs.

Attempts are in ``jobs``, too. Records, jobs and open records are read from the logs again, up to
the place of the other tables. Finished jobs that only the older copy has are kept from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from taskq.cli import count_of
from taskq_plugins.spark.lake.deltalog import DELTA_LOG
from taskq_plugins.spark.lake.errors import LakeError
from taskq_plugins.spark.lake.files import DATE, OVER, PART_COLUMN, placed, write_rows
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    JOBS,
    OPEN_RECORDS,
    RECORDS,
    TOMBSTONES,
    Change,
    Lake,
    LakeWriter,
    cleared,
    tombstones,
)
from taskq_plugins.spark.run.batch import commit_batch, schemas
from taskq_plugins.spark.run.executor import LocalExecutor
from taskq_plugins.spark.run.increment import BatchStream, RunOptions
from taskq_plugins.spark.run.progress import BASE, offsets_of, reference
from taskq_plugins.spark.source.positions import Offsets, loss_handler
from taskq_plugins.spark.source.resume import go_on
from taskq_plugins.spark.source.snapshot import look
from taskq_plugins.spark.tables.fold import KEYS, moment
from taskq_plugins.spark.tables.logs import LOG

#: Columns that identify a row.
_ROW: Final = {RECORDS: [*LOG, "lsn"], JOBS: KEYS}
#: Table with the jobs that a rebuilt table should have.
_KNOWN_BY: Final = {RECORDS: JOBS, OPEN_RECORDS: JOBS, JOBS: ATTEMPTS}
_FORGOTTEN: Final = (
    f"{TOMBSTONES}: which jobs were erased is not known any more, so what the logs still have of "
    f"them comes back: erase them again"
)


def rebuild(writer: LakeWriter, tables: Collection[str], options: RunOptions) -> list[str]:
    """Make tables anew; returns what is gone for good, a line for each.

    Derived tables are removed only: they are computed anew at the end of the run.
    """
    lake = writer.lake
    lost = [table for table in BASE if table in tables]
    for table in set(tables) - set(lost):
        shutil.rmtree(lake.path / table, ignore_errors=True)
        lake.forget(table)
    gone = [_FORGOTTEN] if TOMBSTONES in tables else []
    if not lost:
        return gone
    batch, erased = reference(lake, lost), tombstones(lake)
    refolded = [table for table in lost if table != ATTEMPTS or JOBS in lost]
    logs = Lake.open(writer.new_directory("rebuilt"), create=True)
    if refolded:
        _refold(logs, options, offsets_of(batch), erased)
    columns = options.reading().schema
    of_schema = {RECORDS: columns, **schemas(columns)}
    for table in sorted(lost, key=BASE.index, reverse=True):  # attempts are made of jobs
        anew = _all(logs, table) if table in refolded else _attempts(lake, of_schema[ATTEMPTS])
        directory = writer.new_directory(table)
        for number, rows in enumerate(chain(anew, _older(lake, logs, table))):
            write_rows(cleared(rows, erased), directory, number)
        staged = writer.stage(table, directory)
        shutil.rmtree(lake.path / table / DELTA_LOG, ignore_errors=True)
        lake.forget(table)
        change = Change(staged.files, schema=of_schema[table])
        writer.commit(table, change, batch, dates=table != OPEN_RECORDS)
        writer.vacuum(table, keep_hours=0)  # of the older copy
    writer.note()
    return gone + [line for table in lost if (line := _gone(lake, table))]


def _refold(into: Lake, options: RunOptions, offsets: Offsets, erased: Sequence[str]) -> None:
    source = options.of_source().model_copy(update={"fail_on_data_loss": "false"})
    at: Offsets = {}
    ends: Offsets = {}
    for standing in look(source).standings:
        end = offsets.get(standing.log.log_id)
        reached = end and go_on(standing, end, loss_handler("false"))
        if end and reached and reached.branch == end.branch:
            ends[standing.log.log_id] = reached._replace(held="")
            at[standing.log.log_id] = standing.earliest._replace(branch=end.branch)
    executor = LocalExecutor()
    with into.writer() as writer:
        careless = replace(options, fail_on_data_loss=False)
        stream = BatchStream(writer, careless, executor, (at, ends), erased)
        while (batch := stream.plan()) is not None:
            commit_batch(writer, stream.read(batch), batch, executor, drops=options.drops)


def _all(lake: Lake, table: str) -> Iterator[pa.Table]:
    for file in lake.data_files(table):
        yield placed(parquet.read_table(lake.path / table / file.path, partitioning=None), file)


def _attempts(lake: Lake, schema: pa.Schema) -> Iterator[pa.Table]:
    for jobs in _all(lake, JOBS):
        lists = jobs["attempts"].combine_chunks()
        of_job, tries = jobs.take(pc.list_parent_indices(lists)), lists.flatten()
        names = {*schema.names, PART_COLUMN} & {*of_job.schema.names}
        rows = {name: of_job[name] for name in names}
        rows |= {field.name: tries.field(index) for index, field in enumerate(tries.type)}
        rows["started_at"] = moment(rows["started_ns"])
        rows["ended_at"] = moment(rows["ended_ns"])
        begun = moment(pc.coalesce(rows["started_ns"], rows["ended_ns"]))
        rows[DATE] = begun.cast(pa.date32())
        yield pa.table(rows).select([*schema.names, PART_COLUMN])


def _older(lake: Lake, anew: Lake, table: str) -> Iterator[pa.Table]:
    where = lake.path / table
    if table not in _ROW or not (where / DELTA_LOG).is_dir():
        return
    try:
        copy = Lake(lake.path, {table: DeltaTable(str(where)).version()})
        files = [file for file in copy.data_files(table) if file.part == OVER]
    except (DeltaError, OSError, LakeError):
        return  # it does not even read
    keys = _ROW[table]
    new = [rows.select(keys) for rows in _all(anew, table)]
    for file in files:
        with suppress(FileNotFoundError):
            rows = parquet.read_table(where / file.path, partitioning=None)
            known = pa.concat_tables([rows.select(keys).slice(0, 0), *new])
            numbered = rows.select(keys).append_column("row", pa.array(range(rows.num_rows)))
            chosen = numbered.join(known, keys, join_type="left anti")["row"]
            yield placed(rows.take(chosen), file)


def _gone(lake: Lake, table: str) -> str:
    if table not in _KNOWN_BY:
        return ""
    keys = [*LOG, "job_id"]
    there = lake.dataset(_KNOWN_BY[table])
    is_open = None if table != OPEN_RECORDS else ~pc.field("is_over")
    known = there.to_table(columns=keys, filter=is_open)
    has = lake.dataset(table).to_table(columns=keys)
    count = known.join(has, keys, join_type="left anti").group_by(keys).aggregate([]).num_rows
    if not count:
        return ""
    return f"{table}: the logs tell no more of {count_of(count)} that {_KNOWN_BY[table]} has"
