"""How far the tables have come with each log, and what is left to read."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from taskq_plugins.spark.lake.files import POSITION
from taskq_plugins.spark.lake.store import LOG_PART, OPEN_RECORDS, Lake
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.planning import left
from taskq_plugins.spark.source.standing import Standing, at_lsn, look

#: Of the last record of a log that the tables hold.
READ: Final = pa.schema(
    [("device", pa.string()), ("log_id", pa.string()), ("lsn", pa.int64()), ("ts_ns", pa.int64())]
)


class Position(NamedTuple):
    """The last record of a log that the tables hold."""

    device: str
    log_id: str
    lsn: int
    ts_ns: int


class LogProgress(NamedTuple):
    """One log; ``position`` is None if nothing was read of it, ``end_lsn`` None if it is gone.

    ``left_bytes`` are those of the log's frames behind it.
    """

    device: str
    log_id: str
    position: Position | None
    end_lsn: int | None
    left_bytes: int


def positions(lake: Lake) -> pa.Table:
    """Return the last record of each log (columns: READ).

    Raises:
        LakeDamaged: a file is missing.
    """
    paths = lake.paths(OPEN_RECORDS, lambda file: file.part == LOG_PART)
    if not paths:
        return READ.empty_table()
    rows = dataset.dataset(paths, format="parquet").to_table(
        columns=[*READ.names, "branch"],
        # Of a log of which nothing but damage was read, the row tells no record.
        filter=(pc.field("kind") == POSITION) & pc.field("lsn").is_valid(),
    )
    # One row for each stretch that was read without a gap: the last one tells how far.
    for name in ("branch", "lsn"):
        last = rows.group_by("log_id").aggregate([(name, "max")]).rename_columns(["log_id", name])
        rows = rows.join(last, ["log_id", name], join_type="left semi")
    return rows.select(READ.names)


def log_progress(lake: Lake, journals: Path | None) -> list[LogProgress]:
    """Return every log that the tables or the directory know, by device.

    Raises:
        OptionError: there is no such directory.
        LakeDamaged: a file is missing.
    """
    known = {row["log_id"]: Position(**row) for row in positions(lake).to_pylist()}
    there: list[LogProgress] = []
    if journals is not None:
        sight = look(read_options({"path": str(journals), "corruptMode": "skip"}))
        there = [_progress(log, known.pop(log.log.log_id, None)) for log in sight.standings]
    gone = (LogProgress(at.device, at.log_id, at, None, 0) for at in known.values())
    return sorted((*there, *gone), key=lambda progress: (progress.device, progress.log_id))


def _progress(standing: Standing, position: Position | None) -> LogProgress:
    log, end_lsn = standing.log, standing.end.mark.next_lsn
    here = standing.earliest if position is None else at_lsn(standing, position.lsn + 1)
    return LogProgress(log.device, log.log_id, position, end_lsn, left(standing, here).size_bytes)
