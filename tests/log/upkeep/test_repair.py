"""A repair copies every readable record of a damaged log, and leaves that log alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.log.format import codec
from taskq.log.format.frames import Frame, Gap
from taskq.log.read.reader import verify
from taskq.log.requests import Op
from taskq.log.state.facets import Facets
from taskq.log.upkeep.backup import survey_damage
from tests.effort import grows, some
from tests.log.world import PATH, PLAIN, Process, World

pytestmark = grows

_FIRST: Final = f"{PATH}/log/00000000000000000001.log"
_BODY: Final = codec.FRAME_HEADER_SIZE


def _group(process: Process, count: int, extras: Extras | None = None) -> list[int]:
    items = [(PLAIN, b"payload %d" % number, extras) for number in range(count)]
    jobs: list[int] = process.ask(Op.ENQUEUE_MANY, items)
    return jobs


def _written(seed: int = 0) -> tuple[World, list[list[int]]]:
    """Groups of jobs in two segments; of the first group one succeeded, one is to be retried."""
    world = World(seed)
    process = world.process()
    groups = [_group(process, 4) for _ in range(3)]
    first, second = process.claim(2)
    process.settle(first, body=b"result")
    process.settle(second, Kind.RETRIED, body=b"again", delay_ns=60 * SECOND_NS)
    process.enqueue(bytes(70_000))
    groups.append(_group(process, 3, Extras(due_ns=3_600 * SECOND_NS)))
    process.close()
    return world, groups


def _frames(world: World, segment: int = 0) -> list[Frame]:
    journal = world.reader()
    lsn = journal.files.lsns[segment]
    return [
        item
        for base, item in journal.frames(journal.start())
        if not isinstance(item, Gap) and journal.files.segment_at(base) == lsn
    ]


def _flip(world: World, offset: int, segment: int = 0) -> None:
    path = world.segments()[segment]
    byte = world.machine.content(path)[offset]
    world.machine.corrupt(path, offset, bytes((byte ^ 0x40,)))


def _in_record(world: World, frame: Frame, number: int) -> int:
    body = frame.data[frame.at : frame.at + frame.header.body_size]
    at = -1
    for _ in range(number + 1):
        at = body.index(b"payload", at + 1)
    return frame.offset + _BODY + at


def _one_payload(world: World) -> None:
    _flip(world, _in_record(world, _frames(world)[1], 2))


def _a_frame_header(world: World) -> None:
    _flip(world, _frames(world)[1].offset + 20)


def _the_segment_header(world: World) -> None:
    _flip(world, 17)


def _a_claim(world: World) -> None:
    _flip(world, _frames(world)[3].end - 12)


def _two_frames_in_a_row(world: World) -> None:
    frames = _frames(world)
    for frame in frames[:2]:
        _flip(world, _in_record(world, frame, 1))


def _both_segments(world: World) -> None:
    _one_payload(world)
    frame = _frames(world, 1)[0]
    _flip(world, _in_record(world, frame, 0), 1)
    process = world.process()
    process.enqueue(b"behind, so that the damage before is none of a torn tail")
    process.close()


DAMAGES: Final = [
    _one_payload, _a_frame_header, _the_segment_header, _a_claim, _two_frames_in_a_row,
    _both_segments,
]  # fmt: skip


def _picture(world: World) -> Any:
    facets = Facets(world.reader())
    agenda = facets.need_agenda()
    agenda.promote(world.clock.wall_ns(), 2**62)
    states = [
        (job, agenda.table.state(job), agenda.attempt(job), world.reader().files.record(place, job))
        for job, place in [
            (chunk.ids[index], chunk.locations[index]) for chunk, index in agenda.table
        ]
    ]
    return agenda.queues.stats(), dict(agenda.running), agenda.order.next_ready(99, None), states


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repaired_log_verifies_clean_and_holds_what_the_damaged_one_still_gave(
    damage: Callable[[World], None],
) -> None:
    world, _ = _written()
    damage(world)
    before = _picture(world)
    result = verify(world.reader())
    assert result.damage
    report = world.repair()
    assert report.damage == result.damage
    after = verify(world.reader())
    assert not after.damage
    assert not after.torn_bytes
    assert _picture(world) == before
    assert after.records == result.records + sum(gap.salvaged for gap in result.damage)
    process = world.process()
    assert process.enqueue() > 0
    assert _picture(world) != before


def test_jobs_that_are_lost_are_named_as_far_as_other_records_tell() -> None:
    world, groups = _written()
    world.clock.advance(3_600)
    process = world.process()
    delivery = next(delivery for delivery in process.claim(99) if delivery.job == groups[1][2])
    process.settle(delivery)
    process.close()
    _one_payload(world)
    tag = world.reader().tag
    expected = ((f"{tag}-{groups[1][2]}",), 1)
    planned = survey_damage(world.reader())
    assert (planned.lost_jobs, planned.lost_records) == expected
    done = world.repair()
    assert (done.lost_jobs, done.lost_records) == expected


def test_a_last_segment_whose_beginning_is_damaged_is_found_and_repaired() -> None:
    world, groups = _written()
    for offset in (17, codec.SEGMENT_HEADER.size + 20):
        _flip(world, offset, 1)
    process = world.process()
    process.close()
    result = verify(world.reader()).damage
    assert {item.segment for item in result} == {world.segments()[1].rpartition("/")[2]}
    world.repair()
    assert not verify(world.reader()).damage
    assert groups[3][0] in [chunk.ids[i] for chunk, i in world.fold().need_agenda().table]


@pytest.mark.parametrize("seed", range(some(8, 40)))
def test_whatever_is_damaged_a_repair_keeps_all_that_was_still_read(seed: int) -> None:
    chance = random.Random(seed)
    world, _ = _written()
    size = len(world.machine.content(_FIRST))
    for _ in range(chance.choice((1, 3, 12))):
        start = chance.randrange(size)
        count = min(chance.choice((1, 4, 64, 512, 5_000)), size - start)
        world.machine.corrupt(_FIRST, start, chance.choice((bytes(count), chance.randbytes(count))))
    before = _picture(world)
    world.repair()
    assert not verify(world.reader()).damage
    assert _picture(world) == before
