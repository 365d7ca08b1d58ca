"""Folding what was written gives what the writer holds: the log is the only truth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.dedup import Dedup
from taskq.core.folds.freeze import freeze_agenda
from taskq.log.format import codec
from taskq.log.format.frames import Frame
from taskq.log.state import fold as fold_module
from taskq.log.state.fold import fold_frame
from tests.effort import grows, some
from tests.log.state.history import ALL, BASE, SPECS, History, Step, frames_of

NUMBER = st.integers(0, 300)


def step(name: str, first: st.SearchStrategy[int] = NUMBER) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), first, NUMBER, st.booleans())


STEPS = st.lists(
    st.one_of(
        step("begin"),
        step("enqueue"),
        step("enqueue"),
        step("claim"),
        step("claim_elsewhere"),
        step("give_back"),
        step("settle"),
        step("cancel"),
        step("expire"),
        step("note"),
    ),
    max_size=60,
)


def fold(data: bytes) -> tuple[Agenda, Dedup]:
    agenda, dedup = Agenda(), Dedup()
    for frame in frames_of(data):
        fold_frame(BASE, frame, agenda, dedup, None)
    return agenda, dedup


def test_frames_fold_in_small_steps_to_what_they_fold_to_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_module, "_RECORDS_A_STEP", 3)
    monkeypatch.setattr(fold_module, "_KEYS_A_STEP", 3)
    history = History()
    names = ("enqueue", "enqueue", "claim", "settle")
    history.run([(names[n % 4], n, 7 * n, n % 3 == 0) for n in range(120)])
    data = history.segment()
    (agenda, at_once), jobs, keys = fold(data), Agenda(), Dedup()
    steps = 0
    for frame in frames_of(data):
        steps += sum(1 for _ in fold_module.fold_steps(BASE, frame, jobs, None))
        assert list(fold_module.fold_steps(BASE, frame, None, keys))
    assert steps > len(list(frames_of(data)))
    assert at_once.size
    assert list(keys._pages[0].hashes) == list(at_once._pages[0].hashes)
    assert list(keys._pages[0].untils) == list(at_once._pages[0].untils)
    assert list(keys._pages[0].locations) == list(at_once._pages[0].locations)
    assert freeze_agenda(jobs).columns == freeze_agenda(agenda).columns


def payload_at(data: bytes, location: int) -> bytes:
    at = location - BASE
    return codec.enqueue_body(data[at : at + codec.LENGTH.unpack_from(data, at)[0]])


def check_same(history: History, agenda: Agenda, dedup: Dedup) -> None:
    live, jobs = history.agenda, range(1, history.lsn)
    for item in (live, agenda):
        item.promote(history.time_ns, ALL)
    assert [agenda.table.state(job) for job in jobs] == [live.table.state(job) for job in jobs]
    assert [agenda.attempt(job) for job in jobs] == [live.attempt(job) for job in jobs]
    assert agenda.running == live.running
    assert agenda.queues.stats() == live.queues.stats()
    assert agenda.order.next_ready(1_000, None) == live.order.next_ready(1_000, None)
    for hashed in history.hashes:
        for later in (0, 50, 150, 299, 301, ALL):
            moment = history.time_ns + later
            there = [job for job, _ in dedup.holders(hashed, moment)]
            assert there == [job for job, _ in history.dedup.holders(hashed, moment)]
    for span in (50, 100, 150, 200, ALL):
        for item in (live, agenda):
            item.promote(history.time_ns + span, ALL)
        assert agenda.order.next_ready(1_000, None) == live.order.next_ready(1_000, None)
    assert sorted(agenda.expired(ALL, ALL)) == sorted(live.expired(ALL, ALL))


@grows
@settings(max_examples=some(20, 150))
@given(steps=STEPS)
def test_a_fold_equals_what_was_applied_while_writing(steps: list[Step]) -> None:
    """States, attempts, claims, counts, order, keys and moments, with locations to the byte."""
    history = History()
    history.run(steps)
    data = history.segment()
    agenda, dedup = fold(data)
    for job in range(1, history.lsn):
        if agenda.table.state(job):
            assert agenda.location(job) == history.agenda.location(job)
            assert payload_at(data, agenda.location(job)) == b"payload of %d" % job
    for hashed in history.hashes:
        held = list(dedup.holders(hashed, history.time_ns))
        assert held == list(history.dedup.holders(hashed, history.time_ns))
    check_same(history, agenda, dedup)


@pytest.mark.parametrize("size", [codec.PREFIX.size, codec.PREFIX.size + 8])
def test_what_a_later_version_may_add_is_passed_over_however_short(size: int) -> None:
    spec = SPECS[0]
    later = codec.PREFIX.pack(size, 200, 0, 0, 0).ljust(size, b".")
    jobs = [codec.encode_checked(spec.tail, b"{}", lsn) for lsn in (1, 3)]
    body = jobs[0] + later + jobs[1]
    frame = Frame(body, 0, codec.FrameHeader(len(body), 3, 1, 1, 10**18, 0, 0), 64)
    at_once, in_steps = Agenda(), Agenda()
    fold_frame(BASE, frame, at_once, None, None)
    list(fold_module.fold_steps(BASE, frame, in_steps, None))
    for agenda in (at_once, in_steps):
        assert agenda.order.next_ready(9, None) == [1, 3]
    assert freeze_agenda(in_steps).columns == freeze_agenda(at_once).columns
