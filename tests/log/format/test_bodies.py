"""Bodies are stored smaller when that pays, and come back as they were, or not at all."""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.errors import CompressionUnavailable, LogDamaged, PayloadTooLarge, UsageError
from taskq.core.records import Flag
from taskq.extras import install_line
from taskq.log.format.bodies import (
    COMPRESSED_BYTES_MIN,
    DECOMPRESSED_BYTES_MAX,
    Compression,
    check_compression,
    compress,
    decompress,
    original_size,
)

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
def test_only_bodies_of_a_kilobyte_are_compressed(way: Compression, flag: int) -> None:
    small = b"a" * (COMPRESSED_BYTES_MIN - 1)
    assert compress(small, way) == (small, 0)
    stored, flags = compress(small + b"a", way)
    assert (flags, len(stored) < 100) == (flag, True)


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


def test_nothing_is_compressed_unless_asked_for() -> None:
    assert compress(TEXT, "none") == (TEXT, 0)


@ways
def test_the_stored_form_is_the_size_and_a_stream(way: Compression, flag: int) -> None:
    """As the codec's docstring says, so that others can read it."""
    stored, _ = compress(TEXT, way)
    assert struct.unpack_from("<Q", stored)[0] == len(TEXT)
    if way == "zlib":
        assert zlib.decompress(stored[8:]) == TEXT
    else:
        assert zstandard.decompress(stored[8:]) == TEXT


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
    """These bytes never change."""
    assert back(bytes.fromhex(stored), flag) == b"ten bytes!" * 150


@ways
def test_a_body_over_the_limit_is_refused_before_it_takes_memory(
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


@ways
def test_a_bomb_that_lies_about_its_size_is_cut_short(way: Compression, flag: int) -> None:
    """The stream holds 50 MB and claims 1000 bytes: no more than that is ever made of it."""
    stored, flags = compress(bytes(50_000_000), way)
    liar = struct.pack("<Q", 1_000) + stored[8:]
    with pytest.raises(LogDamaged, match="does not decompress to the 1000 bytes"):
        back(liar, flags)


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressor.compress(TEXT) + compressor.flush()
    with pytest.raises(LogDamaged):
        back(struct.pack("<Q", len(TEXT)) + frame, Flag.ZSTD)


def _shorter(stored: bytes) -> bytes:
    return stored[:-10]


def _changed(stored: bytes) -> bytes:
    return stored[:20] + bytes((stored[20] ^ 255,)) + stored[21:]


def _claims_more(stored: bytes) -> bytes:
    return struct.pack("<Q", len(TEXT) + 1) + stored[8:]


def _claims_less(stored: bytes) -> bytes:
    return struct.pack("<Q", len(TEXT) - 1) + stored[8:]


@ways
@pytest.mark.parametrize(
    "harm", [_shorter, _changed, _claims_more, _claims_less, lambda _: b"", lambda _: b"abc"]
)
def test_a_damaged_body_is_an_error_that_names_it(
    way: Compression, flag: int, harm: Callable[[bytes], bytes]
) -> None:
    stored, flags = compress(TEXT, way)
    harmed = harm(stored)
    with pytest.raises(LogDamaged, match="the payload of job 1a-2 does not decompress"):
        back(harmed, flags)


def test_a_body_that_is_compressed_twice_at_once_is_damaged() -> None:
    stored, _ = compress(TEXT, "zlib")
    with pytest.raises(LogDamaged):
        back(stored, Flag.ZLIB | Flag.ZSTD)


@ways
@given(noise=st.binary(max_size=200))
def test_any_bytes_at_all_are_read_or_refused(way: Compression, flag: int, noise: bytes) -> None:
    with contextlib.suppress(LogDamaged, PayloadTooLarge):
        assert len(back(noise, flag)) == original_size(noise, flag)


@pytest.fixture
def no_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which the package is not installed."""
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


@pytest.mark.parametrize("name", ["gzip", "", None, 1, "ZLIB"])
def test_an_unknown_way_to_compress_is_refused_with_those_that_are_known(name: object) -> None:
    with pytest.raises(UsageError, match="it must be one of none, zlib, zstd"):
        check_compression(name)


def test_a_megabyte_of_noise_costs_nothing_to_store() -> None:
    noise = os.urandom(1024 * 1024)
    assert compress(noise, "zlib")[0] is noise
