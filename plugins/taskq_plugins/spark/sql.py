"""``taskq sql``: a question to one log, to the logs of a fleet, or to a lake; no Spark, no Java.

The tables of logs are called as the pipeline's, and have its columns. A question reads them and
nothing else: duckdb may open no file, load no extension and see no variable of this program.
Records are decoded for each question, and only the columns that it names. What does not fit into
the memory that is allowed goes to temporary files.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from taskq.cli import (
    Failure,
    WrongUsage,
    data_dir_option,
    json_option,
    open_reader,
    render,
    resolve,
)
from taskq.extras import import_arrow, missing
from taskq.text import flat, printable
from taskq.values import SECOND_NS
from taskq_plugins.spark.cli import LakePlace

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from taskq_plugins.spark.source.plan import Plan
    from taskq_plugins.spark.tables.logs import Lineage

#: Column with the part of a row, which no table shows.
_HIDDEN: Final = "part"
_NUMBERS: Final = re.compile(r"u?int|double|float|decimal")
_LOG_TABLES: Final = ("records", "jobs", "attempts", "steps")
_NAMED: Final = re.compile(rf"\b({'|'.join(_LOG_TABLES)})\b", re.IGNORECASE)
#: Memory that DuckDB may take before it writes to files, and bytes of log that are folded at once.
_MEMORY: Final = "384MiB"
_FOLDED_BYTES: Final = 6 * 1024 * 1024
#: Records that are put into buckets at a time.
_ROWS: Final = 65_536
_SCAN: Final = "PYTHON_ARROW_SCAN"
_PROBLEMS_SHOWN_MAX: Final = 20


@click.command()
@click.argument("query")
@data_dir_option
@click.option("--lake", "lake_path", type=LakePlace(), help="Ask the pipeline's tables instead.")
@json_option
@click.pass_context
def sql(
    context: click.Context,
    /,
    query: str,
    data_dir: Path | None,
    lake_path: Path | str | None,
    as_json: bool,
) -> None:
    """Answer a question in SQL over the tables of logs: records, jobs, attempts and steps.

    The directory is that of a log, of many devices' logs, or of a hub; the column device says whose
    a row is. Tables are called as the pipeline's, and have its columns: taskq sql "DESCRIBE jobs"
    names them. Attempts have state, wait_seconds and run_seconds, too. payload_text is a payload as
    text. What cannot be read is named, and the others answer; then it exits with 1.
    QUERY reads these tables, and no file of this machine. Memory is bounded.
    Needs the extra sql, with --lake the extra spark.
    """
    what, extra = ("taskq sql", "sql") if lake_path is None else ("taskq sql --lake", "spark")
    problems: list[str] = []
    try:
        import duckdb  # noqa: PLC0415 - an extra that help need not load

        import_arrow()
        from taskq.arrow import decoder  # noqa: F401, PLC0415 - likewise: pyarrow

        tables: Iterable[str] = _LOG_TABLES
        try:
            if lake_path is not None:
                lake = _tables_of_lake(lake_path, query)
                tables = lake
                answered = answer(query, lake)
            else:
                answered = ask_logs(query, data_dir, problems)
        except duckdb.Error as error:
            reason = flat(str(error).partition("\n\n")[0])
            raise WrongUsage(f"{reason} The tables are: {', '.join(tables)}") from None
    except ImportError as error:
        raise Failure(missing(what, error.name, extra)) from error
    if as_json:
        render.echo(json.dumps(_plain(answered.to_pylist()), indent=2, default=_as_json))
    else:
        print_rows(answered)
    for problem in problems[:_PROBLEMS_SHOWN_MAX]:
        render.echo(f"taskq: {flat(problem)}", err=True)
    if len(problems) > _PROBLEMS_SHOWN_MAX:
        render.echo(f"taskq: and {len(problems) - _PROBLEMS_SHOWN_MAX} more", err=True)
    if problems:
        context.exit(Failure.exit_code)


def _tables_of_lake(place: Path | str, query: str) -> dict[str, Any]:
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - an extra that help need not load

    newest = Lake.open(place)
    newest.check()
    lake = newest.pinned()
    named = {word.lower() for word in re.findall(r"\w+", query)}
    known = lake.tables()
    return {name: lake.dataset(name) for name in known if name in named or not named & {*known}}


def answer(query: str, tables: dict[str, Any]) -> pa.Table:
    from taskq_plugins.spark.sandbox import closed_duckdb  # noqa: PLC0415 - as above

    with closed_duckdb(tables) as connection:
        return _asked(connection, query)


def _asked(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    _check(connection, query)
    return connection.sql(query).to_arrow_table()


def _check(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    import duckdb  # noqa: PLC0415 - an extra that help need not load

    kinds = [statement.type for statement in connection.extract_statements(query)]
    if kinds != [duckdb.StatementType.SELECT]:
        raise WrongUsage("give one question: SELECT …, DESCRIBE jobs, SUMMARIZE attempts")


# -- logs ------------------------------------------------------------------------------------------


class _Need(NamedTuple):
    """Tables and columns of a question.

    Attributes:
        tables: their names.
        columns: of any of these tables, perhaps some more.
        scans: how often a table is read.
    """

    tables: frozenset[str]
    columns: frozenset[str]
    scans: int


def ask_logs(query: str, data_dir: Path | None, problems: list[str]) -> pa.Table:
    """Return the answer of the logs in a directory; ``problems`` gets what could not be read."""
    from taskq_plugins.spark.sandbox import closed_duckdb  # noqa: PLC0415 - an extra

    need = _need_of(query)
    if not need.scans:  # it asks for columns, or for nothing
        return answer(query, _empty_tables())
    planned, lineage = _planned(data_dir, problems)
    with tempfile.TemporaryDirectory(prefix="taskq-sql-") as folder:
        tables = dict(_tables_of(planned, lineage, need, Path(folder)))
        stored = need.scans > 1
        with closed_duckdb(tables, Path(folder) if stored else None, memory=_MEMORY) as connection:
            return _asked(connection, query)


def _need_of(query: str) -> _Need:
    """Return what a question reads, as duckdb plans it over empty tables."""
    from taskq_plugins.spark.sandbox import closed_duckdb  # noqa: PLC0415 - as above

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
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    schemas = _schemas()
    return {name: pa.RecordBatchReader.from_batches(schemas[name], []) for name in _LOG_TABLES}


def _schemas() -> dict[str, pa.Schema]:
    from taskq.arrow import DETAILS  # noqa: PLC0415 - an extra that help need not load
    from taskq_plugins.spark.tables.fold import rows_of  # noqa: PLC0415 - as above

    rows = rows_of(DETAILS.empty_table(), {})
    return {
        "records": _dated(DETAILS.empty_table()).schema,
        "jobs": _shown(rows.jobs).schema,
        "attempts": _handy(_shown(rows.attempts)).schema,
        "steps": _steps([DETAILS.empty_table()]).schema,
    }


def _planned(data_dir: Path | None, problems: list[str]) -> tuple[Plan, Lineage]:
    from taskq_plugins.spark.source import logs, plan  # noqa: PLC0415 - an extra
    from taskq_plugins.spark.source.options import read_options  # noqa: PLC0415 - as above

    path = resolve(data_dir)
    if path.is_file():  # a case file
        with open_reader(data_dir) as reader:
            path = Path(reader.journal.path)
    options = read_options({"path": str(path), "failOnDataLoss": "false", "corruptMode": "skip"})
    sight = logs.look(path)
    if not sight.logs and not sight.problems:
        open_reader(data_dir).close()  # its refusal names logs nearby
    planned = plan.plan(options, {}, sight=sight)
    problems += dict.fromkeys([*planned.problems.values(), *planned.skipped])
    return planned, {log_id: log.parents for log_id, log in sight.logs.items() if log.parents}


def _tables_of(
    planned: Plan, lineage: Lineage, need: _Need, folder: Path
) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    schemas = _schemas()
    fold = _Fold(planned, lineage, folder, has_payload="payload" in need.columns)
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
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    from taskq.arrow import DETAILS  # noqa: PLC0415 - as above

    needed = set(schema.names) | ({"timestamp"} if "date" in schema.names else set())
    columns = pa.schema([field for field in DETAILS if field.name in needed])
    for batch in _decoded(planned, columns):
        table = pa.Table.from_batches([batch])
        table = _dated(table) if "date" in schema.names else table
        yield from table.select(schema.names).to_batches()


def _decoded(
    planned: Plan, columns: pa.Schema, *, payload: bool = True
) -> Iterator[pa.RecordBatch]:
    from taskq.arrow import Corrupt  # noqa: PLC0415 - an extra that help need not load
    from taskq_plugins.spark.source.rows import RowReader, read_pieces  # noqa: PLC0415 - as above

    reading = RowReader(columns, Corrupt.SKIP, fails_on_loss=False, payload=payload)
    for part in planned.pieces:
        yield from read_pieces(part, reading)


def _dated(records: pa.Table) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    return records.append_column("date", records["timestamp"].cast(pa.date32()))


def _step_rows(planned: Plan) -> Iterator[pa.Table]:
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    from taskq.arrow import DETAILS  # noqa: PLC0415 - as above

    yield DETAILS.empty_table()
    for batch in _decoded(planned, DETAILS):
        chosen = batch.filter(pc.is_valid(batch["place"]))
        if chosen.num_rows:
            yield pa.Table.from_batches([chosen])


class _Fold:
    """Jobs and attempts of logs, folded some at a time: all records of a job, and of its parents'.

    Args:
        planned: what to read.
        lineage: parents of the logs that have any.
        folder: for temporary files.
        has_payload: whether payloads are needed.
    """

    def __init__(self, planned: Plan, lineage: Lineage, folder: Path, *, has_payload: bool) -> None:
        size = sum(piece.end - piece.start for part in planned.pieces for piece in part)
        self._folder = folder
        self._buckets = max(-(-size // _FOLDED_BYTES), 1)
        self._planned = planned
        self._lineage = lineage
        self._has_payload = has_payload
        self._logs: dict[Any, Any] | None = None

    def batches(self, table: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from taskq_plugins.spark.tables.fold import rows_of  # noqa: PLC0415 - an extra

        logs = self._split()
        for number in range(self._buckets):
            rows = rows_of(self._inherited(self._bucket(number), logs), logs)
            made = _shown(rows.jobs) if table == "jobs" else _handy(_shown(rows.attempts))
            yield from made.select(schema.names).cast(schema).to_batches()

    def _split(self) -> dict[Any, Any]:
        """Put the records of each job into one bucket; return the state of their logs."""
        import numpy as np  # noqa: PLC0415 - an extra that help need not load
        import pyarrow as pa  # noqa: PLC0415 - as above
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        from taskq.arrow import DETAILS  # noqa: PLC0415 - as above
        from taskq_plugins.spark.tables.logs import log_rows, logs_of  # noqa: PLC0415 - as above

        if self._logs is not None:
            return self._logs
        about = DETAILS.empty_table()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with _closing(
            pa.ipc.new_stream(self._path(number), DETAILS, options=options)
            for number in range(self._buckets)
        ) as writers:
            for table in _grouped(
                _decoded(self._planned, DETAILS, payload=self._has_payload), DETAILS
            ):
                about = log_rows(pa.concat_tables([about, table]))
                chosen = table.filter(pc.is_valid(table["job"]))
                bucket = chosen["job"].to_numpy() % self._buckets
                order = np.argsort(bucket, kind="stable")
                ends = np.searchsorted(bucket[order], np.arange(self._buckets + 1))
                sorted_rows = chosen.take(pa.array(order)) if self._buckets > 1 else chosen
                for number, writer in enumerate(writers):
                    first, last = int(ends[number]), int(ends[number + 1])
                    if first < last:
                        writer.write_table(sorted_rows.slice(first, last - first))
        self._logs = logs_of(about, self._lineage)
        return self._logs

    def _inherited(self, records: pa.Table, logs: dict[str, Any]) -> pa.Table:
        """Return the records with those that children begin with, once more as the children's."""
        import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        tables = [records]
        for child, parents in self._lineage.items():
            if child not in logs:
                continue  # it wrote nothing yet
            first = 0
            for parent, next_lsn in parents:
                lsn = pc.field("lsn")
                is_shared = (pc.field("log_id") == parent) & (lsn >= first) & (lsn < next_lsn)
                shared = records.filter(is_shared)
                for name, text in (("log_id", child), ("device", logs[child].device)):
                    column = pa.repeat(pa.scalar(text, pa.string()), shared.num_rows)
                    at = shared.schema.get_field_index(name)
                    shared = shared.set_column(at, name, column)
                tables.append(shared)
                first = next_lsn
        return pa.concat_tables(tables)

    def _path(self, number: int) -> str:
        return str(self._folder / f"{number}.arrows")

    def _bucket(self, number: int) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

        with pa.OSFile(self._path(number)) as file, pa.ipc.open_stream(file) as reader:
            return reader.read_all()


