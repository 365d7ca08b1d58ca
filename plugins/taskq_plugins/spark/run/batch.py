"""One micro-batch: append records of the logs, and update all other tables from them.

``read_batch`` appends a plan's records to ``records``; the commit has the batch's number and its
end positions. ``fold_batch`` computes all other tables of the batch from the lake alone, so it can
be repeated even if logs are gone. Spark sends the records of each job to one partition, where
``tables.fold`` folds all jobs of the partition by columns.

Jobs and attempts that may still change, and the records for later batches (``_open``), are in files
of some thousand rows. A batch rewrites only files with a job that it touches. It touches a job by a
record, the due time, a step of the log's clock, a gap, or a child log that continues the job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql

from taskq.arrow import BREAK
from taskq_plugins.spark.lake.files import DATE, ROWS_MAX, DataFile, Folder, write_rows
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    BATCH,
    FOLDED,
    JOBS,
    KEPT,
    MADE_OF,
    OPEN,
    PART,
    PARTED,
    POSITION,
    POSITIONS,
    POSITIONS_APP,
    RECORD,
    RECORDS,
    STEPS,
    Lake,
    cleared,
    erased_jobs,
    lineage_of,
    positions_of,
)
from taskq_plugins.spark.run import frames
from taskq_plugins.spark.source.rows import RowReader, read_pieces
from taskq_plugins.spark.tables import queries
from taskq_plugins.spark.tables.fold import KEYS, rows_of, touched_by
from taskq_plugins.spark.tables.logs import (
    BIRTHS,
    CONCERNING,
    Log,
    edges,
    log_rows,
    logs_of,
)
from taskq_plugins.spark.tables.logs import (
    STEPS as CLOCK_STEPS,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from taskq.arrow import Piece
    from taskq_plugins.spark.lake.store import LakeWriter

_EMPTY: Final = rows_of(FOLDED.empty_table(), {})
SCHEMAS: Final = {
    RECORDS: RECORD, JOBS: _EMPTY.jobs.schema, ATTEMPTS: _EMPTY.attempts.schema, OPEN: KEPT,
}  # fmt: skip
#: Columns of the records that identify a batch's jobs and logs.
_NAMES: Final = (
    "device", "log_id", "epoch", "segment", "lsn", "timestamp", "ts_ns", "kind", "job", "step_ns",
)  # fmt: skip
#: Records of one partition of the fold, about ...
SHARE_ROWS: Final = 150_000
#: ... and bytes of their files, compressed.
SHARE_BYTES: Final = 32 * 1024 * 1024
_FOLDED: Final = (ATTEMPTS, JOBS, OPEN)
_PLAIN: Final = [
    "to_json(headers) AS headers" if name == "headers" else name for name in FOLDED.names
]
_NO_KEYS: Final = RECORD.empty_table().select(KEYS)
#: Files that one task rewrites.
_FILES_OF_TASK: Final = 8


class BatchResult(NamedTuple):
    """Result of a batch; ``jobs_open`` counts all jobs of the lake that are still open."""

    records: int
    jobs_over: int
    jobs_open: int


# -- records ---------------------------------------------------------------------------------------


def read_batch(
    spark: SparkSession,
    writer: LakeWriter,
    parts: Sequence[Sequence[Piece]],
    positions: pa.Table,
    reading: RowReader,
) -> int:
    """Append the pieces' records to ``records``, and return the batch's number.

    Args:
        spark: the session.
        writer: writer of the lake.
        parts: pieces by task.
        positions: positions after the batch, as ``POSITION``.
        reading: reader of the pieces.
    """
    lake = writer.lake
    number = lake.batch(RECORDS) + 1
    folder = lake.folder.below(RECORDS)
    step = partial(_write_part, folder, reading, erased_jobs(lake), number)
    files = frames.on_executors(spark, step, parts)
    writer.commit(POSITIONS, writer.write(POSITIONS, positions), lake.files(POSITIONS), POSITION)
    versions = {POSITIONS_APP: lake.delta(POSITIONS).version()}
    if lake.has(JOBS):
        versions[MADE_OF[JOBS]] = lake.delta(JOBS).version()
    writer.commit(RECORDS, files, (), RECORD, number, versions)
    return number


def _write_part(
    folder: Folder,
    reading: RowReader,
    erased: pa.Array,
    number: int,
    pieces: Sequence[Piece],
) -> list[DataFile]:
    files: list[DataFile] = []
    waiting: list[pa.RecordBatch] = []

    def write() -> None:
        rows = cleared(pa.Table.from_batches(waiting, reading.schema), erased)
        rows = rows.append_column(BATCH, pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows))
        rows = rows.append_column(DATE, rows["timestamp"].cast(pa.date32()))
        files.extend(write_rows(folder, rows, PARTED[RECORDS]))
        waiting.clear()

    for batch in read_pieces(pieces, reading):
        waiting.append(batch)
        if sum(some.nbytes for some in waiting) >= SHARE_BYTES:
            write()
    if waiting:
        write()
    return files


# -- all other tables ------------------------------------------------------------------------------


def fold_batch(spark: SparkSession, writer: LakeWriter) -> BatchResult:
    """Compute, from the lake, each table that lacks the last batch of ``records``.

    Args:
        spark: the session.
        writer: writer of the lake.
    """
    lake = writer.lake
    number = lake.batch(RECORDS)
    batch = _Batch(lake, number)
    missing = [table for table in _FOLDED if lake.batch(table) < number]
    step = partial(_fold, {table: lake.folder.below(table) for table in missing}, batch.folded_logs)
    made = frames.on_partitions(_touched_records(spark, batch), step)
    old = [(table, file) for table in missing for file in batch.hits[table]]
    parts = [old[at : at + _FILES_OF_TASK] for at in range(0, len(old), _FILES_OF_TASK)]
    made += frames.on_executors(spark, partial(_rest, lake.folder, batch.touched), parts)
    made += [(OPEN, file) for file in writer.write(OPEN, batch.log_rows)]
    for table in missing:
        if table == OPEN:
            _add_steps(spark, writer, batch)
        files = [file for name, file in made if name == table]
        removed = [*batch.hits[table], *(batch.log_files if table == OPEN else ())]
        writer.commit(table, files, removed, SCHEMAS[table], number)
    over = sum(file.rows for name, file in made if name == JOBS and file.is_over)
    still_open = sum(file.rows for file in lake.files(JOBS) if not file.is_over)
    return BatchResult(batch.records, over, still_open)


def _new_records(spark: SparkSession, batch: _Batch) -> DataFrame:
    rows = frames.frame(spark, batch.lake, RECORDS, batch.files)
    return rows.where(sql.col(BATCH) == batch.number)


def _touched_records(spark: SparkSession, batch: _Batch) -> DataFrame:
    """Return all records of the touched jobs; each job's records are in one partition."""
    lake, is_needed = batch.lake, sql.col("kind").isin(sorted(CONCERNING))
    rows = _plain(_new_records(spark, batch).where(is_needed))
    if batch.hits[OPEN]:
        kept = _plain(frames.frame(spark, lake, OPEN, batch.hits[OPEN]))
        touched = frames.local(spark, batch.touched)
        rows = rows.unionAll(
            kept.join(sql.broadcast(touched), KEYS, "left_semi").select(rows.columns)
        )
    if batch.born:
        # A new child log begins with its parents' records of jobs.
        heirs = spark.sql(
            queries.HEIRS,
            every=_plain(frames.frame(spark, lake, RECORDS).where(is_needed)),
            kept=_plain(frames.frame(spark, lake, OPEN, batch.open_files, KEPT)),
            spans=frames.local(spark, batch.inherited()),
        )
        named = {"log_id": sql.col("child"), "device": sql.col("home")}
        heirs = heirs.withColumns(named)
        rows = rows.unionAll(heirs.dropDuplicates([*KEYS, "lsn", "kind"]).select(rows.columns))
    return rows.coalesce(1) if batch.shares == 1 else rows.repartition(batch.shares, *KEYS)


