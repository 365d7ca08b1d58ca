"""The records of jobs as arrays, by job and lsn: no Python object for any of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq import State
from taskq.engine import Cause, kinds
from taskq_plugins.spark.tables.logs import NONE, Ints, Log, LogColumns, LogKey, Mask

#: ``kind`` of a row that stands for a job which was told as over: no record tells of it again.
TOLD: Final = "told"
#: State of a job that was not over where its log broke off, and that is not told of behind.
LOST: Final = "lost"
#: Bits of ``moments``: what does not shift with the clock.
_DUE_IS_WALL: Final = 1
_EXPIRES_IS_WALL: Final = 2

#: Names of kinds by their code here; behind them a code of what is none of these.
KINDS: Final = [*(row.name for row in kinds.ROWS.values()), TOLD]
STATES: Final = [*map(str, State), LOST]
STATE: Final = {name: code for code, name in enumerate(STATES)}


def _among(*numbers: int) -> Mask:
    return np.array([*(kind in numbers for kind in kinds.ROWS), False, False])


IS_BIRTH: Final = _among(*kinds.BIRTHS)
IS_CARRYING: Final = _among(*kinds.CARRYING)
IS_REPEAT: Final = _among(*kinds.REPEATS)
IS_CLAIM: Final = _among(*kinds.CLAIMS)
IS_EDIT: Final = _among(*kinds.EDITS)
IS_REVIVAL: Final = _among(*kinds.REVIVALS)
IS_REMOVAL: Final = _among(*kinds.REMOVALS)
IS_SUCCESS: Final = _among(*kinds.SUCCESSES)
IS_END: Final = _among(*kinds.ENDS)
IS_RETURN: Final = _among(*kinds.RETURNS)
#: Behind these nothing concerns the job any more.
IS_LAST: Final = _among(*kinds.LAST)
#: A dead letter begins anew, or is gone.
IS_ANEW: Final = IS_REVIVAL | IS_REMOVAL
#: Those that end no attempt.
IS_BESIDE: Final = IS_ANEW | IS_CLAIM | IS_EDIT
#: Those that tell all of a job as it stands.
IS_WHOLE: Final = IS_REPEAT | IS_EDIT
#: Those that do something to a job which an earlier one brought.
IS_EVENT: Final = _among(*(kinds.OF_JOBS - kinds.BESIDE))
_CONCERNS: Final = IS_EVENT | IS_CARRYING | IS_BIRTH
_IS_KNOWN: Final = _CONCERNS | np.array([kind == TOLD for kind in (*KINDS, "")])
#: Kinds of records that concern one job.
CONCERNING: Final = frozenset(KINDS[code] for code in np.flatnonzero(_CONCERNS))
BIRTHS: Final = frozenset(map(kinds.name_of, kinds.BIRTHS))
REPEATS: Final = frozenset(map(kinds.name_of, kinds.REPEATS))
#: States that a job stays in.
OVER: Final = {LOST} | {str(kinds.after(State.RUNNING, kind)) for kind in kinds.ENDS - kinds.DEATHS}
IS_OVER: Final = np.array([state in OVER for state in STATES])
#: By (whether it is due later, kind): the state behind it.
_AFTER: Final = np.array(
    [
        [
            *(STATE[str(kinds.after(State.ABSENT, kind, waits=waits))] for kind in kinds.ROWS),
            *(STATE[str(State.ABSENT)],) * 2,
        ]
        for waits in (False, True)
    ]
)


class Events:
    """All records that concern some jobs, and rows of kind "told", sorted by log, job and lsn.

    Places of events are those in this order; -1 stands for none, ``NONE`` for a number that is
    null.

    Attributes:
        records: the table that they are in.
        row: the place of each in the table.
        of: the place of its job among all.
        keys: the logs, in order.
        log, number: of each job its log, as a place among ``keys``, and its number.
        logs: what is known of these.
        ends: of each job the place of its last event.
    """

    def __init__(self, records: pa.Table, logs: Mapping[LogKey, Log]) -> None:
        self.records = records
        code = _codes(records["kind"], KINDS)
        chosen = np.flatnonzero(_IS_KNOWN[code])
        log, self.keys = _logs(records, chosen)
        self.logs = LogColumns([logs[key] for key in self.keys])
        job, lsn = self._column("job")[chosen], self._column("lsn")[chosen]
        order = np.lexsort((lsn, job, log))
        log, job = log[order], job[order]
        self.row = chosen[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (log[1:] != log[:-1]) | (job[1:] != job[:-1])
        starts = np.flatnonzero(is_first)
        self.of = np.cumsum(is_first) - 1
        self.log, self.number = log[starts], job[starts]
        self.ends = np.append(starts[1:], len(order))[: len(starts)] - 1
        self.kind, self.lsn = code[self.row], lsn[order]
        self.ts_ns, self.attempt = self.numbers("ts_ns"), self.numbers("attempt")
        self.due_ns, self.expires_ns = self.numbers("due_ns"), self.numbers("expires_ns")
        self.enqueued_ns, self.ended_ns = self.numbers("enqueued_ns"), self.numbers("ended_ns")
        moments = self.numbers("moments")
        moments[moments == NONE] = 0
        self.due_is_wall = (moments & _DUE_IS_WALL) != 0
        self.expires_is_wall = (moments & _EXPIRES_IS_WALL) != 0
        #: as the record tells it, one behind all where it does not
        self.state = _codes(records["state"], STATES)[self.row]
        waits = (self.due_ns != NONE) & (self.due_ns > self.ts_ns)
        whole = np.where(self.state == len(STATES), STATE[str(State.ABSENT)], self.state)
        #: state of the job behind each
        self.behind = np.where(IS_WHOLE[self.kind], whole, _AFTER[waits.astype(int), self.kind])

    def __len__(self) -> int:
        return len(self.row)

    def _column(self, name: str) -> Ints:
        column = self.records[name]
        if column.null_count == len(column):
            return np.full(len(column), NONE)
        values: Ints = pc.fill_null(column.cast(pa.int64()), NONE).to_numpy()
        return values

    def numbers(self, name: str) -> Ints:
        return self._column(name)[self.row]

    def begins(self) -> Mask:
        carries = IS_CARRYING[self.kind] & (self.state != STATE[str(State.ABSENT)])
        begin: Mask = IS_BIRTH[self.kind] | carries
        return begin

    @cached_property
    def were_lost(self) -> Mask:
        """Return which gave a job back since its worker's process was gone."""
        cause = pc.equal(self.records["cause"], Cause.OWNER_LOST.name.lower())
        is_lost: Mask = pc.fill_null(cause, fill_value=False).to_numpy()[self.row]
        return is_lost & IS_RETURN[self.kind]

    @cached_property
    def have_text(self) -> Mask:
        sizes: Ints = pc.fill_null(pc.binary_length(self.records["value"]), 0).to_numpy()
        has_text: Mask = sizes[self.row] > 0
        return has_text & ~(IS_SUCCESS | IS_CARRYING)[self.kind]

    def first(self, which: Mask) -> Ints:
        return self._found(np.flatnonzero(which)[::-1])

    def last(self, which: Mask) -> Ints:
        return self._found(np.flatnonzero(which))

    def _found(self, places: Ints) -> Ints:
        at = np.full(len(self.ends), -1)
        at[self.of[places]] = places
        return at

    def taken(self, name: str, places: Ints) -> pa.Array:
        column = self.records[name]
        has_one = places >= 0
        if not has_one.any() or column.null_count == len(column):
            return pa.nulls(len(places), column.type)
        rows = self.row[places]
        taken = column.take(pa.array(rows, mask=None if has_one.all() else ~has_one))
        return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _codes(column: pa.ChunkedArray, names: list[str]) -> Ints:
    if column.null_count == len(column):
        return np.full(len(column), len(names))
    places = pc.index_in(column, value_set=pa.array(names, pa.string()))
    codes: Ints = pc.fill_null(places, len(names)).to_numpy()
    return codes


def _logs(records: pa.Table, rows: Ints) -> tuple[Ints, list[LogKey]]:
    names = sorted(pc.unique(records["log_id"]).to_pylist())
    branch = records["branch"].to_numpy()[rows].astype(np.int64)
    span = int(branch.max(initial=0)) + 1
    code = _codes(records["log_id"], names)[rows] * span + branch
    there = np.bincount(code, minlength=len(names) * span) > 0
    keys = [(names[code // span], code % span) for code in np.flatnonzero(there).tolist()]
    return (np.cumsum(there) - 1)[code], keys


def text(values: pa.Array) -> pa.Array:
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        plain = (
            None if value is None else value.decode("utf-8", "replace")
            for value in values.to_pylist()
        )
        texts = pa.array(plain, pa.string())
    return pc.if_else(pc.greater(pc.binary_length(texts), 0), texts, pa.scalar(None, pa.string()))
