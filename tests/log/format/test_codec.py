"""Encoded records decode to the same; other bytes are refused, never guessed at."""

import builtins
import contextlib
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.errors import CompressionUnavailable, FormatError, LogDamaged, PayloadTooLarge
from taskq.core.flows import ONE, FlowPart, Policy, list_of, needs_of
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.model import HEADERS_BYTES_MAX, KEY_BYTES_MAX, TIME_NS_MAX, Extras, State
from taskq.core.records import Flag, Kind, Option
from taskq.extras import install_line
from taskq.log.format import codec
from taskq.log.format.bodies import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    check_compression,
    compress,
    decompress,
    original_size,
)
from taskq.log.format.carried import Carried, encode_carried
from taskq.log.format.flows import decode_needs, encode_needs, encode_part
from taskq.log.format.frames import Frame
from taskq.log.format.options import (
    decode_extras,
    decode_key_hash,
    each_option,
    encode_extras,
    encode_key_hash,
    enqueue_extras,
)
from taskq.log.format.record import Record
from taskq.log.format.salvage import salvage
from taskq.log.requests import EnqueueSpec, Op, Trait, ops_that
from taskq.log.state.fold import Watch, fold_frame
from tests.effort import grows, some
from tests.log.world import World, chord, items_of

NOW = 1_700_000_000_000_000_000
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
LSN = st.integers(1, 2**63 - 1)
SEED = U32
BODY = st.binary(max_size=300)
NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=60)
SPAN = st.integers(0, TIME_NS_MAX // 2)
EXTRAS = st.builds(
    Extras,
    due_ns=SPAN,
    due_is_wall=st.booleans(),
    expires_ns=SPAN,
    expires_is_wall=st.booleans(),
    key=st.none() | st.binary(min_size=1, max_size=KEY_BYTES_MAX),
    window_ns=SPAN,
    headers=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=5),
    keep_ns=SPAN,
)
SPECS = st.builds(
    EnqueueSpec,
    queue=NAMES,
    task=st.just("") | NAMES,
    priority=st.integers(0, 9),
    attempts=st.integers(0, 65_535),
    flags=st.sampled_from((Flag(0), Flag.DROP_RESULT, Flag.DURABLE_CLAIM)),
)


def enqueued(spec: EnqueueSpec, options: bytes, body: bytes, lsn: int) -> bytes:
    sizes = spec.lane_key[:2]
    tail = codec.enqueue_tail(
        spec.priority, int(spec.flags), spec.attempts, sizes[0], sizes[1], spec.route, options
    )
    return codec.encode_checked(tail, body, lsn)


def read(record: bytes, lsn: int) -> Record:
    """Return the record decoded, after the checks that each encoder must meet."""
    assert codec.LENGTH.unpack_from(record)[0] == len(record)
    if record[8] & Flag.CHECKED:
        assert list(salvage(record, lsn)) == [(lsn, 0, record)]
    return Record(record, lsn, 7, NOW)


def as_read(extras: Extras) -> Extras:
    """Moments are counted from the frame's time in the record; a window without a key is none."""
    due, expires = extras.due_ns, extras.expires_ns
    return Extras(
        due_ns=due + NOW if due and not extras.due_is_wall else due,
        due_is_wall=bool(due) and extras.due_is_wall,
        expires_ns=expires + NOW if expires and not extras.expires_is_wall else expires,
        expires_is_wall=bool(expires) and extras.expires_is_wall,
        key=extras.key,
        window_ns=extras.window_ns if extras.key is not None else 0,
        headers=extras.headers,
        keep_ns=extras.keep_ns,
    )


@given(spec=SPECS, extras=EXTRAS, body=BODY, lsn=LSN)
@grows
@settings(max_examples=some(15, 100))
def test_an_enqueue_reads_back_in_every_part(
    spec: EnqueueSpec, extras: Extras, body: bytes, lsn: int
) -> None:
    record = enqueued(spec, encode_extras(extras, NOW), body, lsn)
    result = read(record, lsn)
    assert (result.type, result.lsn, result.job, result.epoch) == (Kind.ENQUEUED, lsn, lsn, 7)
    assert (result.queue, result.task) == (spec.queue, spec.task)
    assert (result.priority, result.attempts_max) == (spec.priority, spec.attempts)
    assert result.flags == int(spec.flags)
    assert result.body == body == codec.enqueue_body(record)
    assert result.extras == as_read(extras) == enqueue_extras(record)


