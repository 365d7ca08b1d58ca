"""``taskq sql``: one question to one log, or to a lake, with duckdb over Arrow and no Spark.

The tables of a log are called as the pipeline's, and have its columns. A question reads them and
nothing else: duckdb may open no file, load no extension and see no variable of this program.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import Failure, WrongUsage, data_dir_option, json_option, open_reader, render
from taskq.extras import import_arrow, missing
from taskq.text import printable
from taskq.values import SECOND_NS
from taskq_plugins.spark.cli import LakePlace

if TYPE_CHECKING:
    import pyarrow as pa

    from taskq.engine import LogReader

_FOLDED: Final = re.compile(r"\b(jobs|attempts|steps)\b", re.IGNORECASE)
#: Column with the part of a row, which no table shows.
_HIDDEN: Final = "part"
_NUMBERS: Final = re.compile(r"u?int|double|float|decimal")


@click.command()
@click.argument("query")
@data_dir_option
@click.option("--lake", "lake_path", type=LakePlace(), help="Ask the pipeline's tables instead.")
@json_option
def sql(query: str, data_dir: Path | None, lake_path: Path | str | None, as_json: bool) -> None:
    """Answer a question in SQL over the log's tables: records, jobs, attempts and steps.

    They are called as the pipeline's, and have its columns: taskq sql "DESCRIBE jobs" names them.
    Attempts have state, wait_seconds and run_seconds, too.
    QUERY reads these tables, and no file of this machine. All of the log is read into memory;
    with --lake only what is asked for, as of the last batch. payload_text is a payload as text.
    Needs the extra sql, with --lake the extra spark.
    """
    what, extra = ("taskq sql", "sql") if lake_path is None else ("taskq sql --lake", "spark")
    try:
        import duckdb  # noqa: PLC0415 - an extra that help need not load

        import_arrow()
        from taskq.arrow import decoder  # noqa: F401, PLC0415 - likewise: pyarrow

        if lake_path is not None:
            tables = _tables_of_lake(lake_path, query)
        else:
            with open_reader(data_dir) as reader:
                tables = tables_of(reader, folds=_FOLDED.search(query) is not None)
    except ImportError as error:
        raise Failure(missing(what, error.name, extra)) from error
    try:
        answered = answer(query, tables)
    except duckdb.Error as error:
        reason = str(error).partition("\n\n")[0]
        raise WrongUsage(f"{reason}\nThe tables are: {', '.join(tables)}") from None
    if as_json:
        render.echo(json.dumps(_plain(answered.to_pylist()), indent=2, default=_as_json))
    else:
        print_rows(answered)


def _tables_of_lake(place: Path | str, query: str) -> dict[str, Any]:
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - an extra that help need not load

    newest = Lake.open(place)
    newest.check()
    lake = newest.pinned()
    named = {word.lower() for word in re.findall(r"\w+", query)}
    known = lake.tables()
    return {name: lake.dataset(name) for name in known if name in named or not named & {*known}}


def tables_of(reader: LogReader, *, folds: bool = True) -> dict[str, pa.Table]:
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load

    from taskq.arrow.decoder import batches_of  # noqa: PLC0415 - as above
    from taskq.arrow.schema import SCHEMA  # noqa: PLC0415 - as above

    schema, batches = batches_of(reader)
    details = pa.Table.from_batches(batches, schema)
    records = details.select(SCHEMA.names)
    tables = {"records": records.append_column("date", records["timestamp"].cast(pa.date32()))}
    if folds:
        from taskq_plugins.spark.sandbox import closed_duckdb  # noqa: PLC0415 - as above
        from taskq_plugins.spark.tables.aggregates import steps  # noqa: PLC0415 - as above
        from taskq_plugins.spark.tables.fold import rows_of  # noqa: PLC0415 - as above
        from taskq_plugins.spark.tables.logs import log_rows, logs_of  # noqa: PLC0415 - as above

        rows = rows_of(details, logs_of(log_rows(details)))
        tables |= {"jobs": _shown(rows.jobs), "attempts": _handy(_shown(rows.attempts))}
        with closed_duckdb({"new_records": _with_bytes(details)}) as duck:
            tables["steps"] = steps(duck)
    return tables


def answer(query: str, tables: dict[str, Any]) -> pa.Table:
    import duckdb  # noqa: PLC0415 - an extra that help need not load

    from taskq_plugins.spark.sandbox import closed_duckdb  # noqa: PLC0415 - as above

    with closed_duckdb(tables) as connection:
        kinds = [statement.type for statement in connection.extract_statements(query)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise WrongUsage("give one question: SELECT …, DESCRIBE jobs, SUMMARIZE attempts")
        return connection.sql(query).to_arrow_table()


def _shown(table: pa.Table) -> pa.Table:
    return table.drop_columns(_HIDDEN)


def _with_bytes(records: pa.Table) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - an extra that help need not load
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    values = pc.coalesce(records["value_bytes"], records["value"].cast(pa.binary()))
    return records.set_column(records.schema.get_field_index("value"), "value", values)


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
