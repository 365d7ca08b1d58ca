"""Arrow arrays from what numpy gathered, without a Python object for any row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from taskq_plugins.spark.decode.layout import Bytes, Ints, Mask

_TEXT: Final = pa.string()
_BYTES: Final = pa.binary()
_LONG: Final = pa.int64()


def validity(valid: Mask | None) -> pa.Buffer | None:
    """Bits that say which rows are not null; None stands for all."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def numbers(values: np.ndarray[Any, Any], valid: Mask | None = None, kind: Any = _LONG) -> pa.Array:
    """Numbers of a type of Arrow that has the width of numpy's."""
    values = np.ascontiguousarray(values)
    assert values.itemsize * 8 == kind.bit_width
    return pa.Array.from_buffers(kind, len(values), [validity(valid), pa.py_buffer(values)])


def somewhere(values: np.ndarray[Any, Any], kind: Any = _LONG) -> pa.Array:
    """Numbers, of which 0 says that there is none."""
    return numbers(values, values != 0, kind)


def slices(data: Bytes, start: Ints, end: Ints, valid: Mask | None) -> pa.Array:
    """The bytes from ``start`` to ``end`` of each row, as binary; the data is copied.

    Arrow takes every second of the slices start-end, end-start, start-end, ... of one buffer.
    Places are below 2^31, for pieces are read in chunks.
    """
    count = len(start)
    if not count or (valid is not None and not valid.any()):
        return pa.nulls(count, _BYTES)
    borders = np.zeros(2 * count + 1, np.int32)
    # One more slice, up to the end: Arrow wants the last of them to be behind the first.
    borders[-1] = len(data)
    starts, ends = borders[0:-1:2], borders[1::2]
    if valid is None:
        starts[:], ends[:] = start, end
    else:
        np.copyto(starts, start, casting="unsafe", where=valid)
        np.copyto(ends, end, casting="unsafe", where=valid)
    offsets, bodies = pa.py_buffer(borders), pa.py_buffer(data)
    alternating = pa.Array.from_buffers(_BYTES, 2 * count, [None, offsets, bodies])
    taken = alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if valid is None:
        return taken
    _, offsets, copied = taken.buffers()
    return pa.Array.from_buffers(_BYTES, count, [validity(valid), offsets, copied])


def text(values: pa.Array) -> pa.Array:
    """Binary as text; what is no UTF-8 is replaced, as everywhere in taskq."""
    try:
        return values.cast(_TEXT)
    except pa.ArrowInvalid:
        told = [
            None if one is None else one.decode("utf-8", "replace") for one in values.to_pylist()
        ]
        return pa.array(told, _TEXT)


def named(names: pa.Array, index: np.ndarray[Any, Any], valid: Mask | None = None) -> pa.Array:
    """The name at the index of each row."""
    mask = None if valid is None else ~valid
    return names.take(pa.array(index, mask=mask))


def patched(values: pa.Array, rows: Ints, others: list[Any]) -> pa.Array:
    """The values, with those of some rows replaced."""
    if not len(rows):
        return values
    mask = np.zeros(len(values), np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(values, pa.array(mask), pa.array(others, values.type))
