"""Torn tails are cut without a person; damage is reported with its place, and costs only itself."""

from __future__ import annotations

import random
from typing import Final

import pytest

from taskq.core.model import State
from taskq.core.views import Damage
from taskq.log.format import codec
from taskq.log.format.frames import Frame
from taskq.log.requests import Op
from tests.effort import every, grows, some
from tests.log.world import PATH, PLAIN, Process, World

pytestmark = grows

_NAME: Final = "00000000000000000001.log"
_FIRST: Final = f"{PATH}/log/{_NAME}"
Files = dict[str, bytes]


def _files(world: World) -> Files:
    return {path: world.machine.content(path) for path in world.machine.paths()}


def _revive(files: Files, *, same_boot: bool) -> World:
    world = World()
    world.process().close()
    for path, data in files.items():
        world.machine.put(path, data)
    if not same_boot:
        world.lose_power()
    return world


def _enqueue_together(process: Process, bodies: list[bytes]) -> list[int]:
    items = [(PLAIN, body, None) for body in bodies]
    lsns: list[int] = process.ask(Op.ENQUEUE_MANY, items)
    return lsns


def _frames(world: World) -> list[Frame]:
    journal = world.reader()
    items = [item for _, item in journal.frames(journal.start())]
    return [item for item in items if hasattr(item, "header")]  # type: ignore[misc]


def _three_frames(middle: list[bytes]) -> tuple[Files, list[list[int]], Frame]:
    world = World()
    process = world.process()
    jobs = [_enqueue_together(process, bodies) for bodies in ([b"a"], middle, [b"y", b"z"])]
    jobs.append([process.enqueue(b"last")])
    process.close()
    return _files(world), jobs, _frames(world)[1]


# -- torn tails ------------------------------------------------------------------------------------


def _last_three(*, together: bool) -> tuple[Files, list[int], list[int], list[tuple[int, int]]]:
    world = World()
    process = world.process()
    before = [process.enqueue(b"first"), *_enqueue_together(process, [b"second", b"third"])]
    if together:
        last = _enqueue_together(process, [b"x", b"yy", b"zzz"])
    else:
        last = [process.enqueue(body) for body in (b"x", b"yy", b"zzz")]
    process.close()
    frames = [
        next(frame for frame in _frames(world) if frame.header.next_lsn > job) for job in last
    ]
    ends = [(_record_ends(frame)[-1], frame.end) for frame in frames]
    return _files(world), before, last, ends


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_segment_cut_at_any_byte_of_its_last_three_records_opens_at_once(
    *, together: bool, same_boot: bool
) -> None:
    """Whole frames are kept, the rest is set aside, and no id is used again."""
    files, before, last, ends = _last_three(together=together)
    whole = files[_FIRST]
    start = _frames(_revive(files, same_boot=True))[2].offset
    edges = {end + by for pair in ends for end in pair for by in (-1, 0, 1)}
    for size in sorted({*range(start, len(whole) + 1, every(9)), *edges, len(whole)}):
        if not start <= size <= len(whole):
            continue
        world = _revive(files | {_FIRST: whole[:size]}, same_boot=same_boot)
        # On the boot that wrote them all of these jobs were there: a missing one is lost.
        world.is_whole = False
        process = world.process()
        assert not same_boot or bool(process.journal.lost) is (size < ends[-1][0])
        # Zero padding after a frame's last record may be missing.
        kept = [job for job, end in zip(last, ends, strict=True) if size >= end[0]]
        is_whole = size == start or any(end[0] <= size <= end[1] for end in ends)
        assert [delivery.job for delivery in process.claim(9)] == [*before, *kept], size
        assert process.enqueue() > last[-1], size
        assert not process.catch_up().damage, size
        assert bool(process.journal.recovered) is not is_whole, size
        if not is_whole:
            aside = [path for path in world.machine.paths() if "/torn/" in path]
            assert whole[:size].endswith(world.machine.content(aside[0])), size


def test_only_the_latest_torn_tails_are_kept() -> None:
    world = World()
    for number in range(20):
        process = world.process()
        process.enqueue()
        process.close()
        path = world.segments()[-1]
        world.machine.put(path, world.machine.content(path) + bytes(8 + number))
    world.process()
    aside = [path for path in world.machine.paths() if "/torn/" in path]
    assert len(aside) == 16


# -- damage ----------------------------------------------------------------------------------------