def _plain(rows: DataFrame) -> DataFrame:
    """Return the columns for the fold; a map costs Spark six times as long to pass to Python."""
    return rows.selectExpr(*_PLAIN)


def _with_maps(rows: pa.Table) -> pa.Table:
    at, field = rows.schema.get_field_index("headers"), FOLDED.field("headers")
    headers = pa.nulls(rows.num_rows, field.type)
    if rows["headers"].null_count < rows.num_rows:
        texts = rows["headers"].to_pylist()
        headers = pa.array([text and list(json.loads(text).items()) for text in texts], field.type)
    return rows.set_column(at, field, headers).cast(FOLDED)


def _fold(
    folders: Mapping[str, Folder], logs: Mapping[str, Log], records: pa.Table
) -> list[tuple[str, DataFile]]:
    pa.set_cpu_count(1)
    made = rows_of(_with_maps(records.select(FOLDED.names)), logs)
    kept = made.kept.append_column(PART, pa.repeat("job", made.kept.num_rows))
    rows = {JOBS: made.jobs, ATTEMPTS: made.attempts, OPEN: kept}
    return [
        (table, file)
        for table, folder in folders.items()
        for file in _write(table, folder, rows[table])
    ]


def _rest(
    lake: Folder, touched: pa.Table, files: Sequence[tuple[str, DataFile]]
) -> list[tuple[str, DataFile]]:
    """Rewrite the rows of some files that the batch does not touch."""
    made = []
    for table, file in files:
        folder = lake.below(table)
        rows = folder.rows([file], SCHEMAS[table])
        others = rows.filter(pc.invert(_are_in(rows, touched)))
        made += [(table, new) for new in _write(table, folder, others)]
    return made


