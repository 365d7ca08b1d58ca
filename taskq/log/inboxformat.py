"""The parts of an upload: chunks of jobs, as bytes that go into the log as they are.

A part (``inbox/<upload>.<16 hex digits>.part``) is a sequence of chunks, each a header of 24 bytes
(magic u32, version u16, 0 u16, jobs u32, size of the entries u32, CRC-32 of the entries u32, CRC-32
of the 20 bytes before, seeded with the CRC-32 of the chunk's offset u64) and its entries. An entry
is a job: its size u32, then its ENQUEUED record from the type up to the options, then its payload.
Moments that are relative are spans here: they count from the publication.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.errors import FormatError, UploadDamaged, UsageError
from taskq.core.model import (
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    TIME_NS_MAX,
    Extras,
)
from taskq.core.records import Flag, Kind, Option
from taskq.log import codec
from taskq.log.inboxmanifest import VERSION
from taskq.log.options import decode_extras, each_option, encode_extras
from taskq.log.requests import EnqueueSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_HEADER: Final = struct.Struct("<IHHIIII")
_CHUNK_MAGIC: Final = 0x49514B54
#: A chunk is written out when it has so many bytes, or jobs: about one batch of the log.
CHUNK_BYTES: Final = 192 * 1024
CHUNK_JOBS_MAX: Final = 4_096
#: No entry is larger: a payload with its names, key and headers.
ENTRY_BYTES_MAX: Final = PAYLOAD_BYTES_MAX + 64 * 1024
_CHUNK_BYTES_MAX: Final = CHUNK_BYTES + ENTRY_BYTES_MAX
_TAIL_BYTES_MIN: Final = codec.ENQUEUED_TAIL.size + 1
_U64: Final = struct.Struct("<Q")
_KEYED: Final = int(Flag.KEY_UNTIL_SETTLED)
_KNOWN_FLAGS: Final = int(
    Flag.CHECKED
    | Flag.DROP_RESULT
    | Flag.DURABLE_CLAIM
    | Flag.KEY_UNTIL_SETTLED
    | Flag.ZLIB
    | Flag.ZSTD
)
#: Options that a job of an upload may have, and the least and the most bytes of each.
_KNOWN_OPTIONS: Final[dict[int, tuple[int, int]]] = {
    Option.DUE: (8, 8),
    Option.DUE_WALL: (8, 8),
    Option.EXPIRES: (8, 8),
    Option.EXPIRES_RELATIVE: (8, 8),
    Option.KEY: (1, KEY_BYTES_MAX),
    Option.WINDOW: (8, 8),
    Option.HEADERS: (0, HEADERS_BYTES_MAX),
    Option.KEEP: (8, 8),
}
_SPECS_MAX: Final = 1_024


class Job(NamedTuple):
    """What a tail says of its job; ``extras`` None: nothing but what the spec does."""

    spec: EnqueueSpec
    extras: Extras | None


def encode_tail(spec: EnqueueSpec, extras: Extras | None = None) -> bytes:
    """The tail of an entry. Spans (a delay, an expiry) count from the publication.

    Raises:
        UsageError: a key or header is empty, too long or not text.
    """
    if extras is None:
        return spec.tail
    flags = int(spec.flags)
    if extras.key is not None and (extras.until_settled or not extras.window_ns):
        flags |= _KEYED
    return codec.enqueue_tail(
        spec.priority, flags, spec.attempts, spec.lane_key[0], spec.lane_key[1], spec.route,
        encode_extras(extras, 0),
    )  # fmt: skip


def decode_tail(tail: bytes) -> Job:
    """The job of a tail, checked as a caller's options are.

    Raises:
        UsageError: it is none, or says what no upload may.
    """
    if len(tail) < _TAIL_BYTES_MIN:
        raise UsageError(f"the tail of a job has {len(tail)} bytes: make it with encode_tail")
    kind, priority, options_size, flags, attempts, queue_size, task_size = (
        codec.ENQUEUED_TAIL.unpack_from(tail)
    )
    names = codec.ENQUEUED_TAIL.size
    at = names + queue_size + task_size
    if kind != Kind.ENQUEUED or at + options_size != len(tail) or priority > PRIORITY_MAX:
        raise UsageError("the tail of a job is no ENQUEUED record: make it with encode_tail")
    if flags & ~_KNOWN_FLAGS:
        raise UsageError(
            f"a job of an upload has flags {flags & ~_KNOWN_FLAGS:#x}: payloads in files of their "
            f"own cannot be uploaded, compress them or pass a path"
        )
    spec = _spec(priority, flags & ~_KEYED, attempts, tail[names:at], queue_size)
    return Job(spec, _decode_options(tail, at, options_size, flags) if options_size else None)


@functools.lru_cache(_SPECS_MAX)
def _spec(priority: int, flags: int, attempts: int, names: bytes, queue_size: int) -> EnqueueSpec:
    try:
        queue, task = names[:queue_size].decode(), names[queue_size:].decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the names in the tail of a job are no UTF-8: {error}") from error
    return EnqueueSpec(queue, task, priority, attempts, flags)


def _decode_options(tail: bytes, at: int, size: int, flags: int) -> Extras:
    for tag, value in each_option(tail, at, size):
        least, most = _KNOWN_OPTIONS.get(tag, (1, 0))
        if not least <= len(value) <= most:
            raise UsageError(
                f"a job of an upload has option {tag} of {len(value)} bytes, which none may have: "
                f"make its tail with encode_tail"
            )
    extras = decode_extras(tail, at, size)
    moments = extras.due_ns, extras.expires_ns, extras.window_ns, extras.keep_ns
    if not 0 <= min(moments) <= max(moments) <= TIME_NS_MAX:
        raise UsageError("a span or moment of a job of an upload is negative or over 146 years")
    if extras.headers:
        # What is no text reads as longer text: found out now, or whoever adopts could not go on.
        encode_extras(Extras(headers=extras.headers), 0)
    extras.until_settled = bool(extras.window_ns and flags & _KEYED)
    return extras


class Chunk(NamedTuple):
    """What the header of a chunk says."""

    jobs: int
    size: int
    crc: int


def encode_chunk(entries: list[bytes], offset: int) -> bytes:
    """A whole chunk, as it stands at ``offset`` of its part."""
    body = b"".join(entries)
    head = CHUNK_HEADER.pack(
        _CHUNK_MAGIC, VERSION, 0, len(entries), len(body), codec.crc32(body), 0
    )
    crc = codec.crc32(head[:-4], codec.crc32(_U64.pack(offset)))
    return b"".join((head[:-4], codec.pack_length(crc), body))


def decode_chunk(header: bytes, offset: int, what: str) -> Chunk:
    """The header of the chunk at ``offset``; ``what`` its file is called in errors.

    Raises:
        UploadDamaged: it is none.
    """
    if len(header) == CHUNK_HEADER.size:
        magic, version, _, jobs, size, body_crc, crc = CHUNK_HEADER.unpack(header)
        seed = codec.crc32(_U64.pack(offset))
        if magic == _CHUNK_MAGIC and crc == codec.crc32(header[:-4], seed):
            if version != VERSION:
                raise FormatError(f"{what}: version {version} is unknown: use a newer taskq")
            if 0 < jobs <= CHUNK_JOBS_MAX and jobs <= size <= _CHUNK_BYTES_MAX:
                return Chunk(jobs, size, body_crc)
    raise UploadDamaged(f"{what}: no chunk begins at offset {offset}")


def check_chunk(chunk: Chunk, body: bytes, offset: int, what: str) -> None:
    """Check the entries of a chunk.

    Raises:
        UploadDamaged: they are not what was written.
    """
    if len(body) != chunk.size or codec.crc32(body) != chunk.crc:
        raise UploadDamaged(f"{what}: the chunk at offset {offset} does not read back")


def each_entry(body: bytes, what: str) -> Iterator[tuple[int, int]]:
    """(place of the tail, place behind the payload) of each entry of a chunk.

    Raises:
        UploadDamaged: a size that cannot be.
    """
    at, end, unpack = 0, len(body), codec.LENGTH.unpack_from
    while at < end:
        size = unpack(body, at)[0] if at + 4 <= end else 0
        if size < _TAIL_BYTES_MIN + 4 or at + size > end:
            raise UploadDamaged(f"{what}: a job has an impossible size of {size} bytes")
        yield at + 4, at + size
        at += size


def tail_size(body: bytes, at: int, end: int, what: str) -> int:
    """Bytes of the tail at ``body[at:]`` of an entry that ends at ``end``.

    Raises:
        UploadDamaged: it does not fit.
    """
    _, _, options_size, _, _, queue_size, task_size = codec.ENQUEUED_TAIL.unpack_from(body, at)
    size: int = codec.ENQUEUED_TAIL.size + queue_size + task_size + options_size
    if at + size > end:
        raise UploadDamaged(f"{what}: the names of a job are longer than the job")
    return size
