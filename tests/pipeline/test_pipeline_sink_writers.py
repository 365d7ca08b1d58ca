"""The writers as Spark calls them, in its order and in worse ones, without a JVM."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from taskq import Call, TaskQ
from taskq.core.errors import UsageError
from taskq_plugins.spark.sink import ingest, writers
from taskq_plugins.spark.sink.rows import BadRow
from taskq_plugins.spark.sink.writers import batch_writer, stream_writer
from tests.pipeline.sinking import jobs, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
    writer = batch(tmp_path)
    messages = [writer.write(rows(1, 2)), writer.write(rows()), writer.write(rows(3))]
    assert not (tmp_path / "taskq.json").exists()
    writer.commit(pickle.loads(pickle.dumps(messages)))  # noqa: S301
    assert sorted(bodies(tmp_path)) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert not files(tmp_path)


def test_a_driver_that_commits_again_after_it_was_killed_enqueues_nothing_twice(
    tmp_path: Path,
) -> None:
    writer = batch(tmp_path)
    messages = [writer.write(rows(1))]
    for _ in range(3):
        writer.commit(messages)
    assert bodies(tmp_path) == [b'{"n":1}']


def test_only_the_attempt_that_is_committed_counts(tmp_path: Path) -> None:
    """A second attempt of a task may have ended as well; its part is nobody's, and goes."""
    writer = batch(tmp_path)
    writer.write(rows(1))
    writer.commit([writer.write(rows(1))])
    assert bodies(tmp_path) == [b'{"n":1}']
    assert not files(tmp_path)


def test_an_aborted_write_leaves_nothing(tmp_path: Path) -> None:
    writer = batch(tmp_path)
    message = writer.write(rows(1))
    with pytest.raises(BadRow):
        writer.write(iter([table([{"n": 1}]), table([{"n": 2, "priority": 11}])]))
    writer.abort([message, None])
    assert not files(tmp_path)
    assert not (tmp_path / "taskq.json").exists()


def test_an_upload_of_the_same_name_is_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("upload", "idempotencyKey"):
        writer = batch(tmp_path, **{name: "day-7"})
        writer.commit([writer.write(rows(1, 2))])
    assert len(bodies(tmp_path)) == 2
    assert "upload 'day-7' was written before, so its 2 jobs were not" in capsys.readouterr().err
    assert not files(tmp_path)


def test_two_writes_without_a_name_are_two(tmp_path: Path) -> None:
    for _ in range(2):
        writer = batch(tmp_path)
        writer.commit([writer.write(rows(1))])
    assert len(bodies(tmp_path)) == 2


def test_an_empty_data_frame_is_no_upload(tmp_path: Path) -> None:
    writer = batch(tmp_path, upload="u")
    writer.commit([writer.write(iter([])), writer.write(iter([table([{"n": 1}]).slice(1)]))])
    assert not (tmp_path / "taskq.json").exists()
    writer.commit([writer.write(rows(1))])
    assert len(bodies(tmp_path)) == 1


def test_overwriting_is_refused(tmp_path: Path) -> None:
    for make in (batch_writer, stream_writer):
        with pytest.raises(UsageError, match=r'use mode\("append"\)'):
            make({"path": str(tmp_path), "task": "t"}, NUMBERS, True)


def test_columns_are_looked_at_before_any_row_is_read(tmp_path: Path) -> None:
    schema = StructType([StructField("priority", StringType())])
    with pytest.raises(UsageError, match="column 'priority' is string"):
        batch_writer({"path": str(tmp_path), "task": "t"}, schema, overwrite=False)
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        batch(tmp_path, app="nowhere:app")


def test_a_batch_of_a_stream_is_published_once(tmp_path: Path, in_batch: Any) -> None:
    """Spark commits a batch again when it was killed before it wrote that down."""
    for _ in range(2):
        in_batch("query", 0)
        messages = [stream(tmp_path).write(rows(1)), stream(tmp_path).write(rows(2))]
        for _ in range(2):
            stream(tmp_path).commit(messages, 0)
    in_batch("query", 1)
    stream(tmp_path).commit([stream(tmp_path).write(rows(1))], 1)
    in_batch("other", 0)
    stream(tmp_path).commit([stream(tmp_path).write(rows(1))], 0)
    assert bodies(tmp_path) == [b'{"n":1}', b'{"n":2}', b'{"n":1}', b'{"n":1}']
    assert not files(tmp_path)


