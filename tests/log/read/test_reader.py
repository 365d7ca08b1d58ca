"""Listing jobs from the files alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from taskq.core.errors import LogError
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.read.reader import LogReader
from taskq.log.read.timetravel import Moment
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.segments.segments import SegmentFiles
from taskq.log.store.store import open_store

if TYPE_CHECKING:
    from taskq.log.format.frames import Scanner
    from taskq.log.journal.journal import Journal
    from taskq.log.state.facets import Facets


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Fifty jobs of low priority, then one that overtakes them; all but two have succeeded."""
    store = open_store(str(tmp_path), LogConfig())
    port = store.thread_port
    low = [port.enqueue(EnqueueSpec("q", "t", 1), b"low") for _ in range(50)]
    high = port.enqueue(EnqueueSpec("q", "t", 9), b"high")
    assert len({future.result(10) for future in [*low, high]}) == 51
    deliveries = port.claim(ClaimRequest(49)).result(10)
    assert port.settle([Settlement(Kind.SUCCEEDED, delivery) for delivery in deliveries]).result(10)
    store.close()
    return str(tmp_path)


def test_the_newest_jobs_come_first_whatever_was_settled_first(directory: str) -> None:
    jobs = LogReader.open(directory).jobs(None, None, None, 3)
    assert [job.payload for job in jobs] == [b"high", b"low", b"low"]
    assert [job.lsn for job in jobs] == sorted((job.lsn for job in jobs), reverse=True)


def test_jobs_are_found_by_state_queue_and_task(directory: str) -> None:
    reader = LogReader.open(directory)
    assert [job.payload for job in reader.jobs({State.SUCCEEDED}, "q", "t", 2)] == [b"high", b"low"]
    ready = reader.jobs({State.READY}, None, None, 10)
    assert [job.state for job in ready] == [State.READY, State.READY]
    assert not reader.jobs({State.SCHEDULED}, None, None, 10)
    assert not reader.jobs(None, "other", None, 10)
    assert not reader.jobs(None, None, "other", 10)


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
    """A list used to walk the whole log, twice."""
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


def test_jobs_are_found_by_a_state_that_a_later_segment_tells(long_log: str) -> None:
    with LogReader.open(long_log) as reader:
        for state, expected in (
            (State.SUCCEEDED, [b"2", b"1", b"0"]),
            (State.DEAD, [b"3"]),
            (State.READY, [b"4"]),
            (State.CANCELLED, []),
        ):
            jobs = reader.jobs({state}, None, "t", 10)
            assert [job.payload[:1] for job in jobs] == expected
            assert all(job.state is state for job in jobs)
        both = reader.jobs({State.SUCCEEDED, State.READY}, "q", None, 2)
        assert [job.payload[:1] for job in both] == [b"4", b"2"]


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
    """What it wrote again stands behind the end that was known: the answer is begun anew."""
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
