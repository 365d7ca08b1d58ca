"""The table of transitions is the only truth, and derived figures of views follow from it."""

import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core import views
from taskq.core.kinds import BY_TIME, TRANSITIONS, diagram, legal
from taskq.core.model import LIVE_STATES, TIME_NS_MAX, State
from taskq.core.records import Kind
from taskq.core.schedules import ScheduleState, TickRecord, apply_ticked, jitter_ns

ROOT = Path(__file__).parents[2]
#: Kinds that change a job's state, and from where. The rest of the project may rely on this.
ORIGINS = {
    Kind.ENQUEUED: {State.ABSENT},
    Kind.CLAIMED: {State.READY},
    Kind.SUCCEEDED: {State.RUNNING},
    Kind.RETRIED: {State.RUNNING},
    Kind.DEAD: {State.RUNNING},
    Kind.RELEASED: {State.RUNNING, State.SCHEDULED},
    Kind.CANCELLED: {State.READY, State.SCHEDULED, State.RUNNING},
    Kind.EXPIRED: {State.READY, State.SCHEDULED},
    Kind.REQUEUED: {State.DEAD},
    Kind.PURGED: {State.DEAD},
    Kind.EDITED: {State.READY, State.SCHEDULED},
}


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_is_legal_from_its_origins_alone(kind: Kind) -> None:
    assert {state for state in State if legal(state, kind)} == ORIGINS.get(kind, set())


def chosen_states(node: ast.AST) -> list[int]:
    """Lines where a state is named as a value, not asked for, compared with, or keyed by."""
    if isinstance(node, ast.Compare | ast.Subscript):
        return []
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in {"after", "legal"}:
            return []
    if isinstance(node, ast.Dict):
        return [line for value in node.values for line in chosen_states(value)]
    if isinstance(node, ast.Attribute):
        of = node.value  # ``State``, or ``model.State``
        is_one = getattr(of, "id", getattr(of, "attr", "")) == "State" and node.attr != "ABSENT"
        return [node.lineno] if is_one else chosen_states(of)
    return [line for child in ast.iter_child_nodes(node) for line in chosen_states(child)]


def test_nothing_else_in_the_library_chooses_a_state() -> None:
    """A state comes out of ``after``, ``BY_TIME`` or the job table, never out of a literal."""
    tables = {ROOT / f"taskq/core/{name}.py" for name in ("model", "records", "kinds")}
    sources = {*ROOT.glob("taskq/**/*.py"), *ROOT.glob("workers/**/*.py")} - tables
    elsewhere = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources
        if "State." in (text := path.read_text())
        for line in chosen_states(ast.parse(text))
    }
    assert not elsewhere


def test_the_diagram_draws_every_transition_once() -> None:
    lines = diagram().splitlines()
    assert len(lines) == len(set(lines))
    arrows = sum(len(states) for states in TRANSITIONS.values()) + len(BY_TIME)
    ends = len(set(State) - {State.ABSENT, State.DEAD} - LIVE_STATES)
    assert len(lines) == 1 + arrows + ends
    assert "    [*] --> ready: enqueued" in lines
    assert "    running --> scheduled: retried" in lines
    assert "    dead --> [*]: purged" in lines
    assert "    cancelled --> [*]" in lines


# -- told sums -------------------------------------------------------------------------------------


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SMALL = st.integers(0, 100)


@given(first=SMALL, count=SMALL, salvaged=SMALL, skipped=SMALL)
def test_lost_is_what_was_neither_read_nor_ever_written(
    first: int, count: int, salvaged: int, skipped: int
) -> None:
    damage = views.Damage(
        segment="1.log", offset=0, size=9, first_lsn=first, next_lsn=first + count,
        salvaged=salvaged, skipped=skipped,
    )  # fmt: skip
    assert damage.lost == max(count - salvaged - skipped, 0)


@given(st.lists(st.tuples(SMALL, SMALL, st.booleans()), max_size=6))
def test_freed_is_what_went_less_what_was_written_again(parts: list[tuple[int, int, bool]]) -> None:
    segments = tuple(
        views.CompactedSegment(
            segment="1.log", size=size, needed=needed, reason="", removed=removed
        )
        for size, needed, removed in parts
    )
    freed = sum(size for size, _, removed in parts if removed)
    written = sum(needed for _, needed, removed in parts if removed)
    assert views.CompactReport(segments=segments).freed == freed - written


