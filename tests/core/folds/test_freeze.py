"""Folds are equal before and after a trip through columns of numbers."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.flows import Flows, needs_of
from taskq.core.folds.agenda import (
    Agenda,
    apply_begun,
    apply_carried,
    apply_carried_run,
    apply_requeued,
    apply_signal,
    apply_step,
    apply_tallied,
    apply_waiting,
    forget_dead,
)
from taskq.core.folds.claims import GONE, LaneQueues
from taskq.core.folds.dedup import Dedup, _Page
from taskq.core.folds.freeze import Frozen, freeze_agenda, freeze_dedup, thaw_agenda, thaw_dedup
from taskq.core.folds.jobtable import META_EXPIRES, META_FLOW, Chunk, JobTable
from taskq.core.folds.lanes import Family, Lane
from taskq.core.folds.moments import Ages, Leases, Returned, SortedBlocks, Timetable
from taskq.core.folds.steps import Form, Signal, Steps, Wait, pack_waits
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.core.sources import SourceRecord, SourceState
from tests.effort import grows, some

# -- frozen ----------------------------------------------------------------------------------------


ALL: Final = 2**62
START_NS: Final = 10**18
#: So short that jobs rise within a few steps.
WINDOW_NS: Final = 256
_KEYS: Final = (
    *(
        bytes((len(queue), len(task))) + queue + task
        for queue in (b"default", b"mail", "é".encode())
        for task in (b"", b"send")
    ),
    b"\x04\x04mailsend#1",
    b"\x04\x04mailsend#2",
)
#: The fate of each attribute: "kept" is in the columns, "derived" is made from kept ones, "reset"
#: is only a cursor, and "bound" belongs to another object of these.
DECISIONS: Final[dict[type, dict[str, str]]] = {
    Agenda: {
        "table": "kept", "dead": "kept", "running": "kept", "leases": "kept", "flows": "kept",
        "steps": "kept",
        "times": "kept", "ages": "kept", "schedules": "kept", "sources": "kept",
        "controls": "kept", "queues": "kept",
        "floor_lsn": "kept", "edits": "reset", "steered": "reset",
        "_scheduled": "kept", "_expiring": "kept", "_left": "kept",
        "lanes": "bound", "groups": "bound", "order": "bound", "_is_fresh": "bound",
    },
    LaneQueues: {
        "lanes": "kept", "ready": "derived", "paused": "kept", "paused_tasks": "kept",
        "groups": "kept",
        "_by_key": "derived", "_families": "reset", "_free": "derived", "_ages": "bound",
    },
    Ages: {
        "window_ns": "reset", "moment": "kept", "aged_at": "reset", "_lsns": "kept",
        "_moments": "kept",
    },
    Lane: {
        "number": "derived", "key": "kept", "queue": "derived", "task": "derived",
        "body_at": "derived", "priority": "kept", "blocked": "kept", "entries": "kept",
        "left": "kept", "ready": "kept", "scheduled": "kept", "running": "kept",
        "succeeded": "kept", "dead": "kept", "cancelled": "kept", "expired": "kept",
        "_blocks": "kept", "_head": "kept", "_swept": "kept", "_back": "kept",
        "family": "reset", "group": "reset",
    },
    JobTable: {
        "_chunks": "kept", "_firsts": "derived", "_last": "derived", "_hint": "reset",
        "_old": "kept", "index": "reset", "live": "kept",
    },
    Chunk: {
        "ids": "kept", "locations": "kept", "lanes": "kept", "metas": "kept", "used": "derived",
        "live": "kept",
    },
    SortedBlocks: {
        "_keys": "kept", "_values": "kept", "_firsts": "derived", "_swept": "kept",
        "size": "derived", "_found": "reset",
    },
    Returned: {
        "_keys": "kept", "_values": "kept", "_firsts": "derived", "_swept": "reset",
        "size": "derived", "_found": "reset", "_lows": "reset",
    },
    Timetable: {
        "shift_ns": "kept", "_shifted": "kept", "_wall": "kept", "_expiries_shifted": "kept",
        "_expiries_wall": "kept", "over": "reset", "_over_ns": "reset",
    },
    Steps: {
        "places": "kept", "signals": "kept", "taken": "kept", "waits": "kept", "begun": "kept",
        "calls": "kept", "orphans": "kept", "undos": "kept",
    },
    Flows: {"held": "kept", "todo": "derived", "ended": "reset"},
    Leases: {"shift_ns": "kept", "_deadlines": "kept", "_order": "kept", "asked": "kept"},
    Dedup: {
        "shift_ns": "kept", "size": "kept", "_firsts": "kept", "_pages": "kept",
        "_swept": "kept", "_taken": "kept", "edits": "reset",
    },
    _Page: {"hashes": "kept", "jobs": "kept", "locations": "kept", "untils": "kept"},
}  # fmt: skip


def attributes(part: object) -> list[str]:
    if hasattr(part, "__dict__"):
        return sorted(vars(part))
    return sorted(name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ()))


def own(part: object) -> list[str]:
    return [name for name in attributes(part) if DECISIONS[type(part)].get(name) != "bound"]


def picture(part: Any) -> Any:
    """Everything that is reached from an object, as plain values; what is "reset" is left out."""
    if type(part) in DECISIONS:
        names = [name for name in own(part) if DECISIONS[type(part)].get(name) != "reset"]
        return {name: _attribute(part, name) for name in names}
    if isinstance(part, array):
        return part.typecode, part.tolist()
    if isinstance(part, list | tuple | deque):
        return [picture(item) for item in part]
    if isinstance(part, dict):
        return {key: picture(value) for key, value in part.items()}
    return part


def _attribute(part: Any, name: str) -> Any:
    value = getattr(part, name)
    if name == "_last":
        return part._chunks.index(value) if part._chunks else None
    if name == "_by_key":
        return [{key: lane.number for key, lane in level.items()} for level in value]
    if name == "ready" and isinstance(part, LaneQueues):
        return [{lane.number for lane in _each_lane(level)} for level in value]
    if name == "groups":
        rows = ((key, times.pairs()) for key, times in value.rows(part._ages.moment))
        return dict(rows), {key: group.running for key, group in value._groups.items()}
    if isinstance(part, Chunk) and isinstance(value, array):
        return picture(value[: part.used])
    return picture(value)


def _each_lane(ready: Iterable[Lane | Family]) -> Iterable[Lane]:
    for lane in ready:
        if isinstance(lane, Lane):
            yield lane
        else:
            yield from lane.ready


class Columns:
    """A source that gives out what was frozen, and nothing that is shared with it."""

    def __init__(self, frozen: Frozen) -> None:
        self._columns = [
            (code, [number for part in parts for number in part]) for code, parts in frozen.columns
        ]
        self._columns.reverse()

    def take(self, code: str) -> array[int]:
        stored, numbers = self._columns.pop()
        if stored != code:
            raise ValueError(f"{stored} stands where {code} should")
        return array(code, numbers)

    def take_arrays(self, code: str) -> list[array[int]]:
        sizes, numbers = self.take("I"), self.take(code)
        parts: list[array[int]] = []
        at = 0
        for size in sizes:
            parts.append(numbers[at : at + size])
            at += size
        return parts

    def take_locations(self) -> list[array[int]]:
        return self.take_arrays("Q")

    @property
    def left(self) -> int:
        return len(self._columns)

    def is_empty(self) -> bool:
        return not self._columns


#: (name, number, number, flag)
Step = tuple[str, int, int, bool]


@dataclass(slots=True)
class Driven:
    """An agenda and a table of keys, and steps that change them.

    A step depends only on the folds, so equal folds stay equal.
    """

    agenda: Agenda = field(default_factory=Agenda)
    dedup: Dedup = field(default_factory=Dedup)
    lsn: int = 1
    time_ns: int = START_NS

    def __post_init__(self) -> None:
        self.agenda.ages.window_ns = WINDOW_NS

    def twin(self) -> Driven:
        agenda, dedup = Columns(freeze_agenda(self.agenda)), Columns(freeze_dedup(self.dedup))
        twin = Driven(thaw_agenda(agenda), thaw_dedup(dedup), self.lsn, self.time_ns)
        assert agenda.is_empty()
        assert dedup.is_empty()
        return twin

    def do(self, steps: Iterable[Step]) -> list[object]:
        return [getattr(self, name)(*rest) for name, *rest in steps]

    def _lane(self, number: int) -> Lane:
        return self.agenda.queues.lane((number * 3) % 10, _KEYS[number % len(_KEYS)])

    def _pick(self, number: int, state: State) -> int:
        jobs = [
            chunk.ids[at]
            for chunk in self.agenda.table._chunks
            for at, meta in enumerate(chunk.metas[: chunk.used])
            if meta & 7 == state
        ]
        return jobs[number % len(jobs)] if jobs else 0

    # -- steps -------------------------------------------------------------------------------------

    def run(self, number: int, count: int, large: bool) -> None:
        count = count * 40 if large else count % 5 + 1
        locations = [(number % 3 << 32) + (self.lsn + at) * 64 for at in range(count)]
        self.agenda.apply_enqueued_run(self.lsn, locations, self._lane(number), 0)
        self.lsn += count

    def schedule(self, number: int, delay: int, is_wall: bool) -> None:
        due = self.time_ns + delay * 10
        meta = META_EXPIRES if number % 2 else 0
        lane = self._lane(number)
        self.agenda.apply_scheduled(self.lsn, self.lsn * 64, lane, meta, due, is_wall)
        if meta:
            self.agenda.apply_expiry(self.lsn, due + number, is_wall)
        self.lsn += 1

    def schedule_many(self, number: int, count: int, is_wall: bool) -> None:
        for at in range(count * 8):
            self.schedule(number, (at * 7919) % 997, is_wall)

    def take(self, count: int, owner: int, leased: bool) -> object:
        taken = self.agenda.order.take(count, None, None)
        for job, _, _, lane, _ in taken:
            self.agenda.running[job] = (self.lsn, 2**63 + owner, owner)
            self.lsn += 1
            if lane.group is not None:
                self.agenda.groups.rated(lane.group, self.agenda.moment, 1, 5, WINDOW_NS)
            if leased:
                self.agenda.leases.apply_until(job, self.time_ns + count * 5)
        return [(job, at, attempt, lane.number, meta) for job, at, attempt, lane, meta in taken]

    def claim_elsewhere(self, number: int, owner: int, ready: bool) -> object:
        job = self._pick(number, State.READY if ready else State.SCHEDULED)
        self.lsn += 1
        return job, self.agenda.apply_claimed(job, self.lsn - 1, 7, owner, 2)

    def ask(self, number: int, count: int, stale: bool) -> object:
        """Somebody wants a running job cancelled, or one of an earlier claim."""
        job = self._pick(number, State.RUNNING)
        token = self.agenda.running.get(job, (0,))[0] - stale * count
        self.lsn += 1
        self.agenda.apply_cancel_asked(job, token)
        return sorted(self.agenda.leases.asked)

    def back(self, number: int, delay: int, _: bool) -> object:
        job = self._pick(number, State.RUNNING)
        due = self.time_ns + delay if delay % 2 else 0
        self.lsn += 1
        return job, self.agenda.apply_back(job, number % 4, due, self.time_ns)

    def end(self, number: int, kind: int, _: bool) -> object:
        state = (State.RUNNING, State.READY, State.SCHEDULED)[kind % 3]
        kinds = [Kind.CANCELLED, Kind.SUCCEEDED, Kind.DEAD][: 3 if state is State.RUNNING else 1]
        job = self._pick(number, state)
        self.lsn += 1
        ended = self.agenda.apply_ended(kinds[number % len(kinds)], job, self.time_ns)
        return job, ended

    def end_many(self, number: int, count: int, _: bool) -> None:
        for job in range(number * 13 % max(self.lsn, 1), self.lsn)[: count * 30]:
            if self.agenda.apply_claimed(job, 1, 1, 7, 1):
                self.agenda.apply_ended(Kind.SUCCEEDED, job)

    def cancel_many(self, number: int, count: int, _: bool) -> None:
        jobs = [chunk.ids[at] for chunk, at in self.agenda.table]
        for job in jobs[::-1][number:][: count * 30]:
            self.agenda.apply_ended(Kind.CANCELLED, job)

    def pass_time(self, span: int, step: int, has_step: bool) -> object:
        self.time_ns += span * 5
        if has_step:
            self.time_ns += step - 150
            self.agenda.apply_clock(step - 150)
            self.dedup.apply_clock(step - 150)
        self.agenda.promote(self.time_ns, 500)
        self.agenda.ages.note(self.lsn, self.agenda.moment)
        moments = self.agenda.next_due_ns(), self.agenda.next_expiry_ns()
        return moments, self.agenda.leases.next_ns()

    def expire(self, count: int, _: int, __: bool) -> object:
        jobs = self.agenda.expired(self.time_ns, count)
        for job in jobs:
            self.agenda.apply_ended(Kind.EXPIRED, job)
        return jobs, self.agenda.leases.over(self.time_ns, count)

    def pause(self, number: int, _: int, resumes: bool) -> object:
        queue = ("default", "mail", "é")[number % 3]
        (self.agenda.queues.apply_resumed if resumes else self.agenda.queues.apply_paused)(queue)
        return self.agenda.queues.any_ready()

    def hold(self, number: int, count: int, ends: bool) -> object:
        held = self.agenda.flows.held
        if ends and held:
            job = list(held)[number % len(held)]
            self.agenda.flows.apply_end(self.lsn, self.lsn << 8, [job], self.agenda.left_of_calls)
        else:
            needs = needs_of(count % 5, number % 3, doomed=count == 3)
            self.agenda.apply_held(self.lsn, self.lsn << 8, self._lane(number), META_FLOW, needs)
            self.lsn += 1
        return list(self.agenda.flows.todo)

    def suspend(self, number: int, delay: int, holds: bool) -> object:
        job = self._pick(number, State.RUNNING)
        due = self.time_ns + delay * (delay % 3) if delay % 2 else 2**62
        waits = [Wait(Form.EVENT, f"é{number % 3}", 1, due if delay % 2 else 0)]
        self.lsn += 1
        needs = needs_of(number % 4 + 1, 1) if holds else None
        apply_waiting(self.agenda, job, 1, due, self.time_ns, pack_waits(waits), needs)
        return self.agenda.steps.awaits(job, "é1"), self.agenda.steps.moment(job)

    def step(self, number: int, place: int, takes: bool) -> object:
        job = self._pick(number, State.RUNNING)
        signal = self.agenda.steps.find_signal(job, b"x") if takes else None
        taken, once = (0, b"") if signal is None else (signal.number, signal.once)
        location, title = (7 << 32) + self.lsn * 64, (f"é{number % 3}", 1)
        called = (max(job - 40, 1), 90) if place % 3 == 0 else None
        more = title, called, Form.UNDO if takes else Form.STEP
        apply_step(self.agenda, job, place % 20, location, taken, once, *more)
        if place % 4 == 1:
            wait = Wait(Form.SLEEP, "sleep", place, self.time_ns + place)
            apply_begun(self.agenda, job, pack_waits([wait]))
        self.lsn += 1
        return self.agenda.steps.count(job), self.agenda.steps.knows_once(job, b"once 1")

    def signal(self, number: int, count: int, again: bool) -> object:
        job = self._pick(number, State(number % 3 + 1))
        signal = Signal(
            max(0, self.lsn - 3 * again), b"xy"[count % 2 :][:1], b"once %d" % (count % 5), 64
        )
        apply_signal(self.agenda, job, signal)
        self.lsn += 1
        return self.agenda.steps.awaiting(job, 0)

    def tick(self, number: int, count: int, is_gone: bool) -> object:
        state = ScheduleState(count, number, number % 3 == 0, b"every 60", bytes([number % 7]))
        ticked = TickRecord(f"é{number % 4}", state, is_gone=is_gone, has_rule=count % 2 == 0)
        self.agenda.apply_ticked(ticked)
        wish = b'{"concurrency":3,"paused":true}' if count % 3 else b""
        task = ("task:a.b", "task:é", "slots")[number % 3]
        self.agenda.apply_steered(SourceRecord(task, SourceState(wish, number)))
        self.agenda.sources[f"é{number % 3}"] = SourceState(b"[%d]" % count, number)
        return None

    def revive(self, number: int, _: int, purges: bool) -> object:
        dead = [chunk.ids[at] for chunk, at in self.agenda.dead]
        if not dead:
            return 0
        job = dead[number % len(dead)]
        if purges:
            return job, forget_dead(self.agenda, job)
        self.lsn += 1
        apply_requeued(self.agenda, job, self.lsn * 64, self._lane(number), 0)
        return job

    def carry(self, number: int, count: int, is_run: bool) -> None:
        """Compaction wrote jobs again: known ones, or some that were never seen here."""
        lane, first = self._lane(number), self.lsn
        self.lsn += 2 * count + 2
        jobs = list(range(first, first + 2 * count + 1, 2))
        places = [(5 << 32) + job for job in jobs]
        if is_run:
            since = [self.time_ns - job for job in jobs]
            apply_carried_run(self.agenda, jobs, places, lane, 0, since)
        state = (State.READY, State.SCHEDULED, State.RUNNING, State.DEAD)[number % 4]
        job = first + 1 if number % 8 < 4 else self._pick(number, State.READY)
        due, until = self.time_ns + count, self.time_ns + number
        apply_carried(
            self.agenda, job, (6 << 32) + number, lane, 3 << 8, state, (until, count % 3 == 0),
            (due, count % 2 == 0), (self.lsn, 9, 9), until, self.time_ns,
            since_ns=self.time_ns - count,
        )  # fmt: skip
        apply_tallied(lane, count, number, 0)
        self.agenda.floor_lsn = max(self.agenda.floor_lsn, number)

    def key(self, number: int, window: int, frees: bool) -> object:
        hashed = (number * 0x9E3779B97F4A7C15) % 2**64 or 1
        holders = list(self.dedup.holders(hashed, self.time_ns))
        if frees and holders:
            self.dedup.apply_free(hashed, holders[0][0], self.time_ns)
        elif not holders:
            window = 0 if number % 3 else window + 1
            self.dedup.apply_taken(
                hashed, self.lsn, self.lsn * 64, window, self.time_ns, until_settled=frees
            )
            self.lsn += 1
        return holders

    def keys(self, number: int, count: int, _: bool) -> None:
        for at in range(count * 12):
            self.key(number * 5000 + at, (at * 7919) % 997, at % 11 == 0)


NUMBER = st.integers(0, 300)
STEPS = st.lists(
    st.tuples(
        st.sampled_from((
            "run", "run", "schedule", "schedule_many", "take", "take", "take", "claim_elsewhere",
            "back", "back", "end", "end_many", "cancel_many", "pass_time", "pass_time", "expire",
            "ask", "pause", "hold", "suspend", "step", "signal", "tick", "revive", "carry", "key",
            "keys",
        )),
        NUMBER, NUMBER, st.booleans(),
    ),
    max_size=25,
)  # fmt: skip
#: Every kind of step, most of them often enough to leave state.
RICH: Final[list[Step]] = [
    ("run", 0, 200, True), ("run", 1, 3, False), ("schedule_many", 1, 300, False),
    ("schedule_many", 3, 300, True), ("take", 90, 1, True), ("back", 3, 40, False),
    ("back", 5, 41, False), ("end", 0, 0, False), ("end", 1, 0, False), ("end", 3, 0, False),
    ("end", 7, 0, False), ("pass_time", 40, 170, True), ("expire", 30, 0, False),
    ("take", 60, 2, True), ("pass_time", 90, 0, False), ("expire", 300, 0, False),
    ("end_many", 20, 290, False), ("run", 2, 250, True), ("pause", 1, 0, False),
    ("carry", 2, 30, True), ("carry", 6, 31, False), ("carry", 3, 9, False),
    ("keys", 1, 300, False), ("keys", 2, 300, False), ("pass_time", 60, 0, False),
    ("keys", 3, 90, False), ("end", 2, 1, False), ("end", 2, 2, False), ("take", 40, 3, False),
    ("back", 4, 2, False), ("pause", 1, 0, True), ("schedule_many", 1, 300, False),
    ("schedule_many", 1, 300, False), ("schedule_many", 1, 300, False),
    ("cancel_many", 100, 240, False), ("pass_time", 200, 0, False), ("take", 300, 4, False),
    ("ask", 7, 0, False), ("ask", 9, 1, True),
    ("pass_time", 300, 0, False), ("expire", 300, 0, False), ("run", 3, 300, True),
    ("take", 300, 4, False), ("take", 300, 4, False), ("take", 299, 4, False),
    ("back", 4, 0, False), ("back", 6, 0, False), ("pause", 0, 0, False), ("tick", 3, 2, False),
    ("take", 6, 3, False), ("suspend", 0, 9, True), ("suspend", 1, 4, False), ("step", 0, 2, False),
    ("signal", 2, 0, False), ("step", 2, 3, True), ("signal", 2, 0, False), ("signal", 5, 1, True),
    ("suspend", 0, 1, False), ("suspend", 0, 1, False), ("pass_time", 300, 0, False),
    ("pass_time", 300, 0, False), ("suspend", 0, 8, False),
    ("hold", 1, 2, False), ("hold", 2, 0, False), ("hold", 4, 7, False), ("hold", 0, 0, True),
    ("step", 3, 3, False), ("end", 3, 0, False),
]  # fmt: skip


def rich() -> Driven:
    driven = Driven()
    driven.do(RICH)
    return driven


@cache
def example() -> Driven:
    return rich()


def every(root: object) -> list[Any]:
    values: dict[int, object] = {}
    left = [root]
    while left:
        first = left.pop()
        if id(first) in values:
            continue
        values[id(first)] = first
        if type(first) in DECISIONS:
            left += [getattr(first, name) for name in own(first)]
        elif isinstance(first, dict):
            left += [*first.keys(), *first.values()]
        elif not isinstance(first, str | bytes | array) and hasattr(first, "__iter__"):
            left += first
    return [item for item in values.values() if type(item) in DECISIONS]


@cache
def example_of_each() -> list[Any]:
    parts = [*every(example().agenda), *every(example().dedup)]
    return list({type(part): part for part in parts}.values())


@pytest.mark.parametrize("kind", DECISIONS, ids=lambda kind: kind.__name__)
def test_each_attribute_of_a_fold_is_kept_made_again_or_forgotten_on_purpose(kind: type) -> None:
    """A new one is decided upon here, and frozen, before a snapshot loses it."""
    (part,) = (item for item in example_of_each() if type(item) is kind)
    assert sorted(DECISIONS[kind]) == attributes(part)


def test_the_folds_are_made_of_no_other_classes() -> None:
    driven = example()
    plain = (dict, list, tuple, set, str, bytes, int, bool, array, type(None))
    left: list[object] = [driven.agenda, driven.dedup]
    strangers = set()
    seen = set()
    while left:
        first = left.pop()
        if id(first) in seen:
            continue
        seen.add(id(first))
        if type(first) in DECISIONS:
            left += [getattr(first, name) for name in own(first)]
        elif isinstance(first, dict):
            left += [*first.keys(), *first.values()]
        elif isinstance(first, str | bytes | array | int | None):
            pass
        elif hasattr(first, "__iter__"):
            left += first
        if type(first) not in DECISIONS and not isinstance(first, plain):
            strangers.add(type(first).__name__)
    assert strangers <= {
        "deque",
        "LimitGroups",
        "LimitGroup",
        "Family",
    }  # pictured in a way of their own


def test_the_rich_example_leaves_something_in_every_attribute_that_is_kept() -> None:
    driven = example()
    fresh = {type(path): path for root in (Agenda(), Dedup()) for path in every(root)}
    fresh |= {Lane: Lane(0, b"\0\0", 0), Chunk: Chunk(0), Returned: Returned()}
    idle = {
        (kind.__name__, name)
        for kind, names in DECISIONS.items()
        for name, decision in names.items()
        if decision == "kept"
    }
    for root in (driven.agenda, driven.dedup):
        for path in every(root):
            for name in own(path):
                if getattr(path, name) != getattr(fresh[type(path)], name):
                    idle.discard((type(path).__name__, name))
    assert not idle


@grows
@settings(max_examples=some(10, 60), deadline=None)
@given(before=STEPS, after=STEPS)
def test_what_was_frozen_goes_on_as_what_was_not(before: list[Step], after: list[Step]) -> None:
    driven = Driven()
    driven.do(before)
    twin = driven.twin()
    assert picture(twin.agenda) == picture(driven.agenda)
    assert picture(twin.dedup) == picture(driven.dedup)
    assert twin.do(after) == driven.do(after)
    assert picture(twin.agenda) == picture(driven.agenda)
    assert picture(twin.dedup) == picture(driven.dedup)
    assert twin.agenda.queues.stats() == driven.agenda.queues.stats()


def test_the_rich_example_goes_on_too_and_shares_nothing_with_what_was_frozen() -> None:
    """The fold goes on while its copy is being written."""
    driven = rich()
    frozen = freeze_agenda(driven.agenda), freeze_dedup(driven.dedup)
    before = [
        [(code, [part[:] for part in parts]) for code, parts in entry.columns] for entry in frozen
    ]
    twin = driven.twin()
    for steps in ([], RICH, [("end_many", 0, 300, False), ("keys", 1, 300, True)]):
        assert twin.do(steps) == driven.do(steps)
        assert picture(twin.agenda) == picture(driven.agenda)
        assert picture(twin.dedup) == picture(driven.dedup)
    assert [list(entry.columns) for entry in frozen] == before


@grows
@settings(max_examples=some(70, 200), deadline=None)
@given(
    column=st.integers(0, 100),
    change=st.sampled_from(("drop", "repeat", "empty", "shorter", "longer", "large")),
)
def test_columns_that_make_no_sense_are_refused(column: int, change: str) -> None:
    """Or taken, where they happen to; but nothing else is raised."""
    for freeze, thaw in ((freeze_agenda, thaw_agenda), (freeze_dedup, thaw_dedup)):
        driven = _SMALL
        frozen = freeze(driven.agenda if freeze is freeze_agenda else driven.dedup)  # type: ignore[arg-type]
        number = column % len(frozen.columns)
        _change(frozen, number, change)
        try:
            thaw(Columns(frozen))
        except (ValueError, IndexError):
            continue


def test_a_column_that_lost_a_number_is_refused() -> None:
    """Two columns of one thing are of one length, so nothing is read beside what it belongs to."""
    driven = _small()
    driven.do([("pause", 1, 0, False), ("carry", 3, 1, False), ("pass_time", 9, 9, True)])
    taken: list[tuple[object, int]] = []
    for thaw, whole in (
        (thaw_agenda, freeze_agenda(driven.agenda)),
        (thaw_dedup, freeze_dedup(driven.dedup)),
    ):
        for number, (code, parts) in enumerate(whole.columns):
            if not parts or not parts[-1]:
                continue
            short = Frozen()
            short.columns.extend(whole.columns)
            short.columns[number] = code, [*parts[:-1], parts[-1][:-1]]
            try:
                thaw(Columns(short))
            except ValueError:
                continue
            taken.append((thaw, number))
    # The fresh jobs of the last lane stand in one column alone.
    assert taken == [(thaw_agenda, 26)]


def test_a_settled_job_of_a_forgotten_lane_does_not_spoil_what_is_frozen() -> None:
    """A chunk keeps the rows of settled jobs for a while, and with them numbers of lanes."""
    agenda = Agenda()
    plain, keyed = agenda.queues.lane(0, b"\x01\x01qt"), agenda.queues.lane(0, b"\x01\x01qtkey")
    agenda.apply_enqueued(1, 8, plain, 0)
    agenda.apply_enqueued(2, 16, keyed, 0)
    agenda.apply_ended(Kind.CANCELLED, 2)
    assert len(agenda.lanes) == 1, "the lane with the key is not forgotten"
    thawed = thaw_agenda(Columns(freeze_agenda(agenda)))
    assert [thawed.table.state(job) for job in (1, 2)] == [State.READY, State.ABSENT]


def test_a_job_in_a_forgotten_lane_is_refused() -> None:
    agenda = Agenda()
    keyed, last = agenda.queues.lane(0, b"\x01\x01qtkey"), agenda.queues.lane(0, b"\x01\x01qu")
    agenda.apply_enqueued(1, 8, keyed, 0)
    agenda.apply_ended(Kind.CANCELLED, 1)
    agenda.apply_enqueued(2, 16, last, 0)
    assert agenda.lanes[keyed.number] is GONE
    agenda.table._chunks[0].lanes[1] = keyed.number
    with pytest.raises(ValueError, match="a job is in lane 0"):
        thaw_agenda(Columns(freeze_agenda(agenda)))


def _small() -> Driven:
    driven = Driven()
    driven.do([
        ("run", 0, 4, False), ("run", 1, 4, False), ("schedule", 1, 9, True), ("take", 3, 1, True),
        ("back", 0, 2, False), ("end", 1, 0, False), ("key", 1, 0, False), ("key", 2, 5, False),
    ])  # fmt: skip
    return driven


_SMALL: Final = _small()


def _change(frozen: Frozen, number: int, change: str) -> None:
    code, parts = frozen.columns[number]
    if change == "drop":
        del frozen.columns[number]
    elif change == "repeat":
        frozen.columns.insert(number, (code, parts))
    elif change == "empty":
        frozen.columns[number] = code, []
    elif change == "shorter":
        frozen.columns[number] = code, [part[:-1] for part in parts]
    elif change == "longer":
        frozen.columns[number] = code, [*parts, array(code, [1])]
    else:
        frozen.columns[number] = code, [array(code, [100] * len(part)) for part in parts]


def _digest(frozen: Frozen) -> int:
    columns = [(code, [n for part in parts for n in part]) for code, parts in frozen.columns]
    return zlib.crc32(repr(columns).encode())


def test_what_is_frozen_is_written_down_for_ever() -> None:
    """Files hold it: another order or meaning needs another version in ``log.snapshot``."""
    driven = _small()
    driven.do([("pause", 1, 0, False), ("carry", 3, 1, False), ("pass_time", 9, 9, True)])
    agenda, dedup = freeze_agenda(driven.agenda), freeze_dedup(driven.dedup)
    codes = "".join(code for code, _ in agenda.columns)
    table, blocks = "QIIQIQIIII", "IIIQIQ"
    names = "IB"
    assert codes == (
        "q"
        + 2 * table
        + names
        + "qIIQ"
        + blocks
        + names
        + names
        + "qqB"
        + 2 * names
        + 2 * names
        + "q"
        + "Q"
        "qQQQ" + blocks + "q" + blocks + "QQ" + 2 * names + "q" + names + "qIqII" + "QQ"
    )
    assert (_digest(agenda), _digest(dedup)) == (268856147, 2627517294)
