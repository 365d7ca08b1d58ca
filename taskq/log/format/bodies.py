"""Payloads and results in their records: as given, or compressed."""

from __future__ import annotations

import io
import struct
import zlib
from types import ModuleType
from typing import Any, Final, Literal, cast, get_args

from taskq.core.errors import CompressionUnavailable, LogDamaged, PayloadTooLarge, UsageError
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag

#: Compression of bodies, "none" for no compression.
Compression = Literal["none", "zlib", "zstd"]

#: Smallest body that is compressed.
COMPRESSED_BYTES_MIN: Final = 1_024
#: Largest ratio to the original size at which a compressed body is kept.
_RATIO_MAX: Final = 0.95
#: Default limit of a decompressed body.
DECOMPRESSED_BYTES_MAX: Final = 100 * 1024 * 1024
_COMPRESSED: Final = int(Flag.ZLIB | Flag.ZSTD)
_ZLIB: Final = int(Flag.ZLIB)
_ZSTD: Final = int(Flag.ZSTD)
_ZLIB_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 3
#: Window that a zstd decoder should accept (RFC 8878, 3.1.1.1.2), and its memory for a frame.
_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
_SIZE: Final = struct.Struct("<Q")


def check_compression(name: object) -> Compression:
    """Return the name of a compression that this process can do."""
    known = get_args(Compression)
    if name not in known:
        raise UsageError(f"compress is {name!r}, it must be one of {', '.join(known)}")
    if name == "zstd":
        _zstandard('compress="zstd"')
    return cast("Compression", name)


def check_size(what: str, body: bytes) -> None:
    if len(body) > PAYLOAD_BYTES_MAX:
        remedy = "put the data into a file and pass its path"
        raise PayloadTooLarge(what, len(body), PAYLOAD_BYTES_MAX, remedy)


def compress(body: bytes, compression: Compression) -> tuple[bytes, int]:
    """Return the stored body and its flag, 0 if it is small or would shrink by less than 5 %.

    A compressed body is its original size (u64, little-endian), then one zlib stream (flag ZLIB) or
    one zstd frame (flag ZSTD).

    zlib runs at level 1: on JSON it needs 14 ms per MiB and stores 8 % more than level 6, which
    needs 34 ms.
    """
    if compression == "none" or len(body) < COMPRESSED_BYTES_MIN:
        return body, 0
    if compression == "zlib":
        flag, packed = _ZLIB, zlib.compress(body, _ZLIB_LEVEL)
    else:
        zstandard = _zstandard('compress="zstd"')
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        flag, packed = _ZSTD, compressor.compress(body)
    if _SIZE.size + len(packed) > _RATIO_MAX * len(body):
        return body, 0
    return _SIZE.pack(len(body)) + packed, flag


def decompress(stored: bytes, flags: int, limit: int, what: str) -> bytes:
    """Return the original body; ``flags`` are its record's, ``what`` names it in errors.

    The size in the body is checked first, and limits the memory taken.
    """
    kind = flags & _COMPRESSED
    if not kind:
        return stored
    size = original_size(stored, flags)
    if size > limit:
        raise PayloadTooLarge(
            f"{what}, decompressed,", size, limit, "raise decompressed_bytes_max to read it"
        )
    body = None
    if size and kind == _ZLIB:  # an empty body is never compressed
        body = _inflated(stored, size)
    elif size and kind == _ZSTD:
        body = _unpacked(_zstandard(f"{what} is compressed with zstd, which"), stored, size)
    if body is None:
        raise LogDamaged(f"{what} does not decompress to the {size} bytes that it had")
    return body


def original_size(stored: bytes, flags: int) -> int:
    if not flags & _COMPRESSED:
        return len(stored)
    size: int = _SIZE.unpack_from(stored.ljust(_SIZE.size, b"\0"))[0]
    return size


def _inflated(stored: bytes, size: int) -> bytes | None:
    decompressor = zlib.decompressobj()
    try:
        body = decompressor.decompress(memoryview(stored)[_SIZE.size :], size + 1)
    except zlib.error:
        return None
    return body if len(body) == size and decompressor.eof else None


def _unpacked(zstandard: ModuleType, stored: bytes, size: int) -> bytes | None:
    # decompress() would take as much memory as the frame claims.
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
    reader: Any = decompressor.stream_reader(io.BytesIO(memoryview(stored)[_SIZE.size :]))
    pieces: list[bytes] = []
    left = size + 1
    try:
        while left and (piece := reader.read(min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
    except zstandard.ZstdError:
        return None
    return b"".join(pieces) if left == 1 else None


def _zstandard(why: str) -> ModuleType:
    try:
        import zstandard  # noqa: PLC0415 - an extra for few users
    except ImportError:
        from taskq.extras import missing  # noqa: PLC0415 - only needed without the extra

        raise CompressionUnavailable(missing(why, "zstandard", "zstd")) from None
    return zstandard
