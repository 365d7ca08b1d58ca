"""What of a copy may go: found by reading alone, so that anybody may ask beside a server."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.engine import Replica, segment_name
from taskq_plugins.fleet.breaks import BREAKS
from taskq_plugins.hub.aside import IDENTITY, LOG, SEALS, SPILL, noted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from taskq.engine import Disk

_LSN_MAX: Final = 2**63


class Old(NamedTuple):
    """A file of a copy that a hub lets go, and its bytes."""

    name: str
    size: int


class Floor(NamedTuple):
    """What the COMPACTED records of a copy say, so that no more is read again.

    Attributes:
        breaks: lines that were noted of breaks: behind another the records may be others.
        since: the segment from where on they are read the next time.
        below: what is below this lsn was written again.
    """

    breaks: int = 0
    since: int = 0
    below: int = 0


def due(
    disk: Disk, path: str, log_id: UUID, before_ns: int, known: Floor
) -> tuple[list[Old], Floor]:
    """Return what a copy does not need any more, and what is known of it then.

    That are the oldest segments that arrived before that moment and of which the log itself says
    that all is written again, the bodies of then that nothing names any more, and what a break left
    if all of it is from then. While a break is being carried out nothing is due.
    """
    lines = noted(disk, path, BREAKS)
    if lines and lines[-1]["step"] == "begun":
        return [], known
    known = known if known.breaks == len(lines) else Floor(len(lines))
    folders = [f"{path}/old/{line['n']}" for line in lines if line["step"] == "done"]
    left = [folder for folder in folders if disk.status(f"{folder}/{IDENTITY}") is not None]
    files = Replica(disk, path, log_id)
    try:
        limit = first_young(disk, files, before_ns)
        if files.lsns and limit > files.lsns[0]:
            below = max(known.below, _floor(files, known.since))
            known = known._replace(since=files.lsns[-1], below=below)
        limit = min(limit, known.below)
        over = [segment for segment, following in pairwise(files.lsns) if following <= limit]
        gone = [Old(f"{LOG}/{segment_name(lsn)}", files.size(lsn)) for lsn in over]
        if over:
            gone += _unnamed(disk, files, left, files.lsns[len(over) :], before_ns)
    finally:
        files.forget()
    return [
        *gone,
        *(old for folder in left for old in _aside(disk, path, folder, before_ns)),
    ], known


def first_young(disk: Disk, files: Replica, before_ns: int) -> int:
    """Return the oldest segment that did not arrive before that moment, else more than any lsn."""
    for segment in files.lsns:
        if (disk.modified_ns(files.file_path(segment)) or before_ns) >= before_ns:
            return segment
    return _LSN_MAX


def _floor(files: Replica, since: int) -> int:
    """Return what the newest COMPACTED record says, which comes behind what it tells of."""
    segments = reversed([lsn for lsn in files.lsns if lsn >= since])
    return next(filter(None, map(files.compacted_below, segments)), 0)


def _unnamed(
    disk: Disk, files: Replica, left: list[str], kept: list[int], before_ns: int
) -> list[Old]:
    """Return the bodies of before that moment that no record of these segments names."""
    folder = f"{files.path}/{SPILL}"
    names = {
        name
        for name in disk.names(folder)
        if (disk.modified_ns(f"{folder}/{name}") or before_ns) < before_ns
    }
    for branch in left:  # who reads what was left looks for its bodies here
        names.difference_update(disk.names(f"{branch}/{SPILL}"))
    for segment in kept if names else ():
        names -= files.bodies_of(segment)
    statuses = ((name, disk.status(f"{folder}/{name}")) for name in sorted(names))
    return [Old(f"{SPILL}/{name}", status[2]) for name, status in statuses if status]


def _aside(disk: Disk, path: str, folder: str, before_ns: int) -> Iterator[Old]:
    """Yield the files of what a break left, if all are that old; the log's name first."""
    names = [f"{of}/{name}" for of in (LOG, SPILL) for name in disk.names(f"{folder}/{of}")]
    if all((disk.modified_ns(f"{folder}/{name}") or 0) < before_ns for name in names):
        for name in (IDENTITY, SEALS, *names):
            status = disk.status(f"{folder}/{name}")
            if status is not None:
                yield Old(f"{folder.removeprefix(f'{path}/')}/{name}", status[2])
