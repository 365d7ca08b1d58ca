"""The history of a job agrees with the state of claims, also once it is carried."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings

from taskq.core.errors import JobNotFound
from taskq.core.model import LIVE_STATES, Extras, State
from taskq.core.parsing import Tag
from taskq.core.records import Cause, Kind
from taskq.core.views import JobView
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format import codec
from taskq.log.format.carried import Carried, encode_carried, encode_history
from taskq.log.format.record import Record, places
from taskq.log.state.job_history import Story, find_end, is_job, job_view, read_outcome
from tests.effort import grows, some
from tests.log.state.history import ALL, History, Step, frames_of
from tests.log.state.test_fold import STEPS
from tests.log.world import Process, World


def stories(data: bytes) -> dict[int, Story]:
    values: dict[int, Story] = {}
    for frame in frames_of(data):
        for lsn, at, length in places(frame):
            header = frame.header
            record = Record(frame.data[at : at + length], lsn, header.epoch, header.time_ns)
            if record.type == Kind.ENQUEUED:
                values[lsn] = Story(Tag("tag"), record)
            elif record.type == Kind.CLOCK:
                for story in values.values():
                    story.clock_stepped(record.lsn, record.step_ns)
            elif record.job in values:
                values[record.job].add(record)
    return values


def forward(steps: list[Step]) -> list[Step]:
    """Return the clock steps ahead only: what was due once is not due again in the story."""
    return [(name, a, b % 150 + 150 if name == "begin" else b, c) for name, a, b, c in steps]


@grows
@settings(max_examples=some(20, 150))
@given(steps=STEPS)
def test_a_story_ends_where_the_agenda_stands(steps: list[Step]) -> None:
    history = History()
    history.run(forward(steps))
    result = stories(history.segment())
    for later in (0, ALL):
        now = history.time_ns + later
        history.agenda.promote(now, ALL)
        for job, story in result.items():
            view = story.view(now)
            state = history.agenda.table.state(job)
            assert view.state is state or (not state and view.state not in LIVE_STATES)
            assert not state or view.attempt == history.agenda.attempt(job)
            assert bool(view.settled_ns) == (view.state not in LIVE_STATES)


# -- carried stories -------------------------------------------------------------------------------


_SECOND: Final = 10**9


def _view(process: Process, job: int) -> JobView | None:
    return job_view(process.world.reader(), job, process.world.clock.wall_ns())


def _next_segment(process: Process) -> None:
    while process.journal.offset < SEGMENT_BYTES_MIN:
        process.enqueue(b"x" * 30_000)
    process.enqueue(b"first of the next")


def _carry(process: Process, job: int, kind: Kind = Kind.CARRIED, *, dies: bool = False) -> JobView:
    """Carry a job into a later segment, and remove its first one.

    Unless compaction ``dies`` before it can.
    """
    view = _view(process, job)
    assert view is not None
    result = process.world.reader().indexes.find(job)
    assert result is not None
    body = view.result if view.state is State.SUCCEEDED else None
    if view.state is State.DEAD:
        body = view.reason.encode()
    carried = Carried(
        job=job, state=view.state, born=result.record, enqueued_ns=view.enqueued_ns,
        attempt=view.attempt, due_ns=view.due_ns, ended_ns=view.settled_ns,
        history=encode_history(view.attempts), body=body,
    )  # fmt: skip
    _next_segment(process)
    process.append(encode_carried(kind, carried, process.journal.next_lsn))
    if not dies:
        process.journal.files.remove(1)
    return view


def _settled(process: Process, kind: Kind = Kind.SUCCEEDED, body: bytes = b"the end") -> int:
    job = process.enqueue(b"payload", Extras(key=b"k", headers={"trace": "x"}))
    [delivery] = process.claim()
    process.settle(delivery, Kind.RETRIED, body=b"not yet", delay_ns=_SECOND)
    process.world.clock.advance(2)
    [delivery] = process.claim()
    process.settle(delivery, kind, body=body)
    return job


def test_a_waiting_job_keeps_what_it_waits_for() -> None:
    process = World().process()
    job = process.enqueue(b"payload", Extras(due_ns=100 * _SECOND))
    before = _carry(process, job)
    assert before.state is State.SCHEDULED
    assert _view(process, job) == before


def test_a_record_that_carries_a_job_still_known_changes_nothing() -> None:
    process = World().process()
    job = _settled(process)
    before = _carry(process, job, dies=True)
    assert _view(process, job) == before


@pytest.mark.parametrize("kind", [Kind.SUCCEEDED, Kind.DEAD])
def test_who_waits_for_a_carried_job_gets_its_outcome(kind: Kind) -> None:
    process = World().process()
    job = _settled(process, kind, b"so it ended")
    _carry(process, job)
    reader = process.world.reader()
    assert is_job(reader, job)
    location = find_end(reader, job)
    assert location is not None
    outcome = read_outcome(reader, location)
    state = State.SUCCEEDED if kind is Kind.SUCCEEDED else State.DEAD
    assert (outcome.state, outcome.body) == (state, b"so it ended")


def test_a_carried_job_that_waits_has_no_end() -> None:
    process = World().process()
    job = process.enqueue(b"payload")
    _carry(process, job)
    assert find_end(process.world.reader(), job) is None


def test_a_dead_letter_that_was_requeued_and_purged_is_told_so() -> None:
    process = World().process()
    job = _settled(process, Kind.DEAD)
    _carry(process, job, Kind.REQUEUED)
    view = _view(process, job)
    assert view is not None
    assert (view.state, view.attempt, view.reason, view.settled_ns) == (State.READY, 0, "", 0)
    assert len(view.attempts) == 2
    assert find_end(process.world.reader(), job) is None
    process.append(codec.encode_job(Kind.PURGED, Cause.CALLER, 0, job, 0))
    assert _view(process, job) is None
    location = find_end(process.world.reader(), job)
    assert location is not None
    with pytest.raises(JobNotFound, match="purged"):
        read_outcome(process.world.reader(), location)


def test_a_job_of_which_only_the_key_is_kept_is_no_job_any_more() -> None:
    process = World().process()
    job = _settled(process)
    result = process.world.reader().indexes.find(job)
    assert result is not None
    _next_segment(process)
    carried = Carried(job, State.ABSENT, result.record, 1)
    process.append(encode_carried(Kind.CARRIED, carried, process.journal.next_lsn))
    process.journal.files.remove(1)
    reader = process.world.reader()
    assert job_view(reader, job, 0) is None
    assert not is_job(reader, job)
    with pytest.raises(JobNotFound):
        find_end(reader, job)