def _write(table: str, folder: Folder, rows: pa.Table) -> list[DataFile]:
    return write_rows(folder, rows, PARTED[table], ROWS_MAX if table == OPEN else None)


def _are_in(rows: pa.Table, touched: pa.Table) -> pa.Array:
    keys = rows.select(KEYS).append_column("row", pa.array(np.arange(rows.num_rows)))
    hits = keys.join(touched, KEYS, join_type="left semi")["row"]
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[hits.to_numpy()] = True
    return pa.array(mask)


def _add_steps(spark: SparkSession, writer: LakeWriter, batch: _Batch) -> None:
    lake = writer.lake
    if lake.batch(STEPS) >= batch.number:
        return
    files: list[DataFile] = []
    schema = None
    has_steps = any("place" in file.ranges for file in batch.files)
    if has_steps or not lake.has(STEPS):
        rows = spark.sql(queries.STEPS, records=_new_records(spark, batch))
        if lake.has(STEPS):
            known = frames.frame(spark, lake, STEPS)
            rows = spark.sql(queries.NEW_STEPS, steps=rows, known=known)
        folder, parted = lake.folder.below(STEPS), PARTED[STEPS]
        files, schema = frames.stage(rows, folder, parted)
    writer.commit(STEPS, files, (), schema, batch.number)


class _Names(NamedTuple):
    """Logs and jobs in a file's records of a batch.

    Attributes:
        records: number of records.
        logs: ids of their logs.
        stepped: logs among these with a clock step.
        jobs: keys of all jobs.
        born: keys of jobs with their enqueue here.
        about: rows about the logs.
    """

    records: int
    logs: set[str]
    stepped: set[str]
    jobs: pa.Table
    born: pa.Table
    about: pa.Table


def _named(lake: Lake, file: DataFile, number: int) -> _Names:
    is_own = pc.field(BATCH) == number
    rows = lake.rows(RECORDS, _NAMES, is_own, [file])
    kinds = rows["kind"]
    plain = rows.filter(pc.not_equal(kinds, BREAK))
    parts = [plain]
    if plain.num_rows < rows.num_rows:
        is_break = is_own & (pc.field("kind") == BREAK)
        parts.append(lake.rows(RECORDS, [*_NAMES, "value"], is_break, [file]))
    full = [pa.table({field.name: _column(rows, field) for field in FOLDED}) for rows in parts]
    return _Names(
        rows.num_rows,
        set(rows["log_id"].unique().to_pylist()),
        set(rows.filter(pc.is_in(kinds, pa.array(sorted(CLOCK_STEPS))))["log_id"].to_pylist()),
        touched_by(rows),
        rows.filter(pc.is_in(kinds, pa.array(sorted(BIRTHS)))).select(KEYS),
        log_rows(pa.concat_tables(full)),
    )


