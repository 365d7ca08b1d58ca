"""What the stream's last offsets say of the logs: what is unread, and which are held, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.parsing import parse_json
from taskq_plugins.spark.run.checkpoint import read_checkpoint, read_offsets
from taskq_plugins.spark.source.allotting import left
from taskq_plugins.spark.source.going_on import go_on, whole_until
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import Offsets, offsets_from_json
from taskq_plugins.spark.source.problems import DataLoss, loss_handler
from taskq_plugins.spark.source.standing import Standing, look

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.source.positions import Position


def held(checkpoint: Path) -> list[str]:
    """Why logs are not read on, a line for each."""
    return sorted(one.held for one in _offsets(checkpoint).values() if one.held)


def branches(checkpoint: Path) -> dict[str, tuple[str, int]]:
    """(device, how often the log was found restored), by log id."""
    return {log_id: (one.device, one.branch) for log_id, one in _offsets(checkpoint).items()}


def unread_bytes(checkpoint: Path, journals: Path, corrupt: str) -> int:
    """How much there is to read; 1 stands for a log that is to be held and is not yet.

    Raises:
        Unreadable: a log cannot be read, and ``corrupt`` is "fail".
        FleetError: nor can the directory.
    """
    offsets = _offsets(checkpoint)
    sight = look(read_options({"path": str(journals), "corruptMode": corrupt}))
    there = {one.log.log_id for one in sight.standings}
    devices = {one.log.device for one in sight.standings}
    gone = sum(
        one not in there and at.device not in devices and not at.held for one, at in offsets.items()
    )
    return gone + sum(_unread(one, offsets.get(one.log.log_id)) for one in sight.standings)


def _unread(standing: Standing, position: Position | None) -> int:
    if position is None:
        return left(standing, standing.earliest).size_bytes if standing.end.mark.segment else 0
    try:
        here = go_on(standing, position, loss_handler("hold"))
    except (DataLoss, FileNotFoundError):
        return 0 if position.held else 1
    if here is None:
        return 0
    if position.held and whole_until(standing, here, standing.latest).place == here.place:
        return 0
    return left(standing, here).size_bytes


def _offsets(checkpoint: Path) -> Offsets:
    found = read_checkpoint(checkpoint)
    if found is None or found.planned < 0:
        return {}
    text = read_offsets(checkpoint, found.planned).rstrip().rpartition("\n")[2]
    return offsets_from_json(parse_json(text))
