"""Records are found where they stand, however the frames that hold them are walked."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.arrow.arrays import PAD_SIZE, Bytes, Ints
from taskq.arrow.frames import RECORDS_MIN, place_seeds, places, walk_in_stretches
from taskq.core.errors import FormatError
from taskq.log.format import codec
from tests.arrow.segmentfiles import claimed, enqueued

#: A payload that looks like records, before bytes that are none.
_DECOY: Final = claimed(1) + claimed(2) + claimed(3) + claimed(4) + b"\xff" * 9


def _record(chance: random.Random, decoys: float) -> bytes:
    if chance.random() < 0.3:
        return claimed(chance.randrange(2**40))
    payload = b"x" * chance.randrange(90)
    if chance.random() < decoys:
        payload += _DECOY
    return enqueued(payload)(1)


def _frames(chance: random.Random, counts: list[int], decoys: float) -> list[list[bytes]]:
    frames = []
    for count in counts:
        item = _record(chance, decoys)
        alike = chance.random() < 0.2
        frames.append([item if alike else _record(chance, decoys) for _ in range(count)])
    return frames


def _laid_out(frames: list[list[bytes]]) -> tuple[Bytes, Ints, Ints, Ints, list[int], list[int]]:
    """Return (data, starts, sizes, counts, places of all records, their lengths)."""
    parts, starts, at, lengths = [], [], [], []
    size = 0
    for records in frames:
        parts.append(b"\xee" * codec.FRAME_HEADER_SIZE)
        size += codec.FRAME_HEADER_SIZE
        starts.append(size)
        for record in records:
            at.append(size)
            lengths.append(len(record))
            parts.append(record)
            size += len(record)
    data = np.frombuffer(b"".join(parts) + bytes(PAD_SIZE), np.uint8)
    sizes = [sum(map(len, records)) for records in frames]
    counts = [len(records) for records in frames]
    return data, np.array(starts), np.array(sizes), np.array(counts), at, lengths


@given(
    counts=st.lists(
        st.integers(1, 6) | st.integers(1, 100) | st.integers(200, 1_200), min_size=1, max_size=90
    ),
    decoys=st.sampled_from([0.0, 0.02, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_records_of_any_frames_are_found(counts: list[int], decoys: float, seed: int) -> None:
    """Few or many, alike or of all sizes, and with payloads that look like records."""
    if sum(counts) > 3_000:
        counts = counts[:3]
    data, starts, sizes, count, at, lengths = _laid_out(
        _frames(random.Random(seed), counts, decoys)
    )
    result, found_lengths = places(data, starts, sizes, count, np.ones(len(counts), np.int64))
    assert result.tolist() == at
    assert found_lengths.tolist() == lengths


def test_guesses_are_right_or_known_to_be_wrong() -> None:
    chance = random.Random(1)
    frames = _frames(chance, [1_000] * 6, 0.0)[:3] + _frames(chance, [1_000] * 3, 0.7)
    frames = [[*records, claimed(1), enqueued(b"odd")(1)] for records in frames]
    data, starts, sizes, counts, at, _ = _laid_out(frames)
    walked = walk_in_stretches(data, starts, sizes, counts)
    for number, result in enumerate(walked):
        begin = number * 1_002
        assert result is None or result.tolist() == at[begin : begin + 1_002]
    assert all(result is not None for result in walked[:3])
    assert any(result is None for result in walked[3:])


@pytest.mark.parametrize("wrong", [0, 3, 11, 10_000_000, 2**32 - 1])
@pytest.mark.parametrize("count", [3, 40, RECORDS_MIN + 50])
def test_a_wrong_length_is_named_wherever_it_stands(count: int, wrong: int) -> None:
    chance = random.Random(count)
    frames = _frames(chance, [count, count], 0.0)
    data, starts, sizes, counts, at, _ = _laid_out(frames)
    for number in (0, count // 2, count - 1, 2 * count - 1):
        broken = data.copy()
        broken[at[number] : at[number] + 4] = np.frombuffer(codec.pack_length(wrong), np.uint8)
        with pytest.raises(FormatError, match=f"lsn {100 + number} has an impossible length"):
            places(broken, starts, sizes, counts, np.array([100, 100 + count]))


def test_more_records_than_there_is_room_for_are_refused() -> None:
    data, starts, sizes, _, _, _ = _laid_out([[claimed(1), claimed(2)]])
    with pytest.raises(FormatError, match="lsn 9 has an impossible length of 0 bytes"):
        places(data, starts, sizes, np.array([2**32 - 1]), np.array([7]))


@given(offsets=st.lists(st.integers(0, 2**40), max_size=20), seed=st.integers(0, 2**32 - 1))
def test_seeds_of_many_frames_are_those_of_each(offsets: list[int], seed: int) -> None:
    expected = [codec.crc32(offset.to_bytes(8, "little"), seed) for offset in offsets]
    assert place_seeds(seed, np.array(offsets, np.int64)).tolist() == expected
