"""Folds driven by random steps, and pictures of them that show every attribute."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

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
from taskq.core.folds.claims import LaneQueues
from taskq.core.folds.dedup import Dedup, _Page
from taskq.core.folds.freeze import Frozen, freeze_agenda, freeze_dedup, thaw_agenda, thaw_dedup
from taskq.core.folds.jobtable import META_EXPIRES, META_FLOW, Chunk, JobTable
from taskq.core.folds.lanes import Family, Lane
from taskq.core.folds.moments import Ages, Leases, Returned, SortedBlocks, Timetable
from taskq.core.folds.steps import Form, Signal, Steps, Wait, pack_waits
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.schedules import ScheduleState, TickRecord, apply_ticked
from taskq.core.sources import SourceState

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
        "times": "kept", "ages": "kept", "schedules": "kept", "sources": "kept", "queues": "kept",
        "floor_lsn": "kept", "edits": "reset",
        "_scheduled": "kept", "_expiring": "kept", "_left": "kept",
        "lanes": "bound", "groups": "bound", "order": "bound", "_is_fresh": "bound",
    },
    LaneQueues: {
        "lanes": "kept", "ready": "derived", "paused": "kept", "groups": "kept",
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
        apply_ticked(self.agenda.schedules, ticked)
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
