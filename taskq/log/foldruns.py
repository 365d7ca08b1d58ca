"""Runs of plain claims and successes, folded together.

A drain fills frames with hundreds of them, all of 32 bytes and alike but for their job. Taken one
by one they cost 1.9 µs each, and half of what a log is made of is such records; in runs they are
decoded by one call into C, and the agenda takes them for half of that.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from taskq.core.records import Kind
from taskq.log import codec

if TYPE_CHECKING:
    from taskq.core.agenda import Agenda

#: What a plain record starts with (length, type, byte, size of the options, flags), then attempt,
#: job, and token or owner.
_PLAIN: Final = struct.Struct("<12sIQQ")
_CLAIMED: Final = codec.PREFIX.pack(_PLAIN.size, Kind.CLAIMED, 0, 0, 0)
_SUCCEEDED: Final = codec.PREFIX.pack(_PLAIN.size, Kind.SUCCEEDED, 0, 0, 0)
_SIZE: Final = _PLAIN.size
#: Fewer are not worth the trouble; more are taken in several goes.
_RUN_MIN: Final = 4
_RUN_MAX: Final = 4_096


def fold_plain_run(data: bytes, at: int, end: int, lsn: int, epoch: int, agenda: Agenda) -> int:
    """Apply the run of plain claims, or of plain successes, that starts here; returns how many."""
    head = data[at : at + len(_CLAIMED)]
    if head not in {_CLAIMED, _SUCCEEDED}:
        return 0
    last = at + (_RUN_MIN - 1) * _SIZE
    if last + _SIZE > end or data[last : last + len(head)] != head:
        return 0
    limit = min((end - at) // _SIZE, _RUN_MAX)
    jobs: list[int] = []
    attempts: list[int] = []
    owners: list[int] = []
    for prefix, attempt, job, owner in _PLAIN.iter_unpack(
        memoryview(data)[at : at + limit * _SIZE]
    ):
        if prefix != head:
            break
        jobs.append(job)
        attempts.append(attempt)
        owners.append(owner)
    if head == _SUCCEEDED:
        agenda.apply_succeeded(jobs)
    else:
        agenda.apply_claimed_run(jobs, attempts, owners, lsn, epoch)
    return len(jobs)
