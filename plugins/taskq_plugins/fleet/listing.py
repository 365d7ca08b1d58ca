"""The segments of a log that was found; a scan looks only at files that changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from taskq.arrow.problems import shown
from taskq.engine import segment_lsn
from taskq.errors import LogError
from taskq_plugins.fleet.breaks import breaks
from taskq_plugins.fleet.memory import Memory
from taskq_plugins.fleet.places import LogPlace, SegmentPlace
from taskq_plugins.fleet.problems import FleetError, tell
from taskq_plugins.fleet.segmentfile import START, SegmentFile

#: Segments that one log may have: 128 TiB of the usual size.
SEGMENTS_MAX: Final = 2_000_000
#: Epochs of segments, by path, inode and time: a header is written once, but a file that is brought
#: back from a backup may get the number of the one before it.
_epochs: Final[Memory[tuple[str, int, int], int]] = Memory()


def segments(
    log: LogPlace, *, on_problem: Callable[[LogError], None] | None = None
) -> list[SegmentPlace]:
    """Return the log's segments, oldest first; none when the log has none yet or is gone.

    Of a hub's copy also those from before each gap, which it set aside.

    A file that holds no more than a part of a header is none. Sizes are final but for the last's.

    Args:
        log: whose.
        on_problem: told of a segment that cannot be used; without it the problem is raised.

    Raises:
        SegmentUnreadable: a file cannot be opened.
        FormatError: a newer taskq wrote one.
        FleetError: the directory cannot be read.
    """
    places: list[SegmentPlace] = []
    for lsn, path in segment_paths(log).items():
        try:
            place = _look(log, lsn, path)
        except FileNotFoundError:
            continue  # compaction took it meanwhile
        except LogError as error:
            tell(error, on_problem)
            continue
        if place is not None:
            places.append(place)
    return places


def segment_paths(log: LogPlace) -> dict[int, str]:
    gaps = [f"{left.old}/log" for left in breaks(log) if not left.is_fork]
    paths = {lsn: path for place in (*gaps, f"{log.path}/log") for lsn, path in _paths(place)}
    if len(paths) > SEGMENTS_MAX:
        raise FleetError(f"{shown(log.path)}/log holds more than {SEGMENTS_MAX} segments")
    return dict(sorted(paths.items())) if gaps else paths


def _paths(directory: str) -> list[tuple[int, str]]:
    # All names before any size: a segment that has a successor in the list has its final size.
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names are all that is wanted
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FleetError(f"{shown(directory)} cannot be read ({error.strerror})") from error
    return sorted(
        (lsn, f"{directory}/{name}") for name in names if (lsn := segment_lsn(name)) is not None
    )


def _look(log: LogPlace, lsn: int, path: str) -> SegmentPlace | None:
    facts = os.stat(path)  # noqa: PTH116 - text, maybe no UTF-8
    key = (path, facts.st_ino, facts.st_mtime_ns)
    epoch = _epochs.get(key)
    if epoch is None:
        with SegmentFile(path, log.log_id, lsn) as file:
            header = file.header()
            if header is None and file.size_bytes <= START:
                return None
            epoch = header.epoch if header is not None else 0
        if header is not None:
            _epochs[key] = epoch
    return SegmentPlace(lsn, path, facts.st_size, facts.st_mtime_ns, epoch)
