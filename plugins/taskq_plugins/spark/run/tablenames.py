"""Names of the tables, and which of the derived ones are behind; needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq_plugins.spark.lake import Lake

RECORDS: Final = "records"
JOBS: Final = "jobs"
ATTEMPTS: Final = "attempts"
#: Tables that have days.
DATED: Final = (RECORDS, JOBS, ATTEMPTS, "rollup_hour")
#: The derived tables, in the order in which they are computed.
DERIVED: Final = ("rollup_hour", "failures", "duplicates", "device_lag", "breaks")


def stale(lake: Lake, names: Iterable[str]) -> list[str]:
    """Those of the derived tables that were computed before the last batch."""
    last = lake.batch()
    if last is None:
        return []
    wanted = frozenset(names)
    return [name for name in DERIVED if name in wanted and _computed(lake, name) < last.number]


def _computed(lake: Lake, name: str) -> int:
    batch = lake.batch(name)
    return -1 if batch is None else batch.number
