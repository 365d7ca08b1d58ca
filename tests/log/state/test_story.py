"""The story of a job, as ``taskq show`` tells it, is the same truth that claims are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings

from taskq.core.model import LIVE_STATES, Extras, State
from taskq.core.records import Kind
from taskq.log.format.record import decode_record, places
from taskq.log.state.story import Story
from tests.effort import grows, some
from tests.log.state.history import ALL, SPECS, History, Step, frames_of
from tests.log.state.test_fold import STEPS

if TYPE_CHECKING:
    from taskq.core.views import JobView


def stories(data: bytes) -> dict[int, Story]:
    values: dict[int, Story] = {}
    for frame in frames_of(data):
        for lsn, at, length in places(frame):
            header = frame.header
            record = decode_record(frame.data[at : at + length], lsn, header.epoch, header.time_ns)
            if record.kind == Kind.ENQUEUED:
                values[lsn] = Story("tag", record)
            elif record.kind == Kind.CLOCK:
                for story in values.values():
                    story.clock_stepped(record.lsn, record.step_ns)
            elif record.job in values:
                values[record.job].add(record)
    return values


def forward(steps: list[Step]) -> list[Step]:
    """Return the clock steps ahead only: what was due once is not due again in the story."""
    return [(name, a, b % 150 + 150 if name == "begin" else b, c) for name, a, b, c in steps]


@grows
@settings(max_examples=some(50, 150))
@given(steps=STEPS)
def test_a_story_ends_where_the_agenda_stands(steps: list[Step]) -> None:
    """States and attempts of every job, now and when all that waits is due."""
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


@grows
@settings(max_examples=some(34, 100))
@given(steps=STEPS)
def test_the_counts_of_stories_are_the_counts_of_the_agenda(steps: list[Step]) -> None:
    history = History()
    history.run(forward(steps))
    history.agenda.promote(history.time_ns, ALL)
    views = [story.view(history.time_ns) for story in stories(history.segment()).values()]
    for counts in history.agenda.queues.stats():
        for state in set(State) - {State.ABSENT}:
            seen = [view for view in views if view.queue == counts.queue and view.state is state]
            assert len(seen) == getattr(counts, state.name.lower())


def test_a_delay_is_shown_where_the_clock_moved_it() -> None:
    """Half an hour is still half an hour after the clock was set an hour ahead; an eta is not."""
    history, hour = History(), 3_600 * 10**9
    history._enqueue(SPECS[0], Extras(due_ns=hour // 2))
    history._enqueue(SPECS[0], Extras(due_ns=history.time_ns + hour // 2, due_is_wall=True))
    history.begin(0, hour + 150, has_step=True)
    history.close()
    delayed, dated = (story.view(history.time_ns) for story in stories(history.segment()).values())
    assert (delayed.state, delayed.due_ns) == (State.SCHEDULED, history.time_ns + hour // 2)
    assert (dated.state, dated.due_ns) == (State.READY, 0)


def test_each_attempt_is_told_with_its_outcome() -> None:
    history = History()
    history.enqueue(0, 1, is_wall=False)
    history.claim(1, 7, False)
    history.give_back(0, 0, releases=False)
    history.claim(1, 8, False)
    history.settle(0, 0, succeeds=True)
    (view,) = (story.view(history.time_ns) for story in stories(history.segment()).values())
    assert told(view) == [(1, 7, "retried"), (2, 8, "succeeded")]
    assert (view.state, view.attempt, view.result) == (State.SUCCEEDED, 2, b"body")


def told(view: JobView) -> list[tuple[int, int, str]]:
    return [(attempt.number, attempt.owner, attempt.outcome) for attempt in view.attempts]
