"""One row per job, with its attempts: the fold of its records, equal to the Python fold.

``taskq.log.read.walks.each_job`` is what it is held to. A job begins with its ENQUEUED record, or,
if that was in a segment that nobody read, with the first record that carries it. Records of a job
without either make no row, nor do those of a job that was purged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq.core.model import State
from taskq.core.records import CARRYING_KINDS, Flag, Kind
from taskq_plugins.spark.tables.stories import (
    EVENT_KINDS,
    GONE,
    OVER_STATES,
    states,
    told,
    told_any,
    with_story,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: ``kind`` of a row that stands for a job which was told as over: no record tells of it again.
TOLD: Final = "told"
#: Whether a job's number lies in what was read of its log: then its ENQUEUED record was seen, too.
WAS_READ: Final = "exists(segments, one -> job between one.segment and one.last_lsn)"
#: What is told of the last record that was read.
LAST: Final = ("device", "epoch", "timestamp", "ts_ns")
#: Header that links a job to the one that it runs again.
REPLAY_OF: Final = "replay_of"

_CARRYING: Final = told_any(CARRYING_KINDS)
_CARRIED: Final = told(Kind.CARRIED)
_ENQUEUED: Final = told(Kind.ENQUEUED)
_REQUEUED: Final = told(Kind.REQUEUED)
_SCHEDULED: Final = told(State.SCHEDULED)
_SUCCEEDED: Final = told(State.SUCCEEDED)
_DUE_IS_WALL: Final = "moments & 1 <> 0"
_EXPIRES_IS_WALL: Final = "moments & 2 <> 0"
_EVENTS: Final = told_any(EVENT_KINDS)
#: Kinds of records that concern one job.
CONCERNING: Final = told_any(EVENT_KINDS | CARRYING_KINDS | {Kind.ENQUEUED})
#: Whether a record may bring a job; it depends on the log whether one that carries a job does.
BEGINS: Final = f"kind = {_ENQUEUED} or kind in ({_CARRYING}) and state <> {told(State.ABSENT)}"
_TEXT: Final = "if(length({0}) > 0, make_valid_utf8(string({0})), null)"
_BORN_STATE: Final = f"if(kind = {_CARRIED}, state, {states({Kind.ENQUEUED, Kind.REQUEUED})})"
_BORN: Final = f"""
struct(lsn, kind, device, job_id, epoch, queue, task, priority, attempts_max, key, headers,
  value as payload,
  flags & {int(Flag.DROP_RESULT)} = 0 as stores_result,
  if(kind = {_ENQUEUED}, ts_ns, enqueued_ns) as enqueued_ns,
  born_state as state,
  if(kind = {_CARRIED}, attempt, 0) as attempt,
  if(born_state = {_SCHEDULED} and not {_DUE_IS_WALL}, due_ns, null) as due_ns,
  if(born_state = {_SCHEDULED} and {_DUE_IS_WALL}, due_ns, null) as due_wall_ns,
  if({_EXPIRES_IS_WALL}, null, expires_ns) as expires_ns,
  if({_EXPIRES_IS_WALL}, expires_ns, null) as expires_wall_ns,
  if(kind = {_CARRIED}, ended_ns, null) as settled_ns,
  if(kind = {_CARRIED} and state = {_SUCCEEDED}, result, null) as result,
  if(kind = {_CARRIED} and state <> {_SUCCEEDED}, {_TEXT.format("result")}, null) as reason,
  history,
  case when kind <> {_CARRIED} then if({_DUE_IS_WALL}, ts_ns, greatest(ts_ns, due_ns))
       when state = {_SCHEDULED} then if({_DUE_IS_WALL}, enqueued_ns, due_ns)
       when state = {told(State.READY)} then coalesce(due_ns, enqueued_ns) end as since_ns)
"""
_EVENT: Final = f"""
struct(lsn, kind, ts_ns, attempt, owner, cause, due_ns,
  if(kind = {_REQUEUED} and not {_EXPIRES_IS_WALL}, expires_ns, null) as expires_ns,
  if(kind = {_REQUEUED} and {_EXPIRES_IS_WALL}, expires_ns, null) as expires_wall_ns,
  if(kind = {told(Kind.SUCCEEDED)}, value, null) as result,
  if(kind in ({told_any(EVENT_KINDS - {Kind.SUCCEEDED, Kind.REQUEUED})}), {_TEXT.format("value")},
    null) as reason)