def test_a_batch_that_was_written_before_is_told_of(
    tmp_path: Path, in_batch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows may be new: two streams may have copies of one checkpoint, or it was set back."""
    for numbers in ((1,), (2, 3)):
        in_batch("query", 7)
        assert not capsys.readouterr().err
        stream(tmp_path).commit([stream(tmp_path).write(rows(*numbers))], 7)
    shown = capsys.readouterr().err
    assert "batch 7 of stream query was written before, so its 2 jobs were not enqueued" in shown
    assert bodies(tmp_path) == [b'{"n":1}']


def test_an_aborted_batch_leaves_nothing_and_may_be_written_again(
    tmp_path: Path, in_batch: Any
) -> None:
    in_batch("query", 0)
    writer = stream(tmp_path)
    writer.abort([writer.write(rows(1)), None], 0)
    assert not files(tmp_path)
    writer.commit([writer.write(rows(1)), None], 0)
    assert bodies(tmp_path) == [b'{"n":1}']


def test_a_stream_takes_no_name_of_an_upload(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a stream is known by its checkpoint"):
        stream(tmp_path, upload="u")


def test_a_task_that_knows_no_batch_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="write from foreachBatch instead"):
        stream(tmp_path).write(rows(1))


def test_many_jobs_become_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "PART_JOBS_MAX", 2)
    writer = batch(tmp_path)
    message = writer.write(rows(1, 2, 3, 4, 5))
    assert [part.jobs for part in message.parts] == [2, 2, 1]
    writer.commit([message])
    assert bodies(tmp_path) == [b'{"n":%d}' % n for n in range(1, 6)]


class Killed(BaseException):
    """The driver is gone."""


@pytest.mark.parametrize("step", range(12))
def test_a_driver_killed_at_any_step_goes_on_with_the_parts_that_were_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The second writing of an upload has its rows in other parts, as Spark orders them anew."""
    monkeypatch.setattr(ingest, "PART_JOBS_MAX", 3)
    monkeypatch.setattr(ingest, "_ROWS", 2)
    left = step

    def dies(call: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and step >= 0:
                raise Killed
            return call(*args, **kwargs)

        return maybe

    with monkeypatch.context() as patch:
        for owner, name in (
            (TaskQ, "ingest"), (os, "link"), (shutil, "rmtree"),
            (ingest.Upload, "_publish"), (TaskQ, "position"),
        ):  # fmt: skip
            patch.setattr(owner, name, dies(getattr(owner, name)))
        patch.setattr(ingest.Upload, "discard", lambda *_: None)
        writer = batch(tmp_path, upload="day")
        with contextlib.suppress(Killed):
            writer.commit([writer.write(rows(1, 2, 3, 4)), writer.write(rows(5, 6, 7))])
    for _ in range(2):
        again = batch(tmp_path, upload="day")
        again.commit([again.write(rows(7, 6, 5, 4)), again.write(rows(3, 2, 1))])
    assert sorted(bodies(tmp_path)) == [b'{"n":%d}' % n for n in range(1, 8)]
    assert not files(tmp_path)


def test_two_processes_at_one_upload_take_turns(tmp_path: Path) -> None:
    writers = batch(tmp_path, upload="day"), batch(tmp_path, upload="day")
    messages = [[writer.write(rows(*range(50)))] for writer in writers]
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(writer.commit, message)
            for writer, message in zip(writers, messages, strict=True)
        ]
        for future in done:
            future.result()
    assert sorted(bodies(tmp_path)) == sorted(b'{"n":%d}' % n for n in range(50))


def test_a_write_that_fails_removes_the_part_it_was_at(tmp_path: Path) -> None:
    def calls() -> Iterator[list[Call[Any]]]:
        yield [TaskQ("never-made").call_by_name("t")]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        ingest.Upload(tmp_path, "u").write_parts(calls())
    assert not files(tmp_path)