def job(**changes: Any) -> views.JobView:
    return views.JobView(
        lsn=1, job_id="x-1", queue="q", task="t", priority=5, state=State.READY, attempt=0,
        attempts_max=0, enqueued_ns=1_000, **changes,
    )  # fmt: skip


@given(micros=st.integers(1, TIME_NS_MAX // 1_000 - 1), rest=st.integers(0, 999))
def test_times_have_microseconds(micros: int, rest: int) -> None:
    told_ns = micros * 1_000 + rest
    expected = EPOCH + timedelta(microseconds=micros)
    view = job(due_ns=told_ns, expires_ns=told_ns, settled_ns=told_ns)
    assert view.due_at == view.expires_at == view.settled_at == expected
    assert datetime.fromisoformat(views.moment(told_ns) or "") == expected
    attempt = views.AttemptView(number=1, owner=1, started_ns=told_ns, ended_ns=told_ns)
    assert attempt.started_at == attempt.ended_at == expected


@pytest.mark.parametrize("never", [0, -1, TIME_NS_MAX, TIME_NS_MAX + 1])
def test_never_is_no_moment(never: int) -> None:
    view = job(due_ns=never, expires_ns=never, settled_ns=never)
    assert (view.due_at, view.expires_at, view.settled_at, views.moment(never)) == (None,) * 4
    assert views.moment(1) == "1970-01-01T00:00:00+00:00"
    assert views.moment(TIME_NS_MAX - 1) is not None
    assert job(due_ns=TIME_NS_MAX - 1).due_at is not None
    assert views.AttemptView(number=1, owner=1, started_ns=1).ended_at is None


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (None, None),
        (b'{"a": 1}', {"encoding": "json", "data": {"a": 1}}),
        (b"a text", {"encoding": "text", "data": "a text"}),
        (b"\xff\x00", {"encoding": "base64", "data": "/wA="}),
    ],
)
def test_a_body_becomes_json_text_or_base64(body: bytes | None, document: object) -> None:
    assert views.body_document(body) == document


def test_a_job_document_has_null_for_missing_values() -> None:
    empty = job().as_dict()
    names = ("attempts_max", "due_at", "expires_at", "settled_at", "key", "reason", "result")
    assert [empty[name] for name in (*names, "problem")] == [None] * 8
    assert (empty["id"], empty["state"], empty["attempt"]) == ("x-1", "ready", 0)
    assert (empty["priority"], empty["headers"], empty["attempts"]) == (5, {}, [])
    full = job(key=b"k\xff", reason="no", problem="lost", payload=b"1", result=b"2").as_dict()
    assert (full["key"], full["reason"], full["problem"]) == ("k\\xff", "no", "lost")
    assert (full["payload"]["data"], full["result"]["data"]) == (1, 2)


# -- schedule states -------------------------------------------------------------------------------


STATES = st.builds(
    ScheduleState, st.integers(0, 9), st.integers(0, 9), st.booleans(), st.binary(max_size=2),
    st.binary(max_size=2),
)  # fmt: skip
RECORDS = st.builds(TickRecord, st.sampled_from("abc"), STATES, st.booleans(), st.booleans())


@given(st.lists(RECORDS, max_size=20))
def test_the_last_record_wins_and_a_rule_stays_until_a_new_one(
    records: list[TickRecord],
) -> None:
    values: dict[str, ScheduleState] = {}
    for record in records:
        before = values.get(record.name)
        apply_ticked(values, record)
        after = values.get(record.name)
        if record.is_gone:
            assert after is None
            continue
        assert after is not None
        assert after[:3] == record.state[:3]
        answer = before is None or record.has_rule
        assert after[3:] == (record.state if answer or before is None else before)[3:]


@given(name=st.text(max_size=5), moment=st.integers(-9, 2**62), most=st.integers(-2, 2**40))
def test_jitter_lies_between_nothing_and_the_most(name: str, moment: int, most: int) -> None:
    late = jitter_ns(name, moment, most)
    assert 0 <= late <= max(most, 0)
    assert late == jitter_ns(name, moment, most)


def test_jitter_reaches_both_of_its_ends_and_differs_by_name_and_moment() -> None:
    assert {jitter_ns("a", moment, 1) for moment in range(50)} == {0, 1}
    assert {jitter_ns("a", moment, 4) for moment in range(200)} == set(range(5))
    assert jitter_ns("a", 1, 2**60) != jitter_ns("b", 1, 2**60) != jitter_ns("b", 2, 2**60)
