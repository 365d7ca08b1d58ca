"""The dedup key of a record, as the hash by which it is known."""

from __future__ import annotations

from typing import Final

from taskq.core.folds.dedup import key_hash
from taskq.core.records import Option
from taskq.log.format import codec
from taskq.log.format.codec import OPTION, QUEUE_SIZE_AT

_KEY: Final = int(Option.KEY)


def key_hash_of(data: bytes, at: int = 0) -> int:
    """Return the hash of an ENQUEUED record's key, 0 if it has none.

    Every settlement of a job with a key asks for it, and so does the index for each such record:
    that is why it makes no ``Extras``, nor goes by ``each_option``.
    """
    start = at + codec.BORN.size
    queue_end = start + data[at + QUEUE_SIZE_AT]
    place = queue_end + data[at + QUEUE_SIZE_AT + 1]
    end = place + codec.PREFIX.unpack_from(data, at)[3]
    while place + OPTION.size <= end:
        tag, length = OPTION.unpack_from(data, place)
        place += OPTION.size
        if tag == _KEY:
            key = data[place : min(place + length, end)]
            return key_hash(data[start:queue_end], key)
        place += length
    return 0
