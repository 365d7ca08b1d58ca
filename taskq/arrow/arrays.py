"""Fields of many records gathered with numpy, as Arrow arrays: no Python object for each row."""

from __future__ import annotations

import functools
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taskq.engine import kinds
from taskq.log.format import codec

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Bytes of each record that are gathered at once: the fixed fields of the widest record kind.
HEAD_SIZE: Final = kinds.ROWS[kinds.REPEAT].layout.struct.size
#: Zeros after the bytes of records, so that gathering never leaves the buffer.
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


#: Head of every record about a job; CARRIED records begin with the same fields.
OF_JOB: Final = _head(kinds.REPEAT)
OF_BIRTH: Final = _head(kinds.BIRTH)
OF_FRAME: Final = _fields(
    codec.FRAME_HEADER,
    "magic size count flags zero first_lsn epoch time_ns synced body_crc crc",
    codec.FRAME_HEADER_SIZE,
)
#: Lowest type that a reader may skip if unknown.
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
    """Return the first bytes of the records at these places, to view as one of the dtypes above.

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


_TEXT: Final = pa.string()
_BYTES: Final = pa.binary()
_LONG: Final = pa.int64()
#: Decimal digits of the numbers below 10 000, as four bytes read as one number.
_FOUR: Final = 10_000
_DIGITS: Final = np.frombuffer(b"".join(b"%04d" % number for number in range(_FOUR)), "<u4")
_ASCII_MAX: Final = 127
_U32_MAX: Final = 2**32 - 1
_U64_MAX: Final = 2**64 - 1


def nothing(kind: Any, count: int) -> pa.Array:
    """Return ``count`` nulls, shared: most columns of details are null, and never change."""
    return _nulls(kind, 1 << count.bit_length())[:count]


@functools.lru_cache(maxsize=64)
def _nulls(kind: Any, count: int) -> pa.Array:
    return pa.nulls(count, kind)


def validity(valid: Mask | None) -> pa.Buffer | None:
    """Return the bits of rows that are not null; None for all rows."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def numbers(values: npt.NDArray[Any], valid: Mask | None = None, kind: Any = _LONG) -> pa.Array:
    if valid is not None and not valid.any():
        return nothing(kind, len(values))
    values = np.ascontiguousarray(values)
    assert values.itemsize * 8 == kind.bit_width
    return pa.Array.from_buffers(kind, len(values), [validity(valid), pa.py_buffer(values)])


def somewhere(values: npt.NDArray[Any], kind: Any = _LONG) -> pa.Array:
    return numbers(values, values != 0, kind)


def slices(
    data: Bytes, start: Ints, end: Ints, valid: Mask | None, *, is_text: bool = False
) -> pa.Array:
    """Return the bytes of each row from ``start`` to ``end``, copied, as binary or as text.

    Text replaces invalid UTF-8, as everywhere in taskq. Places are below 2^31, since pieces are
    read in chunks.
    """
    kind = _TEXT if is_text else _BYTES
    if valid is None or valid.all():
        taken = _taken(data, start, end)
        return _text(taken) if is_text else taken
    some = np.flatnonzero(valid)
    if not len(some):
        return nothing(kind, len(start))
    taken = _taken(data, start[some], end[some])
    return spread(_text(taken) if is_text else taken, some, valid)


def spread(values: pa.Array, rows: Ints, valid: Mask) -> pa.Array:
    _, borders, data = values.buffers()
    sizes = np.zeros(len(valid) + 1, np.int32)
    sizes[rows + 1] = np.diff(np.frombuffer(borders, np.int32)[: len(values) + 1])
    offsets = pa.py_buffer(np.cumsum(sizes, dtype=np.int32))
    return pa.Array.from_buffers(values.type, len(valid), [validity(valid), offsets, data])


