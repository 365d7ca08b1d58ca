"""The kit of the pipeline's tests: logs, lakes, rows by hand, and readers without Spark."""

from __future__ import annotations

import asyncio
import json
import pickle
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from pyspark_taskq import DefaultSource
from taskq import TaskQ, durable
from taskq.arrow import DETAILS, SCHEMA, Corrupt, as_bytes, decode
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Kind
from taskq.core.views import JobView
from taskq.log.config import LogConfig
from taskq.log.format.record import Record
from taskq.log.read.jobs import JobFilter, each_job, entries
from taskq.log.read.reader import open_journal
from taskq.log.requests import Delivery, EnqueueSpec
from taskq.log.segments.bodystore import BodyStore
from taskq_plugins.spark.lake import store
from taskq_plugins.spark.log_tables import inherited
from taskq_plugins.spark.run import batch as batches
from taskq_plugins.spark.run import command, derived, frames, pipeline
from taskq_plugins.spark.run.pipeline import RunOptions, Summary, update
from taskq_plugins.spark.sink.ingest import Ingested, Upload
from taskq_plugins.spark.sink.options import parse_options
from taskq_plugins.spark.sink.rows import RowCalls
from taskq_plugins.spark.source import plan as planning
from taskq_plugins.spark.source.logs import look
from taskq_plugins.spark.source.plan import Positions
from taskq_plugins.spark.source.positions import positions_from_json
from taskq_plugins.spark.source.readers import StreamReader
from taskq_plugins.spark.tables import queries
from taskq_plugins.spark.tables.fold import rows_of
from taskq_plugins.spark.tables.logs import CONCERNING, Lineage, log_rows, logs_of
from tests.arrow.rows_of_log import pieces, save
from tests.fleet.made_logs import MadeLog
from tests.log.world import SMALL, Process, World
from tests.pipeline.plain import tables as plain_tables

#: Columns of a run, and what hangs on the moment at which a table is made.
_BY_RUN: Final = frozenset(
    {store.BATCH, "record_lag_seconds", "arrival_lag_seconds", "oldest_waiting_seconds"}
)


def put(lake: store.Lake, name: str, rows: pa.Table, batch: int | None = None) -> None:
    """Let a table have these rows alone; they are of no day, and may change."""
    for column in store.PARTED.get(name, ()):
        if column not in rows.column_names:
            plain = pa.scalar(False) if column == "is_over" else pa.scalar(None, pa.date32())
            rows = rows.append_column(column, pa.repeat(plain, rows.num_rows))
    with lake.writer() as writer:
        writer.commit(name, writer.write(name, rows), lake.files(name), rows.schema, batch)


def fill(path: Path, rows: Iterable[dict[str, Any]]) -> store.Lake:
    lake = store.Lake.open(path, create=True)
    put(lake, "jobs", pa.Table.from_pylist(list(rows), batches.SCHEMAS["jobs"]))
    return lake


def run_here(journals: Path, lake: Path | str, **options: Any) -> Summary:
    with no_spark():
        return run(None, journals, lake, **options)


def run(spark: SparkSession | None, journals: Path, lake: Path | str, **options: Any) -> Summary:
    with store.Lake.open(lake, create=True).writer() as writer:
        session = spark or mock.Mock()  # as within no_spark()
        return update(session, writer, RunOptions(journals=journals, **options))


def table_rows(lake: Path | str, *names: str) -> dict[str, list[str]]:
    opened = store.Lake.open(lake)
    made = {}
    for name in names or opened.tables():
        made[name] = listed(opened.dataset(name).to_table().to_pylist())
    return made


