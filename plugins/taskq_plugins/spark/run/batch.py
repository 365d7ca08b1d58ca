"""One micro-batch: its changes of the base tables, one commit a table. No Spark.

Records are appended. Jobs, attempts and the records for later batches (the table ``_open``) lie in
files of some thousand rows, ordered by time of enqueue. A batch rewrites only the files with a job
that it touches. So its cost depends on the new records and their jobs, not on the size of the lake.
A job is touched by its own records, by its due time, and by a step of its log's clock. Jobs are
folded in shares, each a range of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, parquet

from taskq.arrow import BREAK
from taskq_plugins.spark.lake.errors import LakeDiskError
from taskq_plugins.spark.lake.files import (
    DATE,
    OPEN,
    OVER,
    PART_COLUMN,
    DataFile,
    Staged,
    groups,
    in_part,
    placed,
    write_rows,
)
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    JOBS,
    LOG_PART,
    OPEN_RECORDS,
    RECORDS,
    Change,
    cleared,
)
from taskq_plugins.spark.source.rows import RowReader, read_pieces
from taskq_plugins.spark.tables.fold import KEYS, rows_of, touched_by
from taskq_plugins.spark.tables.logs import (
    BIRTHS,
    CONCERNING,
    LOG,
    STEPS,
    TOLD,
    Log,
    LogKey,
    log_rows,
    logs_of,
)

if TYPE_CHECKING:
    from taskq.arrow import Piece
    from taskq_plugins.spark.lake.store import Lake, LakeBatch, LakeWriter
    from taskq_plugins.spark.run.executor import StepExecutor

#: Records of one share, about ...
SHARE_ROWS: Final = 150_000
#: ... and bytes, most of them bodies.
SHARE_BYTES: Final = 256 * 1024 * 1024
#: Minimum of a share, even after many tries: each share reads all files.
SHARE_ROWS_MIN: Final = 1_000
SHARE_BYTES_MIN: Final = 4 * 1024 * 1024
_BODIES: Final = frozenset({"value", "value_bytes", "result", "result_bytes"})
_BREAKS: Final = pc.field("kind") == BREAK
_FOLDED: Final = (JOBS, ATTEMPTS, OPEN_RECORDS)
_NAMES: Final = [
    "device", "log_id", "branch", "epoch", "segment", "offset", "lsn", "timestamp", "ts_ns", "kind",
    "job", "step_ns",
]  # fmt: skip


class FoldShare(NamedTuple):
    """Input and output paths of one share."""

    number: int
    #: the jobs from the first number on, before the last; None: no bound
    first: int | None
    last: int | None
    #: files of the batch's records, with their columns
    records: tuple[str, ...]
    columns: pa.Schema
    #: files with rows about whole logs, and the touched jobs
    logs: str
    touched: str
    #: by table: the directory, and the files that hold rows of touched jobs
    tables: Mapping[str, Path]
    files: Mapping[str, Sequence[DataFile]]
    #: by table: where to write
    targets: Mapping[str, Path]


class BatchResult(NamedTuple):
    """Result of a batch; ``jobs_open`` counts all jobs that are open now."""

    records: int
    jobs_over: int
    jobs_open: int


def commit_batch(
    writer: LakeWriter,
    records: Staged,
    batch: LakeBatch,
    executor: StepExecutor,
    *,
    drops: bool = False,
    tries: int = 0,
) -> BatchResult:
    """Fold the staged records of a batch, and commit it.

    After a crash between two commits the batch is repeated; tables that have it skip it.

    Args:
        writer: of the lake.
        records: of the batch.
        batch: its name.
        executor: runs a step for each share.
        drops: whether ``records`` is to lack payloads and results.
        tries: how often it was begun before: each time its shares are smaller.
    """
    lake = writer.lake
    before = lake.pinned(batch.number - 1)
    targets = {table: writer.new_directory(table) for table in _FOLDED}
    plan = _Plan(lake, before, records, targets)
    try:
        executor.each(fold_share, plan.shares(tries, executor.steps))
    except OSError as error:
        raise LakeDiskError(lake.path, error) from error
    write_rows(plan.log_rows, targets[OPEN_RECORDS], 0)
    columns = schemas(records.schema)
    if drops:
        records = _without_bodies(writer, records)
    lake.check_columns(RECORDS, records.schema)
    changes = {RECORDS: Change(records.files, (), records.schema)}
    over = 0
    # Last: a batch in ``jobs`` is in all tables.
    for table in (ATTEMPTS, OPEN_RECORDS, JOBS):
        staged = writer.stage(table, targets[table])
        changes[table] = Change(staged.files, tuple(plan.replaced(table)), columns[table])
        over = sum(file.rows for file in staged.files if file.part == OVER)
    for table, change in changes.items():
        writer.commit(table, change, batch, dates=table != OPEN_RECORDS)
    still_open = (file.rows for file in lake.data_files(JOBS) if file.part == OPEN)
    return BatchResult(sum(file.rows for file in records.files), over, sum(still_open))


#: Files that one part makes of a day, at most.
_TURNS_MAX: Final = 1_000_000


class StagedPart(NamedTuple):
    """Records of a batch that are read and written at once."""

    number: int
    pieces: Sequence[Piece]
    reading: RowReader
    #: where to write
    target: Path
    #: files that name the jobs that were erased
    erased: Sequence[str] = ()


def write_part(part: StagedPart) -> None:
    batches = read_pieces(part.pieces, part.reading)
    for turn, group in enumerate(groups(batches)):
        rows = pa.Table.from_batches(group, part.reading.schema)
        write_records(rows, part.target, part.number * _TURNS_MAX + turn, part.erased)


def write_records(rows: pa.Table, target: Path, number: int, erased: Sequence[str] = ()) -> None:
    rows = cleared(rows, erased)
    dated = rows.append_column(DATE, rows["timestamp"].cast(pa.date32()))
    write_rows(in_part(dated, OVER), target, number)


def stage_records(writer: LakeWriter, write: Callable[[Path], None], schema: pa.Schema) -> Staged:
    directory = writer.new_directory(RECORDS)
    try:
        write(directory)
    except OSError as error:
        raise LakeDiskError(directory, error) from error
    return writer.stage(RECORDS, directory)._replace(schema=schema)


def _without_bodies(writer: LakeWriter, records: Staged) -> Staged:
    directory = writer.new_directory(RECORDS)
    for number, file in enumerate(records.files):
        path = writer.lake.path / RECORDS / file.path
        rows = parquet.read_table(path, partitioning=None)
        for index, field in enumerate(rows.schema):
            if field.name in _BODIES:
                rows = rows.set_column(index, field, pa.nulls(rows.num_rows, field.type))
        write_rows(placed(rows, file), directory, number)
        path.unlink()
    return writer.stage(RECORDS, directory)._replace(schema=records.schema)


@lru_cache(maxsize=4)
def schemas(records: pa.Schema) -> dict[str, pa.Schema]:
    empty = rows_of(records.empty_table(), {})
    plain = {JOBS: empty.jobs, ATTEMPTS: empty.attempts, OPEN_RECORDS: empty.kept}
    return {name: table.drop_columns([PART_COLUMN]).schema for name, table in plain.items()}


class _Plan:
    """Jobs touched by a batch, and their files."""

    def __init__(self, lake: Lake, before: Lake, records: Staged, targets: dict[str, Path]) -> None:
        self._lake = lake
        self._before = before
        self._records = records
        self._targets = targets
        self._paths = [str(lake.path / RECORDS / file.path) for file in records.files]
        self._known = {table: before.data_files(table) for table in _FOLDED}
        named = _read(self._paths, _NAMES, records.schema)
        before_logs = self._read_logs(named)
        self._forks = _forks(self._logs, before_logs)
        self._jobs = named["job"]
        waiting = self._waiting(self._logs, self._changed(named, before_logs))
        own = touched_by(named)
        born = named.filter(pc.is_in(named["kind"], pa.array(sorted(BIRTHS)))).select(KEYS)
        # All records of jobs born in this batch are in it.
        earlier = own.join(born, KEYS, join_type="left anti")
        probed, self._touched = _with(earlier, waiting), _with(own, waiting)
        self._hits = {table: self._holding(table, probed) for table in _FOLDED}

    def _read_logs(self, named: pa.Table) -> dict[LogKey, Log]:
        """Set the state of the logs after the batch; return that of the moved logs before it."""
        schema = self._records.schema
        parts = [file for file in self._known[OPEN_RECORDS] if file.part == LOG_PART]
        known = self._read_files(OPEN_RECORDS, parts, [*_NAMES, "value"])
        # Logs without new records keep their state.
        has_moved = pc.is_in(known["log_id"], pc.unique(named["log_id"]))
        old = known.filter(has_moved)
        plain = named.filter(pc.not_equal(named["kind"], BREAK))
        new = [plain.append_column("value", pa.nulls(plain.num_rows, old["value"].type))]
        if plain.num_rows < named.num_rows:
            new.append(_read(self._paths, [*_NAMES, "value"], schema, _BREAKS))
        self._moved = log_rows(pa.concat_tables([old, *new]))
        self._logs = logs_of(self._moved)
        rows = pa.concat_tables([known.filter(pc.invert(has_moved)), self._moved])
        full = {field.name: _column(rows, field) for field in schema}
        self.log_rows = in_part(pa.table(full, schema), LOG_PART)
        return logs_of(old)

    def _changed(self, named: pa.Table, before_logs: Mapping[LogKey, Log]) -> set[LogKey]:
        """Return the branches whose waiting jobs change: by a clock step, a fork, or a gap."""
        is_step = pc.is_in(named["kind"], pa.array(sorted(STEPS)))
        stepped = named.filter(is_step).group_by(LOG).aggregate([]).to_pylist()
        changed = {(log["log_id"], log["branch"]) for log in stepped}
        changed |= {(log_id, branch - 1) for log_id, branch in self._forks}
        gaps = _past_gaps(self._logs) - _past_gaps(before_logs)
        return changed | {branch for branch, _ in gaps}

    def shares(self, tries: int, steps: int = 1) -> list[FoldShare]:
        """Return the shares of the batch: ranges of numbers with about as many records each.

        Args:
            tries: how often the batch was begun before.
            steps: if there are several, how many of them at least.
        """
        directory = self._targets[JOBS].with_name(f"plan-{self._targets[JOBS].name}")
        directory.mkdir(parents=True)
        logs, touched = directory / "logs.parquet", directory / "touched.parquet"
        parquet.write_table(self._moved, logs)
        parquet.write_table(self._touched, touched)
        heirs = []
        for number, (log_id, branch) in enumerate(self._forks):
            heirs.append(str(directory / f"heirs-{number}.parquet"))
            parquet.write_table(self._heirs(log_id, branch), heirs[-1])
        jobs = np.sort(pc.drop_null(self._jobs).to_numpy())
        size = self._bytes()
        count = max(1, -(-len(jobs) // SHARE_ROWS), -(-size // SHARE_BYTES))
        finest = max(len(jobs) // SHARE_ROWS_MIN, size // SHARE_BYTES_MIN)
        count = max(count, min(count << tries, finest))
        count = count if count == 1 else max(count, steps)
        inner = sorted({int(jobs[turn * len(jobs) // count]) for turn in range(1, count)})
        return [
            FoldShare(
                number=number,
                first=first,
                last=last,
                records=(*self._paths, *heirs),
                columns=self._records.schema,
                logs=str(logs),
                touched=str(touched),
                tables={table: self._lake.path / table for table in _FOLDED},
                files=self._hits,
                targets=self._targets,
            )
            for number, (first, last) in enumerate(pairwise([None, *inner, None]))
        ]

    def replaced(self, table: str) -> Iterable[DataFile]:
        yield from self._hits[table]
        if table == OPEN_RECORDS:
            yield from (file for file in self._known[table] if file.part == LOG_PART)

    def _bytes(self) -> int:
        footers = map(parquet.read_metadata, self._paths)
        return sum(
            footer.row_group(number).total_byte_size
            for footer in footers
            for number in range(footer.num_row_groups)
        )

    def _path(self, table: str, file: DataFile) -> str:
        return str(self._lake.path / table / file.path)

    def _changing(self, table: str) -> Iterable[DataFile]:
        return (file for file in self._known[table] if file.part not in {OVER, LOG_PART})

    def _read_files(
        self,
        table: str,
        files: Iterable[DataFile],
        names: list[str],
        where: pc.Expression | None = None,
    ) -> pa.Table:
        paths = [self._path(table, file) for file in files]
        return _read(paths, names, self._records.schema, where)

    def _waiting(self, logs: Mapping[LogKey, Log], changed: Collection[LogKey]) -> pa.Table:
        newest_ns = max((log.now_ns for log in logs.values()), default=0)
        known = pa.table(
            {
                "log_id": [log_id for log_id, _ in logs],
                "branch": pa.array([branch for _, branch in logs], pa.int32()),
                "now_ns": pa.array([log.now_ns for log in logs.values()], pa.int64()),
                "is_changed": pa.array([log in changed for log in logs], pa.bool_()),
            }
        )
        touched = [self._records.schema.empty_table().select(KEYS)]
        for file in self._changing(JOBS):
            due = file.ranges.get("due_ns")
            if not changed and (due is None or due[0] > newest_ns):
                continue
            rows = parquet.read_table(
                self._path(JOBS, file), columns=[*KEYS, "due_ns"], partitioning=None
            )
            rows = rows.join(known, list(LOG))
            is_due = pc.fill_null(pc.less_equal(rows["due_ns"], rows["now_ns"]), fill_value=False)
            touched.append(rows.filter(pc.or_(is_due, rows["is_changed"])).select(KEYS))
        return pa.concat_tables(touched)

    def _heirs(self, log_id: str, branch: int) -> pa.Table:
        """Return the records of jobs that a branch takes on: not finished at its fork.

        Jobs that were still open where the other branch was left are at hand. Jobs that ended after
        the fork are read from the table of all records.
        """
        begins, names = self._logs[log_id, branch].begins, self._records.schema.names
        of_log, lsn = pc.field("log_id") == log_id, pc.field("lsn")
        concerning = pc.field("kind").isin(sorted(CONCERNING))
        is_left = of_log & (pc.field("branch") == branch - 1)
        at_hand = self._read_files(OPEN_RECORDS, self._changing(OPEN_RECORDS), names, is_left)
        is_told = pc.equal(at_hand["kind"], TOLD)
        still = pc.unique(at_hand.filter(pc.invert(is_told))["job"])
        files = self._before.data_files(RECORDS)
        behind = of_log & (lsn >= begins) & concerning & (pc.field("job") < begins)
        ended = self._read_files(RECORDS, files, ["job"], behind)["job"].unique()
        ended = ended.filter(pc.invert(pc.is_in(ended, still)))
        is_shared = pc.less(at_hand["lsn"], begins)
        is_over = pc.and_(is_told, pc.invert(pc.is_in(at_hand["job"], ended)))
        kept = pc.and_(pc.or_kleene(is_shared, is_over), pc.less(at_hand["job"], begins))
        parts = [at_hand.filter(kept)]
        until = begins
        for older in range(branch - 1, -1, -1):
            shared = of_log & (pc.field("branch") == older) & (lsn < until) & concerning
            parts.append(
                self._read_files(RECORDS, files, names, shared & pc.field("job").isin(ended))
            )
            until = min(until, self._logs[log_id, older].begins)
        heirs = pa.concat_tables(parts)
        own = pa.array([branch] * heirs.num_rows, pa.int32())
        return heirs.set_column(heirs.schema.get_field_index("branch"), "branch", own)

    def _holding(self, table: str, probed: pa.Table) -> list[DataFile]:
        numbers = np.sort(probed["job"].to_numpy())
        holding = []
        for file in self._changing(table):
            low, high = file.ranges.get("job", (1, 0))
            at = np.searchsorted(numbers, low)
            if at == len(numbers) or numbers[at] > high:
                continue
            keys = parquet.read_table(self._path(table, file), columns=KEYS, partitioning=None)
            if pc.any(touched_rows(keys, probed)).as_py():
                holding.append(file)
        return holding


def _with(jobs: pa.Table, others: pa.Table) -> pa.Table:
    if not others.num_rows:
        return jobs
    return pa.concat_tables([jobs, others]).group_by(KEYS).aggregate([])


def _forks(logs: Mapping[LogKey, Log], before: Mapping[LogKey, Log]) -> list[LogKey]:
    return sorted(log for log in logs if log[1] and log not in before)


def _past_gaps(logs: Mapping[LogKey, Log]) -> set[tuple[LogKey, tuple[int, int]]]:
    return {(log_key, gap) for log_key, log in logs.items() for gap in log.gaps if log.is_past(gap)}


def _read(
    paths: list[str], names: list[str], schema: pa.Schema, where: pc.Expression | None = None
) -> pa.Table:
    chosen = pa.schema([schema.field(name) for name in names])
    if not paths:
        return chosen.empty_table()
    data = dataset.dataset(paths, schema=schema, format="parquet")
    rows: pa.Table = data.to_table(columns=names, filter=where)
    return rows


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name in rows.column_names:
        return rows[field.name]
    return pa.nulls(rows.num_rows, field.type)


# -- a share: runs wherever it can read and write the lake's files, here or on an executor --------


def fold_share(share: FoldShare) -> None:
    logs = logs_of(parquet.read_table(share.logs))
    touched = parquet.read_table(share.touched)
    kept: dict[str, list[pa.Table]] = {table: [] for table in share.files}
    records = [_records(share)]
    for table, files in share.files.items():
        for file in files:
            path = share.tables[table] / file.path
            rows = parquet.read_table(path, partitioning=None, filters=_range(share))
            is_touched = touched_rows(rows, touched)
            if table == OPEN_RECORDS:
                records.append(rows.filter(is_touched).cast(share.columns))
            kept[table].append(placed(rows.filter(pc.invert(is_touched)), file))
    made = rows_of(pa.concat_tables(records), logs)
    for table, rows in ((JOBS, made.jobs), (ATTEMPTS, made.attempts), (OPEN_RECORDS, made.kept)):
        others = (rest.select(rows.column_names).cast(rows.schema) for rest in kept[table])
        write_rows(pa.concat_tables([*others, rows]), share.targets[table], share.number)


def touched_rows(rows: pa.Table, touched: pa.Table) -> pa.Array:
    keys = rows.select(KEYS).append_column("row", pa.array(np.arange(rows.num_rows)))
    hits = keys.join(touched, KEYS, join_type="left semi")["row"]
    mask = np.zeros(rows.num_rows, dtype=bool)
    mask[hits.to_numpy()] = True
    return pa.array(mask)


def _records(share: FoldShare) -> pa.Table:
    if not share.records:
        return share.columns.empty_table()
    data = dataset.dataset(list(share.records), schema=share.columns, format="parquet")
    return data.to_table(filter=_range(share))


def _range(share: FoldShare) -> pc.Expression | None:
    job = pc.field("job")
    if share.first is None:
        return None if share.last is None else job < share.last
    return job >= share.first if share.last is None else (job >= share.first) & (job < share.last)
