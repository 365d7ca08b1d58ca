"""A builder for each column: rows to an Arrow array."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import arrays, layout
from taskq.arrow.layout import Ints, Mask
from taskq.arrow.options import Options, headers_of
from taskq.arrow.schema import DETAILS, UNKNOWN, Piece
from taskq.core.folds.steps import Form
from taskq.core.model import State
from taskq.engine import Cause, Option, kinds

if TYPE_CHECKING:
    from taskq.arrow.rows import Rows

_NUMBER_SIZE: Final = 4
_INT: Final = pa.int32()
_LONG: Final = pa.int64()
_BYTES: Final = pa.binary()
_MOMENT: Final = DETAILS.field("timestamp").type
_KIND_NAMES: Final = pa.array([*(row.name for row in kinds.ROWS.values()), UNKNOWN])
_WITH_CAUSE: Final = layout.table(kinds.WITH_CAUSE)
_BACK: Final = layout.table(kinds.RETURNS)


def _index(members: list[Any], other: int) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Places in the list, by number; ``other`` for numbers that are none of them."""
    index = np.full(256, other, np.int8)
    for place, member in enumerate(members):
        index[int(member)] = place
    return index


_KIND_INDEX: Final = _index(list(kinds.ROWS), len(kinds.ROWS))
_CAUSES: Final = sorted(Cause)
_CAUSE_NAMES: Final = pa.array([cause.name.lower() for cause in _CAUSES])
_CAUSE_INDEX: Final = _index(_CAUSES, _CAUSES.index(Cause.CALLER))
_STATES: Final = sorted(State)
_STATE_NAMES: Final = pa.array([state.name.lower() for state in _STATES])
_STATE_INDEX: Final = _index(_STATES, 0)
_FORM_NAMES: Final = pa.array([form.name.lower() for form in Form])
_DONE_STEPS: Final = frozenset({int(kinds.STEP)})


def _repeated(name: str) -> Callable[[Piece, int], pa.Array]:
    def build(piece: Piece, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(getattr(piece, name), DETAILS.field(name).type), count)

    return build


def _name(rows: Rows, *, is_task: bool) -> pa.Array:
    (start, end), valid = rows.route[is_task : is_task + 2], rows.is_birth
    if rows.has(kinds.OF_QUEUES) and not is_task:
        named = rows.is_among(kinds.OF_QUEUES)
        body = rows.at + layout.FIXED_SIZES[rows.kind]
        start, end = np.where(named, body, start), np.where(named, rows.end, end)
        valid = valid | named
    if rows.has(kinds.OF_LANES):
        tallied = rows.is_among(kinds.OF_LANES)
        body = rows.at + layout.FIXED_SIZES[rows.kind] + 2
        size = rows.data[np.where(tallied, body - 2, 0)]
        middle = np.minimum(body + size, rows.end)
        start = np.where(tallied, middle if is_task else np.minimum(body, rows.end), start)
        end = np.where(tallied, rows.end if is_task else middle, end)
        valid = valid | tallied
    return arrays.slices(rows.data, start, end, valid & (end > start), is_text=True)


def _option_bytes(option: Option, holder: str) -> Callable[[Rows], pa.Array]:
    def build(rows: Rows) -> pa.Array:
        options: Options = getattr(rows, holder)
        count = len(rows)
        if not options:
            return arrays.nothing(_BYTES, count)
        start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        valid = np.zeros(count, np.bool_)
        options.bytes_of(option, start, end, valid)
        return arrays.slices(rows.data, start, end, valid)

    return build


def _option_number(
    option: Option, holder: str, *, strict: bool = False
) -> Callable[[Rows], pa.Array]:
    """Take the first number of each row; with ``strict`` none may have another size."""

    def build(rows: Rows) -> pa.Array:
        options: Options = getattr(rows, holder)
        if not options:
            return arrays.nothing(_LONG, len(rows))
        out = np.zeros(len(rows), np.int64)
        options.find_numbers(option, out, strict=strict)
        return arrays.somewhere(out)

    return build


def _attempt(rows: Rows) -> pa.Array:
    attempt = np.where(rows.is_of_job, rows.of_job["attempt"], 0).astype(np.int32)
    return arrays.numbers(attempt, rows.is_of_job | rows.is_birth, _INT)