def _taken(data: Bytes, start: Ints, end: Ints) -> pa.Array:
    count = len(start)
    borders = np.empty(2 * count + 1, np.int32)
    borders[0:-1:2], borders[1::2] = start, end
    # One slice more, up to the end: Arrow's last offset must be the end of the last slice.
    borders[-1] = len(data)
    offsets, bodies = pa.py_buffer(borders), pa.py_buffer(data)
    alternating = pa.Array.from_buffers(_BYTES, 2 * count, [None, offsets, bodies])
    return alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _text(values: pa.Array) -> pa.Array:
    text = whole_text(values)
    return shown(values, "replace") if text is None else text


def whole_text(values: pa.Array) -> pa.Array | None:
    valid, borders, data = values.buffers()
    if data is None or np.frombuffer(data, np.uint8).max(initial=0) <= _ASCII_MAX:
        return pa.Array.from_buffers(_TEXT, len(values), [valid, borders, data])
    try:
        return values.cast(_TEXT)
    except pa.ArrowInvalid:
        return None


def shown(values: pa.Array, errors: str) -> pa.Array:
    """Return binary as text; Python's codecs replace invalid UTF-8 by ``errors``."""
    texts = (
        None if value is None else value.decode("utf-8", errors) for value in values.to_pylist()
    )
    return pa.array(texts, _TEXT)


def is_text(values: pa.Array) -> Mask:
    """Return which values are UTF-8; a null counts as UTF-8."""
    return np.array([_is_text(value) for value in values.to_pylist()], np.bool_)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def ids(tag: str, job: npt.NDArray[np.uint64]) -> pa.Array:
    """Return ``<tag>-<number>`` of each row, null where the number is 0."""
    valid = job != 0
    if valid.all():
        return _ids(tag, job)
    some = np.flatnonzero(valid)
    if not len(some):
        return nothing(_TEXT, len(job))
    return spread(_ids(tag, job[some]), some, valid)


def hexadecimal(values: Ints, valid: Mask | None = None) -> pa.Array:
    if valid is None or valid.all():
        return _hexadecimal(values)
    some = np.flatnonzero(valid)
    if not len(some):
        return nothing(_TEXT, len(values))
    return spread(_hexadecimal(values[some]), some, valid)


def _hexadecimal(values: Ints) -> pa.Array:
    some, places = np.unique(values, return_inverse=True)  # rows have few different processes
    texts = pa.array([f"{value & _U64_MAX:016x}" for value in some.tolist()], _TEXT)
    return texts.take(pa.array(places))


def _ids(tag: str, job: npt.NDArray[np.uint64]) -> pa.Array:
    prefix = f"{tag}-".encode()
    count, most = len(job), int(job.max())
    digits = len(str(most))
    if len(str(job.min())) != digits or len(prefix) < _DIGITS.itemsize:
        return pc.binary_join_element_wise(pa.scalar(tag), pa.array(job).cast(_TEXT), "-")
    size = len(prefix) + digits
    data = np.empty(count * size, np.uint8)
    left: npt.NDArray[Any] = job.astype(np.uint32) if most <= _U32_MAX else job
    for place in range(size - 4, len(prefix) - 4, -4):
        rest = left // _FOUR
        column: npt.NDArray[np.uint32] = np.ndarray((count,), "<u4", data.data, place, (size,))
        column[:] = _DIGITS[left - rest * _FOUR]
        left = rest
    # The prefix comes last, because zeros before the number were written over its end.
    front: npt.NDArray[Any] = np.ndarray((count,), f"V{len(prefix)}", data.data, 0, (size,))
    front[:] = np.void(prefix)
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(_TEXT, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def named(names: pa.Array, index: npt.NDArray[Any], valid: Mask | None = None) -> pa.Array:
    if valid is not None and not valid.any():
        return nothing(names.type, len(index))
    mask = None if valid is None else ~valid
    return names.take(pa.array(index, mask=mask))


def patched(values: pa.Array, rows: Ints, others: list[Any]) -> pa.Array:
    mask = np.zeros(len(values), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(values, pa.array(mask), pa.array(others, values.type))
