"""Listing jobs from the files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskq.core.errors import LogError
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.frames import Scanner
from taskq.log.journal.journal import Journal
from taskq.log.read.reader import LogReader
from taskq.log.read.timetravel import Moment
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.segments.segments import SegmentFiles
from taskq.log.state.facets import Facets
from taskq.log.store.store import open_store

# -- over several segments -------------------------------------------------------------------------


@pytest.fixture
def long_log(tmp_path: Path) -> str:
    """Return a job in each of five segments; what became of four of them stands in a sixth."""
    config = LogConfig(segment_bytes=SEGMENT_BYTES_MIN)
    store = open_store(str(tmp_path), config)
    port = store.thread_port
    for number in range(5):
        port.enqueue(EnqueueSpec("q", "t"), b"%d" % number + bytes(70_000)).result(10)
    deliveries = port.claim(ClaimRequest(4)).result(10)
    last = deliveries.pop()
    port.settle([Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries]).result(10)
    port.settle([Settlement(Kind.DEAD, last, b"because")]).result(10)
    store.close()
    return str(tmp_path)


def test_a_list_of_the_newest_jobs_reads_no_more_segments_than_it_needs(
    long_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogReader.open(long_log) as reader:
        lsns = list(reader._journal.files.lsns)
        assert len(lsns) == 6
        read: set[int] = set()
        scanner = SegmentFiles.scanner

        def spied(files: SegmentFiles, lsn: int, *arguments: Any, **rest: Any) -> Scanner:
            read.add(lsn)
            return scanner(files, lsn, *arguments, **rest)

        monkeypatch.setattr(SegmentFiles, "scanner", spied)
        assert [job.payload[:1] for job in reader.jobs(None, None, None, 1)] == [b"4"]
        assert read == set(lsns[-2:])


def test_a_reader_gives_its_files_back_and_may_be_closed_twice(long_log: str) -> None:
    with LogReader.open(long_log) as reader:
        reader.jobs(None, None, None, 10)
        assert len(reader._journal.files._descriptors) == 6
    reader.close()
    assert not reader._journal.files._descriptors


@pytest.mark.parametrize("at", [None, Moment(lsn=4)])
def test_what_compaction_took_meanwhile_is_not_missing_from_an_answer(
    long_log: str, at: Moment | None
) -> None:
    seen: list[tuple[int, ...]] = []

    def read(journal: Journal, _: Facets, __: int) -> int:
        seen.append(tuple(journal.files.lsns))
        if len(seen) == 1:
            Path(journal.files.file_path(journal.files.lsns[0])).unlink()
            journal.files.refresh()
        return len(seen)

    with LogReader.open(long_log, at=at) as reader:
        assert reader._told(read) == 2
    assert seen[1] == seen[0][1:]


def test_a_log_that_is_compacted_faster_than_it_is_read_says_so(long_log: str) -> None:
    def read(journal: Journal, _: Facets, __: int) -> None:
        Path(journal.files.file_path(journal.files.lsns[0])).unlink()

    with LogReader.open(long_log) as reader, pytest.raises(LogError, match="faster than they are"):
        reader._told(read)


def test_verify_and_lists_go_by_the_segments_whatever_lies_beside_them(long_log: str) -> None:
    """An index and a snapshot of nonsense change no answer."""
    with LogReader.open(long_log) as reader:
        before = reader.verify(), reader.jobs(None, None, None, 10)
    log, snapshot = Path(long_log) / "log", Path(long_log) / "snapshot"
    snapshot.mkdir(exist_ok=True)
    for path in list(log.glob("*.log")):
        path.with_suffix(".idx").write_bytes(b"no index at all" * 300)
        (snapshot / f"{path.stem}.agenda.snap").write_bytes(b"no snapshot" * 300)
    with LogReader.open(long_log) as reader:
        assert (reader.verify(), reader.jobs(None, None, None, 10)) == before
        [queue] = reader.stats().queues
        assert (queue.succeeded, queue.dead, queue.ready) == (3, 1, 1)
        assert not before[0].damage
