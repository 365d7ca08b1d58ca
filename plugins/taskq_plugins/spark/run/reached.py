"""Keep how far the logs were read in the tables, with the batch that brought it there.

A batch commits one table after the other. So ``records``, the first, may be one batch ahead of
``jobs``, the last: then that batch is made once more, of the very same records.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.values import parse_json
from taskq_plugins.spark.lake import Batch
from taskq_plugins.spark.lake.errors import LakeDamaged
from taskq_plugins.spark.lake.store import ATTEMPTS, JOBS, OPEN_RECORDS, RECORDS
from taskq_plugins.spark.source.allotting import left
from taskq_plugins.spark.source.going_on import go_on, whole_until
from taskq_plugins.spark.source.positions import Offsets, offsets_from_json, offsets_to_json
from taskq_plugins.spark.source.problems import DataLoss, loss_handler
from taskq_plugins.spark.source.standing import Standing, look

if TYPE_CHECKING:
    from taskq_plugins.spark.lake import Lake
    from taskq_plugins.spark.source.options import ReadOptions
    from taskq_plugins.spark.source.positions import Position

#: In the order in which a batch commits them.
BASE: Final = (RECORDS, ATTEMPTS, OPEN_RECORDS, JOBS)
#: What stands before offsets: a checkpoint of Spark's has it so, and earlier versions kept one.
_HEAD: Final = "v1\n{}\n"


class Reached(NamedTuple):
    """Hold what the tables say of a run's place.

    Attributes:
        stream: what their batches are of.
        number: of the last batch that all of them have, -1 before the first.
        offsets: how far that one read each log.
        begun: the next one, if some tables have it already.
    """

    stream: str
    number: int
    offsets: Offsets
    begun: Batch | None

    def next(self, offsets: Offsets) -> Batch:
        """Return the batch behind, which reads the logs up to there."""
        return Batch(self.stream, self.number + 1, _HEAD + json.dumps(offsets_to_json(offsets)))


def reached(lake: Lake) -> Reached:
    """Return how far the tables have come.

    Raises:
        LakeDamaged: one of them was removed, or restored from a backup, without the others.
    """
    batches = [lake.batch(table) for table in BASE]
    numbers = [-1 if batch is None else batch.number for batch in batches]
    streams = {batch.stream for batch in batches if batch is not None}
    # Each is as far as the one before it, and the last at most one batch behind.
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
    stream = streams.pop() if streams else str(uuid.uuid4())
    return Reached(stream, numbers[-1], offsets_of(batches[-1]), begun)


def offsets_of(batch: Batch | None) -> Offsets:
    """Return how far a batch read each log."""
    if batch is None or not batch.offsets:
        return {}
    return offsets_from_json(parse_json(batch.offsets.rstrip().rpartition("\n")[2]))


def held(offsets: Offsets) -> list[str]:
    """Return why logs are not read on, a line for each."""
    return sorted(position.held for position in offsets.values() if position.held)


def unread_bytes(offsets: Offsets, options: ReadOptions) -> int:
    """Return how much there is to read; 1 stands for a log to be held, or to be held no more.

    Raises:
        Unreadable: a log cannot be read, and the options say to fail then.
        FleetError: nor can the directory.
    """
    sight = look(options)
    holds = options.fail_on_data_loss == "hold"
    there = {standing.log.log_id for standing in sight.standings}
    devices = {standing.log.device for standing in sight.standings}
    gone = sum(
        log_id not in there and at.device not in devices and bool(at.held) is not holds
        for log_id, at in offsets.items()
    )
    logs = ((log, offsets.get(log.log.log_id)) for log in sight.standings)
    return gone + sum(_unread(log, position, holds=holds) for log, position in logs)


def _unread(standing: Standing, position: Position | None, *, holds: bool) -> int:
    if position is None:
        return left(standing, standing.earliest).size_bytes if standing.end.mark.segment else 0
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
