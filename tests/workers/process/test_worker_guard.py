"""A guard whose system starts no process for a while keeps the workers that it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskq_workers.process import guard
from taskq_workers.process.guard import Guard
from taskq_workers.process.leash import Notifier, WorkerProcess


class Started:
    """A worker process that serves."""

    refuses = False

    def __init__(self, number: int, _command: list[str]) -> None:
        if Started.refuses:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.number = number
        self.ready = True
        self.error = ""
        self.stops = 0

    def stop(self, _drain_seconds: float) -> None:
        self.stops += 1


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def guarding(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(guard, "WorkerProcess", Started)
    monkeypatch.setattr(Started, "refuses", False)
    result = Guard(
        ["worker"],
        2,
        burst=False,
        reloads=False,
        drain_seconds=1,
        say=said.append,
        complain=said.append,
        notifier=Notifier(),
    )
    yield result
    result._alarm.close()
    result._poke.close()


def test_a_worker_that_cannot_be_started_is_tried_again_after_a_pause(
    guarding: Any, said: list[str]
) -> None:
    Started.refuses = True
    guarding._start_due()
    assert all(place.current is None and place.restart_at for place in guarding._places)
    assert "worker 1 cannot be started (" in said[0]
    Started.refuses = False
    guarding._places[0].restart_at = 0.0
    guarding._start_due()
    assert guarding._places[0].current is not None


def test_a_replacement_that_cannot_be_started_leaves_the_old_workers(
    guarding: Any, said: list[str]
) -> None:
    guarding._start_due()
    before = [place.current for place in guarding._places]
    Started.refuses = True
    guarding._replace_asked = True
    guarding._act()
    assert [place.current for place in guarding._places] == before
    assert not guarding._to_replace
    assert "the old ones stay" in said[-1]


@pytest.mark.parametrize(
    ("is_ready", "code", "exit_code"), [(False, -15, 0), (True, -15, 1), (False, -9, 1)]
)
def test_workers_that_are_stopped_while_they_start_are_no_failure(
    guarding: Any, is_ready: bool, code: int, exit_code: int
) -> None:
    guarding._start_due()
    guarding._stops_asked = 1
    guarding._act()
    for worker in guarding._processes():
        worker.ready = is_ready
        guarding._on_ended(worker, code)
    assert guarding._is_over()
    assert guarding._exit_code == exit_code


def test_a_worker_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = sorted(Path("/dev/fd").iterdir())
    with pytest.raises(FileNotFoundError) as refused:
        WorkerProcess(1, ["/there/is/no/such/command"])
    assert refused.tb is not None  # which has the process that never was, and its socket
    assert sorted(Path("/dev/fd").iterdir()) == before
