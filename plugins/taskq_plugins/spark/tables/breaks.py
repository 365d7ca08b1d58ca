"""Where logs do not go on as they were read: what is missing, and what was restored.

Jobs that were not over, and that no record tells of from ``goes_on_lsn`` to ``end_lsn``, have the
state ``lost``: whatever is not over is written again before a segment goes. So have those that only
the branch has which was left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from taskq_plugins.spark.source.going_on import COMPACTION
from taskq_plugins.spark.source.standing import Standing

_TEXT: Final = pa.string()
_LONG: Final = pa.int64()
BREAKS: Final = pa.schema(
    [
        ("device", _TEXT),
        ("log_id", _TEXT),
        ("kind", _TEXT),
        ("is_declared", pa.bool_()),
        ("branch", pa.int32()),
        ("lsn", _LONG),
        ("goes_on_lsn", _LONG),
        ("end_lsn", _LONG),
        ("cause", _TEXT),
    ]
)


def breaks(records: pa.Table, logs: Iterable[Standing]) -> pa.Table:
    """Return one row for each break that was declared, or found while reading.

    Args:
        records: those of kind "break".
        logs: those that are there, some with breaks that came before they were read.
    """
    rows = [_found(record) for record in records.to_pylist()]
    known = {_key(row): row for row in rows}
    for standing in logs:
        for declared_break in standing.breaks:
            row: dict[str, Any] = {
                "device": standing.log.device,
                "log_id": standing.log.log_id,
                "kind": "fork" if declared_break.is_fork else "gap",
                "is_declared": True,
                "lsn": declared_break.lsn,
                "goes_on_lsn": None if declared_break.is_fork else declared_break.at.segment,
                "end_lsn": declared_break.end_lsn,
                "cause": declared_break.cause,
            }
            known.setdefault(_key(row), row)
    return pa.Table.from_pylist(list(known.values()), BREAKS)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    where = row["goes_on_lsn"] or row["lsn"]
    return (row["log_id"], row["kind"], where, None if row["is_declared"] else row["branch"])


def _found(row: dict[str, Any]) -> dict[str, Any]:
    declared = json.loads(row["value"])
    return {
        "device": row["device"],
        "log_id": row["log_id"],
        "kind": declared["what"],
        "is_declared": "end_lsn" in declared and declared.get("cause") != COMPACTION,
        "branch": row["branch"],
        "lsn": row["lsn"],
        "goes_on_lsn": declared.get("goes_on"),
        "end_lsn": declared.get("end_lsn"),
        "cause": declared.get("cause"),
    }
