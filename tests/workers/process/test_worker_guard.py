"""A guard keeps its workers running: a table of (life, event) and actions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskq_workers.process import guard
from taskq_workers.process.guard import TABLE, Event, Guard, ProcessLife, WorkerProcess
from taskq_workers.process.supervisor import Notifier

REFUSAL = "the log cannot be used"


class Started:
    """A worker process that is on its way."""

    refuses = False

    def __init__(self, number: int, _command: list[str], life: ProcessLife) -> None:
        if Started.refuses:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.number = number
        self.life = life
        self.pid = 1000 + number
        self.started = 0.0
        self.ready = life in {ProcessLife.SERVING, ProcessLife.LEAVING}
        self.error = ""
        self.stops = 0

    def stop(self, _drain_seconds: float) -> None:
        self.stops += 1


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def guarding(
    said: list[str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    monkeypatch.setattr(guard, "WorkerProcess", Started)
    monkeypatch.setattr(Started, "refuses", False)
    result: Any = Guard(
        ["worker"],
        2,
        burst=getattr(request, "param", False),
        drain_seconds=1,
        say=said.append,
        complain=said.append,
        notifier=Notifier(),
    )
    result._start_due()
    yield result
    result._alarm.close()
    result._poke.close()


def lives(guarding: Any) -> list[tuple[int, ProcessLife]]:
    return [(process.number, process.life) for process in guarding._processes]


def become_ready(guarding: Any, process: Any) -> None:
    process.ready = True
    guarding._happened(process, Event.READY)


def test_a_worker_that_cannot_be_started_is_tried_again_after_a_pause(
    guarding: Any, said: list[str]
) -> None:
    Started.refuses = True
    guarding._ended(guarding._processes[0], -9)
    guarding._places[0].start_at = 0.0
    guarding._start_due()
    assert guarding._places[0].start_at
    assert "worker 1 cannot be started (" in said[-1]
    assert said[-1].endswith("started again in 1 s")
    Started.refuses = False
    guarding._places[0].start_at = 0.0
    guarding._start_due()
    assert sorted(lives(guarding)) == [(1, ProcessLife.STARTING), (2, ProcessLife.STARTING)]


def test_a_replacement_that_cannot_be_started_leaves_the_old_workers(
    guarding: Any, said: list[str]
) -> None:
    before = list(guarding._processes)
    Started.refuses = True
    guarding._replace_asked = True
    guarding._act()
    assert guarding._processes == before
    assert not guarding._to_replace
    assert "the old ones stay" in said[-1]


@pytest.mark.parametrize(
    ("is_ready", "code", "exit_code"), [(False, -15, 0), (True, -15, 1), (False, -9, 1)]
)
def test_workers_that_are_stopped_while_they_start_are_no_failure(
    guarding: Any, is_ready: bool, code: int, exit_code: int
) -> None:
    guarding._stops_asked = 1
    guarding._act()
    for worker in list(guarding._processes):
        worker.ready = is_ready
        guarding._ended(worker, code)
    assert not guarding._processes
    assert [place.start_at for place in guarding._places] == [None, None]
    assert guarding._exit_code == exit_code


def test_each_worker_is_replaced_once_its_successor_is_ready(guarding: Any) -> None:
    for process in list(guarding._processes):
        become_ready(guarding, process)
    guarding._replace_asked = True
    guarding._act()
    for number in (1, 2):
        coming = guarding._processes[-1]
        assert (coming.number, coming.life) == (number, ProcessLife.COMING)
        become_ready(guarding, coming)
    assert lives(guarding) == [
        *((1, ProcessLife.LEAVING), (2, ProcessLife.LEAVING)),
        *((1, ProcessLife.SERVING), (2, ProcessLife.SERVING)),
    ]
    assert [process.stops for process in guarding._processes] == [1, 1, 0, 0]


def test_a_worker_that_died_before_its_successor_was_ready_is_not_started_as_well(
    guarding: Any,
) -> None:
    for process in list(guarding._processes):
        become_ready(guarding, process)
    guarding._to_replace.append(guarding._places[0])
    guarding._replace_next()
    guarding._ended(guarding._processes[0], -9)
    become_ready(guarding, guarding._processes[-1])
    guarding._ended(guarding._processes[-1], 0)
    guarding._start_due()
    assert sorted(lives(guarding)) == [(1, ProcessLife.STARTING), (2, ProcessLife.SERVING)]


AGAIN, OVER, PAUSED = "again", "over", "paused"


@pytest.mark.parametrize(
    ("guarding", "event", "then", "exit_code"),
    [
        (False, Event.DONE, AGAIN, 0),
        (False, Event.WRONG, OVER, 2),
        (False, Event.REFUSED, PAUSED, 0),
        (False, Event.DIED, PAUSED, 0),
        (True, Event.DONE, OVER, 0),
        (True, Event.WRONG, OVER, 2),
        (True, Event.REFUSED, OVER, 2),
        (True, Event.DIED, PAUSED, 0),
    ],
    indirect=["guarding"],
)
def test_the_end_of_a_worker_leads_to_another_or_to_the_end(
    guarding: Any, said: list[str], event: Event, then: str, exit_code: int
) -> None:
    code = 0 if event is Event.DONE else 1 if event is Event.DIED else 2
    process, place = guarding._processes[0], guarding._places[0]
    process.started = float("inf")
    guarding._happened(process, event, code)
    is_paused = bool(said) and said[-1].endswith("started again in 0.5 s")
    seen = OVER if place.start_at is None else PAUSED if is_paused else AGAIN
    assert (seen, guarding._exit_code) == (then, exit_code)
    assert guarding._processes[1].stops == (event is Event.WRONG)


@pytest.mark.parametrize(
    ("code", "is_ready", "error", "event"),
    [
        (0, True, "", Event.DONE),
        (2, False, REFUSAL, Event.WRONG),
        (2, True, REFUSAL, Event.DIED),
        (1, False, REFUSAL, Event.REFUSED),
        (1, False, "", Event.DIED),
        (-9, True, "", Event.DIED),
    ],
)
def test_an_exit_code_means_more_before_the_worker_was_ready(
    code: int, is_ready: bool, error: str, event: Event
) -> None:
    process: Any = Started(1, [], ProcessLife.STARTING)
    process.ready, process.error = is_ready, error
    assert guard._end_of(process, code) is event


def test_the_table_has_an_action_for_whatever_may_happen() -> None:
    """A worker that serves is ready once, and its end is no end of a start."""
    before = {Event.READY, Event.WRONG, Event.REFUSED}
    possible = {
        (life, event)
        for life, event in itertools.product(ProcessLife, Event)
        if life is not ProcessLife.SERVING or event not in before
    }
    assert set(TABLE) == possible


def test_a_worker_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = sorted(Path("/dev/fd").iterdir())
    with pytest.raises(FileNotFoundError) as refused:
        WorkerProcess(1, ["/there/is/no/such/command"], ProcessLife.STARTING)
    assert refused.tb is not None  # which has the process that never was, and its socket
    assert sorted(Path("/dev/fd").iterdir()) == before
