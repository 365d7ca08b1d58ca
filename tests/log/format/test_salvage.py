"""Salvage of a damaged frame loses only the damaged records."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from taskq.core.records import Cause, Kind
from taskq.log.format import codec
from taskq.log.format.salvage import salvage

_FIRST = 2**32 - 20  # the seeds of the records' CRCs begin anew among them


def _enqueued(body: bytes, lsn: int) -> bytes:
    return codec.encode_checked(codec.enqueue_tail(5, 1, 3, 4, 2, b"mailto", b""), body, lsn)


def _record(kind: int, body: bytes, lsn: int) -> bytes:
    if kind == 0:
        return codec.encode_job(Kind.CLAIMED, 0, 1, 77, lsn)
    if kind == 1:
        return codec.encode_job(Kind.SUCCEEDED, 0, 1, 77, 78, body, lsn)
    if kind == 2:
        return codec.encode_back(Kind.RETRIED, Cause.DRAIN, 1, 77, 78, 0, body, lsn)
    return _enqueued(body, lsn)


def _is_checked(record: bytes) -> bool:
    return record[8] & 1 == 1


@given(
    parts=st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=90)), min_size=1, max_size=60),
    chance=st.randoms(use_true_random=False),
)
def test_whatever_is_wrong_in_one_record_all_others_that_have_a_checksum_are_saved(
    parts: list[tuple[int, bytes]], chance: random.Random
) -> None:
    """Its length, type, options, flags, or anything else: the next one is found."""
    records = [_record(kind, body, _FIRST + n) for n, (kind, body) in enumerate(parts)]
    hit = chance.randrange(len(records))
    begin = sum(map(len, records[:hit]))
    data = bytearray(b"".join(records))
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = begin + chance.choice((chance.randrange(12), chance.randrange(len(records[hit]))))
        data[at] = chance.choice((data[at] ^ 1 << chance.randrange(8), chance.randrange(256), 0))
    seen = {lsn: (at, record) for lsn, at, record in salvage(bytes(data), _FIRST)}
    place = 0
    for number, record in enumerate(records):
        if number != hit and _is_checked(record):
            assert seen[_FIRST + number] == (place, record)
        place += len(record)
    assert set(seen) <= set(range(_FIRST, _FIRST + len(records)))


def test_records_of_frames_behind_one_whose_header_is_lost_are_saved_too() -> None:
    first = b"".join(_enqueued(b"%d" % n, n) for n in range(5, 9))
    second = b"".join(_enqueued(b"%d" % n, n) for n in range(9, 12))
    data = first + bytes(3) + b"a lost header of fifty-six bytes".ljust(56, b"!") + second
    assert [lsn for lsn, _, _ in salvage(data, 5)] == list(range(5, 12))


def test_a_record_of_another_place_in_a_payload_is_never_taken_for_one() -> None:
    inner = b"".join(_enqueued(b"stranger", lsn) for lsn in (1, 4, 500))
    data = bytearray(_enqueued(inner, 5) + _enqueued(b"next", 6))
    data[1] ^= 0x7F
    seen = [(lsn, record) for lsn, _, record in salvage(bytes(data), 5)]
    assert seen == [(6, _enqueued(b"next", 6))]


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
