"""Payloads, results and reasons, as they were given."""

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
from taskq.log.segments.bodystore import BodyStore

if TYPE_CHECKING:
    from taskq.arrow import rows

#: A batch is ended before its compressed bodies would come to more, but for its first.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
_CONFIG: Final = LogConfig()
#: No body is as large.
UNLIMITED: Final = 2**62
#: Start of a body that stands for a body that was left out.
LEFT_OUT: Final = b'{"left out":'
#: Bytes of a compressed body that ``original_size`` reads.
_SIZE_BYTES: Final = 8


def home_of(segment_path: str) -> str:
    """Return the directory of a segment's log, be it set aside by a hub; its bodies are there."""
    directory = segment_path.rpartition("/log/")[0]
    home, old, _ = directory.rpartition("/old/")
    return home if old else directory


class Bodies:
    """Unpack the bodies of a log that a segment file belongs to.

    Args:
        segment_path: of the file.
        bytes_max: of a body; of a larger one hash and size are given.
    """

    def __init__(self, segment_path: str, bytes_max: int) -> None:
        self._store = BodyStore(home_of(segment_path), _CONFIG)
        self.bytes_max = bytes_max

    def unpack(self, stored: bytes, flags: int, what: str) -> tuple[bytes | None, str]:
        """Return (the body or None, why it is missing)."""
        try:
            body = self._store.unpack(stored, flags, what) if flags else stored
        except errors.TaskqError as error:
            return None, problems.shown(str(error))
        if len(body) > self.bytes_max:
            return left_out(sha256(body).digest(), len(body)), ""
        return body, ""

    def size(self, stored: bytes, flags: int) -> int:
        """Return bytes that a body may take, unpacked, in a batch."""
        return min(bodies.original_size(stored, flags), _CONFIG.decompressed_bytes_max)


def left_out(digest: bytes, size: int) -> bytes:
    """Return what stands for a body that is too large: JSON, its hash (SHA-256) and its size."""
    return LEFT_OUT + b' {"sha256": "%b", "size": %d}}' % (digest.hex().encode(), size)


class Values:
    """The columns value, result and problem of some rows.

    Args:
        rows: the records.
        bodies: of the log.
        payload: whether payloads are given; else they are null.
    """

    def __init__(self, rows: rows.RecordRows, bodies: Bodies, *, payload: bool) -> None:
        self._rows = rows
        self._bodies = bodies
        self._payload = payload

    def column(self, name: str, *, is_text: bool) -> pa.Array:
        """Return one of the columns; with ``is_text`` null where it is no text.

        ``value`` is a payload, a result, a reason or a description, ``result`` what carried records
        hold beside their payload; ``value_bytes`` and ``result_bytes`` have what is no text.
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
        """Return why a value or a result is missing."""
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
        is_large = end - start > self._bodies.bytes_max
        packed = np.flatnonzero(valid & ((packing != 0) | is_large))
        if not len(packed):
            return arrays.slices(rows.data, start, end, valid), {}
        whole = valid.copy()
        whole[packed] = False
        bodies: list[bytes | None] = []
        problems: dict[int, str] = {}
        for row in packed.tolist():
            stored = rows.data[start[row] : end[row]].tobytes()
            what = f"what lsn {rows.lsn[row]} holds of {rows.piece.tag.id(rows.job[row])}"
            body, problem = self._bodies.unpack(stored, int(packing[row]), what)
            bodies.append(body)
            if body is None:
                problems[row] = problem
        values = arrays.slices(rows.data, start, end, whole)
        return arrays.patched(values, packed, bodies), problems


def _parted(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return (what is text, the bytes of the rest), each null where the other is not."""
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


def unpacked_sizes(rows: rows.RecordRows, bodies: Bodies) -> arrays.Ints | None:
    """Return bytes that the packed bodies of each row come to, None if there are none."""
    sizes = np.zeros(len(rows), np.int64)
    any_packed = False
    pairs = [(rows.value, rows.value_packing)]
    if rows.carries:
        pairs.append((rows.result, rows.result_packing))
    for (start, end, valid), packing in pairs:
        for row in np.flatnonzero(valid & (packing != 0)).tolist():
            any_packed = True
            stored = rows.data[start[row] : min(end[row], start[row] + _SIZE_BYTES)].tobytes()
            sizes[row] += bodies.size(stored, int(packing[row]))
    return sizes if any_packed else None
