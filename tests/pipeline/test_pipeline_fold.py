"""The fold by columns makes of any records what rules make of them, one record after the other."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.core.views import AttemptView
from taskq.log.format.history import encode_history
from taskq_plugins.spark.tables.batches import Rows, rows_of
from taskq_plugins.spark.tables.logs import Log
from tests.effort import grows, some
from tests.pipeline import rowfold
from tests.pipeline.rowmaking import COLUMNS

if TYPE_CHECKING:
    from taskq_plugins.spark.tables.logs import LogKey

pytestmark = [pytest.mark.timeout(240), grows]
Row = dict[str, Any]
ROUNDS: Final = some(60, 4_000)
LSNS: Final = 60
BEGAN: Final = 1_000
_WHOLE: Final = {Kind.CARRIED, Kind.REQUEUED, Kind.EDITED}
#: Most of what a log has, some of it out of all order; and what concerns no job.
KINDS: Final = [
    *(kind for kind in Kind if kind <= Kind.EXTENDED),
    *(Kind.CANCEL_ASKED, Kind.EDITED, Kind.PAUSED, Kind.OWNER),
    *(Kind.CLAIMED, Kind.CLAIMED, Kind.CLAIMED, Kind.RETRIED, Kind.RELEASED),
]


def record(draw: random.Random, log: LogKey, lsn: int) -> Row:
    """Return a record that says anything."""
    kind = draw.choice(KINDS)

    def perhaps(value: Any) -> Any:
        return draw.choice([None, value])

    moment = BEGAN + draw.randrange(40)
    row = {
        "device": "edge", "log_id": log[0], "branch": log[1], "segment": 1, "lsn": lsn,
        "kind": kind.name.lower(), "ts_ns": BEGAN + lsn + draw.randrange(3), "epoch": "e",
        "job": lsn if kind is Kind.ENQUEUED else draw.randrange(1, 9), "attempt": draw.randrange(3),
        "due_ns": perhaps(moment), "moments": draw.randrange(4), "flags": draw.randrange(4),
        "value": draw.choice([None, b"", b"why", b"\xff", b"%d" % lsn]),
        "headers": perhaps([("replay_of", "x")]), "job_id": "j", "owner": perhaps(f"{lsn:016x}"),
        "queue": perhaps("q"), "task": perhaps("t"), "key": perhaps(b"k"), "priority": 5,
    }  # fmt: skip
    if kind in {Kind.ENQUEUED, *_WHOLE}:
        row |= {"expires_ns": perhaps(moment + 9), "attempts_max": perhaps(3)}
    if kind in _WHOLE:
        row |= {
            "state": draw.choice(list(State)).name.lower(), "enqueued_ns": perhaps(BEGAN),
            "ended_ns": perhaps(BEGAN + lsn), "result": draw.choice([None, b"", b"r", b"\xfe"]),
            "history": encode_history(history(draw)),
        }  # fmt: skip
    if kind in {Kind.RELEASED, Kind.RETRIED}:
        row["cause"] = draw.choice([*Cause, Cause.OWNER_LOST, Cause.OWNER_LOST]).name.lower()
    return row


def history(draw: random.Random) -> list[AttemptView]:
    """Return attempts of before, the last of which may run."""
    first, count = draw.choice([1, 1, 3]), draw.randrange(4)
    ran = [
        AttemptView(number=first + turn, owner=turn, started_ns=BEGAN + draw.randrange(9))
        for turn in range(count)
    ]
    return [
        replace(
            attempt,
            ended_ns=BEGAN + draw.randrange(9),
            outcome=draw.choice(["retried", "lost"]),
            reason=draw.choice(["", "no"]),
        )
        for attempt in ran[:-1]
    ] + ran[-1:]


def log(draw: random.Random) -> Log:
    """Return anything that may be known of a log."""
    steps = sorted((draw.randrange(LSNS), draw.randrange(-9, 9)) for _ in range(draw.randrange(3)))
    stretch = (draw.randrange(1, 9), draw.randrange(9, LSNS))
    return Log(
        now_ns=BEGAN + draw.randrange(50),
        steps=steps,
        stretches=[stretch, (LSNS + 5, LSNS + 9)],
        begins=draw.choice([0, 0, 20]),
        left=draw.choice([None, None, 30]),
        gaps=draw.choice([[], [], [(draw.randrange(LSNS), draw.randrange(LSNS))]]),
    )


def drawn(draw: random.Random) -> tuple[pa.Table, dict[LogKey, Log]]:
    """Return records of some logs in no order, with jobs that were told as over."""
    logs = {(name, branch): log(draw) for name in "abc" for branch in range(draw.randrange(1, 3))}
    rows: list[Row] = []
    for key in logs:
        lsns = sorted(draw.sample(range(1, LSNS), draw.randrange(LSNS - 1)))
        rows += [record(draw, key, lsn) for lsn in lsns]
        if draw.randrange(2):
            rows.append(
                {"log_id": key[0], "branch": key[1], "kind": "told", "job": draw.randrange(9)}
            )
    draw.shuffle(rows)
    return pa.Table.from_pylist(rows, COLUMNS), logs


def check(records: pa.Table, logs: dict[LogKey, Log]) -> Rows:
    """See that both folds give the same columns, to the row."""
    shown, wanted = rows_of(records, logs), rowfold.rows_of(records, logs)
    for name, table, rows in zip(Rows._fields, shown, wanted, strict=True):
        assert table.schema == rows.schema, name
        for column in rows.column_names:
            assert table[column].to_pylist() == rows[column].to_pylist(), (name, column)
    return shown


def test_any_records_are_folded_by_columns_as_one_after_the_other() -> None:
    """In whatever order a log could have them, and in orders that none has."""
    jobs = tried = passed = 0
    for seed in range(ROUNDS):
        rows = check(*drawn(random.Random(seed)))
        jobs, tried = jobs + rows.jobs.num_rows, tried + rows.attempts.num_rows
        passed += rows.kept["kind"].to_pylist().count("told")
    assert min(jobs, tried, passed) > ROUNDS, "else it says little"


def test_of_many_attempts_the_latest_are_shown() -> None:
    draw = random.Random(1)
    rows = [record(draw, ("a", 0), 1) | {"kind": "enqueued", "job": 1}]
    for turn in range(130):
        claim = {"lsn": 2 + 2 * turn, "kind": "claimed", "job": 1, "attempt": turn}
        rows += [record(draw, ("a", 0), 0) | claim]
        rows += [rows[-1] | {"lsn": 3 + 2 * turn, "kind": "retried", "cause": "caller"}]
    made = check(pa.Table.from_pylist(rows, COLUMNS), {("a", 0): Log(9**9, [], [(1, 999)])})
    assert made.attempts["number"].to_pylist() == list(range(30, 130))


def test_no_records_make_no_rows() -> None:
    made = check(COLUMNS.empty_table(), {})
    assert not any(table.num_rows for table in made)
