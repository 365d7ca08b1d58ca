"""Ticks in the log: each once, with its jobs, from any process."""

from __future__ import annotations

import pytest

from taskq.core.errors import FormatError, UsageError
from taskq.core.model import Extras
from taskq.core.records import Kind
from taskq.core.schedules import SCHEDULES_MAX, ScheduleState, TickRecord, apply_ticked
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.format.notes import decode_ticked, encode_ticked
from taskq.log.requests import EnqueueSpec, Enrolment, Item, Op, Steer, Turn
from tests.log.tending import fill_segment, keeping, tend
from tests.log.world import Process, World

SPEC = EnqueueSpec("mail", "report")
RULE = Enrolment("nightly", b"cron 0 0 * * * UTC", b"{}")
MINUTE_NS = 60_000_000_000


def _item(key: bytes | None = None) -> Item:
    return SPEC, b"[]", Extras(key=key, until_settled=True) if key else None


def _state(process: Process, name: str = "nightly") -> ScheduleState:
    return process.catch_up().need_agenda().schedules[name]


def _turn(seen_ns: int, *moments: int, key: bytes | None = None) -> Turn:
    return Turn("nightly", seen_ns, moments[-1], moments, tuple(_item(key) for _ in moments))


def test_another_rule_counts_from_now_and_other_details_change_nothing_else(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE])
    before = _state(process)
    world.clock.advance(600)
    process.ask(Op.ENROL, [RULE])
    assert world.kinds() == [Kind.TICKED]
    process.ask(Op.ENROL, [RULE._replace(details=b'{"task":"other"}')])
    assert _state(process) == before._replace(details=b'{"task":"other"}')
    process.ask(Op.ENROL, [RULE._replace(rule=b"every 60")])
    assert _state(process).done_ns == world.clock.wall_ns()
    assert _state(process).rule == b"every 60"


def test_no_tick_is_written_ahead_of_its_time_or_twice_when_the_clock_falls(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE])
    start = _state(process).done_ns
    assert process.ask(Op.TICK, _turn(start, start + MINUTE_NS)) is None
    world.clock.advance(120)
    process.ask(Op.TICK, _turn(start, start + MINUTE_NS))
    world.clock.step(-3_600)
    done = _state(process).done_ns
    assert done == start + MINUTE_NS
    assert process.ask(Op.TICK, _turn(done, start)) is None
    assert process.ask(Op.TICK, _turn(done, done + MINUTE_NS)) is None
    assert process.ask(Op.STEER, Steer("nightly", "reset")) is True
    assert _state(process).done_ns == world.clock.wall_ns() < start
    assert world.kinds().count(Kind.ENQUEUED) == 1


def test_a_schedule_that_was_removed_is_new_when_it_comes_again(world: World) -> None:
    process = world.process()
    process.ask(Op.ENROL, [RULE, RULE._replace(name="weekly")])
    assert process.ask(Op.STEER, Steer("nightly", "forget")) is True
    assert set(process.catch_up().need_agenda().schedules) == {"weekly"}
    with pytest.raises(UsageError, match=r"no schedule 'nightly' \(it knows weekly\)"):
        process.ask(Op.STEER, Steer("nightly", "pause"))
    assert set(world.fold().need_agenda().schedules) == {"weekly"}
    world.clock.advance(60)
    process.ask(Op.ENROL, [RULE])
    assert _state(process) == ScheduleState(0, world.clock.wall_ns(), False, *RULE[1:])


def test_what_a_log_knows_of_schedules_is_bounded(world: World) -> None:
    process = world.process()
    many = [Enrolment(f"s{number}", b"every 60", b"{}") for number in range(SCHEDULES_MAX)]
    process.ask(Op.ENROL, many)
    with pytest.raises(UsageError, match=f"10001 schedules .* the most is {SCHEDULES_MAX}"):
        process.ask(Op.ENROL, [RULE])
    known = dict(process.catch_up().need_agenda().schedules)
    apply_ticked(known, TickRecord("written by others", ScheduleState()))
    assert len(known) == SCHEDULES_MAX


def test_schedules_of_too_many_bytes_are_refused(world: World) -> None:
    many = [Enrolment(f"s{number}", b"r" * 500, b"d" * 2_000) for number in range(2_000)]
    with pytest.raises(UsageError, match="bytes"):
        world.process().ask(Op.ENROL, many)
    assert world.kinds() == []


def test_compaction_carries_schedules_as_they_stand() -> None:
    world = World(config=keeping(keep_bytes=2 * SEGMENT_BYTES_MIN, keep_seconds=None))
    process = world.process()
    process.ask(Op.ENROL, [RULE, RULE._replace(name="weekly", rule=b"every 99")])
    process.ask(Op.STEER, Steer("weekly", "pause"))
    start = _state(process).done_ns
    world.clock.advance(90)
    process.ask(Op.TICK, _turn(start, start + MINUTE_NS))
    for _ in range(8):
        fill_segment(process)
    before = dict(process.catch_up().need_agenda().schedules)
    tend(process)
    assert len(world.segments()) <= 3
    assert world.fold().need_agenda().schedules == before
    assert (before["nightly"].last_ns, before["weekly"].is_paused) == (start + MINUTE_NS, True)
    assert world.process().ask(Op.TICK, _turn(start, start + MINUTE_NS)) is None


def test_a_name_that_is_too_long_is_damage() -> None:
    record = encode_ticked(TickRecord("x" * 300, ScheduleState()), 5)
    with pytest.raises(FormatError, match="300 bytes"):
        decode_ticked(record)
