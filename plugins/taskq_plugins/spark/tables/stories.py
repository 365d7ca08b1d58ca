"""What the records of a job make of it: ``taskq.log.state.story.Story`` as Spark expressions.

They work on one row per job with these columns::

    born    struct  what the record tells that brought the job: see ``births``
    events  array   what happened to it behind that, by lsn: see ``events``
    steps   array   steps of the log's clock, (lsn, step_ns); null for none
    now_ns  long    the moment as of which a job still waits or is ready

Moments that are relative shift by the steps behind the record that told them, as they do there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq.core.model import State
from taskq.core.records import Cause, Kind
from taskq.core.transitions import BY_TIME, after
from taskq.log.state.fold import FINAL_KINDS
from taskq_plugins.spark.tables.histories import with_history

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

#: Attempts of one job that are kept; of more, the latest: as many as the Python fold keeps.
ATTEMPTS_SHOWN: Final = 100


def told(member: Kind | State | Cause) -> str:
    """A word of the log as SQL has it in the tables."""
    return f"'{member.name.lower()}'"


def told_any(members: Iterable[Kind | State]) -> str:
    """Some of them, for ``in (...)``."""
    return ", ".join(told(member) for member in sorted(members))


_FINAL_KINDS: Final = {Kind(kind) for kind in FINAL_KINDS}
_ANEW_KINDS: Final = {Kind.REQUEUED, Kind.PURGED}
_BACK_KINDS: Final = {Kind.RETRIED, Kind.RELEASED}
#: Kinds of records that do something to a job which an earlier one brought.
EVENT_KINDS: Final = _FINAL_KINDS | _ANEW_KINDS | _BACK_KINDS | {Kind.CLAIMED}
#: States that a job stays in.
OVER_STATES: Final = {after(State.RUNNING, kind) for kind in _FINAL_KINDS - {Kind.DEAD}}
_FINAL: Final = told_any(_FINAL_KINDS)
_ANEW: Final = told_any(_ANEW_KINDS)
_BACK: Final = told_any(_BACK_KINDS)
#: Behind these nothing concerns the job any more.
_FOR_GOOD: Final = told_any(_FINAL_KINDS - {Kind.DEAD} | {Kind.PURGED})
_SCHEDULED: Final = told(State.SCHEDULED)
_ENQUEUED: Final = told(Kind.ENQUEUED)
_REQUEUED: Final = told(Kind.REQUEUED)
_CLAIMED: Final = told(Kind.CLAIMED)
_SUCCEEDED: Final = told(Kind.SUCCEEDED)


def states(kinds: Iterable[Kind], record: str = "") -> str:
    """The state behind a record of one of these kinds: the table of transitions in SQL.

    ``record`` names the struct that is looked at, with a dot; none for a row.
    """
    cases = []
    for kind in sorted(kinds):
        state, waiting = after(State.ABSENT, kind), after(State.ABSENT, kind, waits=True)
        choice = told(state)
        if state is not waiting:
            choice = f"if({record}due_ns > {record}ts_ns, {told(waiting)}, {told(state)})"
        cases.append(f"when {told(kind)} then {choice}")
    return f"case {record}kind {' '.join(cases)} end"


def _stepped(first: str, last: str) -> str:
    """Nanoseconds that the clock was set by between two records; ``last`` null: since the first."""
    until = f" and (({last}) is null or step.lsn < ({last}))" if last else ""
    return (
        f"coalesce(aggregate(filter(steps, step -> step.lsn > ({first}){until}), "
        "0L, (sum, step) -> sum + step.step_ns), 0L)"
    )


#: The events behind the birth up to one after which nothing is heard any more.
_ACTING: Final = f"""
slice(events, 1, int(coalesce(
  if(born.state in ({told_any(OVER_STATES)}) and born.kind <> {_REQUEUED}, 0, null),
  nullif(array_position(transform(events, one -> one.kind in ({_FOR_GOOD})), true), 0),
  size(events))))
"""
#: Whether the job was purged: then there is none.
GONE: Final = f"""
coalesce(get(filter(events, one -> one.kind in ({_FOR_GOOD})), 0).kind = {told(Kind.PURGED)}, false)
  and born.state not in ({told_any(OVER_STATES)})
"""
#: What settled the job, or made it begin anew; what gave a reason, or took it back.
_SETTLING: Final = f"try_element_at(filter(acting, one -> one.kind in ({_FINAL}, {_ANEW})), -1)"
_TELLING: Final = f"""
try_element_at(
  filter(acting, one -> one.reason is not null or one.kind in ({_SUCCEEDED}, {_ANEW})), -1)
"""
#: Each claim with the event before it, null for the birth, and the one that ended it.
_CLAIMS: Final = f"""
filter(
  transform(acting, (one, index) -> struct(
    one as claim,
    get(acting, index - 1) as before,
    if(get(acting, index + 1).kind in ({_CLAIMED}, {_ANEW}), null, get(acting, index + 1)) as end)),
  one -> one.claim.kind = {_CLAIMED})
"""
_WAS_LOST: Final = f"end.kind = {told(Kind.RELEASED)} and end.cause = {told(Cause.OWNER_LOST)}"
_OUTCOME: Final = f"if({_WAS_LOST}, 'lost', end.kind)"
#: Since when a job that was just claimed could have been: as of the event before, as the clock
#: stood then.
_SINCE: Final = f"""
case when one.before is null then born.since_ns
     when one.before.kind in ({_BACK}) then greatest(one.before.ts_ns, one.before.due_ns)
     when one.before.kind = {_REQUEUED} then one.before.ts_ns end
