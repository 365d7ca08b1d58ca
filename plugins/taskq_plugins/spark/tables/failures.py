"""What fails, by kind: one row for each fingerprint, which is a task and a normalised reason.

A failed attempt is one that was retried, died or was lost (its worker's process ended). Its kind is
that of its own reason; a dead job's kind is that of the job's reason. ``fingerprints`` tells how a
reason is normalised.

===================  ======  =======================================================================
column               type    meaning
===================  ======  =======================================================================
fingerprint          string  16 hex digits, the same in every lake
task                 string  null for jobs that were put as bytes
pattern              string  the normalised reason
failed_attempts      long    failed attempts of this kind
jobs                 long    jobs with such an attempt, or dead of this kind
dead_jobs            long    jobs that are dead of this kind now
devices              long    devices of these jobs
workers              long    worker processes (device and owner) of these attempts
first_seen           time    the first of the ends of these attempts and jobs, by the device's clock
last_seen            time    the last
queues               list    names of their queues, in order, at most 20
example_device,      string  of the one seen last: its device, job, and the whole reason (at most
example_job_id,              2 000 characters)
example_reason
poison_jobs          long    jobs among ``dead_jobs`` whose call is poison
poison               bool    whether there are any
poison_job_ids       list    their ids, in order, at most 20
===================  ======  =======================================================================

**Poison.** Calls are the same when task, queue and key are, or task and payload (payloads without
any argument aside: such a call brings nothing that could be at fault). A call is poison when its
jobs that are dead now were exhausted in two places or more, a place being one worker process of one
device. The places of a job are the workers that its attempts died at, before a requeue as well;
where the death was the loss of the worker, those too that it had cost before. A dead job whose
attempts are not known counts its device as one place. So a call that died once on each of two
devices is poison, one that died, was requeued, and died at another worker is, and one that failed
in turn at two workers but died once is not: restarts between attempts are common and say nothing of
the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from taskq.core.fingerprints import (
    BLANK,
    CLASS,
    FINGERPRINT_DIGITS,
    LOST_REASON,
    NO_REASON,
    PATTERN_CHARACTERS_MAX,
    READ_CHARACTERS_MAX,
    RULES,
)
from taskq_plugins.spark.tables.moments import timestamp
from taskq_plugins.spark.tables.rollups import FAILED_OUTCOMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUEUES_MAX: Final = 20
POISON_JOBS_MAX: Final = 20
EXAMPLE_CHARACTERS_MAX: Final = 2_000
#: Places (worker processes) at which a poisonous call was exhausted, at least.
POISON_PLACES_MIN: Final = 2
#: Payloads of calls without arguments: of put(b""), and of the two ways to call.
_NO_ARGUMENTS: Final = (b"", b"{}", b"[]", b"null")
_JOB: Final = ("log_id", "job_id")


def failures(jobs: DataFrame, attempts: DataFrame) -> DataFrame:
    """One row per kind of failure (columns: see the module's docstring).

    Args:
        jobs: ``schemas.JOBS``.
        attempts: ``schemas.ATTEMPTS``.
    """
    dead = _dead(jobs).join(_poison_jobs(jobs), list(_JOB), "left")
    seen = _failed(attempts).unionByName(dead, allowMissingColumns=True)
    kinds = seen.withColumn("pattern", pattern_column("reason"))
    by_kind = kinds.groupBy("task", "pattern").agg(
        F.sum("failed").alias("failed_attempts"),
        F.count_distinct(*_JOB).alias("jobs"),
        F.sum("dead").alias("dead_jobs"),
        F.count_distinct("device").alias("devices"),
        F.count_distinct("device", "owner").alias("workers"),
        F.min("at_ns").alias("first_ns"),
        F.slice(F.sort_array(F.collect_set("queue")), 1, QUEUES_MAX).alias("queues"),
        F.max(F.struct("at_ns", "device", "job_id", "reason")).alias("last"),
        F.coalesce(F.sum("poison"), F.lit(0)).alias("poison_jobs"),
        F.sort_array(F.collect_set(F.when(F.col("poison") == 1, F.col("job_id")))).alias("ids"),
    )
    return by_kind.select(
        fingerprint_column(F.col("task"), F.col("pattern")).alias("fingerprint"),
        "task",
        "pattern",
        "failed_attempts",
        "jobs",
        "dead_jobs",
        "devices",
        "workers",
        timestamp("first_ns").alias("first_seen"),
        timestamp("last.at_ns").alias("last_seen"),
        "queues",
        F.col("last.device").alias("example_device"),
        F.col("last.job_id").alias("example_job_id"),
        F.substring("last.reason", 1, EXAMPLE_CHARACTERS_MAX).alias("example_reason"),
        "poison_jobs",
        (F.col("poison_jobs") > 0).alias("poison"),
        F.slice("ids", 1, POISON_JOBS_MAX).alias("poison_job_ids"),
    )


def pattern_column(reason: str) -> Column:
    """``fingerprints.pattern_of`` of a column; null counts as no reason."""
    told = F.coalesce(F.col(reason), F.lit(""))
    line = F.substring_index(F.trim(told, F.lit(BLANK)), "\n", 1)
    line = F.substring(line, 1, READ_CHARACTERS_MAX)
    head = F.regexp_extract(line, f"^{CLASS}", 0)
    rest = line.substr(F.length(head) + 1, F.lit(READ_CHARACTERS_MAX))
    for rule in RULES:
        rest = F.regexp_replace(rest, rule.pattern, rule.replacement)
    text = F.trim(F.substring(F.concat(head, rest), 1, PATTERN_CHARACTERS_MAX))
    # Not nullif(): it would have the whole chain run twice.
    return F.regexp_replace(text, "^(?![^\n])", NO_REASON)


def fingerprint_column(task: Column, pattern: Column) -> Column:
    """``fingerprints.fingerprint`` of columns."""
    text = F.concat(F.coalesce(task, F.lit("")), F.lit("\n"), pattern)
    return F.substring(F.sha2(text.cast("binary"), 256), 1, FINGERPRINT_DIGITS)


def _failed(attempts: DataFrame) -> DataFrame:
    """The failed attempts."""
    lost = F.when(F.col("outcome") == "lost", F.lit(LOST_REASON))
    return attempts.where(F.col("outcome").isin(*FAILED_OUTCOMES)).select(
        *_JOB,
        "device",
        "queue",
        "task",
        F.coalesce(F.nullif(F.col("reason"), F.lit("")), lost).alias("reason"),
        F.col("ended_ns").alias("at_ns"),
        "owner",
        F.lit(1).alias("failed"),
        F.lit(0).alias("dead"),
    )


def _dead(jobs: DataFrame) -> DataFrame:
    """The dead jobs, each by its own reason."""
    return jobs.where(F.col("state") == "dead").select(
        *_JOB,
        "device",
        "queue",
        "task",
        "reason",
        F.col("settled_ns").alias("at_ns"),
        F.lit(0).alias("failed"),
        F.lit(1).alias("dead"),
    )


def _poison_jobs(jobs: DataFrame) -> DataFrame:
    """The jobs (log_id, job_id, poison = 1) whose call was exhausted in two places or more."""
    died = "exists(attempts, one -> one.outcome = 'dead')"
    lost = "exists(attempts, one -> one.outcome = 'dead' and one.reason like 'WorkerLost%')"
    places = F.expr(
        f"transform(filter(attempts, one -> one.outcome = 'dead' or (one.outcome = 'lost' and "
        f"{lost})), one -> struct(device, one.owner))"
    )
    unknown = F.expr("array(struct(device, cast(null as string) as owner))")
    calls = jobs.where(F.col("state") == "dead").select(
        *_JOB,
        "task",
        F.when(F.expr(died), places).otherwise(unknown).alias("places"),
        F.explode(_identities()).alias("call"),
    )
    poison = (
        calls.select("task", "call", F.explode("places").alias("place"))
        .groupBy("task", "call")
        .agg(F.count_distinct("place").alias("places"))
        .where(F.col("places") >= POISON_PLACES_MIN)
    )
    same = calls["task"].eqNullSafe(poison["task"]) & (calls["call"] == poison["call"])
    found = calls.join(poison, same, "left_semi")
    return found.select(*_JOB, F.lit(1).alias("poison")).distinct()


def _identities() -> Column:
    """What makes two calls of a task the same: the key within its queue, or the payload."""
    by_key = F.when(
        F.col("key").isNotNull(), F.concat(F.lit("key "), F.hex("key"), F.lit(" "), F.col("queue"))
    )
    payload = F.col("payload")
    is_told = payload.isNotNull() & ~payload.isin(*(F.lit(one) for one in _NO_ARGUMENTS))
    by_payload = F.when(is_told, F.concat(F.lit("payload "), F.sha2(payload, 256)))
    return F.array_compact(F.array(by_key, by_payload))