"""

_STEP: Final = f"if(kind = {told(Kind.CLOCK)}, struct(lsn, step_ns), null)"
_AT: Final = "timestamp_micros({0} div 1000)"
_COLUMNS: Final = (
    "born.device", "log_id", "born.job_id", "job", "born.queue", "born.task", "born.priority",
    "state", "attempt", "born.attempts_max",
    f"{_AT.format('born.enqueued_ns')} as enqueued_at", "born.enqueued_ns", "due_ns", "expires_ns",
    "get(attempts, 0).started_ns as first_started_ns",
    "settled_ns", f"{_AT.format('settled_ns')} as settled_at",
    "born.key", "if(size(born.headers) > 0, born.headers, null) as headers", "born.payload",
    "result", "reason", "born.stores_result",
    f"try_element_at(born.headers, '{REPLAY_OF}') as replay_of", "born.epoch",
    f"state in ({told_any(OVER_STATES)}) as is_over", "attempts",
)  # fmt: skip


def jobs(records: DataFrame, as_of: DataFrame | None = None) -> DataFrame:
    """The jobs that these records tell of.

    ``first_started_ns`` is that of the first attempt which is still known; ``attempts`` are the
    latest hundred. How their ``wait_ns`` and ``run_ns`` are counted: see ``attempts``.

    Args:
        records: complete sets of records of some jobs, with the columns DETAILS of the source, and
            the records of kind "clock" of their logs. Read twice, the second time without payloads:
            let it be files, or persisted, rather than the source. Rows of ``open_records`` of the
            batches before may be among them.
        as_of: columns log_id and now_ns: when waiting jobs are looked at; if None, and for logs
            that it does not name, the time of the log's last record.

    Returns:
        Columns as ``schemas.JOBS``.
    """
    gathered = gather(records)
    jobs_left = gathered.where(f"not was_told and born is not null and not ({GONE})")
    looked_at = jobs_left.join(F.broadcast(logs(records, as_of)), "log_id")
    wanted = looked_at.where(f"born.kind = {_ENQUEUED} or not ({WAS_READ})")
    told_jobs = with_story(wanted).selectExpr(*_COLUMNS)
    # A condition on these columns would be pushed down below the joins with all of the story in
    # it, to be worked out twice: nothing is pushed through this.
    return told_jobs.selectExpr(f"inline(array(struct({', '.join(told_jobs.columns)})))")


def gather(records: DataFrame) -> DataFrame:
    """One row per log_id and job: ``born``, ``events`` behind it by lsn, and ``was_told``."""
    rows = records.where(f"kind in ({CONCERNING}, '{TOLD}')").withColumn(
        "born_state", F.expr(_BORN_STATE)
    )
    # Sorted first, and told apart before that: aggregates of structs and arrays are worked out by
    # sorting anyway, but else twice, on both sides of the exchange, for 1.7 times the time.
    parted = (
        rows.selectExpr(
            "log_id", "job", "lsn", f"if({BEGINS}, {_BORN}, null) as born",
            f"if(kind in ({_EVENTS}), {_EVENT}, null) as event", f"kind = '{TOLD}' as is_told",
        )
        .repartition("log_id", "job")
        .sortWithinPartitions("log_id", "job", "lsn")
    )  # fmt: skip
    gathered = parted.groupBy("log_id", "job").agg(
        F.expr("min_by(born, if(born is null, null, lsn))").alias("born"),
        F.expr("sort_array(collect_list(event))").alias("events"),
        F.expr("bool_or(is_told)").alias("was_told"),
    )
    return gathered.withColumn("events", F.expr("filter(events, one -> one.lsn > born.lsn)"))


def stretches(records: DataFrame) -> DataFrame:
    """One row per log_id and segment: last_lsn and ``last``, which tells of that record."""
    return (
        records.where("segment is not null and ts_ns is not null")
        .groupBy("log_id", "segment")
        .agg(
            F.max("lsn").alias("last_lsn"),
            F.expr(f"max_by(struct({', '.join(LAST)}), lsn)").alias("last"),
            F.expr(f"collect_list({_STEP})").alias("steps"),
        )
    )


def logs(records: DataFrame, as_of: DataFrame | None = None) -> DataFrame:
    """One row per log: log_id, now_ns, ``steps`` of its clock, ``segments`` and where they end."""
    found = (
        stretches(records)
        .groupBy("log_id")
        .agg(
            F.expr("collect_list(struct(segment, last_lsn))").alias("segments"),
            F.expr("max_by(last.ts_ns, last_lsn)").alias("now_ns"),
            F.expr("flatten(collect_list(steps))").alias("steps"),
        )
    )
    if as_of is None:
        return found
    given = as_of.select("log_id", F.col("now_ns").alias("given_ns"))
    now = F.coalesce("given_ns", "now_ns")
    return found.join(given, "log_id", "left").withColumn("now_ns", now).drop("given_ns")
