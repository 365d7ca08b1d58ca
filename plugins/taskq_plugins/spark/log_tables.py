"""Tables of logs for ``taskq sql``: DuckDB over Arrow, in bounded memory."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from taskq.arrow import DETAILS
from taskq.cli import WrongUsage, open_reader, resolve
from taskq.values import SECOND_NS
from taskq_plugins.spark.sandbox import closed_duckdb
from taskq_plugins.spark.source import logs, plan
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.rows import RowReader, read_pieces
from taskq_plugins.spark.tables.fold import rows_of
from taskq_plugins.spark.tables.logs import log_rows, logs_of

if TYPE_CHECKING:
    from taskq_plugins.spark.source.plan import Plan
    from taskq_plugins.spark.tables.logs import Lineage, Log

LOG_TABLES: Final = ("records", "jobs", "attempts", "steps")
_NAMED: Final = re.compile(rf"\b({'|'.join(LOG_TABLES)})\b", re.IGNORECASE)
#: Memory that DuckDB may use before it writes to files, and bytes of log that are folded at once.
_MEMORY: Final = "384MiB"
_FOLDED_BYTES: Final = 6 * 1024 * 1024
#: Records that are split into buckets at a time.
_ROWS: Final = 65_536
_BUCKET: Final = "bucket"
_BUCKETED: Final = DETAILS.append(pa.field(_BUCKET, pa.int64()))
_BY_BUCKET: Final = dataset.partitioning(pa.schema([_BUCKETED.field(_BUCKET)]))
_SCAN: Final = "PYTHON_ARROW_SCAN"


def answer(query: str, tables: dict[str, Any]) -> pa.Table:
    with closed_duckdb(tables) as connection:
        return _asked(connection, query)


def _asked(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    _check(connection, query)
    return connection.sql(query).to_arrow_table()


def _check(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    kinds = [statement.type for statement in connection.extract_statements(query)]
    if kinds != [duckdb.StatementType.SELECT]:
        raise WrongUsage("give one question: SELECT …, DESCRIBE jobs, SUMMARIZE attempts")


class _Need(NamedTuple):
    """Tables and columns of a question.

    Attributes:
        tables: names of the tables.
        columns: columns of any of these tables, perhaps with some more.
        scans: number of scans of tables.
    """

    tables: frozenset[str]
    columns: frozenset[str]
    scans: int


def ask_logs(query: str, data_dir: Path | None, problems: list[str]) -> pa.Table:
    """Run a query over the logs in a directory; ``problems`` gets unreadable logs and segments."""
    need = _need_of(query)
    if not need.scans:  # DESCRIBE, or a query without a table
        return answer(query, _empty_tables())
    planned, lineage = _planned(data_dir, problems)
    with tempfile.TemporaryDirectory(prefix="taskq-sql-") as folder:
        tables = dict(_tables_of(planned, lineage, need, Path(folder)))
        stored = need.scans > 1
        with closed_duckdb(tables, Path(folder) if stored else None, memory=_MEMORY) as connection:
            return _asked(connection, query)


def _need_of(query: str) -> _Need:
    """Return the tables and columns of a query, from DuckDB's plan over empty tables."""
    empty = _empty_tables()
    named = frozenset(word.lower() for word in _NAMED.findall(query))
    with closed_duckdb(empty) as connection:
        _check(connection, query)
        rows = connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
    text = " ".join(str(cell) for row in rows for cell in row)
    words = frozenset(re.findall(r"\w+", text))
    names = {name for table in empty.values() for name in table.schema.names}
    # The plan names each scan twice.
    return _Need(named, words & names, text.count(f'"name": "{_SCAN}"'))


def _empty_tables() -> dict[str, pa.RecordBatchReader]:
    schemas = _schemas()
    return {name: pa.RecordBatchReader.from_batches(schemas[name], []) for name in LOG_TABLES}


def _schemas() -> dict[str, pa.Schema]:
    rows = rows_of(DETAILS.empty_table(), {})
    return {
        "records": _dated(DETAILS.empty_table()).schema,
        "jobs": rows.jobs.schema,
        "attempts": _handy(rows.attempts).schema,
        "steps": _steps([DETAILS.empty_table()]).schema,
    }


def _planned(data_dir: Path | None, problems: list[str]) -> tuple[Plan, Lineage]:
    path = resolve(data_dir)
    if path.is_file():  # a case file
        with open_reader(data_dir) as reader:
            path = Path(reader.journal.path)
    options = read_options({"path": str(path), "failOnDataLoss": "false", "corruptMode": "skip"})
    sight = logs.look(path)
    if not sight.logs and not sight.problems:
        open_reader(data_dir).close()  # its error names logs nearby
    planned = plan.plan(options, {}, sight=sight)
    problems += dict.fromkeys([*planned.problems.values(), *planned.skipped])
    return planned, {log_id: parents for log_id, parents in planned.parents.items() if parents}


def _tables_of(
    planned: Plan, lineage: Lineage, need: _Need, folder: Path
) -> Iterator[tuple[str, Any]]:
    schemas = _schemas()
    buckets = folder / "buckets"
    fold = _Fold(planned, lineage, buckets, has_payload="payload" in need.columns)
    for table in sorted(need.tables):
        own = schemas[table]
        names = [name for name in own.names if name in need.columns] or own.names[:1]
        schema = pa.schema([own.field(name) for name in names])
        if table == "steps":
            yield table, _steps(_step_rows(planned))
        elif table == "records":
            yield table, pa.RecordBatchReader.from_batches(schema, _records(planned, schema))
        else:
            rows = fold.batches(table, schema)
            yield table, pa.RecordBatchReader.from_batches(schema, rows)


