"""What is kept, for how long, and which segment may go next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.model import SECOND_NS
from taskq.log.readers import reader_positions

if TYPE_CHECKING:
    from taskq.log.journal import Journal

_log: Final = logging.getLogger("taskq")


class Due(NamedTuple):
    """A segment that may go."""

    segment: int
    #: in words, for people
    reason: str
    #: whether finished jobs go with it, whatever their age
    drops_finished: bool
    #: more of it must not be needed, or nothing would be gained; None: however much it is
    needed_bytes_max: int | None


class Pinned(NamedTuple):
    """A segment that would be due, but for a named reader that has not read it."""

    segment: int
    reader: str


def due(
    journal: Journal,
    now_ns: int,
    *,
    is_pressed: bool,
    keep_seconds: float | None,
    gone: int = 0,
) -> Due | Pinned | None:
    """The oldest segment, if the policy says that it may go; None if nothing is due.

    ``gone`` of the oldest segments are taken for removed already.
    """
    files = journal.files
    files.refresh()
    lsns = files.lsns[gone:]
    if len(lsns) < 2:  # noqa: PLR2004 - the last one is written to
        return None
    total = sum(map(files.size, lsns))
    found = _due(journal, lsns, total, now_ns, is_pressed, keep_seconds)
    if found is None:
        return None
    return _pinned(journal, found, lsns[1], total) or found


def _due(
    journal: Journal,
    lsns: list[int],
    total: int,
    now_ns: int,
    is_pressed: bool,
    keep_seconds: float | None,
) -> Due | None:
    files, config = journal.files, journal.config
    oldest = lsns[0]
    half = files.size(oldest) // 2
    if config.keep_bytes is not None and total > config.keep_bytes:
        return Due(oldest, f"the log has over {config.keep_bytes} bytes", True, half)
    if config.keep_segments is not None and len(lsns) - 1 > config.keep_segments:
        return Due(oldest, f"the log has over {config.keep_segments} sealed segments", True, half)
    if is_pressed:
        return Due(oldest, "the disk is nearly full", True, half)
    if keep_seconds is None:
        return None
    # The header of the next segment tells when the last frame of this one was written.
    header = files.header(lsns[1])
    if header is None or header.created_ns + int(keep_seconds * SECOND_NS) > now_ns:
        return None
    return Due(oldest, f"all of it is older than {keep_seconds:g} s", False, None)


def _pinned(journal: Journal, found: Due, following: int, total: int) -> Pinned | None:
    """The named reader that still has to read the segment, unless it is too far behind."""
    for name, (segment, lsn) in reader_positions(journal.disk, journal.path).items():
        if max(segment, lsn) >= following:
            continue
        lag_max = journal.config.reader_lag_bytes
        if lag_max is None or total <= lag_max:
            return Pinned(found.segment, name)
        _log.warning(
            "%s: the reader %r is over %d bytes behind, so what it has not read goes: it will get "
            "ReaderFellBehind",
            journal.path, name, lag_max,
        )  # fmt: skip
    return None
