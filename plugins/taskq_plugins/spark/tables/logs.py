"""State of whole logs: steps of their clocks, breaks, and the parts that were read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
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
#: Parents of each log, oldest first: (log, the lsn after its last shared record).
Lineage: TypeAlias = Mapping[str, Sequence[tuple[str, int]]]

#: Null among integers.
NONE: Final = int(np.iinfo(np.int64).min)
#: An lsn after all others.
NEVER: Final = int(np.iinfo(np.int64).max)
STEPS: Final = frozenset(map(kinds.name_of, kinds.STEPS))
#: Columns of the last record of a stretch.
_LAST: Final = ("device", "epoch", "timestamp", "ts_ns")


class Log(NamedTuple):
    """State of one log over all batches."""

    #: time of the last read record; states are as of this time
    now_ns: int
    #: steps of its clock by lsn
    steps: Sequence[tuple[int, int]]
    #: parts that were read without a gap: (first lsn, last lsn)
    stretches: Sequence[tuple[int, int]]
    #: declared gaps: (first lsn after the gap, end of the log at the declaration)
    gaps: Sequence[tuple[int, int]] = ()
    device: str = ""
    parents: Sequence[tuple[str, int]] = ()
    #: logs that continue this one: (their first own lsn, log, whether on the same device)
    children: Sequence[tuple[int, str, bool]] = ()

    @property
    def begins(self) -> int:
        """Return the log's first own lsn."""
        return self.parents[-1][1] if self.parents else 0

    def is_past(self, gap: tuple[int, int]) -> bool:
        return any(last + 1 >= gap[1] for _, last in self.stretches)

    def lost_before(self) -> int:
        """Return the lsn after a gap; every unfinished job has a later record."""
        return max((gap[0] for gap in self.gaps if self.is_past(gap)), default=0)


