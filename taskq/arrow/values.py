"""Payloads, results and reasons, in their original form."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import arrays, problems
from taskq.core import errors, views
from taskq.engine import LogConfig
from taskq.log.format import bodies, carried

if TYPE_CHECKING:
    from taskq.arrow import rows

#: A batch ends before its compressed bodies would expand to more; its first body may be larger.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
_BYTES_MAX: Final = LogConfig().decompressed_bytes_max
#: Larger than any body.
UNLIMITED: Final = 2**62
#: Start of the text in place of a body that was left out.
LEFT_OUT: Final = b'{"left out":'
#: Bytes of a compressed body that ``original_size`` reads.
_SIZE_BYTES: Final = 8


def _unpacked(stored: bytes, flags: int, what: str, bytes_max: int) -> tuple[bytes | None, str]:
    """Return (the body, or the text in place of a large one, or None; why it is missing)."""
    try:
        body = bodies.decompress(stored, flags, _BYTES_MAX, what) if flags else stored
    except errors.TaskqError as error:
        return None, problems.shown(str(error))
    return (body if len(body) <= bytes_max else left_out(sha256(body).digest(), len(body))), ""


def left_out(digest: bytes, size: int) -> bytes:
    """Return the text in place of a large body: JSON with its hash (SHA-256) and its size."""
    return LEFT_OUT + b' {"sha256": "%b", "size": %d}}' % (digest.hex().encode(), size)


class Values:
    """The columns value, result and problem of some rows.

    Args:
        rows: the records.
        bytes_max: limit of a body's size; for larger bodies hash and size are returned.
        payload: whether payloads are returned; otherwise they are null.
    """

    def __init__(self, rows: rows.RecordRows, bytes_max: int, *, payload: bool) -> None:
        self._rows = rows
        self._bytes_max = bytes_max
        self._payload = payload

    def column(self, name: str, *, is_text: bool) -> pa.Array:
        """Return one of the columns; with ``is_text`` null for values that are no UTF-8.

        ``value`` is a payload, a result, a reason or a description. ``result`` is the result or
        reason in carried records. ``value_bytes`` and ``result_bytes`` hold values that are no
        UTF-8.
        """
        if name == "problem":
            return self._problem()
        whole, _, is_rest = name.partition("_")
        if not is_text and not is_rest:
            return (self._value if whole == "value" else self._result)[0]
        parts = self._parts_of_value if whole == "value" else self._parts_of_result
        return parts[1 if is_rest else 0]

    @cached_property
    def _parts_of_value(self) -> tuple[pa.Array, pa.Array]:
        return _parted(self._value[0])

    @cached_property
    def _parts_of_result(self) -> tuple[pa.Array, pa.Array]:
        return _parted(self._result[0])

    def _problem(self) -> pa.Array:
        of_value, of_result = self._value[1], self._result[1]
        if not of_value and not of_result:
            return arrays.nothing(pa.string(), len(self._rows))
        texts = (
            "; ".join(problems[row] for problems in (of_value, of_result) if row in problems)
            for row in range(len(self._rows))
        )
        return pa.array([text or None for text in texts], pa.string())

    @cached_property
    def _value(self) -> tuple[pa.Array, dict[int, str]]:
        rows = self._rows
        if not self._payload:
            body = rows.body
            return self._built(body, np.where(body.valid, rows.value_packing, 0))
        return self._built(rows.value, rows.value_packing)

    @cached_property
    def _result(self) -> tuple[pa.Array, dict[int, str]]:
        rows = self._rows
        if not rows.carries:
            return arrays.nothing(pa.binary(), len(rows)), {}
        return self._built(rows.result, rows.result_packing)

    def _built(self, slices: rows.Slices, packing: arrays.Ints) -> tuple[pa.Array, dict[int, str]]:
        rows, (start, end, valid) = self._rows, slices
        is_large = end - start > self._bytes_max
        packed = np.flatnonzero(valid & ((packing != 0) | is_large))
        if not len(packed):
            return arrays.slices(rows.data, start, end, valid), {}
        whole = valid.copy()
        whole[packed] = False
        unpacked: list[bytes | None] = []
        problems: dict[int, str] = {}
        for row in packed.tolist():
            stored = rows.data[start[row] : end[row]].tobytes()
            what = f"what lsn {rows.lsn[row]} holds of {rows.piece.tag.id(rows.job[row])}"
            body, problem = _unpacked(stored, int(packing[row]), what, self._bytes_max)
            unpacked.append(body)
            if body is None:
                problems[row] = problem
        values = arrays.slices(rows.data, start, end, whole)
        return arrays.patched(values, packed, unpacked), problems


def _parted(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return (text, bytes of values that are no UTF-8), each null where the other is not."""
    text = arrays.whole_text(values)
    if text is not None:
        return text, arrays.nothing(values.type, len(values))
    is_text = pa.array(arrays.is_text(values))
    none = pa.scalar(None, values.type)
    return pc.if_else(is_text, values, none).cast(pa.string()), pc.if_else(is_text, none, values)


def attempts_in(history: bytes) -> tuple[list[views.AttemptView], bool]:
    """Return the attempts in a value of the column history, and whether the list is complete."""
    attempts = carried.decode_history(history)
    is_whole = bool(attempts) and attempts[0].number == 1 and len(attempts) < carried.ATTEMPTS_KEPT
    return attempts, is_whole


def without_reasons(history: bytes) -> bytes:
    """Return a value of the column history with the same attempts, without their reasons."""
    return carried.encode_history(
        [replace(attempt, reason="") for attempt in carried.decode_history(history)]
    )


def unpacked_sizes(rows: rows.RecordRows) -> arrays.Ints | None:
    """Return the unpacked size of the packed bodies of each row; None if no body is packed."""
    sizes = np.zeros(len(rows), np.int64)
    any_packed = False
    pairs = [(rows.value, rows.value_packing)]
    if rows.carries:
        pairs.append((rows.result, rows.result_packing))
    for (start, end, valid), packing in pairs:
        for row in np.flatnonzero(valid & (packing != 0)).tolist():
            any_packed = True
            stored = rows.data[start[row] : min(end[row], start[row] + _SIZE_BYTES)].tobytes()
            sizes[row] += min(bodies.original_size(stored, int(packing[row])), _BYTES_MAX)
    return sizes if any_packed else None
