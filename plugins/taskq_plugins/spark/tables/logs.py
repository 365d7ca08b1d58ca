"""State of whole logs: steps of their clocks, breaks, and places read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq import State
from taskq.arrow import BREAK
from taskq.engine import Cause, kinds
from taskq_plugins.spark.lake.files import POSITION

if TYPE_CHECKING:
    import numpy.typing as npt

Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
LogKey: TypeAlias = tuple[str, int]

#: Stands for no number, as null does in Arrow ...
NONE: Final = int(np.iinfo(np.int64).min)
#: ... and for an lsn behind all.
NEVER: Final = int(np.iinfo(np.int64).max)
#: Identity of a branch, and of a job in it: records before the fork belong to both branches.
LOG: Final = ("log_id", "branch")
STEPS: Final = frozenset(map(kinds.name_of, kinds.STEPS))
#: Columns of the last record of a stretch.
_LAST: Final = ("device", "epoch", "timestamp", "ts_ns")


class Log(NamedTuple):
    """State of one branch of a log over all batches."""

    #: time of the last record that was read: as of then a job still waits or is ready
    now_ns: int
    #: steps of its clock by lsn
    steps: Sequence[tuple[int, int]]
    #: the stretches that were read without a gap: (first lsn, last)
    stretches: Sequence[tuple[int, int]]
    #: the first lsn that is of this branch alone
    begins: int = 0
    #: ... and the first that the branch behind it does not share; None: it is the newest
    left: int | None = None
    #: declared gaps: (first lsn after it, where the log ended when it was declared)
    gaps: Sequence[tuple[int, int]] = ()

    def is_past(self, gap: tuple[int, int]) -> bool:
        return any(last + 1 >= gap[1] for _, last in self.stretches)

    def lost_before(self) -> int:
        """Return the lsn after which every unfinished job appears again.

        Open jobs are written again after a gap; a branch that was left has no later records.
        """
        if self.left is not None:
            return NEVER
        return max((gap[0] for gap in self.gaps if self.is_past(gap)), default=0)


class LogColumns:
    """State of some logs, for rows sorted by their place among these.

    Attributes:
        now_ns, begins, lost_before: as in ``Log``.
        left: as in ``Log``, 0 for none.
        has_gaps: whether there are any.
    """

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs
        self.now_ns = np.array([log.now_ns for log in logs], np.int64)
        self.begins = np.array([log.begins for log in logs], np.int64)
        self.left = np.array([log.left or 0 for log in logs], np.int64)
        self.lost_before = np.array([log.lost_before() for log in logs], np.int64)
        self.has_gaps = np.array([bool(log.gaps) for log in logs], np.bool_)

    def stepped(self, of: Ints, first: Ints, last: Ints | None = None) -> Ints:
        """Return nanoseconds that clocks were set by between lsns; None: since the first.

        Args:
            of: the log of each row.
            first: lsns ...
            last: ... up to these.
        """
        spent = np.zeros(len(of), np.int64)
        for number, log in enumerate(self._logs):
            if not log.steps:
                continue
            rows = slice(*np.searchsorted(of, (number, number + 1)))
            lsns = np.array([lsn for lsn, _ in log.steps], np.int64)
            sums = np.cumsum([0, *(step for _, step in log.steps)], dtype=np.int64)
            begin = np.searchsorted(lsns, first[rows], side="right")
            end = len(lsns) if last is None else np.searchsorted(lsns, last[rows], side="left")
            spent[rows] = sums[np.maximum(begin, end)] - sums[begin]
        return spent

    def were_read(self, of: Ints, lsns: Ints) -> Mask:
        were_read = np.zeros(len(of), np.bool_)
        for number in np.unique(of).tolist():
            rows = slice(*np.searchsorted(of, (number, number + 1)))
            for first, last in self._logs[number].stretches:
                were_read[rows] |= (first <= lsns[rows]) & (lsns[rows] <= last)
        return were_read


def log_rows(records: pa.Table) -> pa.Table:
    """Return the rows about whole logs: clock steps, breaks, and stretches read.

    ``records`` holds a batch, and these rows of the batches before.
    """
    others = records.filter(pc.is_in(records["kind"], pa.array([*STEPS, BREAK])))
    keys = [*LOG, "segment", "lsn"]
    read = records.select([*keys, *_LAST])
    read = read.filter(pc.and_(pc.is_valid(read["segment"]), pc.is_valid(read["ts_ns"])))
    ends = read.group_by(keys[:3]).aggregate([("lsn", "max")]).rename_columns(keys)
    near = read.filter(pc.is_in(read["lsn"], ends["lsn"].combine_chunks()))
    lasts = near.join(ends, keys, join_type="left semi").to_pylist()
    lasts.sort(key=itemgetter(*keys))
    merged: list[dict[str, Any]] = []
    for last in lasts:
        before = merged[-1] if merged else None
        if before and _log_of(before) == _log_of(last) and last["segment"] <= before["lsn"] + 1:
            if last["lsn"] > before["lsn"]:
                merged[-1] = last | {"segment": before["segment"]}
        else:
            merged.append(last)
    told_rows = [stretch | {"kind": POSITION} for stretch in merged]
    return pa.concat_tables([others, pa.Table.from_pylist(told_rows, records.schema)])


def logs_of(rows: pa.Table) -> dict[LogKey, Log]:
    """Return each branch of each log.

    Args:
        rows: of ``log_rows``.
    """
    names = [*LOG, "kind", "segment", "lsn", "ts_ns", "step_ns", "value"]
    forks: dict[LogKey, int] = {}
    newest: dict[LogKey, tuple[int, int]] = {}
    stretches, steps, gaps = (defaultdict[LogKey, list[tuple[int, int]]](list) for _ in range(3))
    for row in rows.select(names).to_pylist():
        key, lsn = _log_of(row), row["lsn"]
        newest.setdefault(key, (-1, 0))
        if row["kind"] in STEPS:
            steps[key].append((lsn, row["step_ns"] or 0))
        elif row["kind"] == BREAK:
            told_break = json.loads(row["value"])
            if told_break["what"] == "fork":
                forks[key] = lsn
            elif "end_lsn" in told_break:
                gaps[key].append((told_break["goes_on"], told_break["end_lsn"]))
        else:
            stretches[key].append((row["segment"], lsn))
            if lsn > newest[key][0]:
                newest[key] = lsn, row["ts_ns"]
    logs = {
        key: Log(now_ns, sorted({*steps[key]}), stretches[key], gaps=sorted({*gaps[key]}))
        for key, (_, now_ns) in newest.items()
    }
    for (log_id, branch), lsn in sorted(forks.items()):
        left = logs.get((log_id, branch - 1), Log(0, [], []))
        logs[log_id, branch - 1] = left._replace(left=lsn)
        logs[log_id, branch] = _grown(logs[log_id, branch], left, lsn)
    return logs


def _log_of(row: Mapping[str, Any]) -> LogKey:
    return row["log_id"], row["branch"]


def _grown(own: Log, left: Log, lsn: int) -> Log:
    shared = [(first, min(last, lsn - 1)) for first, last in left.stretches if first < lsn]
    return own._replace(
        now_ns=own.now_ns or left.now_ns,
        steps=[*(step for step in left.steps if step[0] < lsn), *own.steps],
        stretches=[*shared, *own.stretches],
        begins=lsn,
        gaps=[*(gap for gap in left.gaps if gap[0] < lsn), *own.gaps],
    )


#: ``kind`` of a row for a finished job that no later record mentions.
TOLD: Final = "told"
#: State of an open job that its log lost and never mentions again.
LOST: Final = "lost"
#: Bits of ``moments``: what does not shift with the clock.
_DUE_IS_WALL: Final = 1
_EXPIRES_IS_WALL: Final = 2

#: Names of kinds by their code here; the next code is any other kind.
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
#: After these the job is over.
IS_LAST: Final = _among(*kinds.LAST)
#: A dead letter begins anew, or is gone.
IS_ANEW: Final = IS_REVIVAL | IS_REMOVAL
#: Events that end no attempt.
IS_BESIDE: Final = IS_ANEW | IS_CLAIM | IS_EDIT
#: Events with the whole state of a job.
IS_WHOLE: Final = IS_REPEAT | IS_EDIT
#: Events that change a job brought by an earlier one.
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
#: State after an event, by (whether due later, kind).
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
        #: from the record, or ``len(STATES)`` if it has none
        self.state = _codes(records["state"], STATES)[self.row]
        waits = (self.due_ns != NONE) & (self.due_ns > self.ts_ns)
        whole = np.where(self.state == len(STATES), STATE[str(State.ABSENT)], self.state)
        #: state of the job after each
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
