"""Segments that are not part of the log any more, and whose files are still to be removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from taskq.log.ports import Disk

#: What is behind the name of such a segment.
GONE: Final = ".gone"
#: Ends the name of an empty file: compaction took what begins before that lsn. The log itself says
#: so in a COMPACTED record; by this name nobody has to look for that.
FLOOR: Final = ".floor"


def sweep_gone(disk: Disk, directory: str) -> None:
    """Remove their files, also those that a killed process left; no lock is needed."""
    names = disk.names(directory)
    for name in [one for one in names if one.endswith(FLOOR)][:-1]:
        disk.remove(f"{directory}/{name}")
    for name in names:
        if name.endswith(GONE):
            disk.remove(f"{directory}/{name.removesuffix('.log' + GONE)}.idx")
            disk.remove(f"{directory}/{name}")