def test_every_flipped_byte_of_a_synced_frame_costs_only_its_own_record() -> None:
    files, jobs, frame = _three_frames([b"job one", b"job two", b"job three"])
    records = [job for job in jobs[1] if job]
    others = [*jobs[0], *jobs[2], *jobs[3]]
    ends = _record_ends(frame)
    for at in range(frame.offset, frame.end, every(3)):
        data = bytearray(files[_FIRST])
        data[at] ^= 0x21
        process = _revive(files | {_FIRST: bytes(data)}, same_boot=at % 2 == 0).process()
        claimed = [delivery.job for delivery in process.claim(9)]
        damage = process.catch_up().damage
        assert all(process.world.view(job) for job in claimed), at
        assert process.enqueue() > jobs[3][0], at
        if at >= ends[-1]:
            assert claimed == sorted([*others, *records]), "padding holds nothing"
            assert not damage
            continue
        # A damaged record is gone; after a wrong length the next one is found by its checksum.
        in_body = at >= frame.offset + codec.FRAME_HEADER_SIZE
        hit = next(number for number, end in enumerate(ends) if at < end) if in_body else None
        saved = [job for number, job in enumerate(records) if number != hit and job in claimed]
        assert claimed == sorted([*others, *saved]), at
        assert len(saved) == len(records) - (hit is not None), at
        assert damage == [
            Damage(
                segment=_NAME,
                offset=frame.offset,
                size=frame.end - frame.offset,
                first_lsn=records[0],
                next_lsn=records[-1] + 1,
                salvaged=len(saved),
            )
        ], at


def _record_ends(frame: Frame) -> list[int]:
    ends, at = [], frame.at
    for _ in range(frame.header.records):
        at += codec.LENGTH.unpack_from(frame.data, at)[0]
        ends.append(frame.offset + codec.FRAME_HEADER_SIZE + at - frame.at)
    return ends


@pytest.mark.parametrize("seed", range(some(6, 60)))
def test_random_damage_never_keeps_a_log_from_opening(seed: int) -> None:
    chance = random.Random(seed)
    files, jobs, _ = _three_frames([bytes(chance.randrange(300)) for _ in range(5)])
    data = bytearray(files[_FIRST])
    for _ in range(chance.choice((1, 3, 20))):
        start = chance.randrange(codec.SEGMENT_HEADER.size, len(data))
        size = chance.choice((1, 4, 64, 512))
        data[start : start + size] = chance.randbytes(min(size, len(data) - start))
    if chance.random() < 0.3:
        del data[chance.randrange(codec.SEGMENT_HEADER.size, len(data)) :]
    world = _revive(files | {_FIRST: bytes(data)}, same_boot=chance.random() < 0.5)
    world.is_whole = False
    process = world.process()
    new = process.enqueue(b"new")
    assert new > jobs[-1][-1]
    known = {job for group in jobs for job in group} | {new}
    claimed = [delivery.job for delivery in process.claim(99)]
    assert new in claimed
    assert set(claimed) <= known
    assert len(set(claimed)) == len(claimed)


# -- what the disk does not give back --------------------------------------------------------------


def _unreadable_middle() -> tuple[World, list[list[int]], set[tuple[str, int]]]:
    """Frames of 18 KB, and sectors in the midst of the second's first record."""
    world = World()
    process = world.process()
    jobs = [_enqueue_together(process, [b"x" * 9_000, b"y" * 9_000]) for _ in range(3)]
    process.close()
    frame = _frames(world)[1]
    sectors = range(frame.offset // 512 + 8, frame.offset // 512 + 10)
    return world, jobs, {(_FIRST, number) for number in sectors}


def test_a_sector_that_cannot_be_read_costs_only_what_is_in_it() -> None:
    """It is damage like any other: one bad block does not stop the whole queue."""
    world, jobs, unreadable = _unreadable_middle()
    world.machine.unreadable = unreadable
    process = world.process()
    assert [delivery.job for delivery in process.claim(99)] == [*jobs[0], jobs[1][1], *jobs[2]]
    damage = process.catch_up().damage
    assert [(gap.first_lsn, gap.next_lsn) for gap in damage] == [(jobs[1][0], jobs[1][1] + 1)]
    assert process.enqueue() > jobs[-1][-1]


# -- lacking zeros ---------------------------------------------------------------------------------


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
