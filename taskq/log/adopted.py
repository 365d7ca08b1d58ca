"""ADOPTED records: how far an upload has come, in the frame of the jobs that brought it there.

They stand at the end of a frame, so that they are found without reading what is before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.records import Flag, Kind
from taskq.log import codec

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of a whole record.
ADOPTED_SIZE: Final = codec.ADOPTED.size + 4
_CHECKED: Final = int(Flag.CHECKED)
_HEAD: Final = codec.PREFIX.pack(ADOPTED_SIZE, Kind.ADOPTED, 0, 0, _CHECKED)


class UploadProgress(NamedTuple):
    """How far an upload has come."""

    #: 16 bytes
    upload: bytes
    #: jobs that are decided: the first so many of it
    done: int
    #: jobs in all of it
    total: int
    #: those among the decided ones that were left out, since their keys were held
    duplicates: int
    #: of the first record of the frame that began it
    first_lsn: int


def encode_adopted(adopted: UploadProgress, lsn: int) -> bytes:
    """An ADOPTED record."""
    fixed = codec.ADOPTED.pack(0, Kind.ADOPTED, 0, 0, _CHECKED, 0, *adopted)
    return codec.encode_checked(fixed[4:], b"", lsn)


def decode_adopted(record: bytes) -> UploadProgress:
    """What an ADOPTED record says."""
    return UploadProgress(*codec.ADOPTED.unpack_from(record)[6:])


def adopted_at_end(data: bytes, next_lsn: int) -> Iterator[tuple[int, UploadProgress]]:
    """(lsn, what it says) of what looks like ADOPTED records at the end of a frame, the last first.

    Args:
        data: the frame's body, or the end of it.
        next_lsn: the lsn behind the frame.
    """
    end, lsn = len(data), next_lsn - 1
    while end >= ADOPTED_SIZE and data.startswith(_HEAD, end - ADOPTED_SIZE):
        record = data[end - ADOPTED_SIZE : end]
        if codec.LENGTH.pack(codec.crc32(record[:-4], lsn & 0xFFFFFFFF)) != record[-4:]:
            return
        yield lsn, decode_adopted(record)
        end -= ADOPTED_SIZE
        lsn -= 1
