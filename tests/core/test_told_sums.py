"""Derived figures of views: sums, moments, ratios."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.model import TIME_NS_MAX, State
from taskq.core.views import (
    AttemptView,
    CompactedSegment,
    CompactReport,
    Damage,
    EngineStats,
    JobView,
    Spread,
    body_document,
    moment,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SMALL = st.integers(0, 100)


@given(first=SMALL, count=SMALL, salvaged=SMALL, skipped=SMALL)
def test_lost_is_what_was_neither_read_nor_ever_written(
    first: int, count: int, salvaged: int, skipped: int
) -> None:
    damage = Damage(
        segment="1.log", offset=0, size=9, first_lsn=first, next_lsn=first + count,
        salvaged=salvaged, skipped=skipped,
    )  # fmt: skip
    assert damage.lost == max(count - salvaged - skipped, 0)


@given(st.lists(st.tuples(SMALL, SMALL, st.booleans()), max_size=6))
def test_freed_is_what_went_less_what_was_written_again(parts: list[tuple[int, int, bool]]) -> None:
    segments = tuple(
        CompactedSegment(segment="1.log", size=size, needed=needed, reason="", removed=removed)
        for size, needed, removed in parts
    )
    freed = sum(size for size, _, removed in parts if removed)
    written = sum(needed for _, needed, removed in parts if removed)
    assert CompactReport(segments=segments).freed == freed - written


def engine(appended: int, payload: int, upkeep: int) -> EngineStats:
    return EngineStats(
        batches=1, records=1, batch_records=Spread(), batch_histogram=(), appended_bytes=appended,
        payload_bytes=payload, upkeep_bytes=upkeep, sync_seconds=Spread(), slow_syncs=0,
        lock_wait_seconds=Spread(), lock_hold_seconds_max=0.0, caught_up_records=0,
        open_seconds=0.0, free_bytes=None, is_disk_short=False,
    )  # fmt: skip


def test_amplification_is_all_that_was_written_for_a_byte_of_payload() -> None:
    assert engine(300, 100, 100).write_amplification == pytest.approx(4)
    assert engine(300, 0, 100).write_amplification is None


def job(**changes: Any) -> JobView:
    return JobView(
        lsn=1, job_id="x-1", queue="q", task="t", priority=5, state=State.READY, attempt=0,
        attempts_max=0, enqueued_ns=1_000, **changes,
    )  # fmt: skip


@given(micros=st.integers(1, TIME_NS_MAX // 1_000 - 1), rest=st.integers(0, 999))
def test_a_moment_is_told_to_the_microsecond(micros: int, rest: int) -> None:
    told_ns = micros * 1_000 + rest
    expected = EPOCH + timedelta(microseconds=micros)
    view = job(due_ns=told_ns, expires_ns=told_ns, settled_ns=told_ns)
    assert view.due_at == view.expires_at == view.settled_at == expected
    assert datetime.fromisoformat(moment(told_ns) or "") == expected
    attempt = AttemptView(number=1, owner=1, started_ns=told_ns, ended_ns=told_ns)
    assert attempt.started_at == attempt.ended_at == expected


@pytest.mark.parametrize("never", [0, -1, TIME_NS_MAX, TIME_NS_MAX + 1])
def test_never_is_no_moment(never: int) -> None:
    view = job(due_ns=never, expires_ns=never, settled_ns=never)
    assert (view.due_at, view.expires_at, view.settled_at, moment(never)) == (None,) * 4
    assert moment(1) == "1970-01-01T00:00:00+00:00"
    assert moment(TIME_NS_MAX - 1) is not None
    assert job(due_ns=TIME_NS_MAX - 1).due_at is not None
    assert AttemptView(number=1, owner=1, started_ns=1).ended_at is None


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (None, None),
        (b'{"a": 1}', {"encoding": "json", "data": {"a": 1}}),
        (b"a text", {"encoding": "text", "data": "a text"}),
        (b"\xff\x00", {"encoding": "base64", "data": "/wA="}),
    ],
)
def test_a_body_is_told_as_what_it_is(body: bytes | None, document: object) -> None:
    assert body_document(body) == document


def test_a_document_of_a_job_has_null_for_what_there_is_none_of() -> None:
    empty = job().as_dict()
    names = ("attempts_max", "due_at", "expires_at", "settled_at", "key", "reason", "result")
    assert [empty[name] for name in (*names, "problem")] == [None] * 8
    assert (empty["id"], empty["state"], empty["attempt"]) == ("x-1", "ready", 0)
    assert (empty["priority"], empty["headers"], empty["attempts"]) == (5, {}, [])
    full = job(key=b"k\xff", reason="no", problem="lost", payload=b"1", result=b"2").as_dict()
    assert (full["key"], full["reason"], full["problem"]) == ("k\\xff", "no", "lost")
    assert (full["payload"]["data"], full["result"]["data"]) == (1, 2)
