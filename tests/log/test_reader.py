"""Listing jobs from the files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq.core.model import State
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.reader import LogReader
from taskq.log.requests import ClaimRequest, EnqueueSpec, Settlement
from taskq.log.store import open_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Fifty jobs of low priority, then one that overtakes them; all but two have succeeded."""
    store = open_store(str(tmp_path), LogConfig())
    port = store.thread_port
    low = [port.enqueue(EnqueueSpec("q", "t", 1), b"low") for _ in range(50)]
    high = port.enqueue(EnqueueSpec("q", "t", 9), b"high")
    assert len({future.result(10) for future in [*low, high]}) == 51
    deliveries = port.claim(ClaimRequest(49)).result(10)
    assert port.settle([Settlement(Kind.SUCCEEDED, one) for one in deliveries]).result(10)
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
