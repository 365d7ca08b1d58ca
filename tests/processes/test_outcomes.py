"""Answers come after the frame is in the log: an error in them undoes nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from taskq.core.errors import TaskqError
from taskq.core.records import Kind
from taskq.log.commit import answers as watchers
from taskq.log.machine.threads import Pending
from taskq.log.requests import ClaimRequest, EnqueueSpec, Outcome, Settlement
from taskq.log.state.facets import Facets
from tests.processes.harness import Pause, log_records, of_kind, open_here, put


def fail(*_: object) -> None:
    raise OSError(5, "Input/output error")


def jobs_in(path: Path) -> list[int]:
    return [record.lsn for record in of_kind(log_records(path), Kind.ENQUEUED)]


def test_an_outcome_that_does_not_read_back_is_told_as_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskq")
    monkeypatch.setattr(watchers, "read_outcome", fail)
    store = open_here(tmp_path)
    port = store.thread_port
    job = put(store, b"first")
    [delivery] = port.claim(ClaimRequest(1)).result(10)
    outcome: Pending[Outcome] = port.outcome(job)
    assert port.view(job).result(10)
    pause = Pause(store)
    settled = port.settle([Settlement(Kind.SUCCEEDED, delivery, b"result")])
    second = port.enqueue(EnqueueSpec(), b"second")
    pause.end()
    assert settled.result(10) == [None]
    assert isinstance(outcome.exception(10), TaskqError)
    jobs = [job, second.result(10)]
    assert jobs_in(tmp_path) == jobs
    store.close()


def test_outcomes_that_cannot_be_looked_for_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskq")
    store = open_here(tmp_path)
    port = store.thread_port
    job = put(store, b"first")
    [delivery] = port.claim(ClaimRequest(1)).result(10)
    settlement = Settlement(Kind.SUCCEEDED, delivery, b"result")
    assert port.settle([settlement]).result(10) == [None]
    add = watchers.Outcomes.add
    with monkeypatch.context() as patch:

        def add_and_fail(self: watchers.Outcomes, number: int, at: object, future: object) -> None:
            add(self, number, at, future)
            patch.setattr(Facets, "look_back", fail)

        patch.setattr(watchers.Outcomes, "add", add_and_fail)
        pause = Pause(store)
        outcome: Pending[Outcome] = port.outcome(job)
        second = port.enqueue(EnqueueSpec(), b"second")
        pause.end()
        jobs = [job, second.result(10)]
        assert jobs_in(tmp_path) == jobs
    put(store, b"third")
    assert outcome.result(10).body == b"result"
    store.close()
