"""Compaction removes the segment that another process stands in: that one folds anew."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from taskq.core.errors import JobNotFound
from taskq.core.model import Extras
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.requests import Op
from taskq.log.segments.segments import SegmentGone
from tests.log.world import Process, World


def rotate(process: Process) -> None:
    process.enqueue(bytes(SEGMENT_BYTES_MIN))
    for delivery in process.claim(9):
        process.settle(delivery)


def test_keys_that_were_freed_in_a_segment_that_went_are_free() -> None:
    world = World()
    idle, busy = world.process(), world.process()
    idle.enqueue(b"held", Extras(key=b"k"))
    rotate(busy)
    rotate(busy)
    busy.enqueue(b"the last segment")
    world.remove_oldest(2)
    assert isinstance(idle.offer(b"again", Extras(key=b"k")), int)


def test_who_waits_for_a_job_is_told_of_its_end_though_the_segment_with_the_start_went() -> None:
    world = World()
    idle, busy = world.process(), world.process()
    job = idle.enqueue(b"watched")
    outcome: Future[Any] = idle.send(Op.OUTCOME, job)
    idle.follow()
    assert not outcome.done()
    rotate(busy)
    busy.enqueue(b"lives")
    world.remove_oldest(1)
    idle.follow()
    idle.sync()
    with pytest.raises(JobNotFound, match="it is not kept any more"):
        outcome.result(0)


@pytest.mark.parametrize("facet", ["agenda", "dedup"])
def test_segments_that_go_while_it_folds_make_it_begin_again(facet: str) -> None:
    world = World()
    busy = world.process()
    for _ in range(3):
        rotate(busy)
    job = busy.enqueue(b"lives", Extras(key=b"k"))
    late = world.process()
    opened = late.disk.open

    def open_late(path: str, **options: Any) -> int:
        # Others are faster than this process, twice.
        if path in world.segments()[:2] and len(world.segments()) > 2:
            world.machine.unlink(path)
        return opened(path, **options)

    late.disk.open = open_late  # type: ignore[method-assign]
    late.journal.refresh()
    facets = late.committer.facets
    if facet == "agenda":
        assert facets.need_agenda().order.next_ready(9, None) == [job]
    else:
        assert facets.need_dedup().size == 1
    assert len(world.segments()) == 2


def test_a_reader_whose_end_is_gone_gets_an_error_and_not_the_later_log() -> None:
    world = World()
    process = world.process()
    process.enqueue(b"the reader knows this much")
    reader = world.reader()
    rotate(process)
    process.enqueue(b"lives")
    world.remove_oldest(1)
    with pytest.raises(SegmentGone, match="is gone"):
        list(reader.frames(reader.start()))
