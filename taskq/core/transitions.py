"""The legal transitions, out of the table of kinds. Nothing else decides a job's next state.

The guide's diagram is generated from them, and the folds look up in them through ``after``.
"""

from __future__ import annotations

from typing import Final

from taskq.core.kinds import BIRTH, CLAIM, name_of
from taskq.core.model import State
from taskq.core.records import TABLE

#: (state before, what happened) -> states it may be in after: the second, if there is one, where
#: the record carries a due time that is still to come.
TRANSITIONS: Final[dict[tuple[State, int], tuple[State, ...]]] = {
    (before, row.kind): after for row in TABLE.values() for before, after in row.moves.items()
}
#: What each kind leads to, from wherever it finds the job: then it does not matter from where.
_AFTER: Final = {kind: states for (_, kind), states in TRANSITIONS.items()}
#: What a job is in after its birth and in an attempt, as plain numbers for the folds.
READY, SCHEDULED = map(int, _AFTER[BIRTH])
RUNNING: Final = int(_AFTER[CLAIM][0])

#: The one change that no record marks: it follows from (state, now).
BY_TIME: Final[dict[State, State]] = {State.SCHEDULED: State.READY}


def legal(state: State, kind: int) -> bool:
    """Return whether ``decide`` may write ``kind`` for a job in ``state``."""
    return (state, kind) in TRANSITIONS


def after(state: State, kind: int, *, waits: bool = False) -> State:
    """Return the state after ``kind``; ``waits`` tells that the record carries a due time.

    A fold meets records whose forerunner was damaged, so an illegal pair is no error here: what the
    record says happened, happened.
    """
    states = _AFTER.get(kind, (state,))
    return states[-1] if waits else states[0]


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the guide."""
    lines = ["stateDiagram-v2"]
    for (before, kind), states in TRANSITIONS.items():
        lines += [f"    {_node(before)} --> {_node(state)}: {name_of(kind)}" for state in states]
    lines += [
        f"    {before.name.lower()} --> {state.name.lower()}: its time has come"
        for before, state in BY_TIME.items()
    ]
    ends = [s for s in State if s is not State.ABSENT and all(b is not s for b, _ in TRANSITIONS)]
    lines += [f"    {state.name.lower()} --> [*]" for state in ends]
    return "\n".join(lines)


def _node(state: State) -> str:
    return "[*]" if state is State.ABSENT else state.name.lower()
