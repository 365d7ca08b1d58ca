"""Torn tails are cut without a person; damage is reported with its place, and costs only itself."""

import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from taskq.core.errors import FormatError, LogError, PayloadTooLarge
from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.core.views import Damage
from taskq.log.format import codec
from taskq.log.format.frames import Frame
from taskq.log.format.salvage import salvage
from taskq.log.read.reader import LogReader
from taskq.log.requests import Op
from tests.effort import every, grows
from tests.log.world import PATH, PLAIN, SMALL, Process, World, revived

pytestmark = grows

_NAME: Final = "00000000000000000001.log"
_FIRST: Final = f"{PATH}/log/{_NAME}"
Files = dict[str, bytes]


def _enqueue_together(process: Process, bodies: list[bytes]) -> list[int]:
    items = [(PLAIN, body, None) for body in bodies]
    lsns: list[int] = process.ask(Op.ENQUEUE_MANY, items)
    return lsns


def _three_frames(middle: list[bytes]) -> tuple[Files, list[list[int]], Frame]:
    world = World()
    process = world.process()
    jobs = [_enqueue_together(process, bodies) for bodies in ([b"a"], middle, [b"y", b"z"])]
    jobs.append([process.enqueue(b"last")])
    process.close()
    return world.files(), jobs, world.frames()[1]


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
        next(frame for frame in world.frames() if frame.header.next_lsn > job) for job in last
    ]
    ends = [(_record_ends(frame)[-1], frame.end) for frame in frames]
    return world.files(), before, last, ends


@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_segment_cut_at_any_byte_of_its_last_three_records_opens_at_once(
    *, together: bool, same_boot: bool
) -> None:
    """Whole frames are kept, the rest is set aside, and no id is used again."""
    files, before, last, ends = _last_three(together=together)
    whole = files[_FIRST]
    start = revived(files).frames()[2].offset
    edges = {end + by for pair in ends for end in pair for by in (-1, 0, 1)}
    for size in sorted({*range(start, len(whole) + 1, every(9)), *edges, len(whole)}):
        if not start <= size <= len(whole):
            continue
        world = revived(files | {_FIRST: whole[:size]}, same_boot=same_boot)
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


def test_every_flipped_byte_of_a_synced_frame_costs_only_its_own_record() -> None:
    files, jobs, frame = _three_frames([b"job one", b"job two", b"job three"])
    records = [job for job in jobs[1] if job]
    others = [*jobs[0], *jobs[2], *jobs[3]]
    ends = _record_ends(frame)
    for at in range(frame.offset, frame.end, every(3)):
        data = bytearray(files[_FIRST])
        data[at] ^= 0x21
        process = revived(files | {_FIRST: bytes(data)}, same_boot=at % 2 == 0).process()
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
                segment=_NAME, offset=frame.offset, size=frame.end - frame.offset,
                first_lsn=records[0], next_lsn=records[-1] + 1, salvaged=len(saved),
            )
        ], at  # fmt: skip


def _record_ends(frame: Frame) -> list[int]:
    ends, at = [], frame.at
    for _ in range(frame.header.records):
        at += codec.LENGTH.unpack_from(frame.data, at)[0]
        ends.append(frame.offset + codec.FRAME_HEADER_SIZE + at - frame.at)
    return ends


def _unreadable_middle() -> tuple[World, list[list[int]], set[tuple[str, int]]]:
    """Frames of 18 KB, and sectors in the midst of the second's first record."""
    world = World()
    process = world.process()
    jobs = [_enqueue_together(process, [b"x" * 9_000, b"y" * 9_000]) for _ in range(3)]
    process.close()
    frame = world.frames()[1]
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


_HUGE: Final = 2**32 - 1
#: A reader asks the disk for 1 MiB at a time.
_MEMORY_MAX: Final = 4 * 1024 * 1024


