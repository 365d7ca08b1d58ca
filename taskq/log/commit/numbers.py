"""Counters of a process's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.model import SECOND_NS
from taskq.core.views import EngineStats

if TYPE_CHECKING:
    from taskq.log.commit.committer import Committer


def engine_stats(committer: Committer) -> EngineStats:
    meters, writer, room = committer.journal.meters, committer.journal.writer, committer.room
    return EngineStats(
        batches=meters.batches,
        records=meters.records,
        batch_records=meters.sizes.spread(),
        batch_histogram=meters.sizes.buckets(),
        appended_bytes=meters.appended_bytes,
        payload_bytes=meters.payload_bytes,
        upkeep_bytes=meters.upkeep_bytes,
        sync_seconds=meters.syncs.spread(SECOND_NS),
        slow_syncs=meters.slow_syncs,
        lock_wait_seconds=writer.waits.spread(SECOND_NS),
        lock_hold_seconds_max=writer.longest_hold_ns / SECOND_NS,
        caught_up_records=committer.facets.caught_up,
        open_seconds=meters.open_ns / SECOND_NS,
        free_bytes=room.free_bytes,
        is_disk_short=room.pressed,
    )
