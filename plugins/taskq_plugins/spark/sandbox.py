"""DuckDB that reads the tables which it is given, and nothing else of this machine."""

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

#: Set once all tables are there; the last one lets nothing be set again.
_CLOSED: Final = (
    "SET TimeZone='UTC'",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


#: A column that is made of another: the payload as text, which is mostly JSON.
PAYLOAD_TEXT: Final = "payload_text"


@contextmanager
def closed_duckdb(
    tables: Mapping[str, Any], store: Path | None = None, memory: str = ""
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with these tables, which reads nothing else of this machine.

    Payloads that are bytes are there as text, too, unless they are none.

    Args:
        tables: what Arrow can read, by name.
        store: directory for a copy of the tables, so that a query may read a stream twice.
        memory: how much DuckDB may take; by default most of the machine's.
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
                text = f", try(decode(payload)) AS {PAYLOAD_TEXT}"
            connection.register(f"_{name}", table)
            connection.execute(f"CREATE {kind} {name} AS SELECT *{text} FROM _{name}")  # noqa: S608
        for setting in _CLOSED:
            connection.execute(setting)
        yield connection


@contextmanager
def chosen(lake: Lake, table: str, where: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with the view ``rows``, filtered by one condition.

    The condition is parsed alone first: brackets of its own could otherwise close the place it is
    put in, and begin another clause or statement.
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
