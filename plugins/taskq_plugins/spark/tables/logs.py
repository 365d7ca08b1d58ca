"""What is known of logs as wholes: steps of their clocks, breaks, and how far they were read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskq.arrow import BREAK
from taskq.engine import kinds
from taskq_plugins.spark.parts import POSITION

if TYPE_CHECKING:
    import numpy.typing as npt

Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
LogKey: TypeAlias = tuple[str, int]

#: Stands for no number, as null does in Arrow ...
NONE: Final = int(np.iinfo(np.int64).min)
#: ... and for an lsn behind all.
NEVER: Final = int(np.iinfo(np.int64).max)
#: What names a branch of a log, and a job in it: records before the fork are of both branches.
LOG: Final = ("log_id", "branch")
STEPS: Final = frozenset(map(kinds.name_of, kinds.STEPS))
#: What is told of the last record of a stretch.
_LAST: Final = ("device", "epoch", "timestamp", "ts_ns")


class Log(NamedTuple):
    """What is known of a branch of a log as a whole, all batches together."""

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
    #: declared gaps: (first lsn behind it, where the log ended when it was declared)
    gaps: Sequence[tuple[int, int]] = ()

    def is_past(self, gap: tuple[int, int]) -> bool:
        return any(last + 1 >= gap[1] for _, last in self.stretches)

    def lost_before(self) -> int:
        """Return the lsn of which no job is told behind that is not over, and told of last before.

        Whatever is not over is written again behind a gap; a branch that was left tells no more.
        """
        if self.left is not None:
            return NEVER
        return max((gap[0] for gap in self.gaps if self.is_past(gap)), default=0)


class LogColumns:
    """What is known of some logs, for rows that are sorted by their place among these.

    Attributes:
        now_ns, begins, lost_before: of each log, as ``Log`` has it.
        left: likewise, 0 for none.
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
    """Return the rows that tell of logs as a whole: steps of the clock, breaks, and what was read.

    Args:
        records: of a batch, and these rows of the batches before.
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
