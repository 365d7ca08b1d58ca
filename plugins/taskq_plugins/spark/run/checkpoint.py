"""How far the stream came, held against what the lake committed.

Spark notes in the checkpoint what a micro-batch is to read (``offsets/<number>``) before it runs,
and that it ran (``commits/<number>``) afterwards; the lake commits in between. So the checkpoint
may be one batch behind the lake, with the very same offsets, and never ahead.
"""

from __future__ import annotations

import json
import shutil
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.values import parse_json
from taskq_plugins.spark.lake import Batch
from taskq_plugins.spark.lake.durable import publish, sync_directory
from taskq_plugins.spark.lake.errors import CheckpointMismatch
from taskq_plugins.spark.lake.store import OPEN_RECORDS
from taskq_plugins.spark.source.allotting import left
from taskq_plugins.spark.source.going_on import go_on, whole_until
from taskq_plugins.spark.source.options import read_options
from taskq_plugins.spark.source.positions import Offsets, offsets_from_json
from taskq_plugins.spark.source.problems import DataLoss, loss_handler
from taskq_plugins.spark.source.standing import Standing, look

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.lake import Lake
    from taskq_plugins.spark.source.positions import Position

_NONE: Final = -1
_TEXT_SIZE_MAX: Final = 256 * 1024 * 1024
#: What Spark notes of a batch that ran.
RAN: Final = b'v1\n{"nextBatchWatermarkMs":0}'
#: How its notes begin and end: with a version, and with an object.
_BEGIN: Final = b"v"
_END: Final = b"}"


class Checkpoint(NamedTuple):
    """What stands in the checkpoint's directory; numbers are -1 where there is none."""

    stream: str
    #: the last batch that was planned
    planned: int
    #: the last one that ran
    ran: int


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None where no stream ever started.

    Raises:
        CheckpointMismatch: it does not read.
    """
    planned, ran = _last(path / "offsets"), _last(path / "commits")
    try:
        stream = str(uuid.UUID(parse_json((path / "metadata").read_bytes())["id"]))
    except FileNotFoundError as error:
        if planned == ran == _NONE:
            return None
        raise CheckpointMismatch(path, "the file metadata is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatch(path, f"the file metadata does not read ({error})") from error
    return Checkpoint(stream, planned, ran)


def read_offsets(path: Path, number: int) -> str:
    """Return the text that Spark noted for a batch before it ran."""
    with (path / "offsets" / str(number)).open(encoding="utf-8") as file:
        return file.read(_TEXT_SIZE_MAX)


def _last(directory: Path) -> int:
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return _NONE
    return max((int(name) for name in names if name.isdigit()), default=_NONE)


def check(lake: Lake) -> None:
    """See that stream and tables agree, before anything is read.

    Raises:
        CheckpointMismatch: one of the two was removed or restored from a backup.
    """
    path = lake.checkpoint
    found, batch = read_checkpoint(path), lake.batch()
    if found is None:
        if batch is not None:
            raise CheckpointMismatch(
                path, f"is missing, while the tables hold everything up to batch {batch.number}"
            )
        return
    _check_whole(path, found)
    if batch is None:
        if found.ran != _NONE:
            raise CheckpointMismatch(path, f"has run batch {found.ran}, the tables hold none")
        return
    if found.stream != batch.stream:
        raise CheckpointMismatch(path, "is not the one that the tables were filled from")
    if found.ran > batch.number:
        raise CheckpointMismatch(
            path, f"has run batch {found.ran}, the tables hold those up to {batch.number}"
        )
    if found.ran < batch.number - 1 or found.planned < batch.number:
        raise CheckpointMismatch(
            path, f"has run batch {found.ran}, the tables hold those up to {batch.number} already"
        )
    if read_offsets(path, batch.number) != batch.offsets:
        raise CheckpointMismatch(
            path, f"plans other records for batch {batch.number} than the tables hold"
        )


def _check_whole(path: Path, found: Checkpoint) -> None:
    """See that what Spark goes on from is there: it does not wait for the disk with its notes.

    Raises:
        CheckpointMismatch: a power loss took bytes of it.
    """
    for name, number in (("offsets", found.planned), ("commits", found.ran)):
        if number == _NONE:
            continue
        data = (path / name / str(number)).read_bytes().rstrip()
        if not (data.startswith(_BEGIN) and data.endswith(_END)):
            raise CheckpointMismatch(path, f"its file {name}/{number} is not whole")


def restore(lake: Lake) -> None:
    """Make the checkpoint anew as it stood after the last commit; the old one is removed."""
    path, batch = lake.checkpoint, lake.batch()
    shutil.rmtree(path, ignore_errors=True)
    if batch is None:
        return
    for name in ("offsets", "commits", "sources"):
        (path / name).mkdir(parents=True, exist_ok=True)
    publish(path / "offsets" / str(batch.number), batch.offsets.encode())
    publish(path / "commits" / str(batch.number), RAN)
    publish(path / "metadata", json.dumps({"id": batch.stream}).encode())
    sync_directory(lake.path)


def forget_plan(lake: Lake) -> bool:
    """Let a batch be planned anew that did not run; False if a table has a part of it."""
    path = lake.checkpoint
    found = read_checkpoint(path)
    known = [lake.batch(table) for table in (*lake.tables(), OPEN_RECORDS) if lake.has(table)]
    if found is None or found.planned == found.ran:
        return False
    if any(batch is not None and batch.number >= found.planned for batch in known):
        return False
    for name in (str(found.planned), f".{found.planned}.crc"):
        (path / "offsets" / name).unlink(missing_ok=True)
    sync_directory(path / "offsets")
    return True


def batch_of(lake: Lake, number: int) -> Batch:
    """Return what a commit of this batch is to note.

    Raises:
        CheckpointMismatch: the checkpoint went while the stream runs.
    """
    found = read_checkpoint(lake.checkpoint)
    if found is None:
        raise CheckpointMismatch(lake.checkpoint, "was removed while the stream runs")
    return Batch(found.stream, number, read_offsets(lake.checkpoint, number))


# -- what the last offsets say of the logs ------------------------------------------------------


def held(checkpoint: Path) -> list[str]:
    """Why logs are not read on, a line for each."""
    return sorted(one.held for one in _offsets(checkpoint).values() if one.held)


def branches(checkpoint: Path) -> dict[str, tuple[str, int]]:
    """(device, how often the log was found restored), by log id."""
    return {log_id: (one.device, one.branch) for log_id, one in _offsets(checkpoint).items()}


def unread_bytes(checkpoint: Path, journals: Path, corrupt: str) -> int:
    """Return how much there is to read; 1 stands for a log that is to be held and is not yet.

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
