import contextlib
import datetime as dt
import os
import pickle
import shutil
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from taskq import TaskQ, retry
from taskq.calls.call import OptionChanges
from taskq.core.model import Extras
from taskq.errors import LogError
from taskq_plugins.spark.sink import ingest, writers
from taskq_plugins.spark.sink.rows import BadRow
from taskq_plugins.spark.sink.writers import batch_writer, stream_writer
from tests.pipeline.kit import enqueued, jobs, sink, table

RESERVED = {"priority", "queue", "key", "window", "until", "eta", "expires", "headers"}
NOON = dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)


pytestmark = pytest.mark.usefixtures("own_settings")


ARGUMENTS: list[dict[str, Any]] = [
    {"to": "a@b.c", "subject": 'he said "hi"\\\n', "n": 3},
    {"to": "ä\u2028\x7f", "n": -(2**63), "when": NOON, "day": dt.date(2024, 2, 29)},
    {"price": Decimal("12.50"), "ratio": 0.1, "inf": float("inf"), "raw": b"\xff\xfe\xfd"},
    {"nested": {"a": 1, "list": ["x", None]}, "span": dt.timedelta(minutes=5), "none": None},
    {"yes": True, "clock": dt.time(23, 59, 59, 5), "local": dt.datetime(2024, 1, 1, 12)},  # noqa: DTZ001
    {},
]


async def test_maps_and_moments_to_the_nanosecond_are_arguments_too(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([[("a", [("b", 1)])]], pa.map_(pa.string(), pa.map_(pa.string(), pa.int8()))),
            pa.array([1_700_000_000_000_001_000], pa.timestamp("ns", "UTC")),
            pa.array(["x"]).dictionary_encode(),
        ],
        names=["map", "at", "word"],
    )
    sink(batch, tmp_path, task="t")
    (job,) = jobs(tmp_path)
    assert job.body == b'{"map":{"a":{"b":1}},"at":"2023-11-14T22:13:20.000001Z","word":"x"}'


