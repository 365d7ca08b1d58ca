"""DuckDB that reads the tables which it is given, and nothing else of this machine."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Set once all tables are there; the last one lets nothing be set again.
_CLOSED: Final = (
    "SET TimeZone='UTC'",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


@contextmanager
def closed_duckdb(tables: Mapping[str, Any]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with these tables, which reads nothing else of this machine."""
    with tempfile.TemporaryDirectory(prefix="taskq-sql-") as spill, duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        connection.execute("SET temp_directory = ?", [spill])
        for setting in _CLOSED:
            connection.execute(setting)
        yield connection