def listed(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return rows as text, in order, without what depends on the run."""
    return sorted(
        json.dumps({name: _rounded(row[name]) for name in row.keys() - _BY_RUN}, default=str,
                   sort_keys=True)
        for row in rows
    )  # fmt: skip


def _rounded(value: Any) -> Any:
    return float(f"{value:.12g}") if isinstance(value, float) else value


def check_records(path: Path, written: dict[tuple[str, int], Row]) -> None:
    """Hold the records of a lake against the written ones, by log and lsn."""
    lsns: dict[str, list[int]] = {}
    for row in store.Lake.open(path).dataset("records").to_table().to_pylist():
        if row["kind"] != "break":
            wanted = written[row["log_id"], row["lsn"]] | {"device": row["device"]}
            assert wanted == {name: row[name] for name in store.READ.names}
            lsns.setdefault(row["log_id"], []).append(row["lsn"])
    for log_id, own in lsns.items():
        every = [lsn for log, lsn in written if log == log_id and lsn <= max(own)]
        assert sorted(own) == sorted(every), log_id


def check_tables(path: Path, journals: Path, *names: str) -> None:
    """Hold tables of a lake against plain Python over its records."""
    lake, outside = store.Lake.open(path), pipeline.outside_of(look(journals))
    rows = {name: lake.dataset(name).to_table().to_pylist() for name in ("records", *names)}
    lineage = store.lineage_of(store.positions_of(lake))
    made = plain_tables(rows["records"], lineage, outside.segments, outside.declared)
    for name in names:
        assert listed(rows[name]) == listed(made[name]), name


def add_records(lake: store.Lake, records: pa.Table, lineage: Lineage | None = None) -> None:
    """Append records as a batch of their own, as a run does."""
    with lake.writer() as writer:
        number = lake.batch(store.RECORDS) + 1
        full = {field.name: _column(records, field) for field in store.RECORD}
        full[store.BATCH] = pa.repeat(pa.scalar(number, pa.int64()), len(records))
        full["date"] = records["timestamp"].cast(pa.date32())
        parents_rows = [
            {"log_id": log_id, "position": "{}", "parents": json.dumps(parents)}
            for log_id, parents in (lineage or {}).items()
        ]
        positions = writer.write(
            store.POSITIONS, pa.Table.from_pylist(parents_rows, store.POSITION)
        )
        writer.commit(store.POSITIONS, positions, lake.files(store.POSITIONS), store.POSITION)
        versions = {store.POSITIONS_APP: lake.delta(store.POSITIONS).version()}
        if lake.has("jobs"):
            versions[store.MADE_OF["jobs"]] = lake.delta("jobs").version()
        rows = store.cleared(pa.table(full, store.RECORD), store.erased_jobs(lake))
        files = writer.write(store.RECORDS, rows)
        writer.commit(store.RECORDS, files, (), store.RECORD, number, versions)


def _column(records: pa.Table, field: pa.Field) -> Any:
    if field.name in records.column_names:
        return records[field.name]
    return pa.nulls(len(records), field.type)


def fold_here(lake: store.Lake) -> None:
    with no_spark(), lake.writer() as writer:
        batches.fold_batch(mock.Mock(), writer)


def on_executors(_spark: object, step: Any, parts: Any) -> list[Any]:
    return [item for part in parts for item in step(part)]


def _touched(_spark: object, batch: batches._Batch) -> pa.Table:
    lake = batch.lake
    kinds = pc.field("kind").isin(sorted(CONCERNING))
    rows = [
        lake.rows(
            store.RECORDS, store.FOLDED.names, kinds & (pc.field(store.BATCH) == batch.number),
            batch.files,
        )
    ]  # fmt: skip
    kept = (
        lake.rows(store.OPEN, store.FOLDED.names, None, batch.hits[store.OPEN])
        if batch.hits[store.OPEN]
        else rows[0].slice(0, 0)
    )
    rows.append(kept.filter(batches._are_in(kept, batch.touched)))
    if batch.born:
        every = lake.rows(store.RECORDS, store.FOLDED.names, kinds)
        kept = (
            lake.rows(store.OPEN, store.FOLDED.names, None, batch.open_files)
            if lake.has(store.OPEN)
            else every.slice(0, 0)
        )
        with duckdb.connect() as duck:
            tables = {"every": every, "kept": kept, "spans": batch.inherited()}
            for name, table in tables.items():
                duck.register(f"{name}_rows", table)
            query = queries.HEIRS.format(**{name: f"{name}_rows" for name in tables})
            heirs = duck.sql(
                f"SELECT DISTINCT ON (child, job, lsn, kind) * FROM ({query})"  # noqa: S608 - ours
            ).to_arrow_table()
        for name, owned in (("log_id", "child"), ("device", "home")):
            heirs = heirs.set_column(heirs.schema.get_field_index(name), name, heirs[owned])
        rows.append(heirs.select(store.FOLDED.names).cast(store.FOLDED))
    return pa.concat_tables(rows)


@contextmanager
def no_spark() -> Iterator[None]:
    """Let this process do what the executors do; DuckDB finds heirs, derived tables stay empty."""
    instead: tuple[tuple[Any, str, Any], ...] = (
        (frames, "on_executors", on_executors),
        (frames, "on_partitions", lambda rows, step: step(rows)),
        (batches, "_touched_records", _touched),
        (batches, "_with_maps", lambda rows: rows),
        (batches, "_add_steps", _no_steps),
        (pipeline, "refresh_tables", lambda *given: given[3]("failures") or []),
        (command, "spark_session", lambda *_, **__: nullcontext(mock.Mock())),
    )
    with ExitStack() as stack:
        for owner, name, other in instead:
            stack.enter_context(mock.patch.object(owner, name, other))
        yield


def _no_steps(_spark: object, writer: Any, batch: batches._Batch) -> None:
    if writer.lake.batch("steps") < batch.number:
        schema = pa.schema([("place", pa.int64()), ("date", pa.date32())])
        writer.commit("steps", (), (), schema, batch.number)


def killing(table: str, *, before: bool = False) -> Any:
    """Let a run end, as if it were killed, before or after the commit of a table."""
    real = store.LakeWriter.commit

    def commit(self: store.LakeWriter, name: str, *args: Any, **options: Any) -> None:
        if name == table and before:
            raise KeyboardInterrupt
        real(self, name, *args, **options)
        if name == table:
            raise KeyboardInterrupt

    return mock.patch.object(store.LakeWriter, "commit", commit)


SECOND: Final = 1_000_000_000
HOUR: Final = 3_600 * SECOND
#: 2024-05-01, 12:00 UTC.
NOON: Final = 1_714_564_800 * SECOND


def _shown(number: int, shown: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a job of this number: of device "d1", unless something else is shown."""
    device = shown.get("device", "d1")
    log_id = shown.get("log_id", f"log-{device}")
    names = {"job_id": f"{log_id}-{number}", "job": number, "queue": "default", "task": "app.send"}
    return {"device": device, "log_id": log_id} | names | plain | shown


def job(number: int, /, **shown: Any) -> dict[str, Any]:
    """Return a row of ``jobs``: a job that was enqueued at noon and is ready."""
    log_id = shown.get("log_id", f"log-{shown.get('device', 'd1')}")
    is_over = shown.get("state") in {"succeeded", "cancelled", "expired"}
    plain = {"priority": 5, "state": "ready", "attempt": 0, "enqueued_ns": NOON,
             "enqueued_in": log_id, "settled_in": log_id, "is_over": is_over,
             "attempts": []}  # fmt: skip
    return _shown(number, shown, plain)


def attempt(number: int, /, **shown: Any) -> dict[str, Any]:
    """Return a row of ``attempts``: of the job of this number, succeeded a second after noon."""
    plain = {"number": 1, "ended_ns": NOON + SECOND, "outcome": "succeeded"}
    return _shown(number, shown | {"owner": f"{shown.get('owner', 1):016x}"}, plain)


def tried(outcome: str, owner: int, reason: str | None = None, **shown: Any) -> dict[str, Any]:
    plain = {"number": 1, "owner": f"{owner:016x}", "started_ns": NOON, "ended_ns": NOON + SECOND}
    return plain | {"outcome": outcome, "reason": reason} | shown


def tables(spark: SparkSession, **rows: Iterable[dict[str, Any]]) -> dict[str, DataFrame]:
    """Return frames of these rows; a column that a row does not name is null."""
    schemas = {name: batches.SCHEMAS[name] for name in ("jobs", "attempts")}
    schemas |= {"segments": derived.SEGMENTS, "read": derived.READ}
    return {
        name: spark.createDataFrame(pa.Table.from_pylist(list(rows.get(name, ())), schema))
        for name, schema in schemas.items()
    }


#: Sources of the tables.
COLUMNS = as_bytes(DETAILS)


async def do_steps(path: Path, jobs: int) -> None:
    app = TaskQ(path)

    @app.task
    def child() -> int:
        return 1

    @app.task(name="order", retry=2)
    async def order(number: int) -> int:
        async with asyncio.TaskGroup() as pages:
            for page in range(3):
                pages.create_task(durable.step("page", str, "é" * page))
        await durable.call(child.call())
        if number % 2:
            await durable.event("paid", int, timeout="7d")
        return await durable.step("ship", lambda: number)

    async with app:
        await order.enqueue_many([(number,) for number in range(jobs)])
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()


Row = dict[str, Any]
#: name of the log and number of the job -> its row
Jobs = dict[tuple[str, int], Row]


class JobLog(NamedTuple):
    """Records, columns as the source gives the tables, and the jobs as of the last of them."""

    records: pa.Table
    jobs: Jobs


def of_world(world: World, directory: Path) -> JobLog:
    return of_directory(save(world.machine, directory))


def of_directory(directory: Path) -> JobLog:
    name = directory.name
    journal = open_journal(str(directory))
    try:
        batches = [
            batch
            for piece in pieces(journal, directory, name)
            for batch in decode(piece, COLUMNS, corrupt=Corrupt.SKIP)
        ]
        result = pa.Table.from_batches(batches, COLUMNS)
        place = COLUMNS.get_field_index("log_id")
        named = pa.array([name] * result.num_rows, pa.string())
        table = result.set_column(place, COLUMNS.field(place), named)
        if not table.num_rows:
            return JobLog(table, {})
        now_ns = table["ts_ns"][-1].as_py()
        bodies = BodyStore(str(directory), LogConfig())
        views = [bodies.open_view(view) for view in each_job(journal, JobFilter(), now_ns)]
        return JobLog(table, {(name, view.lsn): _row(view) for view in views})
    finally:
        journal.close()


class FoldedRows(NamedTuple):
    jobs: list[Row]
    attempts: pa.Table


def folded_rows(records: pa.Table, lineage: Lineage | None = None) -> FoldedRows:
    """Fold records; a log of ``lineage`` begins with its parents' records."""
    logs = logs_of(log_rows(records), lineage)
    if lineage:
        records = inherited(records, lineage, logs)
    rows = rows_of(records, logs)
    return FoldedRows(plain(rows.jobs), rows.attempts)


def plain(jobs: pa.Table) -> list[Row]:
    result: list[Row] = jobs.to_pylist(maps_as_pydicts="strict")
    return result


def by_job(rows: Iterable[Row]) -> Jobs:
    result: Jobs = {}
    for row in rows:
        key = row["log_id"], row["job"]
        assert key not in result, f"job {key} has two rows"
        result[key] = row
    return result


def comparable(row: Row) -> Row:
    attempts = [
        {name: item[name] for name in item if name not in {"wait_ns", "run_ns"}}
        for item in row["attempts"]
    ]
    return row | {"attempts": attempts}


def _row(view: JobView) -> Row:
    return {
        "job_id": view.job_id,
        "queue": view.queue,
        "task": view.task or None,
        "priority": view.priority,
        "state": view.state.name.lower(),
        "attempt": view.attempt,
        "attempts_max": view.attempts_max or None,
        "enqueued_ns": view.enqueued_ns,
        "due_ns": view.due_ns or None,
        "expires_ns": view.expires_ns or None,
        "first_started_ns": view.attempts[0].started_ns if view.attempts else None,
        "settled_ns": view.settled_ns or None,
        "key": view.key,
        "headers": view.headers or None,
        "payload": view.payload,
        "result": view.result,
        "reason": view.reason or None,
        "stores_result": view.stores_result,
        "replay_of": view.headers.get("replay_of"),
        "is_over": view.state.name.lower() in {"succeeded", "cancelled", "expired"},
        "attempts": [
            {
                "number": attempt.number, "owner": f"{attempt.owner:016x}",
                "started_ns": attempt.started_ns, "ended_ns": attempt.ended_ns or None,
                "outcome": attempt.outcome or None, "reason": attempt.reason or None,
            }
            for attempt in view.attempts
        ],
    }  # fmt: skip


_HOUR_NS: Final = 3_600 * SECOND_NS


def _one(process: Process) -> Delivery:
    (delivery,) = process.claim()
    return delivery


def clocks_that_are_set(world: World) -> None:
    """Delays, expiries and backoff shift; dates do not. One job runs meanwhile."""
    process = world.process()
    date_ns = world.clock.wall_ns() + 2 * _HOUR_NS
    process.enqueue(b"runs")
    _one(process)
    process.enqueue(extras=Extras(due_ns=10 * SECOND_NS))
    process.enqueue(extras=Extras(due_ns=_HOUR_NS, expires_ns=9 * _HOUR_NS))
    process.enqueue(extras=Extras(due_ns=date_ns, due_is_wall=True, expires_ns=9 * _HOUR_NS))
    process.enqueue(extras=Extras(expires_ns=date_ns, expires_is_wall=True))
    process.enqueue(b"backs off", spec=EnqueueSpec(priority=9))
    process.settle(_one(process), Kind.RETRIED, body=b"no", delay_ns=_HOUR_NS)
    for step in (-3_000, 10**8, -(10**8), 600):
        world.clock.step(step)
        process.enqueue()
    world.clock.advance(20)
    for _ in range(9):
        for delivery in process.claim():
            process.settle(delivery, body=b"ok")


def of_clocks(directory: Path) -> JobLog:
    world = World(config=SMALL)
    clocks_that_are_set(world)
    return of_world(world, directory / clocks_that_are_set.__name__)


#: Size before a record, CRC after it.
_LENGTH = 4
_CRC = 4


def table(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def sink(
    rows: list[dict[str, Any]] | pa.RecordBatch, data_dir: Path, known: TaskQ | None = None,
    **options: str,
) -> Ingested:  # fmt: skip
    batch = rows if isinstance(rows, pa.RecordBatch) else table(rows)
    checked = parse_options({"path": str(data_dir), **options})
    upload = Upload(data_dir, f"upload-{checked.upload or secrets.token_hex(8)}")
    return upload.finish(upload.write_parts(RowCalls(checked, known).calls(batch)))


def enqueued(data_dir: Path) -> list[bytes]:
    return [job.data[_LENGTH:-_CRC] for job in jobs(data_dir)]


def jobs(data_dir: Path) -> list[Record]:
    journal = open_journal(str(data_dir))
    try:
        return [entry for entry in entries(journal) if entry.type == Kind.ENQUEUED]
    finally:
        journal.close()


def spark_schema(schema: pa.Schema = SCHEMA) -> StructType:
    converted: StructType = from_arrow_schema(schema)
    return converted


def source(path: Path, **options: object) -> DefaultSource:
    return DefaultSource(
        {"path": str(path)} | {name: str(option) for name, option in options.items()}
    )


def rows_read(
    reader: DataSourceReader | DataSourceStreamReader, partitions: Any, schema: pa.Schema = SCHEMA
) -> list[Row]:
    """Return what all partitions hold; each goes through pickle, as to another process."""
    rows: list[Row] = []
    for load in pickle.loads(pickle.dumps(partitions)):  # noqa: S301 - our own bytes
        batches: Any = pickle.loads(pickle.dumps(reader)).read(load)  # noqa: S301 - likewise
        for batch in batches:
            assert batch.schema.equals(schema)
            rows += batch.to_pylist()
    return rows


def read_batch(path: Path, *columns: str, **options: object) -> list[Row]:
    wanted = pa.schema([DETAILS.field(name) for name in columns]) if columns else SCHEMA
    if not columns and options.get("includeDetails"):
        wanted = DETAILS
    reader = source(path, **options).reader(spark_schema(wanted))
    return rows_read(reader, reader.partitions(), wanted)


class Stream:
    """A streaming query: ``step`` is one trigger, ``restart`` another process with its offsets."""

    def __init__(self, path: Path, columns: pa.Schema = SCHEMA, /, **options: object) -> None:
        self._path, self._columns, self._options = path, columns, options
        self.restart()
        self.start: dict[str, Any] = _through_json(self.reader.initialOffset())
        self.end = self.start

    def restart(self) -> None:
        reader = source(self._path, **self._options).streamReader(spark_schema(self._columns))
        assert isinstance(reader, StreamReader)
        self.reader = reader

    def advance(self, limit: ReadLimit | None = None) -> bool:
        self.start = self.end
        limit = limit or self.reader.getDefaultReadLimit()
        self.end = _through_json(self.reader.latestOffset(self.start, limit))
        return self.end != self.start

    def rows(self) -> list[Row]:
        return rows_read(self.reader, self.reader.partitions(self.start, self.end), self._columns)

    def step(self, limit: ReadLimit | None = None) -> list[Row]:
        return self.rows() if self.advance(limit) else []


def _through_json(offset: dict[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = json.loads(json.dumps(offset))
    return restored


def lsns(rows: list[Row], device: str | None = None) -> list[int]:
    records = [row for row in rows if row.get("kind") != "break"]
    return [row["lsn"] for row in records if device in {None, row["device"]}]


ALL = ReadAllAvailable()


def begun(path: Path, **options: object) -> tuple[MadeLog, Stream]:
    made = MadeLog(path / "edge")
    for _ in range(3):
        for _ in range(4):
            made.enqueue(1, size=1000)
        made.rotate()
    made.enqueue(1)
    stream = Stream(path, **options)
    assert lsns(stream.step(ReadMaxBytes(6 * 1130))) == [1, 2, 3, 4, 5, 6]
    return made, stream


def segment(made: MadeLog, lsn: int) -> Path:
    return next(frame.path for frame in made.frames if frame.first_lsn == lsn)


class Follower(Stream):
    """A stream of all columns that keeps its rows, and asks another process for each batch again.

    Attributes:
        seen: all rows.
        problems, passed, parents: as in the plans.
    """

    def __init__(self, path: Path, **options: str) -> None:
        super().__init__(path, store.READ, **{"failOnDataLoss": "hold"} | options)
        self.seen: list[Row] = []
        self.problems: dict[str, str] = {}
        self.passed: list[str] = []
        self.parents: dict[str, list[tuple[str, int]]] = {}

    def drain(self, max_bytes: int = planning.UNLIMITED) -> Follower:
        while self.advance(ReadMaxBytes(max_bytes)):
            self._note()
            batch = self.rows()
            moved = {
                log_id for log_id, end in self.end.items()
                if [end[name] for name in ("segment", "offset")] !=
                [self.start.get(log_id, {}).get(name) for name in ("segment", "offset")]
            }  # fmt: skip
            assert moved == {row["log_id"] for row in batch}, "a position moves with rows alone"
            self.restart()
            assert self.rows() == batch, "a batch is the same whenever it is asked for"
            self.seen += batch
        self._note()
        return self

    def _note(self) -> None:
        planned = self.reader._planned
        assert planned is not None
        self.problems = planned.problems
        self.passed += planned.passed
        self.parents |= {log_id: chain for log_id, chain in planned.parents.items() if chain}

    @property
    def at(self) -> Positions:
        return positions_from_json(self.end)

    @property
    def records(self) -> pa.Table:
        return pa.Table.from_pylist(self.seen, store.READ)

    def read(self) -> list[tuple[str, int]]:
        return [(row["log_id"], row["lsn"]) for row in self.seen if row["kind"] != "break"]
