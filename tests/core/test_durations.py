from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from taskq.core.durations import moment_ns, nanoseconds
from taskq.core.errors import UsageError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (3, 3_000_000_000),
        (0.25, 250_000_000),
        (0.1, 100_000_000),
        ("250ms", 250_000_000),
        ("30s", 30_000_000_000),
        ("0.1s", 100_000_000),
        ("5m", 300_000_000_000),
        ("2h", 7_200_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("1d", 86_400_000_000_000),
        (" 7 d ", 604_800_000_000_000),
        (timedelta(minutes=1, microseconds=1), 60_000_001_000),
    ],
)
def test_a_duration_is_read_exactly(value: Any, expected: int) -> None:
    assert nanoseconds(value) == expected


@pytest.mark.parametrize(
    "value",
    ["", "5", "s", "5 parsecs", "-5s", "1e3s", "5m30s", "٣s", None, True, [], b"5s", float("nan")],
)
def test_what_is_no_duration_is_refused_with_the_forms_that_are(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^delay is .*: give seconds, a timedelta, or text"):
        nanoseconds(value, "delay")


@pytest.mark.parametrize("value", [-1, -0.5, timedelta(seconds=-1)])
def test_a_negative_duration_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="must not be negative"):
        nanoseconds(value)


@pytest.mark.parametrize("value", [10**10, "60000d", 1e18, timedelta.max, "9" * 400 + "d"])
def test_a_duration_of_centuries_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="146 years"):
        nanoseconds(value)


def test_a_moment_needs_a_time_zone() -> None:
    with pytest.raises(UsageError, match="eta is 2030-01-01T00:00:00 without a time zone: add one"):
        moment_ns(datetime(2030, 1, 1), "eta")  # noqa: DTZ001 - that is the mistake


def test_a_moment_is_the_same_in_every_time_zone() -> None:
    here = datetime(2030, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    there = here.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert moment_ns(here) == moment_ns(there) == int(here.timestamp()) * 10**9 + 123_456_000


@pytest.mark.parametrize("year", [1969, 2117])
def test_a_moment_out_of_the_logs_time_is_refused(year: int) -> None:
    with pytest.raises(UsageError, match="between 1970 and 2116"):
        moment_ns(datetime(year, 6, 1, tzinfo=UTC))


def test_a_duration_is_no_moment() -> None:
    with pytest.raises(UsageError, match="give a datetime with a time zone"):
        moment_ns("5m", "eta")  # type: ignore[arg-type]
