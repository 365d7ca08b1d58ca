"""The options of flows' jobs: their bytes never change."""

from __future__ import annotations

import struct

import pytest

from taskq.core.errors import FormatError
from taskq.core.flows import ONE, FlowPart, Policy, list_of, needs_of, nested, skipping
from taskq.core.records import Kind
from taskq.log.format import codec
from taskq.log.format.flows import decode_needs, encode_needs, encode_part
from taskq.log.requests import Op
from tests.log.flowing import chord, items_of
from tests.log.world import World

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


def test_shapes_nest_values() -> None:
    inner = list_of([ONE, ONE])
    assert nested(ONE, [1]) == 1
    assert nested(list_of([inner, ONE, list_of([])]), [1, 2, 3]) == [[1, 2], 3, []]
    assert nested(skipping(2) + list_of([ONE]), [1, 2, 3]) == [3]


@pytest.mark.parametrize("shape", [b"", b"\x02", b"\x03", b"\x07", b"\x01\x02", ONE + ONE])
def test_what_is_no_shape_is_refused(shape: bytes) -> None:
    with pytest.raises(FormatError):
        nested(shape, [1])


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
