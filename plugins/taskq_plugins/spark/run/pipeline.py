"""A run: read new records of the logs, batch by batch, into the tables of a lake.

::

    with Lake.open("lake", create=True).writer() as writer:
        update(spark, writer, RunOptions(journals="hub/devices"))

``taskq pipeline run`` does this in a session of its own. In a notebook or under ``spark-submit``
use the existing session.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from taskq.arrow import UNLIMITED
from taskq.errors import TaskqError
from taskq_plugins.spark.errors import SourceGone, failure
from taskq_plugins.spark.lake.store import ATTEMPTS, JOBS, POSITION, READ, positions_of
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run.derived import Outside, refresh_tables
from taskq_plugins.spark.source.logs import FleetSnapshot, look
from taskq_plugins.spark.source.options import ReadOptions, read_options
from taskq_plugins.spark.source.plan import Plan, plan
from taskq_plugins.spark.source.positions import positions_from_json, positions_to_json
from taskq_plugins.spark.source.rows import RowReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from taskq_plugins.spark.lake.store import LakeWriter

#: Larger bodies are stored as hash and size.
_BODY_BYTES_MAX: Final = 64 * 1024
#: Bytes of log that one task reads.
PART_BYTES: Final = 4 * 1024 * 1024
#: Time between two removals of old files by a continuous run; each removal lists every file.
_VACUUM_SECONDS: Final = 600
#: Called after each batch of a run: number, result, seconds.
OnBatch: TypeAlias = Callable[[int, batches.BatchResult, float], None]
#: Plans of one batch at most; a segment that vanishes before it is read needs a new plan.
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run."""

    journals: Path | str
    max_bytes: int = 64 * 1024 * 1024
    corrupt: str = "fail"
    fail_on_data_loss: bool = True
    #: "full" stores large payloads and results, too
    payloads: str = "keep"
    #: days to keep, by table; all days of other tables
    keep_days: Mapping[str, int] = field(default_factory=dict)

    def kept_from(self, table: str) -> str:
        if table not in self.keep_days:
            return ""
        return str(datetime.now(UTC).date() - timedelta(days=self.keep_days[table]))

    def of_source(self) -> ReadOptions:
        options = read_options(
            {
                "path": str(self.journals),
                "corruptMode": self.corrupt,
                "failOnDataLoss": "hold" if self.fail_on_data_loss else "false",
                "targetPartitionBytes": str(PART_BYTES),
            }
        )
        return options.model_copy(update={"holds": True})

    def reading(self) -> RowReader:
        return RowReader(
            READ, self.corrupt == "skip", fails_on_loss=self.fail_on_data_loss,
            body_bytes_max=UNLIMITED if self.payloads == "full" else _BODY_BYTES_MAX,
        )  # fmt: skip


class Summary(NamedTuple):
    """Result of a run.

    Attributes:
        problems: logs that could not be read to their ends.
        skipped: skipped records.
        passed: damage in copies of logs, if another copy was read instead.
    """

    batches: int
    records: int
    refreshed: tuple[str, ...]
    seconds: float
    problems: tuple[str, ...]
    skipped: tuple[str, ...]
    passed: tuple[str, ...]