OPTIONS: list[tuple[dict[str, str], dict[str, Any], OptionChanges]] = [
    ({"queue": "mail", "priority": "9"}, {}, {"queue": "mail", "priority": 9}),
    ({"attempts": "1"}, {}, {"attempts": 1}),
    ({"priority": "1"}, {"priority": 0, "queue": "q"}, {"priority": 0, "queue": "q"}),
    ({}, {"key": "k" * 300}, {"key": "k" * 300}),
    ({"window": "1h"}, {"key": b"\xff"}, {"key": b"\xff", "window": "1h"}),
    ({"until": "settled"}, {"key": "a", "window": 5},
     {"key": "a", "window": 5, "until": "settled"}),
    ({}, {"eta": NOON, "expires": NOON}, {"eta": NOON, "expires": NOON}),
    ({}, {"eta": "2030-05-01T14:00:00+02:00"}, {"eta": NOON}),
    ({"headers": '{"a": "1", "b": "2"}'}, {}, {"headers": {"a": "1", "b": "2"}}),
    ({"headers": '{"a": "1"}'}, {"headers": {"a": "3", "c": "ä"}},
     {"headers": {"a": "3", "c": "ä"}}),
    ({"keep": "30d"}, {}, {"keep": "30d"}),
    ({"compress": "zlib"}, {"text": "x" * 4000}, {"compress": "zlib"}),
    ({"compress": "zlib"}, {"text": "x" * 4000, "key": "k"}, {"compress": "zlib", "key": "k"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "row", "changes"), [*OPTIONS, *(({}, row, {}) for row in ARGUMENTS)]
)
async def test_a_row_becomes_the_record_of_an_enqueue_by_name(
    options: dict[str, str], row: dict[str, Any], changes: OptionChanges, tmp_path: Path
) -> None:
    row = {"n": 1, **row}
    arguments = {name: row[name] for name in row if name not in RESERVED}
    async with TaskQ(tmp_path / "one", upkeep=False) as app:
        await app.enqueue(app.call_by_name("t", **arguments).options(**changes))
    sink([row], tmp_path / "other", None, **{"task": "t", **options})
    assert enqueued(tmp_path / "other") == enqueued(tmp_path / "one")


@pytest.mark.parametrize("delay", ["90s", 90, 90.0, dt.timedelta(seconds=90), Decimal(90)])
def test_a_delay_counts_from_the_write(delay: object, tmp_path: Path) -> None:
    before_ns = time.time_ns()
    sink([{"delay": delay, "expires": "2m"}], tmp_path, task="t")
    after_ns = time.time_ns()
    (job,) = jobs(tmp_path)
    assert job.extras is not None
    assert before_ns <= job.extras.due_ns - 90 * 10**9 <= after_ns
    assert before_ns <= job.extras.expires_ns - 120 * 10**9 <= after_ns


def test_payloads_are_passed_on_as_they_are(tmp_path: Path) -> None:
    rows = [{"value": ' {"to": 1}', "task": "t"}, {"value": "\x00", "task": ""}]
    sink(rows, tmp_path)
    assert [(job.task, job.body) for job in jobs(tmp_path)] == [("t", b' {"to": 1}'), ("", b"\0")]
    sink([{"value": b"\xff"}, {"value": b""}], tmp_path)
    assert [job.body for job in jobs(tmp_path)[2:]] == [b"\xff", b""]


def test_nulls_in_reserved_columns_leave_it_to_the_options(tmp_path: Path) -> None:
    kinds = pa.schema(
        [("task", "string"), ("priority", "int8"), ("key", "string"), ("window", "string"),
         ("headers", pa.map_(pa.string(), pa.string())), ("expires", pa.timestamp("us", "UTC")),
         ("n", "int32")]
    )  # fmt: skip
    sink(table([{"n": 1}], kinds), tmp_path, task="t", priority="7", window="1h")
    (job,) = jobs(tmp_path)
    assert (job.task, job.priority, job.body) == ("t", 7, b'{"n":1}')
    assert job.extras == Extras()


def test_many_rows_come_in_order_and_each_once(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"n": range(40_000), "priority": [1, 2] * 20_000})
    assert sink(batch, tmp_path, task="t").jobs == 40_000
    result = jobs(tmp_path)
    assert [job.body for job in result] == [b'{"n":%d}' % n for n in range(40_000)]
    assert [job.priority for job in result[:3]] == [1, 2, 1]
    batch = pa.RecordBatch.from_pydict({"n": range(5_000), "priority": [*[1] * 4_999, 10]})
    with pytest.raises(BadRow) as refused:
        sink(batch, tmp_path, task="t")
    assert refused.value.row == 4_999


def known_app(data_dir: Path) -> TaskQ:
    app = TaskQ(data_dir, upkeep=False)

    @app.task(
        name="mail.send", queue="mail", priority=7, retry=retry.exponential(attempts=3),
        key=lambda to, n: f"{to}:{n}", window="1h", store_result=False,
    )  # fmt: skip
    def send(to: str, n: int = 5, when: dt.datetime | None = None) -> None: ...

    @app.task(name="ping")
    def ping() -> None: ...

    return app


async def test_an_app_gives_defaults_keys_and_checks(tmp_path: Path) -> None:
    app = known_app(tmp_path / "one")
    send: Any = app.tasks["mail.send"]
    await send.enqueue("a", n=2, when=NOON)
    await send.options(priority=1, key="own").enqueue("b", n=3, when=None)
    await app.close()
    rows = [
        {"to": "a", "n": 2, "when": "2030-05-01T12:00:00Z", "priority": None, "key": None},
        {"to": "b", "n": 3, "when": None, "priority": 1, "key": "own"},
    ]
    sink(rows, tmp_path / "other", known_app(tmp_path / "x"), task="mail.send")
    assert enqueued(tmp_path / "other") == enqueued(tmp_path / "one")
    assert not (tmp_path / "x").exists()
    sink(
        [{"value": '{"to": "c", "n": "4"}'}], tmp_path / "other", known_app(tmp_path / "x"),
        task="mail.send",
    )  # fmt: skip
    last = jobs(tmp_path / "other")[-1]
    assert (last.body, last.extras and last.extras.key) == (b'{"to":"c","n":4}', b"c:4")


