"""The one table of legal transitions. Nothing else in the project decides a job's next state.

The guide's diagram is generated from this table, and the folds look up in it through ``after``.
"""

from __future__ import annotations

from typing import Final

from taskq.core.model import State
from taskq.core.records import Kind

#: (state before, what happened) -> states it may be in after. ENQUEUED, RETRIED, RELEASED and
#: EDITED lead to SCHEDULED when they carry a due time that is still to come, else to READY.
TRANSITIONS: Final[dict[tuple[State, Kind], tuple[State, ...]]] = {
    (State.ABSENT, Kind.ENQUEUED): (State.READY, State.SCHEDULED),
    (State.READY, Kind.CLAIMED): (State.RUNNING,),
    (State.RUNNING, Kind.SUCCEEDED): (State.SUCCEEDED,),
    (State.RUNNING, Kind.RETRIED): (State.READY, State.SCHEDULED),
    (State.RUNNING, Kind.RELEASED): (State.READY, State.SCHEDULED),
    (State.RUNNING, Kind.DEAD): (State.DEAD,),
    (State.SCHEDULED, Kind.RELEASED): (State.READY, State.SCHEDULED),
    (State.READY, Kind.EDITED): (State.READY, State.SCHEDULED),
    (State.SCHEDULED, Kind.EDITED): (State.READY, State.SCHEDULED),
    (State.READY, Kind.CANCELLED): (State.CANCELLED,),
    (State.SCHEDULED, Kind.CANCELLED): (State.CANCELLED,),
    (State.RUNNING, Kind.CANCELLED): (State.CANCELLED,),
    (State.READY, Kind.EXPIRED): (State.EXPIRED,),
    (State.SCHEDULED, Kind.EXPIRED): (State.EXPIRED,),
    (State.DEAD, Kind.REQUEUED): (State.READY,),
    (State.DEAD, Kind.PURGED): (State.ABSENT,),
}

#: The one change that no record marks: it follows from (state, now).
BY_TIME: Final[dict[State, State]] = {State.SCHEDULED: State.READY}


def legal(state: State, kind: Kind) -> bool:
    """Return whether ``decide`` may write ``kind`` for a job in ``state``."""
    return (state, kind) in TRANSITIONS


def after(state: State, kind: Kind, *, waits: bool = False) -> State:
    """Return the state after ``kind``; ``waits`` tells that the record carries a due time.

    A fold meets records whose forerunner was damaged, so an illegal pair is no error here: what the
    record says happened, happened.
    """
    states = TRANSITIONS.get((state, kind)) or next(
        (found for other in State if (found := TRANSITIONS.get((other, kind))) is not None),
        (state,),
    )
    return states[-1] if waits else states[0]


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the guide."""
    lines = ["stateDiagram-v2"]
    for (before, kind), states in TRANSITIONS.items():
        lines += [
            f"    {_node(before)} --> {_node(state)}: {kind.name.lower()}" for state in states
        ]
    lines += [
        f"    {before.name.lower()} --> {state.name.lower()}: its time has come"
        for before, state in BY_TIME.items()
    ]
    ends = [s for s in State if s is not State.ABSENT and all(b is not s for b, _ in TRANSITIONS)]
    lines += [f"    {state.name.lower()} --> [*]" for state in ends]
    return "\n".join(lines)


def _node(state: State) -> str:
    return "[*]" if state is State.ABSENT else state.name.lower()
