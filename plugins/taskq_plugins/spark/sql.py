"""``taskq sql``: one question to one log, with duckdb over Arrow and no Spark.

The tables are called as the pipeline's, and have its columns. A question reads them and nothing
else: duckdb may open no file, load no extension and see no variable of this program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import Failure, WrongUsage, data_dir_option, json_option, open_reader, render
from taskq.extras import missing
from taskq.text import printable
from taskq.values import SECOND_NS

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from taskq.engine import LogReader

_FOLDED: Final = re.compile(r"\b(jobs|attempts)\b", re.IGNORECASE)
#: Where the lake puts its rows, which no table shows.
_HIDDEN: Final = "part"
_NUMBERS: Final = (int, float)


@click.command()
@click.argument("query")
@data_dir_option
@json_option
def sql(query: str, data_dir: Path | None, as_json: bool) -> None:
    """Answer a question in SQL over the log's tables: records, jobs and attempts.

    They are called as the pipeline's, and have its columns: taskq sql "DESCRIBE jobs" names them.
    Attempts have state, wait_seconds and run_seconds, too.
    QUERY reads these tables, and no file of this machine. All of the log is read into memory.
    Needs the extra sql.
    """
    try:
        import duckdb  # noqa: PLC0415 - an extra that help need not load

        from taskq.arrow import export  # noqa: F401, PLC0415 - likewise: pyarrow
    except ImportError as error:
        raise Failure(missing("taskq sql", error.name, "sql")) from error
    with open_reader(data_dir) as reader:
        tables = tables_of(reader, folds=_FOLDED.search(query) is not None)
    try:
        answered = answer(query, tables)
    except duckdb.Error as error:
        reason = str(error).partition("\n\n")[0]
        raise WrongUsage(f"{reason}\nThe tables are: {', '.join(tables)}") from None
    rows = answered.to_pylist()
    if as_json:
        render.print_json([{name: _json(cell) for name, cell in row.items()} for row in rows])
        return
    headings = [
        f">{name}" if any(_is_number(row[name]) for row in rows) else name
        for name in answered.column_names
    ]
    render.print_table(headings, [[_text(cell) for cell in row.values()] for row in rows])


def tables_of(reader: LogReader, *, folds: bool = True) -> dict[str, pa.Table]:
    """Return the tables of a log by name; with ``folds`` those of jobs and attempts, too.

    Raises:
        LogError: a segment is missing, unreadable or another one.
        FormatError: a newer taskq wrote the log.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    from taskq.arrow.export import batches_of  # noqa: PLC0415 - as above
    from taskq.arrow.schema import SCHEMA  # noqa: PLC0415 - as above

    schema, batches = batches_of(reader)
    details = pa.Table.from_batches(batches, schema)
    records = details.select(SCHEMA.names)
    tables = {"records": records.append_column("date", records["timestamp"].cast(pa.date32()))}
    if folds:
        from taskq_plugins.spark.tables.batches import rows_of  # noqa: PLC0415 - as above
        from taskq_plugins.spark.tables.logs import log_rows, logs_of  # noqa: PLC0415 - as above

        rows = rows_of(details, logs_of(log_rows(details)))
        tables |= {"jobs": _shown(rows.jobs), "attempts": _handy(_shown(rows.attempts))}
    return tables


def answer(query: str, tables: dict[str, pa.Table]) -> pa.Table:
    """Return what one question over these tables comes to.

    Raises:
        duckdb.Error: it does not read, or wants what it may not.
        WrongUsage: it is no question, or there are several.
    """
    import duckdb  # noqa: PLC0415 - an extra that help need not load

    from taskq_plugins.spark.closed import closed_duckdb  # noqa: PLC0415 - as above

    with closed_duckdb(tables) as connection:
        kinds = [statement.type for statement in connection.extract_statements(query)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise WrongUsage("give one question: SELECT …, DESCRIBE jobs, SUMMARIZE attempts")
        return connection.sql(query).to_arrow_table()


def _shown(table: pa.Table) -> pa.Table:
    return table.drop_columns(_HIDDEN)


def _handy(attempts: pa.Table) -> pa.Table:
    """Return them with the outcome under its name of jobs, and the times in seconds, too."""
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra that help need not load

    attempts = attempts.append_column("state", attempts["outcome"])
    for name in ("wait", "run"):
        spent = attempts[f"{name}_ns"].cast("double", safe=False)
        attempts = attempts.append_column(f"{name}_seconds", pc.divide(spent, float(SECOND_NS)))
    return attempts


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _json(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {str(name): _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(value: Any) -> str:
    plain = _json(value)
    return "" if plain is None else printable(str(plain)).replace("\n", "\\n")
