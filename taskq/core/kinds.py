"""Sets of kinds by what their records do, out of ``records.TABLE``: what all who read records ask.

They hold plain numbers. Behind them stands which kind is written where a job's life goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq.core.model import LIVE_STATES, SETTLED_STATES, WAITING_STATES, State
from taskq.core.records import TABLE, Body, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.core.records import Row


def kinds_that(fits: Callable[[Row], bool]) -> frozenset[int]:
    """Return the types of records whose rows fit."""
    return frozenset(kind for kind, row in TABLE.items() if fits(row))


def name_of(kind: int) -> str:
    """Return what people call a kind; "type-…" of one that this taskq does not know."""
    row = TABLE.get(kind)
    return f"type-{kind}" if row is None else row.name


def _leading_to(*states: State) -> frozenset[int]:
    return kinds_that(lambda row: any(end in states for ends in row.moves.values() for end in ends))


def _from(*states: State) -> frozenset[int]:
    return kinds_that(lambda row: any(state in row.moves for state in states))


def _with_field(name: str) -> frozenset[int]:
    return kinds_that(lambda row: name in row.layout.names.split())


# What records are about.

#: They bring a job into being, whose number is their lsn.
BIRTHS: Final = _from(State.ABSENT)
#: They hold the whole record that brought a job into being: behind them its story is known.
CARRYING: Final = kinds_that(lambda row: row.body is Body.JOB)
BEGINNINGS: Final = BIRTHS | CARRYING
#: They concern a job that an earlier record brought, which they name by its number.
OF_JOBS: Final = _with_field("job")
#: They name the claim that the job is under, or was, by its lsn.
OF_CLAIMS: Final = OF_JOBS & _with_field("token")
#: They end a claim or a job, and say why.
WITH_CAUSE: Final = kinds_that(lambda row: row.byte == "cause")
#: They name a process.
WITH_OWNER: Final = _with_field("owner")
INTRODUCTIONS: Final = WITH_OWNER - OF_JOBS
#: They say by how much the clock was set.
STEPS: Final = _with_field("step_ns")
#: They are about a queue, or about a lane.
OF_QUEUES: Final = kinds_that(lambda row: row.body is Body.QUEUE)
OF_LANES: Final = kinds_that(lambda row: row.body is Body.LANE)

#: They say that segments before an lsn may be gone.
FLOORS: Final = _with_field("token") - OF_JOBS
#: They say how far an upload has come.
ADOPTIONS: Final = _with_field("upload")

# What they do to a job.

#: They start an attempt.
CLAIMS: Final = _leading_to(State.RUNNING)
#: They end one: the job's claim is over.
ENDS_OF_CLAIMS: Final = _from(State.RUNNING)
#: They settle a job, and free its key.
ENDS: Final = _leading_to(*SETTLED_STATES)
#: They make dead letters.
DEATHS: Final = _leading_to(State.DEAD)
#: A dead letter begins anew, or is gone.
REVIVALS: Final = _from(State.DEAD) & _leading_to(*LIVE_STATES)
REMOVALS: Final = _from(State.DEAD) - REVIVALS
#: Nothing is said of a job behind them, as a rule.
LAST: Final = ENDS - DEATHS | REMOVALS
#: A job that ran waits again; it keeps its place in the log.
RETURNS: Final = ENDS_OF_CLAIMS & _leading_to(*WAITING_STATES)
#: A waiting job waits otherwise.
EDITS: Final = CARRYING & _from(*WAITING_STATES)
#: A job is told again as it stands.
REPEATS: Final = CARRYING & kinds_that(lambda row: not row.moves)
#: They change nothing of a job's state.
BESIDE: Final = OF_JOBS & kinds_that(lambda row: not row.moves)

# What is written: readers ask the sets above, where a kind that is added later is, too.

BIRTH: Final = Kind.ENQUEUED
CLAIM: Final = Kind.CLAIMED
SUCCESS: Final = Kind.SUCCEEDED
DEATH: Final = Kind.DEAD
CANCEL: Final = Kind.CANCELLED
EXPIRY: Final = Kind.EXPIRED
#: The attempt failed, and another comes.
RETRY: Final = Kind.RETRIED
#: The job is given back, or what it waited for is there.
RELEASE: Final = Kind.RELEASED
REPEAT: Final = Kind.CARRIED
EDIT: Final = Kind.EDITED
REVIVAL: Final = Kind.REQUEUED
REMOVAL: Final = Kind.PURGED
EXTENSION: Final = Kind.EXTENDED
#: Somebody wants the running job cancelled.
REQUEST: Final = Kind.CANCEL_ASKED
PAUSE: Final = Kind.PAUSED
RESUME: Final = Kind.RESUMED
