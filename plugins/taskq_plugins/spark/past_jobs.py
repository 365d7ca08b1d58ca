"""Select finished jobs of a lake by SQL and turn them into calls; by DuckDB, without Java."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from taskq import Call
from taskq.arrow import LEFT_OUT
from taskq.engine import Flag
from taskq.errors import TaskqError, UsageError
from taskq.hooks import Options
from taskq.reading.replay import REPLAY_HEADER
from taskq.views import SETTLED_STATES

_BATCH_ROWS: Final = 4_096
#: Jobs that cannot be enqueued again are listed up to this number, then counted.
PROBLEMS_MAX: Final = 1_000
_OVER: Final = ", ".join(f"'{state.name.lower()}'" for state in sorted(SETTLED_STATES))
_ORDER: Final = "enqueued_ns, log_id, job"
_SHOWN: Final = "job_id, device, task, queue, state, enqueued_at, reason"
_NEEDED: Final = (
    "job_id, queue, task, priority, attempts_max, stores_result, headers, payload"
)  # fmt: skip


class Counted(NamedTuple):
    """Jobs chosen by a condition.

    Attributes:
        over: finished jobs, by state.
        live: waiting or running jobs, which are never enqueued again.
        sample: some finished jobs, oldest first.
    """

    over: dict[str, int]
    live: int
    sample: pa.Table

    @property
    def jobs(self) -> int:
        return sum(self.over.values())


class PastJobs:
    """The jobs of a lake that match a condition.

    Args:
        connection: a database with the jobs as the view ``rows``.
        where: a condition in SQL over the columns of the table ``jobs``.

    Attributes:
        problems: (id, reason) of the first PROBLEMS_MAX jobs that could not become calls.
        problem_count: number of all such jobs.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, where: str) -> None:
        self._duck = connection
        self._where = where
        self.problems: list[tuple[str, str]] = []
        self.problem_count = 0

    def counted(self, sample_rows: int) -> Counted:
        limit = f"AND state IN ({_OVER}) ORDER BY {_ORDER} LIMIT {sample_rows}"
        states = self._select("state, count(*)", "GROUP BY state ORDER BY state").fetchall()
        sample = self._select(_SHOWN, limit).to_arrow_table()
        known = {state.name.lower() for state in SETTLED_STATES}
        over = {state: count for state, count in states if state in known}
        return Counted(over, sum(count for _, count in states) - sum(over.values()), sample)

    def calls(self) -> Iterator[list[Call[Any]]]:
        chosen = self._select(_NEEDED, f"AND state IN ({_OVER}) ORDER BY {_ORDER}")
        for batch in chosen.to_arrow_reader(_BATCH_ROWS):
            yield list(self._calls_of(batch.to_pylist()))

    def _calls_of(self, rows: list[dict[str, Any]]) -> Iterator[Call[Any]]:
        for row in rows:
            try:
                yield _again(row)
            except TaskqError as error:
                self.problem_count += 1
                if self.problem_count <= PROBLEMS_MAX:
                    self.problems.append((row["job_id"], str(error)))

    def _select(self, what: str, group: str) -> duckdb.DuckDBPyRelation:
        # The condition is SQL of the caller, on purpose; the rest is constant.
        return self._duck.sql(f"SELECT {what} FROM rows WHERE ({self._where}\n) {group}")  # noqa: S608


def _again(row: dict[str, Any]) -> Call[Any]:
    task, payload = row["task"] or "", row["payload"]
    if payload is None and task:
        raise UsageError("its payload is not in the lake, since it could not be read there")
    payload = payload or b""
    if payload.startswith(LEFT_OUT):
        raise UsageError(
            "its payload was too large for the lake: use taskq replay there, or fill a lake with "
            "run --payloads full"
        )
    # Due time, expiry and key belonged to the old job, so the new one has none.
    headers = {**dict(row["headers"] or ()), REPLAY_HEADER: row["job_id"]}
    flags = Flag(0) if row["stores_result"] is not False else Flag.DROP_RESULT
    chosen = Options(
        queue=row["queue"], priority=row["priority"], attempts=row["attempts_max"] or 0
    ).changed({"headers": headers})
    return Call(
        name=task, task=None, body=payload, flags=flags, chosen=chosen,
        spec=chosen.spec(task, flags), extras=chosen.fixed_extras(task or "a job"),
    )  # fmt: skip