"""
_LATE: Final = f"""
transform(claims, one -> struct(
  one.claim.attempt as number,
  one.claim.owner as owner,
  one.claim.ts_ns as started_ns,
  one.end.ts_ns as ended_ns,
  {_OUTCOME.replace("end.", "one.end.")} as outcome,
  one.end.reason as reason,
  if(({_SINCE}) is null, null, greatest(0L, one.claim.ts_ns - greatest(
    {_SINCE} + {_stepped("coalesce(one.before.lsn, born.lsn)", "one.claim.lsn")},
    if(one.before is null, born.due_wall_ns, null)))) as wait_ns,
  if(one.end is null, null, greatest(0L,
    one.end.ts_ns - one.claim.ts_ns - {_stepped("one.claim.lsn", "one.end.lsn")})) as run_ns))
"""
#: The last attempt of a job that was carried while it ran ends with the first event behind.
_EARLY_ENDED: Final = f"""
if(try_element_at(early, -1).ended_ns is null and size(early) > 0
   and acting[0].kind not in ({_CLAIMED}, {_ANEW}),
  concat(slice(early, 1, size(early) - 1), transform(slice(early, -1, 1), one -> struct(
    one.number, one.owner, one.started_ns, acting[0].ts_ns as ended_ns,
    {_OUTCOME.replace("end.", "acting[0].")} as outcome,
    acting[0].reason as reason,
    one.wait_ns,
    greatest(0L, acting[0].ts_ns - one.started_ns - {_stepped("born.lsn", "acting[0].lsn")})
      as run_ns))),
  early)
""".replace("acting[0]", "get(acting, 0)")
_FIRST_SHOWN: Final = f"if(size(attempts) > {ATTEMPTS_SHOWN}, -{ATTEMPTS_SHOWN}, 1)"
_SHOWN: Final = f"slice(attempts, {_FIRST_SHOWN}, {ATTEMPTS_SHOWN})"
_WAITS_NO_MORE: Final = f"stored = {_SCHEDULED} and coalesce(moment_ns, 0) <= now_ns"
_IN_TIME: Final = told(BY_TIME[State.SCHEDULED])

_STORED: Final = f"coalesce({states(EVENT_KINDS, 'last.')}, born.state)"
#: What told last when the job expires: a requeue, or the birth.
_EXPIRING: Final = f"""
coalesce(
  try_element_at(transform(filter(acting, one -> one.kind = {_REQUEUED}),
    one -> struct(one.lsn as lsn, one.expires_ns as moving_ns, one.expires_wall_ns as wall_ns)),
    -1),
  struct(born.lsn as lsn, born.expires_ns as moving_ns, born.expires_wall_ns as wall_ns))
"""
_DUE: Final = f"""
if(stored = {_SCHEDULED},
  if(last is null, coalesce(born.due_wall_ns, born.due_ns + {_stepped("born.lsn", "")}),
    last.due_ns + {_stepped("last.lsn", "")}),
  null)
"""
#: A dead letter may be requeued, so that when it expires goes on to matter.
_OVER_LSN: Final = f"""
case when settling.kind in ({told_any(_FINAL_KINDS - {Kind.DEAD})}) then settling.lsn
     when settling is null and born.state in ({told_any(OVER_STATES)}) then born.lsn end
"""
_EXPIRES: Final = f"""
coalesce(expiring.wall_ns, expiring.moving_ns + {_stepped("expiring.lsn", _OVER_LSN)})
"""
_ATTEMPT: Final = f"""
case when last is null then born.attempt when last.kind in ({_ANEW}) then 0 else last.attempt end
"""
_SETTLED: Final = f"""
case when settling is null then born.settled_ns
     when settling.kind in ({_FINAL}) then settling.ts_ns end
"""
#: Attempts that were counted before a requeue are not asked for a reason any more.
_EARLY_REASON: Final = """
if(born.attempt > 0,
  try_element_at(filter(transform(early, one -> one.reason), one -> one is not null), -1), null)
"""
_REASON: Final = f"""
case when telling is not null then telling.reason
     when born.state <> {_SUCCEEDED} then coalesce(born.reason, {_EARLY_REASON}) end
"""
_RESULT: Final = f"if(last.kind = {_SUCCEEDED}, last.result, born.result)"


def with_story(jobs: DataFrame) -> DataFrame:
    """Adds what ``jobs`` tells beside ``born``, of jobs that were not purged."""
    # What several expressions need is a column of the level below: else Spark works it out again
    # for each of them, and within lambdas for each element.
    heard = with_history(jobs.withColumn("acting", F.expr(_ACTING))).withColumns(
        {
            "last": F.expr("try_element_at(acting, -1)"),
            "settling": F.expr(_SETTLING),
            "telling": F.expr(_TELLING),
            "claims": F.expr(_CLAIMS),
            "expiring": F.expr(_EXPIRING),
        }
    )
    folded = heard.withColumns(
        {
            "stored": F.expr(_STORED),
            "attempts": F.expr(f"concat(coalesce({_EARLY_ENDED}, array()), {_LATE})"),
        }
    ).withColumn("moment_ns", F.expr(_DUE))
    return folded.withColumns(
        {
            "state": F.expr(f"if({_WAITS_NO_MORE}, {_IN_TIME}, stored)"),
            "due_ns": F.expr(f"if({_WAITS_NO_MORE}, null, moment_ns)"),
            "expires_ns": F.expr(_EXPIRES),
            "attempt": F.expr(_ATTEMPT),
            "settled_ns": F.expr(_SETTLED),
            "reason": F.expr(_REASON),
            "result": F.expr(_RESULT),
            "attempts": F.expr(_SHOWN),
        }
    )
