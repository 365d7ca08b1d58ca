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


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def test_a_job_document_has_null_for_missing_values() -> None:
    empty = job().as_dict()
    names = ("attempts_max", "due_at", "expires_at", "settled_at", "key", "reason", "result")
    assert [empty[name] for name in (*names, "problem")] == [None] * 8
    assert (empty["id"], empty["state"], empty["attempt"]) == ("x-1", "ready", 0)
    assert (empty["priority"], empty["headers"], empty["attempts"]) == (5, {}, [])
    full = job(key=b"k\xff", reason="no", problem="lost", payload=b"1", result=b"2").as_dict()
    assert (full["key"], full["reason"], full["problem"]) == ("k\\xff", "no", "lost")
    assert (full["payload"]["data"], full["result"]["data"]) == (1, 2)