@contextmanager
def _closing(writers: Iterator[Any]) -> Iterator[list[Any]]:
    opened: list[Any] = []
    try:
        opened += writers
        yield opened
    finally:
        for writer in opened:
            writer.close()


def _grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

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
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    from taskq_plugins.spark.sandbox import closed_duckdb  # noqa: PLC0415 - as above

    with closed_duckdb({"new_records": pa.concat_tables(records)}) as duck:
        return duck.sql(_STEPS_QUERY).to_arrow_table()


def _shown(table: pa.Table) -> pa.Table:
    return table.drop_columns(_HIDDEN) if _HIDDEN in table.column_names else table


def _handy(attempts: pa.Table) -> pa.Table:
    """Return them with the outcome under its name of jobs, and the times in seconds, too."""
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra that help need not load

    attempts = attempts.append_column("state", attempts["outcome"])
    for name in ("wait", "run"):
        spent = attempts[f"{name}_ns"].cast("double", safe=False)
        attempts = attempts.append_column(f"{name}_seconds", pc.divide(spent, float(SECOND_NS)))
    return attempts


def print_rows(rows: pa.Table) -> None:
    columns = [
        f">{field.name}" if _NUMBERS.match(str(field.type)) else field.name for field in rows.schema
    ]
    cells = ([_text(value) for value in row.values()] for row in rows.to_pylist())
    render.print_table(columns, cells)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    elif isinstance(value, (list, dict)):
        value = json.dumps(_plain(value), default=_as_json)
    return printable(str(value)).replace("\n", "\\n")


def _as_json(value: object) -> object:
    """Return what JSON has no word for: times in ISO 8601, bytes as text or in base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        pairs = [item for item in value if isinstance(item, tuple)]
        return dict(pairs) if pairs else [_plain(item) for item in value]
    return value
