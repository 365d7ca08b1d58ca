"""Zeros end a frame and say nothing; a writer that dies at its last bytes leaves some out."""

from __future__ import annotations

import pytest

from taskq.core.model import State
from tests.log.world import World


@pytest.mark.parametrize("size", range(8))
def test_a_frame_that_lacked_zeros_is_seen_by_all_once_somebody_has_opened(size: int) -> None:
    world = World()
    writer, other = world.process(), world.process()
    job = writer.enqueue(bytes(size))
    end = writer.journal.offset
    writer.kill()
    descriptor = other.disk.open(world.segments()[-1])
    whole = other.disk.read(descriptor, end, 0).rstrip(b"\0")
    other.disk.truncate(descriptor, max(len(whole), end - 7))
    world.process()
    assert other.disk.size(descriptor) == end
    assert other.catch_up().need_agenda().table.state(job) is State.READY