def _priority(rows: Rows) -> pa.Array:
    valid = rows.is_birth
    if rows.has(kinds.OF_LANES):
        valid = valid | rows.is_among(kinds.OF_LANES)
    return arrays.numbers(rows.birth["byte"].astype(np.int32), valid, _INT)


def _token(rows: Rows) -> pa.Array:
    return arrays.somewhere(rows.field("token"))


def _cause(rows: Rows) -> pa.Array:
    if not rows.counts[_WITH_CAUSE].any():
        return arrays.nothing(_CAUSE_NAMES.type, len(rows))
    index = _CAUSE_INDEX[rows.of_job["byte"]]
    return arrays.named(_CAUSE_NAMES, index, _WITH_CAUSE[rows.kind])


def _attempts_max(rows: Rows) -> pa.Array:
    attempts = np.where(rows.is_birth, rows.birth["attempts_max"], 0).astype(np.int32)
    return arrays.somewhere(attempts, _INT)


def _due(rows: Rows) -> tuple[Ints, Mask]:
    due, is_wall = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for step in rows.birth_options.each(Option.DUE, Option.DUE_WALL):
        due[step.row] = layout.numbers_at(rows.data, step.at, "<i8")
        is_wall[step.row] |= step.tag == Option.DUE_WALL
    if rows.carries:
        due[rows.is_carrying], is_wall[rows.is_carrying] = 0, False
        np.copyto(due, rows.of_job["due_ns"], where=rows.is_carrying)
        _carried_only(rows, Option.DUE_WALL, due, is_wall)
    np.copyto(due, rows.of_job["due_ns"], where=_BACK[rows.kind])
    return due, is_wall


def _expires(rows: Rows) -> tuple[Ints, Mask]:
    expires, is_wall = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for step in rows.birth_options.each(Option.EXPIRES, Option.EXPIRES_RELATIVE):
        expires[step.row] = layout.numbers_at(rows.data, step.at, "<i8")
        is_wall[step.row] |= step.tag == Option.EXPIRES
    if rows.carries:
        later = np.zeros(len(rows), np.int64)
        _carried_only(rows, Option.EXPIRES_RELATIVE, later)
        np.copyto(expires, later, where=later != 0)
    return expires, is_wall


def _carried_only(rows: Rows, option: Option, out: Ints, had: Mask | None = None) -> None:
    """Write the option's numbers, of records that hold another, over those in ``out``."""
    value, has = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    rows.carried_options.numbers(option, value, has)
    np.copyto(out, value, where=has)
    if had is not None:
        had |= has


def _moments(rows: Rows) -> pa.Array:
    moments = _due(rows)[1].astype(np.int32) | (_expires(rows)[1].astype(np.int32) << 1)
    return arrays.numbers(moments, rows.is_birth | _BACK[rows.kind], _INT)


def _flags(rows: Rows) -> pa.Array:
    return arrays.numbers(rows.birth_flags.astype(np.uint32).view(np.int32), None, _INT)


def _state(rows: Rows) -> pa.Array:
    byte = rows.of_job["byte"]
    if not rows.has(_DONE_STEPS):
        return arrays.named(_STATE_NAMES, _STATE_INDEX[byte], rows.is_carrying)
    is_form = rows.is_among(_DONE_STEPS) & (byte < len(_FORM_NAMES))
    index = np.where(is_form, byte.astype(np.int64) + len(_STATES), _STATE_INDEX[byte])
    names = pa.concat_arrays([_STATE_NAMES, _FORM_NAMES])
    return arrays.named(names, index, rows.is_carrying | is_form)


def _step(rows: Rows) -> pa.Array:
    count = len(rows)
    if not rows.has(kinds.OF_STEPS):
        return arrays.nothing(pa.string(), count)
    start, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    rows.plain_options.bytes_of(Option.STEP, start, end, valid)
    valid &= (end - start >= _NUMBER_SIZE) & rows.is_among(kinds.OF_STEPS)
    names = arrays.slices(rows.data, start + _NUMBER_SIZE, end, valid, is_text=True)
    number = layout.numbers_at(rows.data, np.where(valid, start, 0), "<u4")
    titles = pc.binary_join_element_wise(names, pa.array(number).cast(pa.string()), "#")
    return pc.if_else(pa.array(number > 0), titles, names)


