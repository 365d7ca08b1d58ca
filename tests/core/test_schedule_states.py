"""How far schedules have come, and how much later than its moment each tick is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskq.core import schedules
from taskq.core.schedules import SCHEDULES_MAX, ScheduleState, TickRecord, apply_ticked, jitter_ns

STATES = st.builds(
    ScheduleState, st.integers(0, 9), st.integers(0, 9), st.booleans(), st.binary(max_size=2),
    st.binary(max_size=2),
)  # fmt: skip
RECORDS = st.builds(TickRecord, st.sampled_from("abc"), STATES, st.booleans(), st.booleans())


@given(st.lists(RECORDS, max_size=20))
def test_the_last_record_rules_and_a_rule_stays_until_another_is_told(
    records: list[TickRecord],
) -> None:
    values: dict[str, ScheduleState] = {}
    for record in records:
        before = values.get(record.name)
        apply_ticked(values, record)
        after = values.get(record.name)
        if record.is_gone:
            assert after is None
            continue
        assert after is not None
        assert after[:3] == record.state[:3]
        answer = before is None or record.has_rule
        assert after[3:] == (record.state if answer or before is None else before)[3:]


def test_there_are_so_many_schedules_and_no_more() -> None:
    values: dict[str, ScheduleState] = {}
    for number in range(SCHEDULES_MAX + 1):
        apply_ticked(values, TickRecord(str(number), ScheduleState(number)))
    assert len(values) == SCHEDULES_MAX
    assert str(SCHEDULES_MAX - 1) in values
    apply_ticked(values, TickRecord("0", ScheduleState(7)))
    assert values["0"] == ScheduleState(7), "a known one is told of all the same"
    apply_ticked(values, TickRecord("1", ScheduleState(), is_gone=True))
    apply_ticked(values, TickRecord("new", ScheduleState(8)))
    assert values["new"] == ScheduleState(8)


@given(name=st.text(max_size=5), moment=st.integers(-9, 2**62), most=st.integers(-2, 2**40))
def test_jitter_lies_between_nothing_and_the_most(name: str, moment: int, most: int) -> None:
    late = jitter_ns(name, moment, most)
    assert 0 <= late <= max(most, 0)
    assert late == jitter_ns(name, moment, most)


def test_jitter_reaches_both_of_its_ends_and_differs_by_name_and_moment() -> None:
    assert {jitter_ns("a", moment, 1) for moment in range(50)} == {0, 1}
    assert {jitter_ns("a", moment, 4) for moment in range(200)} == set(range(5))
    assert jitter_ns("a", 1, 2**60) != jitter_ns("b", 1, 2**60) != jitter_ns("b", 2, 2**60)
    assert schedules._HASH_RANGE == 2**64