class _Batch:
    """Jobs, logs and files that a batch touches, from its records and the tables before it.

    Attributes:
        lake, number, files: the lake, the batch's number, and the files with its records.
        records: number of records.
        touched: keys of the touched jobs.
        hits: by table the files with rows of touched jobs.
        logs: the logs after the batch.
        folded_logs: logs that the fold needs.
        log_rows, log_files: new rows of ``_open`` about whole logs, and the files they replace.
        born: new logs with parents.
        shares: partitions of the fold.
    """

    def __init__(self, lake: Lake, number: int) -> None:
        self.lake, self.number = lake, number
        self.files = [
            file
            for file in lake.files(RECORDS)
            if file.ranges[BATCH][0] <= number <= file.ranges[BATCH][1]
        ]
        parts = [_named(lake, file, number) for file in self.files]
        self.records = sum(part.records for part in parts)
        moved = set[str]().union(*(part.logs for part in parts))
        self._lineage = lineage_of(positions_of(lake))
        there = lake.files(OPEN)
        self.log_files = [file for file in there if file.values[PART] == "log"]
        self.open_files = [file for file in there if file.values[PART] != "log"]
        known = (
            lake.rows(OPEN, FOLDED.names, None, self.log_files) if there else FOLDED.empty_table()
        )
        before = logs_of(known, self._lineage)
        self._name_logs(known, moved, [part.about for part in parts])
        self.born = sorted(log_id for log_id in moved - set(before) if self._lineage.get(log_id))
        stepped = set[str]().union(*(part.stepped for part in parts))
        waiting = self._waiting(self._changed(stepped, before))
        own = _with(_NO_KEYS, pa.concat_tables([_NO_KEYS, *(part.jobs for part in parts)]))
        # Jobs that were born in this batch have no records in earlier ones.
        born = pa.concat_tables([_NO_KEYS, *(part.born for part in parts)])
        earlier = own.join(born, KEYS, join_type="left anti") if there else _NO_KEYS
        self.touched = _with(own, waiting)
        probed = _with(earlier, waiting)
        self.hits = {
            table: self._holding(table, probed) if lake.batch(table) < number else []
            for table in _FOLDED
        }
        of_fold = {*self.touched["log_id"].unique().to_pylist(), *self.born}
        self.folded_logs = {log_id: log for log_id, log in self.logs.items() if log_id in of_fold}
        size = sum(file.size_bytes for file in self.files)
        self.shares = max(1, -(-self.records // SHARE_ROWS), -(-size // SHARE_BYTES))

    def inherited(self) -> pa.Table:
        """Return the spans of parents' logs at the beginning of new children."""
        rows = []
        for child in self.born:
            first = 0
            for parent, next_lsn in self._lineage[child]:
                log = self.logs[child]
                rows.append((child, log.device, parent, first, next_lsn, log.begins))
                first = next_lsn
        names = ("child", "home", "parent", "first", "next", "begins")
        return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))

    def _name_logs(
        self, known: pa.Table, moved: Collection[str], about: Sequence[pa.Table]
    ) -> None:
        """Set ``logs`` and ``log_rows``."""
        has_moved = pc.is_in(known["log_id"], pa.array(sorted(moved), pa.string()))
        changed = log_rows(pa.concat_tables([known.filter(has_moved), *about]))
        rows = pa.concat_tables([known.filter(pc.invert(has_moved)), changed])
        self.logs = logs_of(rows, self._lineage)
        self.log_rows = rows.append_column(PART, pa.repeat("log", rows.num_rows))

    def _changed(self, stepped: set[str], before: Mapping[str, Log]) -> set[str]:
        """Return the logs with changes to open jobs: by a clock step, a gap, or a child."""
        changed = stepped | {log_id for log_id, _ in _past_gaps(self.logs) - _past_gaps(before)}
        born = set(self.born)
        return changed | {parent for parent, _, child in edges(self._lineage) if child in born}

    def _waiting(self, changed: Collection[str]) -> pa.Table:
        newest_ns = max((log.now_ns for log in self.logs.values()), default=0)
        known = pa.table(
            {
                "log_id": pa.array(self.logs, pa.string()),
                "now_ns": pa.array([log.now_ns for log in self.logs.values()], pa.int64()),
                "is_changed": pa.array([log in changed for log in self.logs], pa.bool_()),
            }
        )
        touched = [_NO_KEYS]
        version = self.lake.batch(RECORDS, MADE_OF[JOBS])
        before = Lake(self.lake.path, {JOBS: version} if version >= 0 else {})
        for file in before.files(JOBS):
            due = file.ranges.get("due_ns")
            if file.is_over or (not changed and (due is None or due[0] > newest_ns)):
                continue
            rows = self._keys(JOBS, file, [*KEYS, "due_ns"])
            rows = rows.join(known, "log_id")
            is_due = pc.fill_null(pc.less_equal(rows["due_ns"], rows["now_ns"]), fill_value=False)
            touched.append(rows.filter(pc.or_(is_due, rows["is_changed"])).select(KEYS))
        return pa.concat_tables(touched)

    def _holding(self, table: str, probed: pa.Table) -> list[DataFile]:
        """Return the files with changeable rows of these jobs."""
        numbers = np.sort(probed["job"].to_numpy())
        holding = []
        for file in self.open_files if table == OPEN else self.lake.files(table):
            low, high = file.ranges.get("job", (1, 0))
            at = np.searchsorted(numbers, low)
            if file.is_over or at == len(numbers) or numbers[at] > high:
                continue
            if pc.any(_are_in(self._keys(table, file, KEYS), probed)).as_py():
                holding.append(file)
        return holding

    def _keys(self, table: str, file: DataFile, names: Sequence[str]) -> pa.Table:
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        return self.lake.folder.below(table).rows([file], schema)


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name in rows.column_names:
        return rows[field.name].cast(field.type)
    return pa.nulls(rows.num_rows, field.type)


def _with(jobs: pa.Table, others: pa.Table) -> pa.Table:
    if not others.num_rows:
        return jobs
    return pa.concat_tables([jobs, others]).group_by(KEYS).aggregate([])


def _past_gaps(logs: Mapping[str, Log]) -> set[tuple[str, tuple[int, int]]]:
    return {(log_id, gap) for log_id, log in logs.items() for gap in log.gaps if log.is_past(gap)}