def update(
    spark: SparkSession,
    writer: LakeWriter,
    options: RunOptions,
    on_batch: OnBatch = lambda *_: None,
    on_table: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Read new records, fold them into the tables, and refresh the derived tables.

    An unfinished batch of an earlier run is completed first, from the lake alone.

    Args:
        spark: the session; none of its settings is changed.
        writer: writer of the lake.
        options: options of the run.
        on_batch: called with each batch's number, result, and duration in seconds.
        on_table: called with the name of each derived table before its computation.

    Raises:
        LakeError: the lake cannot be used, or another process writes to it.
        PipelineFailed: Spark failed; earlier commits remain.
    """
    started, lake, source = time.monotonic(), writer.lake, options.of_source()
    committed, finished = lake.reached()
    folded = [_fold(spark, writer, on_batch)] if committed > finished else []
    inventory = look(source.path, source.devices)
    outside = outside_of(inventory)
    targets = {log_id: log.end for log_id, log in inventory.logs.items()}
    skipped, passed = dict[str, None](), dict[str, None]()
    while True:
        planned = _read(spark, writer, options, (None if folded else inventory, targets))
        skipped |= dict.fromkeys(planned.skipped)
        passed |= dict.fromkeys(planned.passed)
        if not planned.pieces:
            break
        folded.append(_fold(spark, writer, on_batch))
        if not planned.left.logs:
            break
    refreshed: list[str] = []
    if lake.batch() >= 0:
        refreshed = _refresh(spark, writer, options, on_table, outside)
        is_due = time.monotonic() >= writer.vacuum_due
        if is_due:
            writer.vacuum_due = time.monotonic() + _VACUUM_SECONDS
        if folded or refreshed or is_due:
            writer.upkeep(vacuum=is_due)
    problems = set(planned.problems.values())
    if not options.fail_on_data_loss:  # lost segments are skipped
        problems -= skipped.keys() - {problem.text for problem in inventory.problems}
    return Summary(
        len(folded),
        sum(batch.records for batch in folded),
        tuple(refreshed),
        time.monotonic() - started,
        tuple(sorted(problems)),
        tuple(text for text in skipped if text not in problems),
        tuple(passed),
    )


def _fold(spark: SparkSession, writer: LakeWriter, on_batch: OnBatch) -> batches.BatchResult:
    began = time.monotonic()
    with spark_errors():
        folded = batches.fold_batch(spark, writer)
    on_batch(writer.lake.batch(), folded, time.monotonic() - began)
    return folded


def _refresh(
    spark: SparkSession,
    writer: LakeWriter,
    options: RunOptions,
    on_table: Callable[[str], None],
    outside: Outside,
) -> list[str]:
    for table in filter(writer.lake.has, options.keep_days):
        writer.drop_days(table, options.kept_from(table))
    # Sources of older days were removed, perhaps by an earlier run: these rollups stay unchanged.
    since = max(map(writer.lake.kept_from, (JOBS, ATTEMPTS)))
    with spark_errors():
        return refresh_tables(spark, writer, outside, on_table, since)


def _read(spark: SparkSession, writer: LakeWriter, options: RunOptions, inventory: Any) -> Plan:
    """Plan the next batch and append its records; plan again if a piece vanished meanwhile."""
    sight, targets = inventory
    source = options.of_source()
    for turn in range(_TRIES):
        known = positions_of(writer.lake).to_pylist()
        at = positions_from_json({row["log_id"]: json.loads(row["position"]) for row in known})
        planned = plan(source, at, options.max_bytes, sight, targets)
        if not planned.pieces:
            return planned
        parents = {row["log_id"]: row["parents"] for row in known}
        for log_id, of_log in planned.parents.items():
            parents[log_id] = json.dumps(of_log) if of_log else None
        ends = positions_to_json(planned.ends)
        rows = [
            {
                "log_id": log_id, "device": planned.ends[log_id].device,
                "position": json.dumps(end), "parents": parents.get(log_id),
            }
            for log_id, end in ends.items()
        ]  # fmt: skip
        positions = pa.Table.from_pylist(rows, POSITION)
        try:
            with spark_errors():
                batches.read_batch(spark, writer, planned.pieces, positions, options.reading())
        except SourceGone:
            if turn == _TRIES - 1:
                raise
            sight = None
        else:
            break
    return planned


def outside_of(sight: FleetSnapshot) -> Outside:
    """Return the derived tables' input from the logs."""
    segments, declared = [], []
    for log in sight.logs.values():
        segments += log.segments
        declared += [
            {
                "device": log.log.device, "log_id": log.log.log_id, "kind": "gap",
                "lsn": gap.lsn, "next_lsn": gap.at.segment, "end_lsn": gap.end_lsn,
                "cause": gap.cause,
            }
            for gap in log.breaks
        ]  # fmt: skip
    return Outside(segments, declared, sight.at_ns)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Convert Spark's errors in the block to errors with a message of one line."""
    try:
        yield
    except TaskqError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise failure(str(error)) from error
