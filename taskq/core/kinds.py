"""Sets of kinds by the effect of their records, computed from ``records.TABLE``.

They hold plain numbers. After them come the kind to write for each change of a job, and the legal
transitions: only this module decides a job's next state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from taskq.core.model import LIVE_STATES, SETTLED_STATES, WAITING_STATES, State
from taskq.core.records import TABLE, Body, Kind, Option, Row

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


# Records by subject.

#: Records that create a job; their lsn is its number.
BIRTHS: Final = _from(State.ABSENT)
#: Records with the job's whole ENQUEUED record: earlier records of the job are not needed.
CARRYING: Final = kinds_that(lambda row: row.body is Body.JOB)
BEGINNINGS: Final = BIRTHS | CARRYING
#: Records about an existing job, named by its number.
OF_JOBS: Final = _with_field("job")
#: Records that name the job's claim by its lsn.
OF_CLAIMS: Final = OF_JOBS & _with_field("token")
#: Records that end a claim or a job, with a cause.
WITH_CAUSE: Final = kinds_that(lambda row: row.byte == "cause")
#: Records that name a process.
WITH_OWNER: Final = _with_field("owner")
INTRODUCTIONS: Final = WITH_OWNER - OF_JOBS
#: Records that may move the deadline of a job's claim.
LEASING: Final = kinds_that(lambda row: Option.LEASE in row.options) - CARRYING
#: Records with the value of a step or of a signal.
OF_STEPS: Final = kinds_that(lambda row: row.body is Body.VALUE)
#: Records of a step of the clock.
STEPS: Final = _with_field("step_ns")
#: Records about a queue, or about a lane.
OF_QUEUES: Final = kinds_that(lambda row: row.body is Body.QUEUE)
OF_LANES: Final = kinds_that(lambda row: row.body is Body.LANE)

#: Records after which segments before an lsn may be gone.
FLOORS: Final = _with_field("token") - OF_JOBS
#: Records of a source's position.
SOURCES: Final = kinds_that(lambda row: row.body is Body.SOURCE)
#: Records that change a control.
CONTROLS: Final = kinds_that(lambda row: row.body is Body.CONTROL)

# Records by effect on a job.

#: Records that start an attempt.
CLAIMS: Final = _leading_to(State.RUNNING)
#: Records that end the job's claim.
ENDS_OF_CLAIMS: Final = _from(State.RUNNING)
#: Records that settle a job and free its key.
ENDS: Final = _leading_to(*SETTLED_STATES)
#: Records with the job's result.
SUCCESSES: Final = _leading_to(State.SUCCEEDED)
#: Records that make dead letters.
DEATHS: Final = _leading_to(State.DEAD)
#: Records that make a dead letter ready again, or remove it.
REVIVALS: Final = _from(State.DEAD) & _leading_to(*LIVE_STATES)
REMOVALS: Final = _from(State.DEAD) - REVIVALS
#: Records that are usually the last of their job.
LAST: Final = ENDS - DEATHS | REMOVALS
#: Records after which a running job waits again, at its old place in the log.
RETURNS: Final = ENDS_OF_CLAIMS & _leading_to(*WAITING_STATES)
#: Records that edit a waiting job.
EDITS: Final = CARRYING & _from(*WAITING_STATES)
#: Records that repeat a job's present state.
REPEATS: Final = CARRYING & kinds_that(lambda row: not row.moves)
#: Records about a job that do not change its state.
NEUTRAL: Final = OF_JOBS & kinds_that(lambda row: not row.moves)

# Kinds to write. Readers use the sets above, which include kinds added later.

BIRTH: Final = Kind.ENQUEUED
CLAIM: Final = Kind.CLAIMED
SUCCESS: Final = Kind.SUCCEEDED
DEATH: Final = Kind.DEAD
CANCEL: Final = Kind.CANCELLED
EXPIRY: Final = Kind.EXPIRED
#: The attempt failed, and another one follows.
RETRY: Final = Kind.RETRIED
#: The job is given back, or its inputs are done.
RELEASE: Final = Kind.RELEASED
REPEAT: Final = Kind.CARRIED
EDIT: Final = Kind.EDITED
REVIVAL: Final = Kind.REQUEUED
REMOVAL: Final = Kind.PURGED
#: Kind of the record that ends a job, by the state after it.
ENDING: Final = {state: kind for kind in (SUCCESS, DEATH, CANCEL, EXPIRY) for state in _after(kind)}
EXTENSION: Final = Kind.EXTENDED
#: A request to cancel the running job.
REQUEST: Final = Kind.CANCEL_ASKED
STEP: Final = Kind.STEP_DONE
SIGNAL: Final = Kind.SIGNAL_SENT
#: An operator's or program's request, with its name.
ACT: Final = Kind.ACTED
#: A wait within a run begins.
WAIT: Final = Kind.WAIT_BEGUN
PAUSE: Final = Kind.PAUSED
RESUME: Final = Kind.RESUMED

# Legal transitions; the diagram in the documents is generated from them.

#: (state before, kind of record) -> states after: the second one, if any, counts if the record has
#: a due time in the future.
TRANSITIONS: Final[dict[tuple[State, int], tuple[State, ...]]] = {
    (before, row.kind): after for row in TABLE.values() for before, after in row.moves.items()
}
#: States after each kind, which do not depend on the state before.
_AFTER: Final = {kind: states for (_, kind), states in TRANSITIONS.items()}
#: States after a job's birth and during an attempt, as plain numbers for the folds.
READY, SCHEDULED = map(int, _AFTER[BIRTH])
RUNNING: Final = int(_AFTER[CLAIM][0])

#: The only change without a record: it follows from (state, now).
BY_TIME: Final[dict[State, State]] = {State.SCHEDULED: State.READY}


def legal(state: State, kind: int) -> bool:
    """Return whether ``kind`` may be written for a job in ``state``."""
    return (state, kind) in TRANSITIONS


def after(state: State, kind: int, *, waits: bool = False) -> State:
    """Return the state after ``kind``; ``waits``: the record has a due time in the future.

    A fold may read a record after a damaged one. So an illegal pair is no error here: a record is a
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
