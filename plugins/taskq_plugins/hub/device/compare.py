"""The verdict: how a device's log stands to the hub's copy of it. Pure: no clock, no network."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskq.engine import DurableLog
    from taskq_plugins.hub.messages import Synced


class Verdict(enum.Enum):
    """What is to be done, in the order in which they are looked for."""

    #: the hub has nothing of the log: its oldest segment comes first
    NEW = "new"
    #: the log has again what the copy lacks at its beginning, since it was set back, or a loss of
    #: power undid that compaction removed it: say so, begin with the oldest segment
    OLDER = "older"
    #: what the hub ends with stands here, too, or goes right before what stands here: go on
    BEHIND = "behind"
    #: a recovery moved the hub's last frame: seal what is left of its segment, go on with the next
    MOVED = "moved"
    #: the log was set back, and nothing was written since: nothing to send, but a new epoch
    AHEAD = "ahead"
    #: what would follow is not here any more: say so, go on with the oldest segment
    GAP = "gap"
    #: the log was set back and went on: say so, go on where both are still the same
    FORKED = "forked"


def compare(synced: Synced, log: DurableLog) -> Verdict:
    """Draw the verdict from what the hub told of its copy."""
    at = synced.at
    if not at.segment:
        return Verdict.NEW
    if synced.begins and log.begins_before(synced.begins):
        return Verdict.OLDER
    if log.stands(at) or log.follows(at):
        return Verdict.BEHIND
    if log.is_moved(at):
        return Verdict.MOVED
    if synced.has_end:
        return Verdict.AHEAD
    return Verdict.GAP if log.begins_behind(at) else Verdict.FORKED
