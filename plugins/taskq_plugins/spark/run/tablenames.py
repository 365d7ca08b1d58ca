"""Names of the tables, and which of the derived ones are behind; needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq_plugins.spark.lake.store import OPEN_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq_plugins.spark.lake import Manifest

RECORDS: Final = "records"
JOBS: Final = "jobs"
ATTEMPTS: Final = "attempts"
#: Tables that each micro-batch commits.
BASE: Final = (RECORDS, JOBS, ATTEMPTS, OPEN_RECORDS)
#: The derived tables, in the order in which they are computed.
DERIVED: Final = ("rollup_hour", "rollup_fleet_hour", "failures", "duplicates", "device_lag")


def base_version(manifest: Manifest) -> int:
    """The version that changed the base tables last, 0 if none did."""
    files = (file.version for name in BASE for file in manifest.table(name).files)
    return max(files, default=0)


def stale(manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Those of the derived tables that were computed before the base tables last changed."""
    base = base_version(manifest)
    wanted = frozenset(names)
    return [name for name in DERIVED if name in wanted and _computed(manifest, name) < base]


def _computed(manifest: Manifest, name: str) -> int:
    refresh = manifest.table(name).refresh
    return refresh.version if refresh is not None else 0