def _records(planned: Plan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    needed = set(schema.names) | ({"timestamp"} if "date" in schema.names else set())
    columns = pa.schema([field for field in DETAILS if field.name in needed])
    for batch in _decoded(planned, columns):
        table = pa.Table.from_batches([batch])
        table = _dated(table) if "date" in schema.names else table
        yield from table.select(schema.names).to_batches()


def _decoded(
    planned: Plan, columns: pa.Schema, *, payload: bool = True
) -> Iterator[pa.RecordBatch]:
    reading = RowReader(columns, skips_damage=True, fails_on_loss=False, payload=payload)
    for part in planned.pieces:
        yield from read_pieces(part, reading)


def _dated(records: pa.Table) -> pa.Table:
    return records.append_column("date", records["timestamp"].cast(pa.date32()))


def _step_rows(planned: Plan) -> Iterator[pa.Table]:
    yield DETAILS.empty_table()
    for batch in _decoded(planned, DETAILS):
        chosen = batch.filter(pc.is_valid(batch["place"]))
        if chosen.num_rows:
            yield pa.Table.from_batches([chosen])


class _Fold:
    """Jobs and attempts of logs, folded in groups; a group has all records of its jobs.

    Args:
        planned: the plan with the pieces to read.
        lineage: parents of logs, for logs with parents.
        folder: for temporary files.
        has_payload: whether payloads are needed.
    """

    def __init__(self, planned: Plan, lineage: Lineage, folder: Path, *, has_payload: bool) -> None:
        size = sum(piece.end - piece.start for part in planned.pieces for piece in part)
        self._buckets = max(-(-size // _FOLDED_BYTES), 1)
        self._decoded = _decoded(planned, DETAILS, payload=has_payload)
        self._lineage = lineage
        self._folder = folder
        self._about = DETAILS.empty_table()

    def batches(self, table: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        logs = self._logs
        stored = dataset.dataset(
            self._folder, schema=_BUCKETED, format="ipc", partitioning=_BY_BUCKET
        )
        for number in range(self._buckets):
            records = stored.to_table(DETAILS.names, filter=pc.field(_BUCKET) == number)
            rows = rows_of(inherited(records, self._lineage, logs), logs)
            made = rows.jobs if table == "jobs" else _handy(rows.attempts)
            yield from made.select(schema.names).cast(schema).to_batches()

    @cached_property
    def _logs(self) -> dict[str, Log]:
        """State of the logs; puts the records of each job into one bucket."""
        dataset.write_dataset(
            self._bucketed(), self._folder, schema=_BUCKETED, format="ipc",
            partitioning=_BY_BUCKET, max_partitions=self._buckets,
            file_options=dataset.IpcFileFormat().make_write_options(compression="lz4"),
        )  # fmt: skip
        return logs_of(self._about, self._lineage)

    def _bucketed(self) -> Iterator[pa.RecordBatch]:
        for table in _grouped(self._decoded, DETAILS):
            self._about = log_rows(pa.concat_tables([self._about, table]))
            chosen = table.filter(pc.is_valid(table["job"]))
            bucket = pa.array(chosen["job"].to_numpy() % self._buckets)
            yield from chosen.append_column(_BUCKET, bucket).to_batches()


def inherited(records: pa.Table, lineage: Lineage, logs: Mapping[str, Log]) -> pa.Table:
    """Return the records, and copies of the parents' records as records of the children."""
    tables = [records]
    for child, parents in lineage.items():
        if child not in logs:
            continue  # an empty log
        own = {"log_id": child, "device": logs[child].device}
        first = 0
        for parent, next_lsn in parents:
            lsn = pc.field("lsn")
            is_shared = (pc.field("log_id") == parent) & (lsn >= first) & (lsn < next_lsn)
            shared = records.filter(is_shared)
            columns = {name: shared[name] for name in shared.column_names}
            columns |= {name: pa.repeat(text, shared.num_rows) for name, text in own.items()}
            tables.append(pa.table(columns))
            first = next_lsn
    return pa.concat_tables(tables)


def _grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _ROWS:
            yield pa.Table.from_batches(waiting, schema)
            waiting = []
    yield pa.Table.from_batches(waiting, schema)


_STEPS_QUERY: Final = """
    SELECT device, log_id, job_id, job, place,
        split_part(step, '#', 1) AS name, split_part(step, '#', 2)::INTEGER AS number,
        state AS form, attempt,
        make_timestamptz(began_ns // 1000) AS began_at,
        make_timestamptz(ts_ns // 1000) AS ended_at,
        began_ns, ts_ns AS ended_ns,
        CASE WHEN began_ns IS NOT NULL THEN greatest(ts_ns - began_ns, 0) END AS took_ns,
        octet_length(coalesce(value_bytes, encode(value))) AS size_bytes,
        make_timestamptz(ts_ns // 1000)::DATE AS date
    FROM new_records WHERE place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY log_id, job, place ORDER BY lsn) = 1
"""


def _steps(records: Iterable[pa.Table]) -> pa.Table:
    with closed_duckdb({"new_records": pa.concat_tables(records)}) as duck:
        return duck.sql(_STEPS_QUERY).to_arrow_table()


def _handy(attempts: pa.Table) -> pa.Table:
    """Return attempts with two more columns: state, as in jobs, and times in seconds."""
    attempts = attempts.append_column("state", attempts["outcome"])
    for name in ("wait", "run"):
        spent = attempts[f"{name}_ns"].cast("double", safe=False)
        attempts = attempts.append_column(f"{name}_seconds", pc.divide(spent, float(SECOND_NS)))
    return attempts
