"""The table of transitions is the only truth: about states, for the code and for the README."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

from taskq.core.kinds import BY_TIME, TRANSITIONS, after, diagram, legal
from taskq.core.model import LIVE_STATES, State
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
    Kind.CARRIED: set[State](),
    Kind.EXTENDED: set[State](),
    Kind.CLOCK: set[State](),
    Kind.PAUSED: set[State](),
    Kind.RESUMED: set[State](),
    Kind.TALLIED: set[State](),
    Kind.COMPACTED: set[State](),
    Kind.ADOPTED: set[State](),
    Kind.CANCEL_ASKED: set[State](),
    Kind.TICKED: set[State](),
    Kind.RATED: set[State](),
    Kind.EDITED: {State.READY, State.SCHEDULED},
    Kind.OWNER: set[State](),
}


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_is_legal_from_its_origins_alone(kind: Kind) -> None:
    assert {state for state in State if legal(state, kind)} == ORIGINS[kind]


@pytest.mark.parametrize("kind", Kind)
def test_what_a_record_says_happened_happened(kind: Kind) -> None:
    """A fold meets records whose forerunner was damaged: the kind decides, from any state."""
    origins = ORIGINS[kind]
    for state, waits in product(State, (False, True)):
        reached = after(state, kind, waits=waits)
        if not origins:
            assert reached is state
        for origin in origins:
            assert reached is TRANSITIONS[origin, kind][-1 if waits else 0]


def test_a_kind_leads_to_the_same_states_from_every_origin() -> None:
    """The agenda looks each kind's state up once, not for each job."""
    for kind, origins in ORIGINS.items():
        assert len({TRANSITIONS[origin, kind] for origin in origins}) <= 1


def test_only_records_with_a_due_time_have_a_choice() -> None:
    """ENQUEUED, RETRIED, RELEASED and EDITED lead to READY, or to SCHEDULED when they wait."""
    for (_, kind), states in TRANSITIONS.items():
        if kind in {Kind.ENQUEUED, Kind.RETRIED, Kind.RELEASED, Kind.EDITED}:
            assert states == (State.READY, State.SCHEDULED)
        else:
            assert len(states) == 1


def test_every_state_is_reached_and_every_live_job_can_end() -> None:
    edges = {(before, state) for (before, _), states in TRANSITIONS.items() for state in states}
    edges |= set(BY_TIME.items())
    assert reach({State.ABSENT}, edges) == set(State)
    for state in LIVE_STATES:
        assert State.SUCCEEDED in reach({state}, edges)
        assert State.DEAD in reach({state}, edges)


def test_a_settled_job_stays_settled_but_for_dead_letters() -> None:
    origins = {before for before, _ in TRANSITIONS} | set(BY_TIME)
    assert origins == {State.ABSENT, *LIVE_STATES, State.DEAD}


def test_only_a_scheduled_job_changes_by_time() -> None:
    assert BY_TIME == {State.SCHEDULED: State.READY}


def reach(states: set[State], edges: set[tuple[State, State]]) -> set[State]:
    while more := {after for before, after in edges if before in states} - states:
        states = states | more
    return states


# -- nothing else decides -------------------------------------------------------------------------


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
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [node.lineno] if node.value.id == "State" and node.attr != "ABSENT" else []
    return [line for child in ast.iter_child_nodes(node) for line in chosen_states(child)]


def test_nothing_else_in_the_library_chooses_a_state() -> None:
    """A state comes out of ``after``, ``BY_TIME`` or the job table, never out of a literal."""
    tables = {ROOT / f"taskq/core/{name}.py" for name in ("model", "records", "kinds")}
    sources = {*ROOT.glob("taskq/**/*.py"), *ROOT.glob("workers/**/*.py")} - tables
    elsewhere = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources
        for line in chosen_states(ast.parse(path.read_text()))
    }
    assert not elsewhere


# -- the diagram of the guide ----------------------------------------------------------------------


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
