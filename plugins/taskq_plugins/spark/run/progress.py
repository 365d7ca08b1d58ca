"""Place of each log in the tables, with the batch that brought it there.

A batch commits one table after the other. So ``records``, the first, may be one batch ahead of
``jobs``, the last: then that batch is made again from the same records. Both hold the place in the
logs that moved, and now and then in all logs.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from taskq.values import parse_json
from taskq_plugins.spark.lake.errors import LakeDamaged
from taskq_plugins.spark.lake.files import POSITION
from taskq_plugins.spark.lake.store import (
    ATTEMPTS,
    BORDERS,
    JOBS,
    LOG_PART,
    OPEN_RECORDS,
    RECORDS,
    Lake,
    LakeBatch,
)
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.planning import left
from taskq_plugins.spark.source.positions import (
    DataLoss,
    LogPosition,
    Offsets,
    loss_handler,
    offsets_from_json,
    offsets_to_json,
)
from taskq_plugins.spark.source.resume import go_on, whole_until
from taskq_plugins.spark.source.snapshot import FleetSnapshot, LogInventory, at_lsn, look

if TYPE_CHECKING:
    from taskq_plugins.spark.source.options import ReadOptions

#: In the order in which a batch commits them.
BASE: Final = (RECORDS, ATTEMPTS, OPEN_RECORDS, JOBS)
#: How many logs take as long to read as a commit more, at most.
_COMMIT_LOGS: Final = 20
#: Current batch and number of tries: a process killed for its memory cannot report that.
_TRYING: Final = "_trying"
_TRIES_MAX: Final = 8


class Reached(NamedTuple):
    """State of a run as stored in the tables.

    Attributes:
        stream: name of the sequence of batches.
        number: last batch of all tables, -1 before the first.
        offsets: place in each log after that batch.
        begun: next batch, if some tables have it already.
        weight: cost of reading the moved logs since the last full list.
    """

    stream: str
    number: int
    offsets: Offsets
    begun: LakeBatch | None
    weight: float = 0

    def next(self, offsets: Offsets) -> LakeBatch:
        moved = {log: at for log, at in offsets.items() if self.offsets.get(log) != at}
        weight = self.weight + _weight(moved, len(offsets))
        is_whole = self.number < 0 or weight >= len(offsets)
        text = _text(offsets if is_whole else moved)
        return LakeBatch(self.stream, self.number + 1, text, is_whole)

    def ends(self, batch: LakeBatch) -> Offsets:
        return self.offsets | offsets_of(batch)

    def then(self, batch: LakeBatch) -> Reached:
        offsets = self.ends(batch)
        weight = 0 if batch.is_whole else self.weight + _weight(offsets_of(batch), len(offsets))
        return Reached(batch.stream, batch.number, offsets, None, weight)


def _text(offsets: Offsets) -> str:
    return json.dumps(offsets_to_json(offsets), separators=(",", ":"))


def _weight(moved: Offsets, count: int) -> float:
    return len(moved) + min(count / 100, _COMMIT_LOGS)


#: How far a lake was when it was looked at last.
_seen: Final[WeakKeyDictionary[Lake, Reached]] = WeakKeyDictionary()


def reached(lake: Lake) -> Reached:
    batches = [lake.batch(table) for table in BASE]
    numbers = [-1 if batch is None else batch.number for batch in batches]
    streams = {batch.stream for batch in batches if batch is not None}
    # Numbers go up by one, and the last table lags by at most one batch.
    in_order = numbers == sorted(numbers, reverse=True) and numbers[0] - numbers[-1] <= 1
    is_lost = batches[-1] is None and lake.has(JOBS) and lake.delta(JOBS).version() > 0
    if not in_order or len(streams) > 1 or is_lost:
        stand = ", ".join(f"{table} {at}" for table, at in zip(BASE, numbers, strict=True))
        raise LakeDamaged(
            lake.path,
            f"its tables were filled up to other batches each ({stand}), so that going on would "
            f"leave records out or count them twice",
        )
    begun = batches[0] if numbers[0] > numbers[-1] else None
    if numbers[-1] < 0:
        return Reached(streams.pop() if streams else str(uuid.uuid4()), -1, {}, begun)
    _seen[lake] = at = _found(lake, JOBS, _seen.get(lake))
    return at._replace(begun=begun)


def _found(
    lake: Lake, table: str, seen: Reached | None = None, number: float = math.inf
) -> Reached:
    """Return the place in each log after a batch, by default the table's last.

    ``seen`` is the place known before.
    """
    behind: list[LakeBatch] = []
    for batch in lake.batches(table):
        if seen is not None and (seen.stream, seen.number) == (batch.stream, batch.number):
            at = seen
            break
        if batch.number <= number:
            behind.append(batch)
            if batch.is_whole:
                at = Reached(batch.stream, batch.number, {}, None)
                break
    else:
        raise LakeDamaged(lake.path / table, "does not tell how far all logs were read")
    for batch in reversed(behind):
        at = at.then(batch)
    return at


def reference(lake: Lake, lost: Collection[str]) -> LakeBatch:
    there = [table for table in BASE if table not in lost and lake.batch(table)]
    tells = [table for table in there if table in BORDERS]
    if not tells:
        raise LakeDamaged(
            lake.path, "none of its tables says how far the logs were read: fill another one"
        )
    number = min(batch.number for table in there if (batch := lake.batch(table)))
    at = _found(lake, tells[0], number=number)
    return LakeBatch(at.stream, at.number, _text(at.offsets))


def tries(lake: Lake, number: int) -> int:
    with suppress(OSError, ValueError):
        tried, count = map(int, (lake.path / _TRYING).read_text().split())
        return min(count, _TRIES_MAX) if tried == number else 0
    return 0


def trying(lake: Lake, number: int, count: int) -> None:
    with suppress(OSError):  # it is only about how large the next one is
        (lake.path / _TRYING).write_text(f"{number} {count}")


def offsets_of(batch: LakeBatch | None) -> Offsets:
    if batch is None or not batch.offsets:
        return {}
    # In lakes of earlier versions the head of a checkpoint of Spark's stands before.
    return offsets_from_json(parse_json(batch.offsets.rstrip().rpartition("\n")[2]))


def held(offsets: Offsets) -> list[str]:
    return sorted(position.held for position in offsets.values() if position.held)


def unread_bytes(offsets: Offsets, options: ReadOptions, sight: FleetSnapshot) -> int:
    """Return how much there is to read; 1 stands for a log to be held, or to be held no more.

    Args:
        offsets: up to where the logs were read.
        options: how they are.
        sight: the logs as they stand.
    """
    holds = options.fail_on_data_loss == "hold"
    there = {standing.log.log_id for standing in sight.standings}
    devices = {standing.log.device for standing in sight.standings}
    gone = sum(
        log_id not in there and at.device not in devices and bool(at.held) is not holds
        for log_id, at in offsets.items()
    )
    logs = ((log, offsets.get(log.log.log_id)) for log in sight.standings)
    return gone + sum(_unread(log, position, holds=holds) for log, position in logs)


def _unread(standing: LogInventory, position: LogPosition | None, *, holds: bool) -> int:
    if position is None:
        return left(standing, standing.earliest).size_bytes if standing.end.mark.segment else 0
    if position.is_at(standing.latest):
        return 1 if position.held else 0
    try:
        here = go_on(standing, position, loss_handler("hold" if holds else "false"))
    except (DataLoss, FileNotFoundError):
        return 0 if position.held else 1
    if here is None:
        return 0
    is_held = holds and position.held
    if is_held and whole_until(standing, here, standing.latest).place == here.place:
        return 0
    return left(standing, here).size_bytes


#: Last record of each log in the tables.
READ: Final = pa.schema(
    [("device", pa.string()), ("log_id", pa.string()), ("lsn", pa.int64()), ("ts_ns", pa.int64())]
)


class ReadPosition(NamedTuple):
    """The last record of a log that the tables hold."""

    device: str
    log_id: str
    lsn: int
    ts_ns: int


class LogProgress(NamedTuple):
    """Progress in one log.

    ``position`` is None if the log was never read, ``end_lsn`` if it is gone. ``left_bytes`` counts
    the bytes of unread frames.
    """

    device: str
    log_id: str
    position: ReadPosition | None
    end_lsn: int | None
    left_bytes: int


def positions(lake: Lake) -> pa.Table:
    paths = lake.paths(OPEN_RECORDS, lambda file: file.part == LOG_PART)
    if not paths:
        return READ.empty_table()
    rows = dataset.dataset(paths, format="parquet").to_table(
        columns=[*READ.names, "branch"],
        # A log of which only damage was read has no record in the row.
        filter=(pc.field("kind") == POSITION) & pc.field("lsn").is_valid(),
    )
    # One row for each stretch without a gap: the last has the place.
    for name in ("branch", "lsn"):
        last = rows.group_by("log_id").aggregate([(name, "max")]).rename_columns(["log_id", name])
        rows = rows.join(last, ["log_id", name], join_type="left semi")
    return rows.select(READ.names)


def log_progress(lake: Lake, journals: Path | None) -> list[LogProgress]:
    known = {row["log_id"]: ReadPosition(**row) for row in positions(lake).to_pylist()}
    there: list[LogProgress] = []
    if journals is not None:
        sight = look(read_options({"path": str(journals), "corruptMode": "skip"}))
        there = [_progress(log, known.pop(log.log.log_id, None)) for log in sight.standings]
    gone = (LogProgress(at.device, at.log_id, at, None, 0) for at in known.values())
    return sorted((*there, *gone), key=lambda progress: (progress.device, progress.log_id))


def _progress(standing: LogInventory, position: ReadPosition | None) -> LogProgress:
    log, end_lsn = standing.log, standing.end.mark.next_lsn
    here = standing.earliest if position is None else at_lsn(standing, position.lsn + 1)
    return LogProgress(log.device, log.log_id, position, end_lsn, left(standing, here).size_bytes)
