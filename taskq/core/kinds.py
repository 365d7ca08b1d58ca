"""Sets of kinds by the effect of their records, computed from ``records.TABLE``.

They hold plain numbers. After them come the kind to write for each change of a job, and the legal
transitions: nothing else decides a job's next state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskq.core.model import LIVE_STATES, SETTLED_STATES, WAITING_STATES, State
from taskq.core.records import TABLE, Body, Kind, Option, Row

#: By their types.
ROWS: Final = TABLE


def kinds_that(fits: Callable[[Row], bool]) -> frozenset[int]:
    return frozenset(kind for kind, row in TABLE.items() if fits(row))


def name_of(kind: int) -> str:
    row = TABLE.get(kind)
    return f"type-{kind}" if row is None else row.name


def _leading_to(*states: State) -> frozenset[int]:
    return kinds_that(lambda row: not _after(row.kind).isdisjoint(states))


def _from(*states: State) -> frozenset[int]:
    return kinds_that(lambda row: any(state in row.moves for state in states))


def _after(kind: int) -> set[State]:
    return {state for states in TABLE[kind].moves.values() for state in states}


def _with_field(name: str) -> frozenset[int]:
    return kinds_that(lambda row: name in row.layout.names.split())


# Subjects of records.

#: They create a job, whose number is their lsn.
BIRTHS: Final = _from(State.ABSENT)
#: They contain the job's whole ENQUEUED record: the history before them is not needed.
CARRYING: Final = kinds_that(lambda row: row.body is Body.JOB)
BEGINNINGS: Final = BIRTHS | CARRYING
#: They concern an existing job, named by its number.
OF_JOBS: Final = _with_field("job")
#: They name the claim that the job is under, or was, by its lsn.
OF_CLAIMS: Final = OF_JOBS & _with_field("token")
#: They end a claim or a job, and say why.
WITH_CAUSE: Final = kinds_that(lambda row: row.byte == "cause")
#: They name a process.
WITH_OWNER: Final = _with_field("owner")
INTRODUCTIONS: Final = WITH_OWNER - OF_JOBS
#: They may move the deadline of the claim that a job is under.
LEASING: Final = kinds_that(lambda row: Option.LEASE in row.options) - CARRYING
#: They hold the value of a step or of a signal.
OF_STEPS: Final = kinds_that(lambda row: row.body is Body.VALUE)
#: They record a step of the clock.
STEPS: Final = _with_field("step_ns")
#: They are about a queue, or about a lane.
OF_QUEUES: Final = kinds_that(lambda row: row.body is Body.QUEUE)
OF_LANES: Final = kinds_that(lambda row: row.body is Body.LANE)

#: They note that segments before an lsn may be gone.
FLOORS: Final = _with_field("token") - OF_JOBS
#: They record where a source stands.
SOURCES: Final = kinds_that(lambda row: row.body is Body.SOURCE)
#: They change a control.
CONTROLS: Final = kinds_that(lambda row: row.body is Body.CONTROL)

# Effects on a job.

#: They start an attempt.
CLAIMS: Final = _leading_to(State.RUNNING)
#: They end one: the job's claim is over.
ENDS_OF_CLAIMS: Final = _from(State.RUNNING)
#: They settle a job, and free its key.
ENDS: Final = _leading_to(*SETTLED_STATES)
#: They hold what the job returned.
SUCCESSES: Final = _leading_to(State.SUCCEEDED)
#: They make dead letters.
DEATHS: Final = _leading_to(State.DEAD)
#: A dead letter begins anew, or is gone.
REVIVALS: Final = _from(State.DEAD) & _leading_to(*LIVE_STATES)
REMOVALS: Final = _from(State.DEAD) - REVIVALS
#: They are the last record of a job, as a rule.
LAST: Final = ENDS - DEATHS | REMOVALS
#: A job that ran waits again; it keeps its place in the log.
RETURNS: Final = ENDS_OF_CLAIMS & _leading_to(*WAITING_STATES)
#: A waiting job was edited.
EDITS: Final = CARRYING & _from(*WAITING_STATES)
#: A job's present state, written again.
REPEATS: Final = CARRYING & kinds_that(lambda row: not row.moves)
#: They change nothing of a job's state.
BESIDE: Final = OF_JOBS & kinds_that(lambda row: not row.moves)

# Kinds to write. Readers use the sets above, which include kinds added later.

BIRTH: Final = Kind.ENQUEUED
CLAIM: Final = Kind.CLAIMED
SUCCESS: Final = Kind.SUCCEEDED
DEATH: Final = Kind.DEAD
CANCEL: Final = Kind.CANCELLED
EXPIRY: Final = Kind.EXPIRED
#: The attempt failed, and another comes.
RETRY: Final = Kind.RETRIED
#: The job is returned, or its inputs are done.
RELEASE: Final = Kind.RELEASED
REPEAT: Final = Kind.CARRIED
EDIT: Final = Kind.EDITED
REVIVAL: Final = Kind.REQUEUED
REMOVAL: Final = Kind.PURGED
#: By the state that it ends a job in.
ENDING: Final = {state: kind for kind in (SUCCESS, DEATH, CANCEL, EXPIRY) for state in _after(kind)}
EXTENSION: Final = Kind.EXTENDED
#: A request to cancel the running job.
REQUEST: Final = Kind.CANCEL_ASKED
STEP: Final = Kind.STEP_DONE
SIGNAL: Final = Kind.SIGNAL_SENT
#: Somebody asked for something.
ACT: Final = Kind.ACTED
#: A wait within a run begins.
WAIT: Final = Kind.WAIT_BEGUN
PAUSE: Final = Kind.PAUSED
RESUME: Final = Kind.RESUMED

# The legal transitions. The guide's diagram is generated from them.

#: (state before, what happened) -> states it may be in after: the second, if there is one, where
#: the record carries a due time that is still to come.
TRANSITIONS: Final[dict[tuple[State, int], tuple[State, ...]]] = {
    (before, row.kind): after for row in TABLE.values() for before, after in row.moves.items()
}
#: States after each kind: they do not depend on the state before.
_AFTER: Final = {kind: states for (_, kind), states in TRANSITIONS.items()}
#: States after a job's birth and in an attempt, as plain numbers for the folds.
READY, SCHEDULED = map(int, _AFTER[BIRTH])
RUNNING: Final = int(_AFTER[CLAIM][0])

#: The one change that no record marks: it follows from (state, now).
BY_TIME: Final[dict[State, State]] = {State.SCHEDULED: State.READY}


def legal(state: State, kind: int) -> bool:
    """Return whether ``decide`` may write ``kind`` for a job in ``state``."""
    return (state, kind) in TRANSITIONS


def after(state: State, kind: int, *, waits: bool = False) -> State:
    """Return the state after ``kind``; ``waits``: the record has a due time.

    A fold may read a record after a damaged one, so an illegal pair is no error here: a record is a
    fact.
    """
    states = _AFTER.get(kind, (state,))
    return states[-1] if waits else states[0]


def diagram() -> str:
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
