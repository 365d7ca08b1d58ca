"""A job's enqueue record without moments that do not count any more, for one that begins anew."""

from __future__ import annotations

from typing import Final

from taskq.core.records import Option
from taskq.log import codec
from taskq.log.codec import option
from taskq.log.options import each_option

#: When the job was to be due, and when it was to expire.
DUE_OPTIONS: Final = frozenset(map(int, (Option.DUE, Option.DUE_WALL)))
EXPIRY_OPTIONS: Final = frozenset(map(int, (Option.EXPIRES, Option.EXPIRES_RELATIVE)))


def timeless(born: bytes, job: int, dropped: frozenset[int]) -> bytes:
    """The record without the ``dropped`` options; everything else in it is kept as it is."""
    _, _, priority, size, flags, attempts, queue_size, task_size = codec.ENQUEUED.unpack_from(born)
    at = codec.ENQUEUED.size + queue_size + task_size
    kept = b"".join(
        option(tag, value) for tag, value in each_option(born, at, size) if tag not in dropped
    )
    if len(kept) == size:
        return born
    route = born[codec.ENQUEUED.size : at]
    tail = codec.enqueue_tail(priority, flags, attempts, queue_size, task_size, route, kept)
    return codec.encode_checked(tail, codec.enqueue_body(born), job)