@given(spec=SPECS, body=BODY, lsn=LSN)
def test_a_plain_enqueue_is_the_specs_tail_and_the_body(
    spec: EnqueueSpec, body: bytes, lsn: int
) -> None:
    """The hot path encodes nothing but a length and a checksum."""
    record = codec.encode_checked(spec.tail, body, lsn)
    assert record == enqueued(spec, b"", body, lsn)
    assert enqueue_extras(record) == Extras()


def test_headers_up_to_the_limit_are_kept_and_one_byte_more_is_refused() -> None:
    """Lengths count: 2 bytes for each name and value."""
    value = "x" * (HEADERS_BYTES_MAX - 5)
    options = encode_extras(Extras(headers={"a": value}), NOW)
    assert decode_extras(options, 0, len(options)).headers == {"a": value}
    with pytest.raises(PayloadTooLarge, match=rf"headers has 32769 .*{HEADERS_BYTES_MAX}"):
        encode_extras(Extras(headers={"a": value + "x"}), NOW)
    with pytest.raises(PayloadTooLarge, match=str(HEADERS_BYTES_MAX)):
        encode_extras(Extras(headers=dict.fromkeys(map(str, range(5_000)), "")), NOW)


@given(body=BODY, count=st.integers(1, 2**32 - 1), lsn=LSN, epoch=U64, time=I64, seed=SEED,
       offset=st.integers(0, 2**31))  # fmt: skip
def test_a_frame_reads_back_in_its_place_and_nowhere_else(
    body: bytes, count: int, lsn: int, epoch: int, time: int, seed: int, offset: int
) -> None:
    frame = codec.encode_frame(body, count, lsn, epoch, time, lsn - 1, seed, offset)
    header = codec.decode_frame_header(frame, 0, seed, offset)
    assert header is not None
    assert (header.body_size, header.records, header.first_lsn) == (len(body), count, lsn)
    answer = min(max(time, 0), TIME_NS_MAX)
    assert (header.epoch, header.time_ns, header.synced_through) == (epoch, answer, lsn - 1)
    assert header.size == len(frame) == codec.frame_size(len(body))
    result = memoryview(frame)[codec.FRAME_HEADER_SIZE :][: header.body_size]
    assert codec.body_is_whole(result, header, seed, offset)
    assert codec.decode_frame_header(b"junk" + frame, 4, seed, offset) == header
    assert codec.decode_frame_header(frame, 0, seed, offset + 8) is None
    assert codec.decode_frame_header(frame, 0, seed ^ 1, offset) is None
    assert not codec.body_is_whole(result, header, seed, offset + 8)


@given(data=st.binary(max_size=200), at=st.integers(0, 220), size=st.integers(0, 250))
def test_options_never_reach_beyond_their_bounds(data: bytes, at: int, size: int) -> None:
    result = list(each_option(data, at, size))
    within = data[at : at + size]
    assert result == list(each_option(within, 0, size))
    assert sum(3 + len(value) for _, value in result) <= len(within)
    for decode in (decode_extras, decode_key_hash):
        try:
            decode(data, at, size)
        except FormatError:
            continue


@grows
@settings(max_examples=some(100, 200))
@given(tag=st.sampled_from(Option), value=st.binary(max_size=12))
def test_a_number_of_the_wrong_size_is_an_error_that_names_its_option(
    tag: Option, value: bytes
) -> None:
    data = struct.pack("<BH", tag, len(value)) + value
    numbers = {
        Option.DUE, Option.DUE_WALL, Option.EXPIRES, Option.EXPIRES_RELATIVE, Option.KEEP,
        Option.WINDOW,
    }  # fmt: skip
    if tag in numbers and len(value) != 8:
        with pytest.raises(FormatError, match=f"option {int(tag)} has {len(value)} bytes, "):
            decode_extras(data, 0, len(data))
    else:
        decode_extras(data, 0, len(data))


RECORDS = (
    enqueued(EnqueueSpec("q", "t"), encode_extras(Extras(due_ns=5, key=b"k"), NOW), b"body", 1),
    enqueued(EnqueueSpec("q", "t"), encode_extras(Extras(headers={"a": "b"}), NOW), b"", 2),
    codec.encode_job(Kind.CLAIMED, 0, 1, 2, 9),
    codec.encode_back(Kind.RETRIED, 0, 1, 2, 3, NOW + 5, b"why", 4),
    codec.encode_clock(10**12, 5),
    codec.encode_owner(9, b"{}", 6),
    codec.encode_job(Kind.SUCCEEDED, 0, 1, 2, 7, b"", 7, encode_key_hash(5)),
)