class LogColumns:
    """State of some logs in columns, for rows sorted by the index of their log.

    Attributes:
        now_ns, begins, lost_before: as in ``Log``.
        is_replaced: whether a child replaced the log on its device.
        has_gaps: whether any log has a gap.
    """

    def __init__(self, logs: Sequence[Log], names: Sequence[str]) -> None:
        self._logs = logs
        self._names = names
        self.now_ns = np.array([log.now_ns for log in logs], np.int64)
        self.begins = np.array([log.begins for log in logs], np.int64)
        self.is_replaced = np.array(
            [any(is_here for _, _, is_here in log.children) for log in logs], np.bool_
        )
        self.lost_before = np.array([log.lost_before() for log in logs], np.int64)
        self.has_gaps = np.array([bool(log.gaps) for log in logs], np.bool_)

    def stepped(self, of: Ints, first: Ints, last: Ints | None = None) -> Ints:
        """Return the sum of clock steps between lsns, in nanoseconds; None: since the first.

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

    def writers(self, of: Ints, lsns: Ints) -> pa.Array:
        """Return the log that wrote each record: the log itself, or a parent."""
        names = [*self._names]
        code = of.copy()
        for number, log in enumerate(self._logs):
            for parent, next_lsn in reversed(log.parents):
                code[(of == number) & (lsns < next_lsn)] = len(names)
                names.append(parent)
        return pa.array(names, pa.string()).take(pa.array(code))

    def continued_in(self, of: Ints, jobs: Ints) -> pa.Array:
        """Return the youngest child that continues each unfinished job, or null."""
        names: list[str | None] = [None]
        code = np.zeros(len(of), np.int64)
        for number, log in enumerate(self._logs):
            for begins, child, _ in sorted(log.children):
                code[(of == number) & (jobs < begins)] = len(names)
                names.append(child)
        return pa.array(names, pa.string()).take(pa.array(code))

    def were_read(self, of: Ints, lsns: Ints) -> Mask:
        were_read = np.zeros(len(of), np.bool_)
        for number in np.unique(of).tolist():
            rows = slice(*np.searchsorted(of, (number, number + 1)))
            for first, last in self._logs[number].stretches:
                were_read[rows] |= (first <= lsns[rows]) & (lsns[rows] <= last)
        return were_read


def log_rows(records: pa.Table) -> pa.Table:
    """Return the rows about whole logs: clock steps, breaks, and stretches read.

    ``records`` has the records of a batch, and such rows of earlier batches.
    """
    others = records.filter(pc.is_in(records["kind"], pa.array([*STEPS, BREAK])))
    keys = ["log_id", "segment", "lsn"]
    read = records.select([*keys, *_LAST])
    read = read.filter(pc.and_(pc.is_valid(read["segment"]), pc.is_valid(read["ts_ns"])))
    ends = read.group_by(keys[:2]).aggregate([("lsn", "max")]).rename_columns(keys)
    near = read.filter(pc.is_in(read["lsn"], ends["lsn"].combine_chunks()))
    lasts = near.join(ends, keys, join_type="left semi").to_pylist()
    lasts.sort(key=itemgetter(*keys))
    merged: list[dict[str, Any]] = []
    for last in lasts:
        before = merged[-1] if merged else None
        is_next = before is not None and before["log_id"] == last["log_id"]
        if before is not None and is_next and last["segment"] <= before["lsn"] + 1:
            if last["lsn"] > before["lsn"]:
                merged[-1] = last | {"segment": before["segment"]}
        else:
            merged.append(last)
    read_rows = [stretch | {"kind": POSITION} for stretch in merged]
    return pa.concat_tables([others, pa.Table.from_pylist(read_rows, records.schema)])


def logs_of(rows: pa.Table, lineage: Lineage | None = None) -> dict[str, Log]:
    """Return the state of each log.

    Args:
        rows: result of ``log_rows``.
        lineage: parents of logs, for logs with parents.
    """
    names = ["device", "log_id", "kind", "segment", "lsn", "ts_ns", "step_ns", "value"]
    newest: dict[str, tuple[int, int]] = {}
    devices: dict[str, str] = {}
    stretches, steps, gaps = (defaultdict[str, list[tuple[int, int]]](list) for _ in range(3))
    for row in rows.select(names).to_pylist():
        key, lsn = row["log_id"], row["lsn"]
        newest.setdefault(key, (-1, 0))
        if row["kind"] in STEPS:
            steps[key].append((lsn, row["step_ns"] or 0))
        elif row["kind"] == BREAK:
            gap = json.loads(row["value"])
            if gap.get("end_lsn") is not None:
                gaps[key].append((gap["next_lsn"], gap["end_lsn"]))
        else:
            stretches[key].append((row["segment"], lsn))
            if lsn > newest[key][0]:
                newest[key] = lsn, row["ts_ns"]
                devices[key] = row["device"]
    logs = {
        key: Log(
            now_ns,
            sorted({*steps[key]}),
            stretches[key],
            sorted({*gaps[key]}),
            devices.get(key, ""),
        )
        for key, (_, now_ns) in newest.items()
    }
    for log_id, parents in sorted((lineage or {}).items(), key=lambda item: len(item[1])):
        if log_id in logs and parents:
            logs[log_id] = _grown(logs[log_id], parents, logs)
    for log_id, begins, child in edges(lineage or {}):
        if log_id in logs and child in logs:
            log = logs[log_id]
            edge = (begins, child, logs[child].device == log.device)
            logs[log_id] = log._replace(children=[*log.children, edge])
    return logs


def edges(lineage: Lineage) -> list[tuple[str, int, str]]:
    """Return (parent, the child's first own lsn, child) for each parent and child."""
    pairs = set()
    for log_id, parents in lineage.items():
        chain = [*parents, (log_id, NEVER)]
        pairs |= {(log, lsn, child) for (log, lsn), (child, _) in pairwise(chain)}
    return sorted(pairs)


def _grown(own: Log, parents: Sequence[tuple[str, int]], logs: Mapping[str, Log]) -> Log:
    """Return a log with the shared part of its parents."""
    steps: list[tuple[int, int]] = []
    stretches: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    now_ns, first = 0, 0
    for log_id, next_lsn in parents:
        log = logs.get(log_id, Log(0, [], []))
        shared = [(max(begin, first), min(last, next_lsn - 1)) for begin, last in log.stretches]
        stretches += [stretch for stretch in shared if stretch[0] <= stretch[1]]
        steps += [step for step in log.steps if first <= step[0] < next_lsn]
        gaps += [gap for gap in log.gaps if first <= gap[0] < next_lsn]
        now_ns, first = log.now_ns or now_ns, next_lsn
    return own._replace(
        now_ns=own.now_ns or now_ns,
        steps=[*steps, *own.steps],
        stretches=[*stretches, *own.stretches],
        gaps=[*gaps, *own.gaps],
        parents=parents,
    )


#: ``kind`` of a row for a finished job that no later record mentions.
FINISHED: Final = "finished"
#: State of an open job whose records were lost with a gap.
LOST: Final = "lost"
#: Bits of ``moments``: moments that do not shift with the clock.
_DUE_IS_WALL: Final = 1
_EXPIRES_IS_WALL: Final = 2

#: Names of kinds by code; the next code stands for any other kind.
KINDS: Final = [*(row.name for row in kinds.ROWS.values()), FINISHED]
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
#: Events that finish a job.
IS_LAST: Final = _among(*kinds.LAST)
#: Events that requeue or remove a dead letter.
IS_ANEW: Final = IS_REVIVAL | IS_REMOVAL
#: Events outside of attempts.
IS_OUTSIDE: Final = IS_ANEW | IS_CLAIM | IS_EDIT
#: Events with the whole state of a job.
IS_WHOLE: Final = IS_REPEAT | IS_EDIT
#: Events that change an existing job.
IS_EVENT: Final = _among(*(kinds.OF_JOBS - kinds.NEUTRAL))
_CONCERNS: Final = IS_EVENT | IS_CARRYING | IS_BIRTH
_IS_KNOWN: Final = _CONCERNS | np.array([kind == FINISHED for kind in (*KINDS, "")])
#: Kinds of records that concern one job.
CONCERNING: Final = frozenset(KINDS[code] for code in np.flatnonzero(_CONCERNS))
BIRTHS: Final = frozenset(map(kinds.name_of, kinds.BIRTHS))
REPEATS: Final = frozenset(map(kinds.name_of, kinds.REPEATS))
#: Final states.
OVER: Final = {LOST} | {str(kinds.after(State.RUNNING, kind)) for kind in kinds.ENDS - kinds.DEATHS}
IS_OVER: Final = np.array([state in OVER for state in STATES])
#: State after an event, by (whether the job is due later, kind).
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
    """All records that concern some jobs, and rows of kind "finished", sorted by log, job and lsn.

    Indexes of events refer to this order; -1 means no event, ``NONE`` a null number.

    Attributes:
        records: table of the events.
        row: index of each event in the table.
        of: index of each event's job.
        keys: ids of the logs, in order.
        log, number: for each job the index of its log in ``keys``, and its number.
        logs: state of these logs.
        ends: for each job the index of its last event.
    """

    def __init__(self, records: pa.Table, logs: Mapping[str, Log]) -> None:
        self.records = records
        code = _codes(records["kind"], KINDS)
        chosen = np.flatnonzero(_IS_KNOWN[code])
        log, self.keys = _logs(records, chosen)
        self.logs = LogColumns([logs[key] for key in self.keys], self.keys)
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
        #: state of the job after each event
        self.after = np.where(IS_WHOLE[self.kind], whole, _AFTER[waits.astype(int), self.kind])

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
        """Return a mask of the events that released a job because its worker had died."""
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


def _logs(records: pa.Table, rows: Ints) -> tuple[Ints, list[str]]:
    names = sorted(pc.unique(records["log_id"]).to_pylist())
    code = _codes(records["log_id"], names)[rows]
    there = np.bincount(code, minlength=len(names)) > 0
    return (np.cumsum(there) - 1)[code], [names[at] for at in np.flatnonzero(there).tolist()]


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
