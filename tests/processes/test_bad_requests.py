"""A request that makes no sense: it fails alone, and the storage thread outlives it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from taskq.core.errors import TaskqError
from taskq.core.model import Durability, Extras
from taskq.core.records import Kind
from taskq.log.machine.threads import Pending
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.port import ThreadPort
from tests.processes.harness import Pause, log_records, of_kind, open_here, put

SPEC = EnqueueSpec()


def wrong_requests(port: ThreadPort) -> list[Pending[Any]]:
    """None of them passes the types, so that each is a bug of its sender."""
    anything: Any = port
    no_delivery: Any = None
    return [
        anything.enqueue(SPEC, "text"),
        anything.enqueue(SPEC, b"x", Extras(headers={"a": "\ud800"})),
        anything.enqueue(SPEC, b"x", Extras(due_ns=2**70)),
        anything.enqueue(SPEC, None),
        anything.enqueue(None, b"x"),
        anything.enqueue_many([(SPEC, b"part", None), (SPEC, "text", None)]),
        anything.cancel("x"),
        anything.settle([Settlement(Kind.SUCCEEDED, no_delivery)]),
    ]


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
def test_a_request_that_makes_no_sense_fails_alone(
    tmp_path: Path, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskq")
    store = open_here(tmp_path, durability)
    port = store.thread_port
    pause = Pause(store)
    good = {"before": port.enqueue(SPEC, b"before")}
    wrong = wrong_requests(port)
    claim: Pending[list[Delivery]] = port.claim(ClaimRequest(1))
    good["after"] = port.enqueue(SPEC, b"after")
    pause.end()
    for future in wrong:
        assert isinstance(future.exception(10), TaskqError)
    [delivery] = claim.result(10)
    assert delivery.payload == b"before"
    seen = {future.result(10): name for name, future in good.items()}
    seen[put(store, b"last")] = "last"
    jobs = of_kind(log_records(tmp_path), Kind.ENQUEUED)
    assert {job.lsn: (job.body or b"").decode() for job in jobs} == seen
    store.close()


def test_a_claim_that_makes_no_sense_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskq")
    store = open_here(tmp_path)
    anything: Any = store.thread_port
    good: Pending[list[Delivery]] = anything.claim(ClaimRequest(1, frozenset({"other"})))
    bad: Pending[Any] = anything.claim(ClaimRequest(1, queues=5))  # type: ignore[arg-type]
    job = put(store, b"x")
    assert isinstance(bad.exception(1), TaskqError)
    [delivery] = anything.claim(ClaimRequest(1)).result(10)
    assert delivery.job == job
    assert anything.settle([Settlement(Kind.SUCCEEDED, delivery)]).result(10) == [None]
    assert not good.done() or isinstance(good.exception(0), TaskqError)
    store.close()


def test_a_bad_settlement_is_reported_to_its_callback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskq")
    store = open_here(tmp_path)
    port = store.thread_port
    put(store, b"x")
    [delivery] = port.claim(ClaimRequest(1)).result(10)
    errors: list[TaskqError] = []
    wrong: Any = "not bytes"
    port.settle_soon(
        [Settlement(Kind.SUCCEEDED, delivery, wrong)], lambda _, error: errors.append(error)
    )
    assert port.settle([Settlement(Kind.SUCCEEDED, delivery)]).result(10) == [None]
    assert len(errors) == 1
    store.close()
