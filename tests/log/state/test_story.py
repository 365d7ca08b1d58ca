"""The history of a job in ``taskq show`` agrees with the state of claims."""

from __future__ import annotations

from hypothesis import given, settings

from taskq.core.model import LIVE_STATES
from taskq.core.parsing import Tag
from taskq.core.records import Kind
from taskq.log.format.record import Record, places
from taskq.log.state.job_history import Story
from tests.effort import grows, some
from tests.log.state.history import ALL, History, Step, frames_of
from tests.log.state.test_fold import STEPS


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
