"""The headers of many jobs as maps, walked in step: the first text of each, then the second, ..."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from taskq.core.records import Option
from taskq.log.format.options import decode_extras
from taskq_plugins.spark.decode import arrays
from taskq_plugins.spark.decode.layout import numbers_at
from taskq_plugins.spark.decode.schema import DETAILS

if TYPE_CHECKING:
    from taskq_plugins.spark.decode.layout import Bytes, Ints
    from taskq_plugins.spark.decode.options import Options

_TYPE: Final = DETAILS.field("headers").type
#: Length of a text, in front of it.
_SIZE_SIZE: Final = 2


def headers_of(data: Bytes, options: Options, count: int) -> pa.Array:
    """The headers among the options of so many rows, null where there are none."""
    if not options:
        return arrays.nothing(_TYPE, count)
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    options.bytes_of(Option.HEADERS, start, end, valid)
    row = np.flatnonzero(valid)
    if not len(row):
        return arrays.nothing(_TYPE, count)
    texts = _texts(data, row, start[row], end[row])
    pairs = [
        # Of a last name without a value nothing is told.
        np.stack((*(one[np.isin(name[0], value[0])] for one in name), *value[1:]))
        for name, value in zip(texts[::2], texts[1::2], strict=False)
    ]
    if not pairs:
        return arrays.nothing(_TYPE, count)
    every = np.concatenate(pairs, axis=1)
    row, name_at, name_end, value_at, value_end = every[:, np.argsort(every[0], kind="stable")]
    names = arrays.slices(data, name_at, name_end, None, is_text=True)
    if len(pairs) > 1 and _has_doubles(row, names):
        return _one_by_one(data, start, end, count)
    values = arrays.slices(data, value_at, value_end, None, is_text=True)
    sizes = np.bincount(row, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    entries = pa.StructArray.from_arrays(
        [names, values], fields=[_TYPE.key_field, _TYPE.item_field]
    )
    buffers = [arrays.validity(sizes != 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(_TYPE, count, buffers, children=[entries])


def _texts(data: Bytes, row: Ints, at: Ints, end: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """(rows, starts, ends) of the first texts, of the second, and so on: names and values."""
    texts: list[tuple[Ints, Ints, Ints]] = []
    while True:
        more = at + _SIZE_SIZE <= end
        row, at, end = row[more], at[more], end[more]
        if not len(row):
            return texts
        size = numbers_at(data, at, "<u2").astype(np.int64)
        at = at + _SIZE_SIZE
        texts.append((row, at, np.minimum(at + size, end)))
        at = at + size


def _has_doubles(row: Ints, names: pa.Array) -> bool:
    """Whether a row has a name twice, which no taskq writes."""
    code = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    return len(np.unique(row * len(names) + code)) < len(names)


def _one_by_one(data: Bytes, start: Ints, end: Ints, count: int) -> pa.Array:
    """The same by the log's own decoder: of a name that comes twice the last value counts."""
    told: list[list[tuple[str, str]] | None] = [None] * count
    for row in np.flatnonzero(end).tolist():
        value = data[start[row] : end[row]].tobytes()
        option = bytes([Option.HEADERS]) + len(value).to_bytes(2, "little") + value
        told[row] = list(decode_extras(option, 0, len(option)).headers.items()) or None
    return pa.array(told, _TYPE)