NUMBERS = StructType([StructField("n", LongType())])


def batch(data_dir: Path, **options: str) -> Any:
    given = {"path": str(data_dir), "task": "t", **options}
    return pickle.loads(pickle.dumps(batch_writer(given, NUMBERS, overwrite=False)))  # noqa: S301


def stream(data_dir: Path, **options: str) -> Any:
    given = {"path": str(data_dir), "task": "t", "checkpointLocation": "x", **options}
    return stream_writer(given, NUMBERS, overwrite=False)


def rows(*numbers: int) -> Any:
    return iter([table([{"n": number}]) for number in numbers])


def bodies(data_dir: Path) -> list[bytes]:
    return [job.body or b"" for job in jobs(data_dir)]


def files(data_dir: Path) -> list[str]:
    return sorted(path.name for path in data_dir.glob("uploads/*/*"))


@pytest.fixture
def in_batch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Names the batch and query of this task."""

    def be(stream: str, batch_id: int) -> None:
        monkeypatch.setattr(writers, "_stream_batch", lambda: (stream, batch_id))

    return be


def test_jobs_are_there_once_all_partitions_are_committed(tmp_path: Path) -> None:
    """A second attempt of a task may have ended as well; its part is nobody's, and goes."""
    writer = batch(tmp_path)
    writer.write(rows(1, 2))
    messages = [writer.write(rows(1, 2)), writer.write(rows()), writer.write(rows(3))]
    assert not (tmp_path / "taskq.json").exists()
    for _ in range(2):
        writer.commit(pickle.loads(pickle.dumps(messages)))  # noqa: S301
        assert sorted(bodies(tmp_path)) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
        assert not files(tmp_path)
    another = batch(tmp_path)
    another.commit([another.write(rows(1))])
    assert len(bodies(tmp_path)) == 4


def test_an_aborted_write_leaves_nothing_and_is_repeated(tmp_path: Path, in_batch: Any) -> None:
    in_batch("query", 0)
    for name, writer, more in (("b", batch, ()), ("s", stream, (0,))):
        made = writer(tmp_path / name)
        message = made.write(rows(1))
        with pytest.raises(BadRow):
            made.write(iter([table([{"n": 1}]), table([{"n": 2, "priority": 11}])]))
        made.abort([message, None], *more)
        assert not files(tmp_path / name)
        assert not (tmp_path / name / "taskq.json").exists()
        made.commit([made.write(rows(1)), None], *more)
        assert bodies(tmp_path / name) == [b'{"n":1}']


def test_the_list_of_parts_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    link = os.link

    def counts(own: Path, manifest: Path) -> None:
        assert own.stat().st_ino in synced
        link(own, manifest)

    monkeypatch.setattr(os, "link", counts)
    writer = batch(tmp_path, upload="u")
    writer.commit([writer.write(rows(1))])
    assert len(bodies(tmp_path)) == 1


def test_an_empty_data_frame_is_no_upload(tmp_path: Path) -> None:
    writer = batch(tmp_path, upload="u")
    writer.commit([writer.write(iter([])), writer.write(iter([table([{"n": 1}]).slice(1)]))])
    assert not (tmp_path / "taskq.json").exists()
    writer.commit([writer.write(rows(1))])
    assert len(bodies(tmp_path)) == 1