def _began_ns(rows: Rows) -> pa.Array:
    if not rows.has(kinds.OF_STEPS):
        return arrays.nothing(_LONG, len(rows))
    out = np.zeros(len(rows), np.int64)
    rows.plain_options.find_numbers(Option.BEGAN, out)
    return arrays.numbers(out, (out != 0) & rows.is_among(kinds.OF_STEPS))


def _enqueued_ns(rows: Rows) -> pa.Array:
    if not rows.carries:
        return arrays.nothing(_LONG, len(rows))
    return arrays.somewhere(np.where(rows.is_carrying, rows.of_job["enqueued_ns"], 0))


def _ended_ns(rows: Rows) -> pa.Array:
    if not rows.carries:
        return arrays.nothing(_LONG, len(rows))
    out = np.zeros(len(rows), np.int64)
    _carried_only(rows, Option.ENDED, out)
    return arrays.somewhere(out)


def _step_ns(rows: Rows) -> pa.Array:
    if not rows.has(kinds.STEPS):
        return arrays.nothing(_LONG, len(rows))
    return arrays.numbers(rows.field("step_ns"), rows.is_among(kinds.STEPS))


def _lease_ns(rows: Rows) -> pa.Array:
    if not rows.plain_options and not rows.carries:
        return arrays.nothing(_LONG, len(rows))
    out = np.zeros(len(rows), np.int64)
    rows.plain_options.find_numbers(Option.LEASE, out)
    if rows.carries:
        _carried_only(rows, Option.LEASE, out)
    return arrays.somewhere(out)


#: What builds so many rows of a column that is the same in all of a piece.
CONSTANTS: Final[dict[str, Callable[[Piece, int], pa.Array]]] = {
    name: _repeated(name) for name in ("device", "log_id", "branch", "segment")
}
#: What builds another column; value, result and problem are built in ``values``.
BUILDERS: Final[dict[str, Callable[[Rows], pa.Array]]] = {
    "offset": lambda rows: arrays.numbers(rows.at + rows.base),
    "lsn": lambda rows: arrays.numbers(rows.lsn),
    "kind": lambda rows: arrays.named(_KIND_NAMES, _KIND_INDEX[rows.kind]),
    "job_id": lambda rows: arrays.ids(rows.piece.tag, rows.job),
    "task": partial(_name, is_task=True),
    "queue": partial(_name, is_task=False),
    "timestamp": lambda rows: arrays.numbers(rows.time_ns // 1_000, None, _MOMENT),
    "ts_ns": lambda rows: arrays.numbers(rows.time_ns),
    "key": _option_bytes(Option.KEY, "birth_options"),
    "attempt": _attempt,
    "priority": _priority,
    "owner": lambda rows: arrays.hexadecimal(rows.owner, rows.owner != 0),
    "epoch": lambda rows: arrays.hexadecimal(rows.epoch),
    "headers": lambda rows: headers_of(rows.data, rows.birth_options, len(rows)),
    "job": lambda rows: arrays.somewhere(rows.job.view(np.int64)),
    "token": _token,
    "cause": _cause,
    "attempts_max": _attempts_max,
    "due_ns": lambda rows: arrays.somewhere(_due(rows)[0]),
    "expires_ns": lambda rows: arrays.somewhere(_expires(rows)[0]),
    "moments": _moments,
    "flags": _flags,
    "state": _state,
    "enqueued_ns": _enqueued_ns,
    "ended_ns": _ended_ns,
    "step_ns": _step_ns,
    "history": _option_bytes(Option.HISTORY, "carried_options"),
    "key_hash": _option_number(Option.KEY_HASH, "plain_options", strict=True),
    "replaces": _option_number(Option.REPLACES, "birth_options"),
    "concurrency_key": _option_bytes(Option.CONCURRENCY_KEY, "birth_options"),
    "lease_ns": _lease_ns,
    "step": _step,
    "place": lambda rows: arrays.numbers(rows.field("place"), rows.is_among(_DONE_STEPS)),
    "began_ns": _began_ns,
}
