"""A job's enqueue record without its moments, for one that begins anew."""

from __future__ import annotations

import struct
from typing import Final

from taskq.core.records import Option
from taskq.log import codec
from taskq.log.options import each_option

_OPTION: Final = struct.Struct("<BH")
_MOMENTS: Final = frozenset(
    map(int, (Option.DUE, Option.DUE_WALL, Option.EXPIRES, Option.EXPIRES_RELATIVE))
)


def timeless(born: bytes, job: int) -> bytes:
    """The record without due time and expiry; everything else in it is kept as it is.

    A requeued job is ready at once, and a moment that it should have run by is likely to be over.
    """
    _, _, priority, size, flags, attempts, queue_size, task_size = codec.ENQUEUED.unpack_from(born)
    at = codec.ENQUEUED.size + queue_size + task_size
    kept = b"".join(
        _OPTION.pack(tag, len(value)) + value
        for tag, value in each_option(born, at, size)
        if tag not in _MOMENTS
    )
    if len(kept) == size:
        return born
    route = born[codec.ENQUEUED.size : at]
    tail = codec.enqueue_tail(priority, flags, attempts, queue_size, task_size, route, kept)
    return codec.encode_checked(tail, codec.enqueue_body(born), job)
