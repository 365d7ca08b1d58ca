"""``taskq sql``: query one log, the logs of a fleet, or a lake by SQL; without Spark and Java.

Tables of logs have the names and columns of the pipeline's tables. A query reads nothing else:
DuckDB may not open files, load extensions or read variables of this program. Records are decoded
for each query, and only in the columns that it names. Data over the memory limit goes to temporary
files.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import (
    Failure,
    WrongUsage,
    data_dir_option,
    json_option,
    render,
)
from taskq.extras import import_arrow, missing
from taskq.text import flat, printable
from taskq_plugins.spark.cli import lake_place

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS: Final = re.compile(r"u?int|double|float|decimal")
_PROBLEMS_SHOWN_MAX: Final = 20


@click.command()
@click.argument("query")
@data_dir_option
@click.option(
    "--lake",
    "lake_path",
    type=lake_place,
    metavar="PATH",
    help="Ask the pipeline's tables instead.",
)
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

    The directory holds a log, the logs of many devices, or a hub; the column device names
    the device of a row. Tables have the names and columns of the pipeline: taskq sql "DESCRIBE
    jobs" lists them. Attempts have state, wait_seconds and run_seconds, too. payload_text is a
    payload as text. Unreadable logs are named, and the others answer; then it exits with 1.
    QUERY reads these tables, and no file of this machine. Memory is bounded.
    Needs the extra sql, with --lake the extra spark.
    """
    what, extra = ("taskq sql", "sql") if lake_path is None else ("taskq sql --lake", "spark")
    problems: list[str] = []
    try:
        import duckdb  # noqa: PLC0415 - help must not need the extra

        import_arrow()
        from taskq.arrow import decoder  # noqa: F401, PLC0415 - needs pyarrow
        from taskq_plugins.spark import log_tables  # noqa: PLC0415 - needs pyarrow

        tables: Iterable[str] = log_tables.LOG_TABLES
        try:
            if lake_path is not None:
                lake = _tables_of_lake(lake_path, query)
                tables = lake
                answered = log_tables.answer(query, lake)
            else:
                answered = log_tables.ask_logs(query, data_dir, problems)
        except duckdb.Error as error:
            reason = flat(str(error).partition("\n\n")[0].replace("\n", " "))
            raise WrongUsage(f"{reason} The tables are: {', '.join(tables)}") from None
    except ImportError as error:
        raise Failure(missing(what, error.name, extra)) from error
    if as_json:
        rows = answered.to_pylist(maps_as_pydicts="lossy")
        render.echo(json.dumps(rows, indent=2, default=_as_json))
    else:
        print_rows(answered)
    for problem in problems[:_PROBLEMS_SHOWN_MAX]:
        render.echo(f"taskq: {flat(problem)}", err=True)
    if len(problems) > _PROBLEMS_SHOWN_MAX:
        render.echo(f"taskq: and {len(problems) - _PROBLEMS_SHOWN_MAX} more", err=True)
    if problems:
        context.exit(Failure.exit_code)


def _tables_of_lake(place: Path | str, query: str) -> dict[str, Any]:
    from taskq_plugins.spark.lake.store import Lake  # noqa: PLC0415 - needs the extra

    newest = Lake.open(place)
    newest.check()
    lake = newest.pinned()
    named = {word.lower() for word in re.findall(r"\w+", query)}
    known = lake.tables()
    return {name: lake.dataset(name) for name in known if name in named or not named & {*known}}


def print_rows(rows: pa.Table) -> None:
    columns = [
        f">{field.name}" if _NUMBERS.match(str(field.type)) else field.name for field in rows.schema
    ]
    values = rows.to_pylist(maps_as_pydicts="lossy")
    cells = ([_text(value) for value in row.values()] for row in values)
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
        value = json.dumps(value, default=_as_json)
    return printable(str(value)).replace("\n", "\\n")


def _as_json(value: object) -> object:
    """Convert a value that JSON lacks: times to ISO 8601, bytes to text or base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
