"""Rows of a table by SQL, with duckdb over the files of its newest version."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb

from taskq.errors import UsageError
from taskq_plugins.spark.closed import closed_duckdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from taskq_plugins.spark.lake.store import Lake

#: A column that is made of another: the payload as text, which is mostly JSON.
PAYLOAD_TEXT: Final = "payload_text"
#: What is shown of a table unless columns are named: what fits a terminal.
COLUMNS: Final = {
    "records": "device lsn timestamp kind job_id queue task attempt",
    "jobs": "job_id device queue task state attempt enqueued_at settled_at reason",
    "attempts": "job_id device task number outcome started_at wait_ns run_ns reason",
    "rollup_hour": "hour device queue task enqueued settled dead failure_rate wait_p95_seconds"
    " run_p95_seconds",
    "failures": "task pattern failed_attempts dead_jobs devices poison last_seen",
    "device_lag": "device last_record_at record_lag_seconds clock clock_skew_seconds waiting"
    " dead missing_segments",
    "breaks": "device kind is_declared branch lsn goes_on_lsn end_lsn cause",
}
#: In which order, unless told otherwise.
_ORDERS: Final = {
    "rollup_hour": "hour, device, queue, task",
    "failures": "failed_attempts DESC, fingerprint",
    "device_lag": "device, log_id",
    "breaks": "device, log_id, lsn",
}


class Query(NamedTuple):
    """What is asked of a table; ``where`` is a condition in SQL."""

    table: str
    columns: Sequence[str] = ()
    where: str | None = None
    limit: int | None = None


def rows(lake: Lake, query: Query) -> pa.Table:
    """Return the rows that are asked for.

    Raises:
        UsageError: a column is unknown, or the condition does not read.
        LakeError: there is no such table.
    """
    known = list(lake.schema(query.table).names)
    if "payload" in known:
        known.append(PAYLOAD_TEXT)
    for name in query.columns:
        if name not in known:
            raise UsageError(f"{query.table} has no column {name!r}; it has: {', '.join(known)}")
    columns = query.columns or [name for name in _default(query.table) if name in known] or known
    order = _ORDERS.get(query.table, "") if not query.columns else ""
    return select(lake, query, ", ".join(map(_quoted, columns)), order)


def select(lake: Lake, query: Query, what: str, order: str = "", group: str = "") -> pa.Table:
    """``SELECT what FROM table WHERE …``; what, order and group are ours.

    Raises:
        UsageError: the condition does not read.
        LakeError: there is no such table.
    """
    # Only names of columns that are there, and SQL that the caller gives on purpose.
    text = f"SELECT {what} FROM rows"  # noqa: S608
    if query.where is not None:
        text += f" WHERE ({query.where}\n)"
    text += f" GROUP BY {group}" if group else ""
    text += f" ORDER BY {order}" if order else ""
    text += f" LIMIT {query.limit}" if query.limit is not None else ""
    with chosen(lake, query.table, query.where) as connection:
        return connection.sql(text).to_arrow_table()


@contextmanager
def chosen(lake: Lake, table: str, where: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with the table as ``rows``, for what the condition chooses of it.

    Let pass nothing but one condition over these rows: brackets of its own could end the place that
    it is put in and begin something else there, a further choice of rows or a statement.

    Raises:
        UsageError: the condition does not read, or does not fit the rows that it meets.
        LakeError: there is no such table.
    """
    try:
        with closed_duckdb({"stored": lake.dataset(table)}) as connection:
            connection.execute(_view(lake.schema(table).names))
            if where is not None:
                connection.table("rows").filter(where)
            yield connection
    except duckdb.Error as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--where {where!r:.200}: {reason}. The columns of {table} are: "
            f"{', '.join(lake.schema(table).names)}"
        ) from error


def _view(names: Sequence[str]) -> str:
    """Return what shows the stored rows; payloads as text, too, unless they are none."""
    text = f", try(decode(payload)) AS {PAYLOAD_TEXT}" if "payload" in names else ""
    return f"CREATE TEMP VIEW rows AS SELECT *{text} FROM stored"  # noqa: S608 - all of it is ours


def _default(table: str) -> list[str]:
    return COLUMNS.get(table, "").split()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Bar(NamedTuple):
    """One bar of a chart: how much went well, and how much did not."""

    label: str
    good: float
    bad: float


_BY_HOUR: Final = "strftime(date_trunc('hour', {moment}), '%Y-%m-%d %H:00')"
#: table -> (title, label, sum of what went well, of what did not, order, whether the last ones)
_CHARTS: Final = {
    "rollup_hour": ("jobs settled per hour", _BY_HOUR.format(moment="hour"),
                    "sum(settled - dead)", "sum(dead)", True),
    "jobs": ("jobs settled per hour", _BY_HOUR.format(moment="settled_at"),
             "count(*) FILTER (state <> 'dead')", "count(*) FILTER (state = 'dead')", True),
    "attempts": ("attempts ended per hour", _BY_HOUR.format(moment="ended_at"),
                 "count(*) FILTER (outcome IN ('succeeded', 'released'))",
                 "count(*) FILTER (outcome NOT IN ('succeeded', 'released'))", True),
    "records": ("records written per hour", _BY_HOUR.format(moment='"timestamp"'),
                "count(*)", "0", True),
    "failures": ("failed attempts", "coalesce(task, '-') || '  ' || pattern",
                 "0", "sum(failed_attempts)", False),
    "device_lag": ("jobs waiting, and dead", "device", "sum(waiting)", "sum(dead)", False),
}  # fmt: skip


def chart(lake: Lake, query: Query) -> tuple[str, list[Bar]]:
    """Return title and bars of a table's picture: its last hours, or its largest entries.

    Raises:
        UsageError: the table has no picture.
        LakeError: there is no such table.
    """
    if query.table not in _CHARTS:
        known = ", ".join(_CHARTS)
        raise UsageError(f"--chart: {query.table} has no picture; there is one of {known}")
    title, label, good, bad, by_time = _CHARTS[query.table]
    what = f"{label} AS label, {good} AS good, {bad} AS bad"
    order = "label DESC" if by_time else "good + bad DESC, label"
    rows: list[dict[str, Any]] = select(lake, query, what, order, "label").to_pylist()
    bars = [
        Bar(row["label"], float(row["good"] or 0), float(row["bad"] or 0))
        for row in rows
        if row["label"] is not None
    ]
    return title, bars[::-1] if by_time else bars