def _peak_bytes(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _record(kind: int, length: int | None = None, size: int = 24) -> bytes:
    return codec.PREFIX.pack(size if length is None else length, kind, 0, 0, 0) + bytes(size - 12)


def _dump(world: World, directory: Path) -> LogReader:
    for path in world.machine.paths():
        place = directory / Path(path).relative_to(PATH)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(world.machine.content(path))
    return LogReader.open(str(directory))


@pytest.mark.parametrize("whole_header", [True, False])
def test_a_frame_that_claims_four_gigabytes_costs_no_memory(*, whole_header: bool) -> None:
    """Also when its header's CRC is right: the bound is checked before anything is read."""
    world = World()
    first = world.process()
    kept = first.enqueue(b"kept")
    offset, seed = first.journal.offset, first.journal.files.seed(1)
    head = codec.FRAME_HEADER.pack(codec.FRAME_MAGIC, _HUGE, 1, 0, 0, 2, 7, 7, 2, 0, 0)[:52]
    crc = codec.crc32(head, codec.crc32(struct.pack("<Q", offset), seed)) if whole_header else 0
    first.close()
    data = world.machine.content(_FIRST) + head + struct.pack("<I", crc) + bytes(200)
    world.machine.put(_FIRST, data)
    world.lose_power()
    assert _peak_bytes(lambda: world.process().enqueue()) < _MEMORY_MAX
    assert [delivery.job for delivery in world.process().claim()] == [kept]


@pytest.mark.parametrize(
    ("record", "match"),
    [
        (_record(Kind.ENQUEUED, _HUGE), "record at lsn 2 has an impossible length"),
        (_record(100), "record type 100 at lsn 2 is unknown"),
    ],
    ids=["length", "type"],
)
def test_a_record_that_claims_four_gigabytes_or_is_of_an_unknown_type_is_named(
    tmp_path: Path, record: bytes, match: str
) -> None:
    world = World()
    first = world.process()
    first.enqueue(b"kept")
    first.append(record + _record(Kind.CLOCK), 2)

    def claim() -> None:
        for process in (first, world.process()):
            with pytest.raises(FormatError, match=match):
                process.claim()

    assert _peak_bytes(claim) < _MEMORY_MAX
    assert first.enqueue() == 4, "an enqueue without a key reads no records"
    reader = _dump(world, tmp_path)
    with pytest.raises(FormatError, match=match):
        reader.jobs(None, None, None, 10)
    with pytest.raises(LogError):
        reader.verify()


def test_a_frame_that_no_reader_would_accept_is_never_written() -> None:
    world = World()
    first = world.process()
    before = world.machine.content(_FIRST)
    with pytest.raises(PayloadTooLarge):
        first.append(bytes(codec.FRAME_BODY_MAX + 1))
    assert world.machine.content(_FIRST) == before
    first.append(_record(200, size=codec.FRAME_BODY_MAX))
    assert world.process().enqueue() == 2


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("cut", [False, True])
def test_a_payload_that_holds_the_whole_segment_is_never_taken_for_records(
    shift: int, *, cut: bool
) -> None:
    """Neither at any alignment, nor when the frame around it is damaged or cut short."""
    world = World()
    first = world.process()
    jobs = [first.enqueue(bytes([number]) * 50) for number in range(3)]
    segment = world.machine.content(_FIRST)
    carrier = first.enqueue(bytes(shift) + segment + segment)
    jobs.append(first.enqueue(b"behind"))
    first.close()
    whole = world.machine.content(_FIRST)
    data = bytearray(whole)
    data[len(segment) + 20] ^= 1  # the header of the frame that carries the copies
    if cut:
        del data[len(segment) + 56 + len(segment) + 80 :]
        jobs.pop()
    world.machine.put(_FIRST, bytes(data))
    world.is_whole = not cut
    world.lose_power()
    after = world.process()
    deliveries = after.claim(99)
    # Its header is gone, but the record says by its own CRC that it is whole.
    assert [delivery.job for delivery in deliveries] == sorted(
        [*jobs, carrier] if not cut else jobs
    )
    assert len(after.catch_up().damage) == (0 if cut else 1)


def test_a_copy_at_the_very_same_offsets_of_the_next_segment_is_no_frame() -> None:
    """The seed of a frame's CRC names its segment, besides log and offset."""
    world = World(config=SMALL)
    first = world.process()
    jobs = [first.enqueue(b"x" * 40_000), first.enqueue(b"y" * 40_000)]
    segment = world.machine.content(_FIRST)
    record_start = 64 + 56 + len(codec.BORN.pack(*([0] * 8))) + len("default" + "mail.send")
    carrier = first.enqueue(segment[record_start:])
    second = world.segments()[1]
    copied = world.machine.content(second)
    assert copied[record_start : len(segment)] == segment[record_start:]
    # From here on the two files hold the same bytes at the same places.
    world.machine.corrupt(second, 70, b"\xff")
    world.lose_power()
    after = world.process()
    assert [delivery.job for delivery in after.claim(9)] == jobs
    assert after.enqueue() > carrier


def test_an_unknown_segment_version_is_an_error_that_names_it() -> None:
    world = World()
    world.process().close()
    data = bytearray(world.machine.content(_FIRST))
    data[8:10] = (7).to_bytes(2, "little")
    data[56:60] = struct.pack("<I", codec.crc32(bytes(data[:56])))
    world.machine.put(_FIRST, bytes(data))
    world.lose_power()
    with pytest.raises(FormatError, match=rf"{_FIRST}: segment format 7 is unknown"):
        world.process()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": 2}, "format 2 is unknown"),
        ({"features": {"incompat": ["encrypted"]}}, r"features \['encrypted'\] is unknown"),
        ({"log_id": "nonsense"}, "not readable"),
    ],
)
def test_an_unknown_feature_or_format_of_the_directory_is_an_error_that_names_it(
    changes: dict[str, object], match: str
) -> None:
    world = World()
    world.process().close()
    path = f"{PATH}/taskq.json"
    values = json.loads(world.machine.content(path)) | changes
    world.machine.put(path, json.dumps(values).encode())
    with pytest.raises(FormatError, match=match):
        world.process()


