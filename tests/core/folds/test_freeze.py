"""Folds are equal before and after a trip through columns of numbers."""

from __future__ import annotations

import contextlib
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest

from taskq.core.flows import Flows, needs_of
from taskq.core.folds import agenda as agendas
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import GONE, LaneQueues
from taskq.core.folds.dedup import Dedup, _Page
from taskq.core.folds.freeze import (
    MISFITS,
    Frozen,
    freeze_agenda,
    freeze_dedup,
    thaw_agenda,
    thaw_dedup,
)
from taskq.core.folds.jobtable import META_EXPIRES, META_FLOW, Chunk, JobTable
from taskq.core.folds.lanes import Family, Lane, LimitGroup, LimitGroups
from taskq.core.folds.moments import Ages, Leases, Returned, SortedBlocks, Timetable
from taskq.core.folds.steps import Form, Signal, Steps, Wait, pack_waits
from taskq.core.model import State
from taskq.core.records import Kind
from taskq.core.schedules import ScheduleState, TickRecord
from taskq.core.sources import SourceRecord, SourceState

pytestmark = pytest.mark.usefixtures("small_parts")

NOW: Final = 10**18


def fates(**names: str) -> dict[str, str]:
    return {name: fate for fate, known in names.items() for name in known.split()}


#: The fate of each attribute: "kept" is in the columns, "derived" is made from kept ones, "reset"
#: is only a cursor, and "bound" belongs to another object of these.
DECISIONS: Final[dict[type, dict[str, str]]] = {
    Agenda: fates(
        kept="table dead running leases flows steps times ages schedules sources controls "
             "queues floor_lsn _scheduled _expiring _left",
        reset="edits steered", bound="lanes groups order _is_fresh",
    ),
    LaneQueues: fates(
        kept="lanes paused paused_tasks groups", derived="ready _by_key _free", reset="_families",
        bound="_ages",
    ),
    Ages: fates(kept="moment _lsns _moments", reset="window_ns aged_at"),
    Lane: fates(
        kept="key priority blocked entries left ready scheduled running succeeded dead "
             "cancelled expired _blocks _head _swept _back",
        derived="number queue task body_at", reset="family group",
    ),
    JobTable: fates(kept="_chunks _old live", derived="_firsts _last", reset="_hint index"),
    Chunk: fates(kept="ids locations lanes metas live", derived="used"),
    SortedBlocks: fates(kept="_keys _values _swept", derived="_firsts size", reset="_found"),
    Returned: fates(kept="_keys _values", derived="_firsts size", reset="_swept _found _lows"),
    Timetable: fates(
        kept="shift_ns _shifted _wall _expiries_shifted _expiries_wall", reset="over _over_ns",
    ),
    Steps: fates(kept="places signals taken waits begun calls orphans undos"),
    Flows: fates(kept="held", derived="todo", reset="ended"),
    Leases: fates(kept="shift_ns _deadlines _order asked"),
    Dedup: fates(kept="shift_ns size _firsts _pages _swept _taken", reset="edits"),
    _Page: fates(kept="hashes jobs locations untils"),
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
        if sum(sizes) != len(numbers):
            raise ValueError(f"{sum(sizes)} numbers are {len(numbers)}")
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


class Filled:
    """Folds with something in every attribute that is kept."""

    def __init__(self) -> None:
        self.agenda, self.dedup = Agenda(), Dedup()
        self.agenda.ages.window_ns = 256
        self.job = 0
        self.wait_and_expire()
        self.run()
        self.step()
        self.steer()
        self.hold_keys()

    def lane(self, priority: int = 5, key: bytes = b"\x04\x04mailsend") -> Lane:
        return self.agenda.queues.lane(priority, key)

    def claimed(self, count: int = 1) -> list[int]:
        jobs = self.agenda.order.take(count, None, None).jobs
        self.agenda.running.update({job: (job * 3, 2**63 + 1, 7) for job in jobs})
        return jobs

    def wait_and_expire(self) -> None:
        """Jobs that come, wait for a moment, expire, rise with age, are withdrawn."""
        agenda = self.agenda
        for number in range(120):
            self.job += 2
            lane = self.lane(number % 10, (b"\x04\x00mail", b"\x04\x04mailsend#1")[number % 2])
            due, place = NOW + (number * 7_919) % 997, number % 3 << 32 | number * 64
            agenda.apply_scheduled(self.job, place, lane, META_EXPIRES, due, number % 4 == 0)
            agenda.apply_expiry(self.job, due + number, number % 4 == 0)
        agenda.apply_clock(-150)
        for span in range(0, 900, 60):
            agenda.promote(NOW + span, 9)
            agenda.ages.note(self.job + span, agenda.moment)
        for job in agenda.expired(NOW + 300, 20):
            agenda.apply_ended(Kind.EXPIRED, job)
        agenda.apply_enqueued_run(301, list(range(64, 64 * 61, 64)), self.lane(), 0)
        for job in range(310, 350):
            agenda.apply_ended(Kind.CANCELLED, job)
        for job in range(62, 240, 2):
            if job % 10:
                agenda.apply_ended(Kind.CANCELLED, job)

    def run(self) -> None:
        """Jobs that are claimed, under leases, come back, and end in each way."""
        agenda = self.agenda
        ran = self.claimed(22)
        for job in ran[:4]:
            agenda.apply_ended(Kind.DEAD if job % 4 else Kind.SUCCEEDED, job, NOW)
        for job in ran[4:12]:
            agenda.apply_back(job, job % 4, NOW + job * 100 if job % 3 else 0, NOW)
        for job in ran[12:20]:
            agenda.leases.apply_until(job, NOW + job * 5)
        agenda.apply_cancel_asked(ran[12], ran[12] * 3)
        agenda.apply_rated(next(job for job in ran[12:] if job % 4 == 0), 5, 10**12)
        for number, state in enumerate((State.READY, State.DEAD)):
            carried = 1_000 + number, 6 << 32, self.lane(), 3 << 8, state
            agendas.apply_carried(agenda, *carried, (0, False), (0, False), (0, 0, 0), NOW, NOW)
        agendas.apply_tallied(self.lane(), 30, 4, 2)
        agenda.floor_lsn = 9

    def step(self) -> None:
        """Jobs that wait within their runs, and for other jobs."""
        agenda = self.agenda
        agenda.apply_enqueued_run(1_101, [64] * 4, self.lane(9), 0)
        first, second, third, last = self.claimed(4)
        for job in (first, second):
            agendas.apply_signal(agenda, job, Signal(job, b"x", b"once", 64))
            agendas.apply_signal(agenda, job, Signal(job + 9, b"y", b"", 64))
        agendas.apply_step(agenda, first, 3, 7 << 32, first, b"once", ("é", 1), None, Form.EVENT)
        agendas.apply_step(agenda, second, 4, 8 << 32, 0, b"", ("é", 2), (1_101, 3), Form.CALL)
        agendas.apply_step(agenda, second, 5, 9 << 32, 0, b"", ("é", 3), None, Form.UNDO)
        agendas.apply_begun(agenda, first, pack_waits([Wait(Form.SLEEP, "sleep", 1, NOW + 5)]))
        waits = pack_waits([Wait(Form.EVENT, "z", 1), Wait(Form.EVENT, "é", 2)])
        agendas.apply_waiting(agenda, third, 1, 2**62, NOW, waits, needs_of(2, 1))
        agendas.apply_step(agenda, last, 1, 7 << 32, 0, b"", ("é", 1), (1_101, 3), Form.CALL)
        agenda.apply_ended(Kind.CANCELLED, last)
        agenda.apply_held(1_200, 64, self.lane(), META_FLOW, needs_of(2, 1, doomed=False))

    def steer(self) -> None:
        agenda = self.agenda
        agenda.queues.apply_paused("mail")
        agenda.apply_ticked(TickRecord("é", ScheduleState(7, 9, True, b"every 60", b"{}")))
        agenda.apply_steered(SourceRecord("task:é", SourceState(b'{"paused":true}', 3)))
        agenda.sources["é"] = SourceState(b"[5]", 4)

    def hold_keys(self) -> None:
        for number in range(1, 40):
            hashed = number * 0x9E3779B97F4A7C15 % 2**64
            self.dedup.apply_taken(hashed, number, number * 64, 9 * (number % 3), NOW)
        self.dedup.apply_clock(50)
        self.dedup.apply_free(0x9E3779B97F4A7C15 * 3 % 2**64, 3, NOW + 99)


#: Plain values, and classes that are pictured in a way of their own.
_OTHERS: Final = (
    dict, list, tuple, set, deque, str, bytes, int, array, type(None), LimitGroups, LimitGroup,
    Family,
)  # fmt: skip


def reached(*roots: object) -> list[Any]:
    values: dict[int, object] = {}
    left = list(roots)
    while left:
        value = left.pop()
        if id(value) in values:
            continue
        values[id(value)] = value
        if type(value) in DECISIONS:
            left += [getattr(value, name) for name in own(value)]
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif not isinstance(value, str | bytes | array) and hasattr(value, "__iter__"):
            left += value
    return list(values.values())


def test_each_attribute_of_a_fold_is_kept_made_again_or_forgotten_on_purpose() -> None:
    """A new attribute or class is decided upon here, and frozen, before a snapshot loses it."""
    filled = Filled()
    parts = {type(part): part for part in reached(filled.agenda, filled.dedup)}
    assert {kind for kind in parts if not issubclass(kind, _OTHERS)} == DECISIONS.keys()
    for kind, decisions in DECISIONS.items():
        assert sorted(decisions) == attributes(parts[kind])


def test_what_was_frozen_equals_what_was_not_and_shares_nothing_with_it() -> None:
    """The fold goes on while its copy is being written."""
    filled = Filled()
    fresh = {type(part): part for part in reached(Agenda(), Dedup())}
    fresh |= {Lane: Lane(0, b"\0\0", 0), Chunk: Chunk(0), Returned: Returned()}
    idle = {
        (kind.__name__, name)
        for kind, decisions in DECISIONS.items()
        for name, decision in decisions.items()
        if decision == "kept"
    }
    for part in reached(filled.agenda, filled.dedup):
        for name in own(part) if type(part) in DECISIONS else ():
            if getattr(part, name) != getattr(fresh[type(part)], name):
                idle.discard((type(part).__name__, name))
    assert not idle, "nothing stands in these"
    frozen = freeze_agenda(filled.agenda), freeze_dedup(filled.dedup)
    columns = [Columns(each) for each in frozen]
    assert picture(thaw_agenda(columns[0])) == picture(filled.agenda)
    assert picture(thaw_dedup(columns[1])) == picture(filled.dedup)
    assert all(each.is_empty() for each in columns)
    before = [[(code, [*map(bytes, parts)]) for code, parts in each.columns] for each in frozen]
    filled.wait_and_expire()
    filled.hold_keys()
    agendas.apply_step(filled.agenda, min(filled.agenda.steps.places), 9, 7 << 32, 0, b"")
    after = [[(code, [*map(bytes, parts)]) for code, parts in each.columns] for each in frozen]
    assert after == before


def changed(parts: list[array[int]], code: str) -> Iterator[list[array[int]]]:
    """Yield a column as damage may leave it."""
    yield []
    yield [part[:-1] for part in parts]
    yield [*parts, array(code, [1])]
    yield [array(code, [100] * len(part)) for part in parts]


def test_columns_that_make_no_sense_are_refused() -> None:
    """Or taken, if they happen to make some; no other error is raised.

    Two columns of one thing are of one length, so nothing is read beside what it belongs to.
    """
    filled = Filled()
    taken: set[tuple[object, int]] = set()
    for thaw, whole in (
        (thaw_agenda, freeze_agenda(filled.agenda)),
        (thaw_dedup, freeze_dedup(filled.dedup)),
    ):
        for number, (code, parts) in enumerate(whole.columns):
            short = [*parts[:-1], parts[-1][:-1]] if parts and parts[-1] else []
            for column in (short, *changed(parts, code)):
                wrong = Frozen()
                wrong.columns.extend(whole.columns)
                wrong.columns[number] = code, column
                with contextlib.suppress(*MISFITS):
                    thaw(Columns(wrong))
                    taken |= {(thaw, number)} if column is short and short else set()
    # Cancels that were asked for and orphans stand in one column alone.
    assert taken == {(thaw_agenda, 51), (thaw_agenda, 105)}


def test_a_lane_that_was_forgotten_may_be_named_by_settled_jobs_and_by_no_other() -> None:
    """A chunk keeps the rows of settled jobs for a while, and with them numbers of lanes."""
    agenda = Agenda()
    keyed, last = agenda.queues.lane(0, b"\x01\x01qtkey"), agenda.queues.lane(0, b"\x01\x01qu")
    agenda.apply_enqueued(1, 8, keyed, 0)
    agenda.apply_ended(Kind.CANCELLED, 1)
    agenda.apply_enqueued(2, 16, last, 0)
    assert agenda.lanes[keyed.number] is GONE
    thawed = thaw_agenda(Columns(freeze_agenda(agenda)))
    assert [thawed.table.state(job) for job in (1, 2)] == [State.ABSENT, State.READY]
    agenda.table._chunks[0].lanes[1] = keyed.number
    with pytest.raises(ValueError, match="a job is in lane 0"):
        thaw_agenda(Columns(freeze_agenda(agenda)))


def test_dead_letters_are_counted_anew_when_a_snapshot_is_read() -> None:
    """Older versions froze too many at times."""
    agenda = Filled().agenda
    counted = agenda.queues.stats()
    for lane in agenda.lanes:
        if lane is not GONE:
            lane.dead += 9
    assert thaw_agenda(Columns(freeze_agenda(agenda))).queues.stats() == counted


def test_what_is_frozen_is_written_down_for_ever() -> None:
    """Files hold it: another order or meaning needs another version in ``log.snapshot``."""
    filled = Filled()
    frozen = freeze_agenda(filled.agenda), freeze_dedup(filled.dedup)
    columns = [[(code, [*map(list, parts)]) for code, parts in each.columns] for each in frozen]
    table, blocks, names = "QIIQIQIIII", "IIIQIQ", "IB"
    assert "".join(code for code, _ in columns[0]) == (
        f"q{table}{table}{names}qIIQ{blocks}{names}{names}qqB{names}{names}{names}{names}qQ"
        f"qQQQ{blocks}q{blocks}QQ{names}{names}q{names}qIqIIQQ"
        f"QIQQIQIQ{names}{names}Q{names}Q{names}Q{names}QQQQ"
    )
    assert [zlib.crc32(repr(each).encode()) for each in columns] == [4157912219, 57401810]
