"""The table of transitions is the only truth: about states, for the code and for the README."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from taskq.core.kinds import BY_TIME, TRANSITIONS, diagram, legal
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
    Kind.CANCEL_ASKED: set[State](),
    Kind.TICKED: set[State](),
    Kind.INGESTED: set[State](),
    Kind.RATED: set[State](),
    Kind.EDITED: {State.READY, State.SCHEDULED},
    Kind.STEP_DONE: set[State](),
    Kind.SIGNAL_SENT: set[State](),
    Kind.WAIT_BEGUN: set[State](),
    Kind.OWNER: set[State](),
}


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_is_legal_from_its_origins_alone(kind: Kind) -> None:
    assert {state for state in State if legal(state, kind)} == ORIGINS[kind]


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
        if "State." in (text := path.read_text())
        for line in chosen_states(ast.parse(text))
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
