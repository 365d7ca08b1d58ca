"""Segments that are not part of the log any more, and whose files are still to be removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from taskq.log.ports import Disk

#: What is behind the name of such a segment.
GONE: Final = ".gone"


def sweep_gone(disk: Disk, directory: str) -> None:
    """Remove their files, also those that a killed process left; no lock is needed."""
    for name in disk.names(directory):
        if name.endswith(GONE):
            disk.remove(f"{directory}/{name.removesuffix('.log' + GONE)}.idx")
            disk.remove(f"{directory}/{name}")
