"""DuckDB that reads only given tables, and nothing else of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from taskq.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.lake.store import Lake

#: Settings made after all tables exist; the last one forbids any further change of settings.
_CLOSED: Final = (
    "SET TimeZone='UTC'",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


@contextmanager
def closed_duckdb(
    tables: Mapping[str, Any], store: Path | None = None, memory: str = ""
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with these tables; it reads nothing else of this machine.

    Payloads in bytes are also shown as text, if they are text.

    Args:
        tables: tables that Arrow can read, by name.
        store: directory for a copy of the tables, so that a query may read a stream twice.
        memory: limit of DuckDB's memory; by default most of the machine's.
    """
    database = ":memory:" if store is None else str(store / "tables.db")
    config: dict[str, Any] = {"memory_limit": memory} if memory else {}
    with (
        tempfile.TemporaryDirectory(prefix="taskq-sql-") as spill,
        duckdb.connect(database, config=config) as connection,
    ):
        connection.execute("SET temp_directory = ?", [spill])
        kind = "TEMP VIEW" if store is None else "TABLE"
        for name, table in tables.items():
            text = ""
            at = table.schema.get_field_index("payload")
            if at >= 0 and pa.types.is_binary(table.schema.types[at]):
                text = ", try(decode(payload)) AS payload_text"
            connection.register(f"_{name}", table)
            connection.execute(f"CREATE {kind} {name} AS SELECT *{text} FROM _{name}")  # noqa: S608
        for setting in _CLOSED:
            connection.execute(setting)
        yield connection


@contextmanager
def chosen(lake: Lake, table: str, where: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with the view ``rows``, filtered by one condition.

    The condition is first parsed alone. Otherwise a closing bracket in it could end the surrounding
    clause and begin another clause or statement.
    """
    try:
        with closed_duckdb({"rows": lake.dataset(table)}) as connection:
            connection.table("rows").filter(where)
            yield connection
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--where {where!r:.200}: {reason}. The columns of {table} are: "
            f"{', '.join(lake.schema(table).names)}"
        ) from error
