"""When schedules tick: expressions, intervals, daylight saving, jitter and what was missed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.errors import UsageError
from taskq.core.model import SECOND_NS
from taskq.core.schedules import jitter_ns
from taskq.schedules import (
    CATCH_UP_MAX,
    DueTicks,
    Every,
    Rule,
    due_ticks,
    moment_in,
    next_due_ns,
    parse_cron,
    parse_every,
    parse_rule,
)
from tests.effort import spread

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


def at(text: str, zone: Any = BERLIN, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()) * SECOND_NS


def told(rule: Rule, start: str, count: int) -> list[str]:
    return [
        moment_in(BERLIN, item).strftime("%m-%d %H:%M %Z")
        for item in islice(rule.after(at(start)), count)
    ]


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        # In the night to 31 March 2024 there is no time from 02:00 to 03:00.
        ("30 2 * * *", "2024-03-30 12:00", ["03-31 03:00 CEST", "04-01 02:30 CEST"]),
        ("0,30 2 * * *", "2024-03-30 12:00", ["03-31 03:00 CEST", "04-01 02:00 CEST"]),
        ("0 3 * * *", "2024-03-30 12:00", ["03-31 03:00 CEST", "04-01 03:00 CEST"]),
        ("*/30 2 * * *", "2024-03-30 12:00", ["04-01 02:00 CEST", "04-01 02:30 CEST"]),
        ("0 * * * *", "2024-03-31 00:30", ["03-31 01:00 CET", "03-31 03:00 CEST"]),
        # In the night to 27 October 2024 the hour from 02:00 to 03:00 comes twice.
        ("30 2 * * *", "2024-10-26 12:00", ["10-27 02:30 CEST", "10-28 02:30 CET"]),
        ("*/30 2 * * *", "2024-10-27 02:15", [
            "10-27 02:30 CEST", "10-27 02:00 CET", "10-27 02:30 CET",
        ]),
    ],
)  # fmt: skip
def test_daylight_saving_goes_by_the_rules_of_debians_cron(
    expression: str, start: str, expected: list[str]
) -> None:
    assert told(parse_cron(expression, "Europe/Berlin"), start, len(expected)) == expected


@given(
    expression=st.sampled_from(
        [
            *("30 2 * * *", "*/7 * * * *", "0 */3 * * *", "15,45 1-3 * * SUN", "0 0 L * *"),
            *("* * * * *", "5 30 2 * * *", "5,50 0,59 1-3 * * *", "30 */20 2 * * *"),
        ]
    ),
    start=st.integers(at("2024-03-30 00:00") // SECOND_NS, at("2024-04-02 00:00") // SECOND_NS),
    is_autumn=st.booleans(),
    length=st.integers(0, 200_000),
    count=st.integers(1, 5),
)
def test_latest_returns_the_last_times_of_a_walk(
    expression: str, start: int, is_autumn: bool, length: int, count: int
) -> None:
    cron = parse_cron(expression, "Europe/Berlin")
    after = (start + (210 * 86_400 if is_autumn else 0)) * SECOND_NS
    until = after + length * SECOND_NS
    walked = []
    for entry in cron.after(after):
        if entry > until:
            break
        walked.append(entry)
    assert cron.latest(count, after, until) == walked[-count:]
    assert not walked or next(cron.after(walked[-1] - 20 * SECOND_NS)) <= walked[-1]
    assert walked == sorted(set(walked))


def clock_changes(zone: ZoneInfo) -> Iterator[int]:
    day = at("2000-01-01 00:00", UTC) // SECOND_NS
    while day < at("2031-01-01 00:00", UTC) // SECOND_NS:
        low, day = day, day + 86_400
        before, high = shown(zone, low) - low, day
        if shown(zone, high) - high != before:
            while high - low > 1:
                middle = (low + high) // 2
                same = shown(zone, middle) - middle == before
                low, high = (middle, high) if same else (low, middle)
            yield high


def shown(zone: ZoneInfo, second: int) -> int:
    """Return what clocks show then, as seconds since 1970."""
    clock = datetime.fromtimestamp(second, zone).replace(tzinfo=UTC)
    return int(clock.timestamp())


def by_looking(expression: str, zone: ZoneInfo, begin: int, end: int) -> list[int]:
    sets = [
        range(size)[:: int(field[2:] or 1)] if field[0] == "*" else set(map(int, field.split(",")))
        for field, size in zip(expression.split()[:3], (60, 60, 24), strict=True)
    ]

    def fits(clock: int) -> bool:
        return all(
            clock // unit % size in some
            for unit, size, some in zip((1, 60, 3_600), (60, 60, 24), sets, strict=True)
        )

    is_star = "*" in expression.split()[1] + expression.split()[2]
    ticks: set[int] = set()
    highest = shown(zone, begin - 30)
    for second in range(begin, end, 30):
        clock = shown(zone, second)
        if (is_star or clock > highest) and fits(clock):
            ticks.add(second)
        skipped = range(highest + 30, clock, 30)
        if not is_star and any(map(fits, skipped)):
            ticks |= {second + (s - clock) % 60 for s in sets[0]}
        highest = max(highest, clock)
    return sorted(ticks)


#: Each with its seconds; by the time that passes, and by clocks.
EVERY_KIND = (
    *("0 * * * * *", "30 */7 * * * *", "0 * 0 * * *", "0 59 * * * *", "0 */30 1,2 * * *"),
    *("0 1,30 0,1,2,3 * * *", "0,30 0,15,45 2,23 * * *", "30 59 1,23 * * *", "0 10 4,12 * * *"),
)


@spread(60)
@pytest.mark.parametrize(
    "name", sorted({"Australia/Lord_Howe", "America/St_Johns"} | available_timezones())
)
def test_in_each_zone_cron_ticks_as_clocks_that_are_looked_at_each_half_minute(name: str) -> None:
    zone = ZoneInfo(name)
    seen: set[tuple[int, int]] = set()
    for change in clock_changes(zone):
        kind = (shown(zone, change) - shown(zone, change - 1), shown(zone, change - 1) % 86_400)
        if kind in seen:
            continue
        seen.add(kind)
        # Changes are minutes of UTC; hours around it, of which some are left out or come twice.
        begin, end = change - 5 * 3_600, change + 5 * 3_600
        for expression in EVERY_KIND:
            cron, ticks = parse_cron(expression, name), by_looking(expression, zone, begin, end)
            for start in (begin - 1, change - 1, change + 20, change + 1_830):
                walk = cron.latest(10_000, start * SECOND_NS, end * SECOND_NS - 1)
                assert [at_ns // SECOND_NS for at_ns in walk] == [at for at in ticks if at > start]


@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        # Clocks are set back by half an hour, at 02:00 to 01:30.
        ("*/15 1 * * *", "Australia/Lord_Howe", "2024-04-07 01:40", [
            "01:45 +1100", "01:30 +1030", "01:45 +1030", "01:00 +1030",
        ]),
        # At one minute past midnight to 23:01 of the day before.
        ("* 0 * * *", "America/St_Johns", "2006-10-28 23:58", [
            "00:00 -0230", "00:00 -0330", "00:01 -0330",
        ]),
        # A day that is left out.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29 13:00", ["00:00 +1400", "12:00 +1400"]),
        # Years until the next.
        ("*/30 0 29 2 *", "Europe/Berlin", "2024-02-29 00:29", ["00:30 +0100", "00:00 +0100"]),
    ],
)  # fmt: skip
def test_clocks_that_change_by_other_than_an_hour_lose_no_tick(
    expression: str, zone: str, start: str, expected: list[str]
) -> None:
    ticks = parse_cron(expression, zone).after(at(start, ZoneInfo(zone)))
    first = islice(ticks, len(expected))
    assert [moment_in(ZoneInfo(zone), tick).strftime("%H:%M %z") for tick in first] == expected


def test_the_latest_of_years_of_minutes_is_found_at_once() -> None:
    cron = parse_cron("* * * * *", BERLIN)
    assert cron == parse_cron("* * * * *", "Europe/Berlin")
    until = at("2044-01-01 00:00")
    assert cron.latest(2, at("2024-01-01 00:00"), until) == [until - MINUTE_NS, until]
    assert parse_cron("* * * * *", UTC).tz == "UTC"
    with pytest.raises(UsageError, match="give the name of a time zone"):
        parse_cron("* * * * *", datetime.now(BERLIN).utcoffset())


def test_rules_come_back_from_what_the_log_keeps() -> None:
    for rule in (parse_cron("*/5  9-17 * * MON-FRI", "Europe/Berlin"), parse_every("10m")):
        assert parse_rule(rule.rule) == rule
    for wrong in (b"", b"every", b"every 5", b"every x", b"cron", b"lunar 5", b"\xff", b"cron *"):
        with pytest.raises(UsageError):
            parse_rule(wrong)


HOURLY = parse_cron("0 * * * *")
START = at("2024-06-01 00:00", UTC)


def due(
    catch_up: str, hours_asleep: float, minutes_late: float = 0, rule: Rule = HOURLY
) -> DueTicks:
    now = START + round(hours_asleep * HOUR_NS + minutes_late * MINUTE_NS)
    return due_ticks("s", rule, catch_up, 0, START, now)


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_a_tick_on_time_is_due_whatever_the_policy_and_none_before(catch_up: str) -> None:
    for late in (0, 0.9):
        assert due(catch_up, 1, late) == DueTicks((START + HOUR_NS,), START + HOUR_NS)
    for hours in (0.99, -8):
        assert due(catch_up, hours) == DueTicks()


@pytest.mark.parametrize("rule", [HOURLY, Every(HOUR_NS)], ids=str)
def test_after_eight_hours_asleep_each_policy_makes_up_for_what_it_says(rule: Rule) -> None:
    end = START + 8 * HOUR_NS
    assert due("skip", 8, 30, rule) == DueTicks((), end)
    assert due("skip", 8, 0.5, rule) == DueTicks((end,), end)
    assert due("last", 8, 30, rule) == DueTicks((end,), end)
    assert due("all", 8, 30, rule) == DueTicks(tuple(START + n * HOUR_NS for n in range(1, 9)), end)


@pytest.mark.parametrize("rule", [HOURLY, Every(HOUR_NS)], ids=str)
def test_all_is_bounded_and_takes_the_latest(rule: Rule) -> None:
    result = due("all", 5_000, 0, rule)
    assert len(result.moments) == CATCH_UP_MAX
    assert result.moments[-1] == result.done_ns == START + 5_000 * HOUR_NS
    assert result.is_cut
    exact = due("all", CATCH_UP_MAX, 0, rule)
    assert (len(exact.moments), exact.is_cut) == (CATCH_UP_MAX, False)


@given(steps=st.lists(st.integers(1, 40), min_size=1, max_size=60), most=st.integers(0, 300))
def test_with_jitter_each_tick_comes_once_in_order_and_in_its_time(
    steps: list[int], most: int
) -> None:
    most_ns, every = most * SECOND_NS, Every(MINUTE_NS)
    done, now = START, START
    ticks: list[int] = []
    for step in steps:
        now += step * 7 * SECOND_NS
        following = next_due_ns("s", every, most_ns, done)
        result = due_ticks("s", every, "all", most_ns, done, now)
        assert following is not None
        assert bool(result.moments) == (following <= now)
        assert due_ticks("s", every, "all", most_ns, done, following).moments
        for moment in result.moments:
            assert moment + jitter_ns("s", moment, most_ns) <= now
        ticks += result.moments
        done = result.done_ns or done
    assert ticks == list(range(START + MINUTE_NS, done + 1, MINUTE_NS))
    assert done > now - MINUTE_NS - most_ns