def test_a_batch_of_a_stream_is_published_once(
    tmp_path: Path, in_batch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark may commit a batch again, with other rows of a copied checkpoint, too."""
    for _ in range(2):
        in_batch("query", 0)
        messages = [stream(tmp_path).write(rows(1)), stream(tmp_path).write(rows(2))]
        for _ in range(2):
            stream(tmp_path).commit(messages, 0)
    shown = capsys.readouterr().err
    assert "batch 0 of stream query was written before, so its 2 jobs were not enqueued" in shown
    in_batch("query", 1)
    stream(tmp_path).commit([stream(tmp_path).write(rows(1))], 1)
    in_batch("other", 0)
    stream(tmp_path).commit([stream(tmp_path).write(rows(1))], 0)
    assert bodies(tmp_path) == [b'{"n":1}', b'{"n":2}', b'{"n":1}', b'{"n":1}']
    assert not files(tmp_path)


class Killed(BaseException):
    """The driver is gone."""


@pytest.mark.parametrize("step", range(12))
def test_a_driver_killed_at_any_step_goes_on_with_the_parts_that_were_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The second writing of an upload has its rows in other parts, as Spark orders them anew."""
    monkeypatch.setattr(ingest, "_ROWS", 2)
    left = step

    def dies(call: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return call(*args, **kwargs)

        return maybe

    monkeypatch.setattr(ingest, "PART_JOBS_MAX", 2)
    writer = batch(tmp_path, upload="day")
    messages = [writer.write(rows(1, 2, 3, 4, 5)), writer.write(rows(6, 7))]
    assert [part.jobs for message in messages for part in message.parts] == [2, 2, 1, 2]
    with monkeypatch.context() as patch:
        for owner, name in (
            (TaskQ, "ingest"), (os, "link"), (shutil, "rmtree"),
            (ingest.Upload, "_publish"), (TaskQ, "position"),
        ):  # fmt: skip
            patch.setattr(owner, name, dies(getattr(owner, name)))
        patch.setattr(ingest.Upload, "discard", lambda *_: None)
        with contextlib.suppress(Killed):
            writer.commit(messages)
    monkeypatch.setattr(ingest, "PART_JOBS_MAX", 3)
    for _ in range(2):
        again = batch(tmp_path, upload="day")
        again.commit([again.write(rows(7, 6, 5, 4)), again.write(rows(3, 2, 1))])
    assert sorted(bodies(tmp_path)) == [b'{"n":%d}' % n for n in range(1, 8)]
    assert not files(tmp_path)


@pytest.mark.parametrize(("owner", "name"), [
    (ingest.Upload, "_make_folder"), (pq, "ParquetWriter"), (ingest, "_closed"),
    (TaskQ, "position"), (ingest.Upload, "_publish"), (os, "link"), (ingest.Upload, "_ingest"),
    (ingest, "_calls"), (TaskQ, "ingest"), (shutil, "rmtree"),
])  # fmt: skip
def test_an_upload_that_another_process_finishes_meanwhile_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It removes the folder, before any step of this one."""
    actual = getattr(owner, name)

    def finished_before(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, actual)
        other = batch(tmp_path, upload="day")
        other.commit([other.write(rows(1, 2, 3))])
        return actual(*args, **kwargs)

    writer = batch(tmp_path, upload="day")
    monkeypatch.setattr(owner, name, finished_before)
    writer.commit([writer.write(rows(3, 2)), writer.write(rows(1))])
    assert getattr(owner, name) is actual, "no other process came"
    assert sorted(bodies(tmp_path)) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert not files(tmp_path)
    assert "so its 3 jobs were not enqueued" in capsys.readouterr().err
    known_as_published = ingest.Upload(tmp_path, "upload-day").finish(None)
    assert known_as_published == ingest.Ingested(3, is_new=False)


def test_an_upload_that_lost_a_part_is_not_published_and_may_be_repeated(tmp_path: Path) -> None:
    writer = batch(tmp_path, upload="day")
    messages = [writer.write(rows(1))]
    batch(tmp_path, upload="day").abort([])
    messages.append(writer.write(rows(2)))
    with pytest.raises(LogError, match="the upload's file is gone"):
        writer.commit(messages)
    writer.commit([writer.write(rows(1, 2))])
    assert bodies(tmp_path) == [b'{"n":1}', b'{"n":2}']
