"""Folds are equal before and after a trip through columns of numbers."""

from __future__ import annotations

import zlib
from array import array
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import GONE
from taskq.core.folds.dedup import Dedup
from taskq.core.folds.freeze import Frozen, freeze_agenda, freeze_dedup, thaw_agenda, thaw_dedup
from taskq.core.folds.jobtable import Chunk
from taskq.core.folds.lanes import Lane
from taskq.core.folds.moments import Returned
from taskq.core.model import State
from taskq.core.records import Kind
from tests.core.frozen import DECISIONS, Columns, Driven, Step, attributes, own, picture
from tests.effort import grows, some

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
@settings(max_examples=some(20, 60), deadline=None)
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
        "qQQQ" + blocks + "q" + blocks + "QQ" + names + "qIqII" + "QQ"
    )
    assert (_digest(agenda), _digest(dedup)) == (3492856853, 2627517294)