def test_a_feature_is_durable_before_use_and_a_process_without_it_is_refused() -> None:
    world = World()
    process = world.process()
    process.enqueue()
    path = f"{PATH}/taskq.json"
    assert json.loads(world.machine.content(path))["features"]["incompat"] == []
    process.journal.allow(("encrypted",))
    world.lose_power()
    assert json.loads(world.machine.content(path))["features"]["incompat"] == ["encrypted"]
    with pytest.raises(FormatError, match=r"features \['encrypted'\] is unknown"):
        world.process()


_FIRST_LSN = 2**32 - 20  # the seeds of the records' CRCs begin anew among them


def _enqueued(body: bytes, lsn: int) -> bytes:
    return codec.encode_checked(codec.enqueue_tail(5, 1, 3, 4, 2, b"mailto", b""), body, lsn)


def _salvaged_record(kind: int, body: bytes, lsn: int) -> bytes:
    if kind == 0:
        return codec.encode_job(Kind.CLAIMED, 0, 1, 77, lsn)
    if kind == 1:
        return codec.encode_job(Kind.SUCCEEDED, 0, 1, 77, 78, body, lsn)
    if kind == 2:
        return codec.encode_back(Kind.RETRIED, Cause.DRAIN, 1, 77, 78, 0, body, lsn)
    return _enqueued(body, lsn)


@given(
    parts=st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=90)), min_size=1, max_size=60),
    chance=st.randoms(use_true_random=False),
)
def test_whatever_is_wrong_in_one_record_all_others_that_have_a_checksum_are_saved(
    parts: list[tuple[int, bytes]], chance: random.Random
) -> None:
    """Its length, type, options, flags, or anything else: the next one is found."""
    records = [_salvaged_record(kind, body, _FIRST_LSN + n) for n, (kind, body) in enumerate(parts)]
    hit = chance.randrange(len(records))
    begin = sum(map(len, records[:hit]))
    data = bytearray(b"".join(records))
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = begin + chance.choice((chance.randrange(12), chance.randrange(len(records[hit]))))
        data[at] = chance.choice((data[at] ^ 1 << chance.randrange(8), chance.randrange(256), 0))
    seen = {lsn: (at, record) for lsn, at, record in salvage(bytes(data), _FIRST_LSN)}
    place = 0
    for number, record in enumerate(records):
        if number != hit and (record[8] & 1 == 1):
            assert seen[_FIRST_LSN + number] == (place, record)
        place += len(record)
    assert set(seen) <= set(range(_FIRST_LSN, _FIRST_LSN + len(records)))


@pytest.mark.parametrize("size", [60, 5_000, 160_000])
def test_bytes_that_look_like_records_everywhere_do_not_make_the_work_grow_faster_than_they(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0

    def counted(data: Buffer, seed: int = 0) -> int:
        nonlocal taken
        taken += memoryview(data).nbytes
        return zlib.crc32(data, seed)

    data = codec.PREFIX.pack(size, Kind.ENQUEUED, 0, 0, 1) * (200_000 // 12)
    monkeypatch.setattr(codec, "crc32", counted)
    assert not list(salvage(data, 1))
    assert taken < 100 * len(data)
