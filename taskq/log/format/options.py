"""Optional fields of a record: key, window, moments, headers (``codec`` has their format)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from taskq.core.errors import FormatError, PayloadTooLarge, UsageError
from taskq.core.model import HEADERS_BYTES_MAX, KEY_BYTES_MAX, Extras
from taskq.core.records import PACKED, Flag, Option
from taskq.log.format import codec
from taskq.log.format.codec import OPTION, QUEUE_SIZE_AT, option

if TYPE_CHECKING:
    from typing_extensions import Buffer

_I64: Final = struct.Struct("<q")
_U64: Final = struct.Struct("<Q")
#: A whole option with a number.
_NUMBERED: Final = struct.Struct("<BHQ")
_DUE_WALL: Final = int(Option.DUE_WALL)
_EXPIRES: Final = int(Option.EXPIRES)
_EXPIRES_RELATIVE: Final = int(Option.EXPIRES_RELATIVE)
_CONCURRENCY_KEY: Final = int(Option.CONCURRENCY_KEY)
_KEYS: Final = {int(Option.KEY): "key", _CONCURRENCY_KEY: "concurrency_key"}
#: Tags up to this one are moments, as is EXPIRES_RELATIVE.
_LAST_MOMENT: Final = _EXPIRES
_U64_MASK: Final = 2**64 - 1


#: Stands for a key's hash if the job's record cannot be read.
UNREAD_KEY: Final = 0


def encode_key_hash(hashed: int) -> bytes:
    return _NUMBERED.pack(Option.KEY_HASH, 8, hashed)


def encode_replaces(job: int) -> bytes:
    return _NUMBERED.pack(Option.REPLACES, 8, job)


def encode_extras(extras: Extras, now_ns: int) -> bytes:
    """Return the options of an ENQUEUED record; durations count from ``now_ns``."""
    parts: list[bytes] = []
    if extras.due_ns:
        if extras.due_is_wall:
            parts.append(option(Option.DUE_WALL, _I64.pack(extras.due_ns)))
        else:
            parts.append(option(Option.DUE, _I64.pack(now_ns + extras.due_ns)))
    if extras.expires_ns:
        if extras.expires_is_wall:
            parts.append(option(Option.EXPIRES, _I64.pack(extras.expires_ns)))
        else:
            moment = _I64.pack(now_ns + extras.expires_ns)
            parts.append(option(Option.EXPIRES_RELATIVE, moment))
    parts += _encode_keys(extras)
    if extras.keep_ns:
        parts.append(option(Option.KEEP, _I64.pack(extras.keep_ns)))
    if extras.headers:
        parts.append(option(Option.HEADERS, _encode_headers(extras.headers)))
    return b"".join(parts)


def _encode_keys(extras: Extras) -> list[bytes]:
    parts: list[bytes] = []
    if extras.key is not None:
        if not 0 < len(extras.key) <= KEY_BYTES_MAX:
            raise UsageError(
                f"a dedup key has {len(extras.key)} bytes, it must have 1 to {KEY_BYTES_MAX}"
            )
        parts.append(option(Option.KEY, extras.key))
        if extras.window_ns:
            parts.append(option(Option.WINDOW, _I64.pack(extras.window_ns)))
    if extras.concurrency_key:
        if len(extras.concurrency_key) > KEY_BYTES_MAX:
            raise UsageError(
                f"a concurrency key has {len(extras.concurrency_key)} bytes, it must have at most "
                f"{KEY_BYTES_MAX}"
            )
        parts.append(option(Option.CONCURRENCY_KEY, extras.concurrency_key))
    return parts


def _encode_headers(headers: dict[str, str]) -> bytes:
    parts: list[bytes] = []
    size = 0
    for pair in headers.items():
        for text in pair:
            data = _utf8(text)
            size += 2 + len(data)
            if size > HEADERS_BYTES_MAX:
                raise PayloadTooLarge("the headers", size, HEADERS_BYTES_MAX)
            parts.append(len(data).to_bytes(2, "little") + data)
    return b"".join(parts)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"header {text!r:.60} holds what is no text: {error.reason}") from error


def _decode_headers(data: bytes) -> dict[str, str]:
    texts: list[str] = []
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        texts.append(data[at + 2 : at + 2 + size].decode("utf-8", "replace"))
        at += 2 + size
    return dict(zip(texts[::2], texts[1::2], strict=False))


def each_option(data: Buffer, at: int, size: int) -> Iterator[tuple[int, bytes]]:
    view = memoryview(data)[at : at + size]
    place = 0
    while place + OPTION.size <= len(view):
        tag, length = OPTION.unpack_from(view, place)
        place += OPTION.size
        yield tag, bytes(view[place : place + length])
        place += length


def _number(tag: int, value: bytes) -> int:
    if len(value) != _I64.size:
        raise FormatError(
            f"option {tag} has {len(value)} bytes, this taskq knows it with {_I64.size}: "
            f"use a newer one"
        )
    number: int = _I64.unpack(value)[0]
    return number


def decode_times(data: bytes, at: int, size: int) -> tuple[int, bool, int, bool, bytes]:
    """Return (due, whether that is wall time, expiry, whether that is wall time, concurrency key).

    0 and b"" stand for missing options. Folds need no more, so no object is made.
    """
    due = expires = 0
    is_wall = expires_is_wall = False
    key = b""
    end = at + size
    while at + OPTION.size <= end:
        tag, length = OPTION.unpack_from(data, at)
        at += OPTION.size
        if tag <= _LAST_MOMENT or tag == _EXPIRES_RELATIVE:
            if length != _I64.size or at + length > end:
                raise FormatError(f"option {tag} has {length} bytes, a moment has {_I64.size}")
            moment = _I64.unpack_from(data, at)[0]
            if tag >= _EXPIRES:
                expires, expires_is_wall = moment, tag == _EXPIRES
            else:
                due, is_wall = moment, tag == _DUE_WALL
        elif tag == _CONCURRENCY_KEY:
            key = data[at : min(at + length, end)]
        at += length
    return due, is_wall, expires, expires_is_wall, key


def decode_extras(data: Buffer, at: int, size: int) -> Extras:
    """Return the options of an ENQUEUED record; its moments are wall time of its writing."""
    extras = Extras()
    for tag, value in each_option(data, at, size):
        if tag == Option.DUE:
            extras.due_ns = _number(tag, value)
        elif tag == Option.DUE_WALL:
            extras.due_ns, extras.due_is_wall = _number(tag, value), True
        elif tag == Option.EXPIRES:
            extras.expires_ns, extras.expires_is_wall = _number(tag, value), True
        elif tag == Option.EXPIRES_RELATIVE:
            extras.expires_ns = _number(tag, value)
        elif tag in _KEYS:
            setattr(extras, _KEYS[tag], value)
        elif tag == Option.WINDOW:
            extras.window_ns = _number(tag, value)
        elif tag == Option.KEEP:
            extras.keep_ns = _number(tag, value)
        elif tag == Option.HEADERS:
            extras.headers = _decode_headers(value)
    return extras


def without_secret_headers(options: bytes) -> bytes:
    from taskq.text import without_secrets  # noqa: PLC0415 - not needed to declare an app

    return b"".join(
        option(
            tag,
            _encode_headers(without_secrets(_decode_headers(value)))
            if tag == Option.HEADERS
            else bytes(value),
        )
        for tag, value in each_option(options, 0, len(options))
    )


def decode_key_hash(data: Buffer, at: int, size: int) -> int:
    for tag, value in each_option(data, at, size):
        if tag == Option.KEY_HASH:
            return _number(tag, value) & _U64_MASK
    return 0


def find_option(data: Buffer, at: int, size: int, wanted: int) -> bytes:
    return next((value for tag, value in each_option(data, at, size) if tag == wanted), b"")


def enqueue_extras(record: bytes) -> Extras:
    _, _, _, size, flags, _, queue_size, task_size = codec.BORN.unpack_from(record)
    extras = decode_extras(record, codec.BORN.size + queue_size + task_size, size)
    extras.until_settled = bool(extras.window_ns and flags & Flag.KEY_UNTIL_SETTLED)
    return extras


def queue_of(record: bytes) -> bytes:
    start = codec.BORN.size
    return record[start : start + record[QUEUE_SIZE_AT]]


# A job's enqueue record without past moments, if it is requeued; or with another route, if it
# moves.

#: Options with a due time, and options with an expiry.
DUE_OPTIONS: Final = frozenset(map(int, (Option.DUE, Option.DUE_WALL)))
_EXPIRY_OPTIONS: Final = frozenset(map(int, (Option.EXPIRES, Option.EXPIRES_RELATIVE)))


def timeless(born: bytes, job: int, dropped: frozenset[int]) -> bytes:
    """Return the record without the ``dropped`` options, and otherwise unchanged."""
    parts = codec.decode_born(born)
    kept = b"".join(
        option(tag, value)
        for tag, value in each_option(parts.options, 0, len(parts.options))
        if tag not in dropped
    )
    if len(kept) == len(parts.options):
        return born
    return codec.encode_born(parts._replace(options=kept), job)


def unexpiring(born: bytes, job: int) -> bytes:
    """Return the record of a job that was claimed, and so never expires."""
    return timeless(born, job, _EXPIRY_OPTIONS) if codec.PREFIX.unpack_from(born)[3] else born


def without_body(born: bytes, job: int) -> bytes:
    parts = codec.decode_born(born)
    return codec.encode_born(parts._replace(flags=parts.flags & ~PACKED, body=b""), job)


def rerouted(born: bytes, job: int, priority: int | None, queue: bytes | None) -> bytes:
    parts = codec.decode_born(born)
    priority = parts.priority if priority is None else priority
    return codec.encode_born(parts._replace(priority=priority, queue=queue or parts.queue), job)
