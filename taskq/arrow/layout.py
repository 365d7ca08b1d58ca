"""Fields of records as numpy sees them, derived from the structs of ``taskq.log.format.codec``."""

from __future__ import annotations

import functools
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from taskq.engine import kinds
from taskq.log.format import codec

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Bytes of each record that are gathered at once: the fixed fields of the widest that is read so.
HEAD_SIZE: Final = kinds.ROWS[kinds.REPEAT].layout.struct.size
#: Zeros behind the bytes that records stand in, so that gathering never leaves them.
PAD_SIZE: Final = 64
_FORMATS: Final = {"B": "u1", "H": "<u2", "I": "<u4", "Q": "<u8", "q": "<i8"}


def _fields(layout: Struct, names: str, gathered: int = HEAD_SIZE) -> np.dtype[np.void]:
    formats = [_FORMATS[letter] for letter in layout.format.lstrip("<")]
    sizes = [np.dtype(letter).itemsize for letter in formats]
    assert sum(sizes) == layout.size <= gathered
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    fields: Any = {
        "names": names.split(), "formats": formats, "offsets": offsets, "itemsize": gathered,
    }  # fmt: skip
    made: np.dtype[np.void] = np.dtype(fields)
    return made


_PREFIX: Final = "length kind byte options_size flags "


def _head(kind: int) -> np.dtype[np.void]:
    layout = kinds.ROWS[kind].layout
    return _fields(layout.struct, _PREFIX + layout.names)


#: Of every record that concerns a job: the others begin as those do that tell all of one.
OF_JOB: Final = _head(kinds.REPEAT)
OF_BIRTH: Final = _head(kinds.BIRTH)
OF_FRAME: Final = _fields(
    codec.FRAME_HEADER,
    "magic size count flags zero first_lsn epoch time_ns synced body_crc crc",
    codec.FRAME_HEADER_SIZE,
)
#: Types from this one on may be passed over by who does not know them.
SKIPPABLE: Final = 128
CHECKED: Final = 1
KINDS: Final = 256
CRC_SIZE: Final = 4


def _sizes() -> Ints:
    sizes = np.full(KINDS, codec.PREFIX.size, np.int64)
    for kind, size in codec.FIXED_SIZES.items():
        sizes[kind] = size
    return sizes


@functools.cache
def table(among: frozenset[int]) -> Mask:
    chosen = np.zeros(KINDS, np.bool_)
    chosen[list(among)] = True
    return chosen


FIXED_SIZES: Final = _sizes()
IS_KNOWN: Final = table(frozenset(kinds.ROWS))
IS_OF_JOB: Final = table(kinds.OF_JOBS)
IS_CARRYING: Final = table(kinds.CARRYING)
IS_BIRTH: Final = table(kinds.BEGINNINGS)


def heads(data: Bytes, at: Ints, size: int = HEAD_SIZE) -> npt.NDArray[np.void]:
    """Return the first bytes of the records at these places; view them as one of the dtypes above.

    A place must be at least ``PAD_SIZE`` before the end of the data.
    """
    kind = np.dtype((np.void, size))
    every: npt.NDArray[np.void] = np.ndarray((len(data) - size + 1,), kind, data.data, strides=(1,))
    return every[at]


def numbers_at(data: Bytes, at: Ints, kind: str) -> npt.NDArray[Any]:
    """Return the number of a dtype such as ``<u4`` at each of these places."""
    dtype = np.dtype(kind)
    every: npt.NDArray[Any] = np.ndarray(
        (len(data) - dtype.itemsize + 1,), dtype, data.data, strides=(1,)
    )
    return every[at]


@functools.cache
def with_field(name: str) -> list[tuple[Mask, np.dtype[np.void]]]:
    places: dict[int, list[int]] = {}
    for kind, row in kinds.ROWS.items():
        if name in row.layout.names.split():
            places.setdefault(_place(kind, name), []).append(kind)
    return [
        (table(frozenset(kinds_there)), _head(kinds_there[0])) for kinds_there in places.values()
    ]


def _place(kind: int, name: str) -> int:
    fields = _head(kind).fields
    assert fields is not None
    return fields[name][1]