@st.composite
def spoiled_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(b"".join(draw(st.lists(st.sampled_from(RECORDS), max_size=6))))
    for at, value in draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)))):
        if body:
            body[at % len(body)] = value
    return bytes(body) + draw(st.binary(max_size=20))


@given(body=spoiled_bodies())
def test_a_fold_of_nonsense_ends_or_says_that_the_format_is_unknown(body: bytes) -> None:
    header = codec.FrameHeader(len(body), 7, 1, 7, NOW, 0, 0)
    watch = Watch()
    watch.jobs.update((1, 2))
    try:
        fold_frame(0, Frame(body, 0, header, 64), Agenda(), Dedup(), watch)
    except FormatError as error:
        assert "lsn" in str(error) or "option" in str(error)  # noqa: PT017


@given(body=spoiled_bodies())
def test_decoding_nonsense_gives_a_record_or_says_that_the_format_is_unknown(body: bytes) -> None:
    if len(body) < codec.PREFIX.size or len(body) < codec.FIXED_SIZES.get(body[4], 0):
        return
    try:
        result = Record(body, 1, 7, NOW)
    except FormatError:
        return
    assert result.type == body[4]


@pytest.mark.parametrize(("size", "kept"), [(5_529, True), (5_530, False)])
def test_lines_of_a_job_are_written_again_where_its_options_have_room(
    size: int, *, kept: bool
) -> None:
    """They are the first to go: its attempts and moments are needed, its lines are read."""
    tail = codec.enqueue_tail(5, 0, 3, 4, 2, b"mailto", b"")
    born = codec.encode_checked(tail, b"{}", 7)
    carried = Carried(7, State.READY, born, 10**18, history=bytes(60_000), lines=b"l" * size)
    record = Record(encode_carried(Kind.CARRIED, carried, 9), 9, 0, 0)
    assert record.carried is not None
    assert record.carried.history == carried.history
    assert record.carried.lines == (carried.lines if kept else b"")


TEXT = b'{"name": "value", "number": 12345}' * 100
WAYS: list[tuple[Compression, int]] = [("zlib", int(Flag.ZLIB)), ("zstd", int(Flag.ZSTD))]
ways = pytest.mark.parametrize(("way", "flag"), WAYS)


def back(stored: bytes, flags: int, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    return decompress(stored, flags, limit, "the payload of job 1a-2")


@ways
@given(body=st.binary(max_size=5_000) | st.binary(max_size=40).map(lambda item: item * 200))
def test_what_was_given_comes_back(way: Compression, flag: int, body: bytes) -> None:
    stored, flags = compress(body, way)
    assert flags in (0, flag)
    assert back(stored, flags) == body
    assert original_size(stored, flags) == len(body)
    assert len(stored) <= len(body)


@ways
def test_a_body_stays_as_it_is_unless_that_saves_five_percent(way: Compression, flag: int) -> None:
    """Random bytes followed by zeros: the share of zeros is about what is saved."""
    noise = random.Random(1).randbytes(100_000)
    assert compress(noise, way) == (noise, 0)
    little = noise + bytes(4_900)
    assert compress(little, way) == (little, 0)
    enough = noise + bytes(6_000)
    stored, flags = compress(enough, way)
    assert flags == flag
    assert len(stored) <= 0.95 * len(enough)


@pytest.mark.parametrize(
    ("stored", "flag"),
    [
        (
            "dc0500000000000078012b49cd5348aa2c492d562c19658d86c1683a18cd0ba3e5c130290901b81a28a9",
            Flag.ZLIB,
        ),
        (
            "dc0500000000000028b52ffd64dc048d00005074656e206279746573210100cff52f48670298a9",
            Flag.ZSTD,
        ),
    ],
)
def test_what_was_stored_once_is_read_for_ever(stored: str, flag: int) -> None:
    assert back(bytes.fromhex(stored), flag) == b"ten bytes!" * 150


@ways
def test_a_body_over_the_limit_is_refused_before_it_takes_memory_and_a_lie_is_cut_short(
    way: Compression, flag: int
) -> None:
    stored, flags = compress(bytes(50_000_000), way)
    assert len(stored) < 300_000
    with pytest.raises(
        PayloadTooLarge, match=r"job 1a-2, decompressed, has 50000000 bytes"
    ) as info:
        back(stored, flags, 1_000_000)
    assert "raise decompressed_bytes_max" in str(info.value)
    assert (info.value.size, info.value.limit) == (50_000_000, 1_000_000)
    # The stream claims 1000 bytes: no more than that is ever made of it.
    liar = struct.pack("<Q", 1_000) + stored[8:]
    with pytest.raises(LogDamaged, match="does not decompress to the 1000 bytes"):
        back(liar, flags)


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressor.compress(TEXT) + compressor.flush()
    with pytest.raises(LogDamaged):
        back(struct.pack("<Q", len(TEXT)) + frame, Flag.ZSTD)


HARMS: list[Callable[[bytes], bytes]] = [
    lambda stored: stored[:-10],
    lambda stored: stored[:20] + bytes((stored[20] ^ 255,)) + stored[21:],
    lambda stored: struct.pack("<Q", len(TEXT) + 1) + stored[8:],
    lambda stored: struct.pack("<Q", len(TEXT) - 1) + stored[8:],
    lambda _: b"",
    lambda _: b"abc",
]


@ways
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_body_is_an_error_that_names_it(
    way: Compression, flag: int, harm: Callable[[bytes], bytes]
) -> None:
    stored, flags = compress(TEXT, way)
    harmed = harm(stored)
    with pytest.raises(LogDamaged, match="the payload of job 1a-2 does not decompress"):
        back(harmed, flags)


def sized(noise: bytes) -> bytes:
    return struct.pack("<Q", len(noise)) + noise


@ways
@given(noise=st.binary(max_size=200) | st.binary(max_size=200).map(sized))
def test_any_bytes_at_all_are_read_or_refused(way: Compression, flag: int, noise: bytes) -> None:
    with contextlib.suppress(LogDamaged, PayloadTooLarge):
        assert len(back(noise, flag)) == original_size(noise, flag)


@pytest.fixture
def no_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.usefixtures("no_zstandard")
def test_zstd_without_its_package_names_the_extra() -> None:
    with pytest.raises(CompressionUnavailable, match=re.escape(install_line("zstd"))):
        check_compression("zstd")
    with pytest.raises(CompressionUnavailable, match="the payload of job 1a-2 is compressed with"):
        back(b"\1" + bytes(7), Flag.ZSTD)
    assert check_compression("zlib") == "zlib"


PART = FlowPart(
    place=0, inputs=((1, 3),), policy=Policy.RUN, shape=list_of([ONE] * 3), unlocks=(4,), jobs=5,
    ends=1, result=ONE,
)  # fmt: skip
BYTES = (
    "13 0800 0401000000000000 12 0500 0300000001 14 0c00 0101000000000000 03000000"
    "16 0700 02 0103000000 03 15 0d00 05000000 01000000 0101000000"
)


def test_the_options_of_a_part_are_these_bytes() -> None:
    assert encode_part(PART, 256) == bytes.fromhex(BYTES)
    assert PART.size >= len(bytes.fromhex(BYTES))


def test_what_a_carried_job_needs_reads_back() -> None:
    for doomed in (False, True):
        needs = needs_of(7, Policy.WAIT, doomed=doomed)
        assert decode_needs(encode_needs(needs)[3:]) == needs


@pytest.mark.parametrize("length", [16, 9, 65_535])
def test_an_end_that_names_more_than_its_record_holds_is_refused(length: int) -> None:
    world = World()
    process = world.process()
    first, *_ = process.ask(Op.ENQUEUE_MANY, items_of(chord(1)))
    option = struct.pack("<BHQ", 19, length, first)
    end = codec.encode_job(Kind.CANCELLED, 0, 0, first + 1, 0, options=option)
    process.append(end + codec.encode_job(Kind.CANCELLED, 0, 0, first + 2**20, 0), 2)
    with pytest.raises(FormatError, match=f"UNLOCKS has {length} bytes"):
        world.fold()


def test_every_operation_is_decided_in_one_place() -> None:
    decided = set(World().process().committer.operations.table)
    of_many_answers = {Op.CLAIM, Op.SETTLE_NOWAIT, Op.SUCCEED_NOWAIT}
    no_decisions = {Op.OUTCOME, *ops_that(Trait.AFTER)}
    assert decided.isdisjoint(of_many_answers | no_decisions)
    assert decided | of_many_answers | no_decisions == set(Op)


def test_queues_and_tasks_that_read_alike_together_are_lanes_apart() -> None:
    assert EnqueueSpec("ab", "c").lane_key != EnqueueSpec("a", "bc").lane_key
    assert EnqueueSpec("ab", "").lane_key != EnqueueSpec("a", "b").lane_key
