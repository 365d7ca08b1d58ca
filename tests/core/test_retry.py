from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskq import Discard, Retry, Snooze, retry
from taskq.core.errors import UsageError
from taskq.core.retry import DEFAULT, policy_of
from taskq.retry import RetryPolicy


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (retry.fixed(delay=7), [7, 7, 7, 7]),
        (retry.linear(base=2, cap=7), [2, 4, 6, 7]),
        (retry.exponential(base=1, cap=5, jitter="none"), [1, 2, 4, 5]),
        (retry.exponential(base=1, cap=100, factor=3, jitter="none"), [1, 3, 9, 27]),
        (retry.exponential(base="500ms", cap="1m", jitter="none"), [0.5, 1, 2, 4]),
        (retry.exponential(base=8, cap=5, jitter="none"), [5, 5, 5, 5]),
        (retry.exponential(base=0, jitter="none"), [0, 0, 0, 0]),
        (retry.exponential(base=3, factor=1, jitter="none"), [3, 3, 3, 3]),
    ],
)
def test_delays_follow_their_shape(policy: RetryPolicy, delays: list[float]) -> None:
    assert [policy.delay_seconds(attempt, 0.5) for attempt in (1, 2, 3, 4)] == delays


@pytest.mark.parametrize(
    ("jitter", "draw", "delay"),
    [
        ("none", 0.25, 8),
        ("equal", 0.0, 4),
        ("equal", 0.25, 5),
        ("full", 0.0, 0),
        ("full", 0.25, 2),
    ],
)
def test_jitter_draws_none_half_or_all_of_a_delay(jitter: Any, draw: float, delay: float) -> None:
    policy = retry.exponential(base=1, cap=300, jitter=jitter)
    assert policy.delay_seconds(4, draw) == delay


@pytest.mark.parametrize("shape", [retry.fixed, retry.linear, retry.exponential])
def test_attempt_10_000_does_not_overflow(shape: Any) -> None:
    policy = shape(attempts=0)
    decision = policy.decide(10_000, OSError("still down"), 0.999)
    assert isinstance(decision, retry.RetryAfter)
    assert 0 <= decision.delay_seconds <= 300


def test_a_jobs_own_number_of_attempts_goes_before_the_policys() -> None:
    policy = retry.fixed(attempts=3)
    assert isinstance(policy.decide(1, OSError(), 0, attempts_max=1), retry.Die)
    assert isinstance(policy.decide(99, OSError(), 0, attempts_max=0), retry.RetryAfter)


def test_a_task_that_asks_for_a_retry_names_its_delay_and_spends_an_attempt() -> None:
    policy = retry.fixed(attempts=2, delay=5, retry_on=OSError)
    assert policy.decide(1, Retry(delay="2s"), 0) == retry.RetryAfter(2)
    assert policy.decide(1, Retry(), 0) == retry.RetryAfter(5)
    assert isinstance(policy.decide(2, Retry(delay=1), 0), retry.Die)


def test_never_means_one_attempt() -> None:
    policy = retry.never()
    assert policy.attempts == 1
    assert isinstance(policy.decide(1, OSError(), 0), retry.Die)


def test_the_default_is_five_attempts_with_exponential_backoff_and_full_jitter() -> None:
    assert retry.exponential(attempts=5, base=1, cap=300, jitter="full") == DEFAULT
    assert policy_of(3) == retry.exponential(attempts=3)
    assert policy_of(DEFAULT) is DEFAULT


@pytest.mark.parametrize("value", [0, -1, 70_000, True, "5", None, 2.0])
def test_a_wrong_number_of_attempts_is_refused_with_what_is_right(value: Any) -> None:
    with pytest.raises(UsageError, match="give the number of attempts"):
        policy_of(value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attempts": -1}, "attempts is -1"),
        ({"attempts": 65_536}, "attempts is 65536"),
        ({"base": "soon"}, "base is 'soon'"),
        ({"cap": -1}, "cap is -1"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": float("inf")}, "factor is inf"),
        ({"jitter": "some"}, 'it must be "none", "equal" or "full"'),
    ],
)
def test_a_wrong_policy_is_refused_by_the_name_of_its_argument(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        retry.exponential(**arguments)


def test_signals_check_their_delay_and_are_no_errors_of_taskq() -> None:
    assert Snooze("2m").delay_ns == 120_000_000_000
    assert Retry().delay_ns is None
    assert str(Retry(reason="busy")) == "busy"
    assert str(Discard()) == "the task discarded the job"
    with pytest.raises(UsageError, match=r"Snooze\(delay\) is 'soon'"):
        Snooze("soon")


def test_a_delay_that_a_task_found_to_be_over_already_means_now() -> None:
    """As the rest of a pause that another wait has outlasted: the job is fine."""
    assert Snooze(-0.25).delay_ns == 0
    assert Retry(delay=-1).delay_ns == 0
    assert Retry(delay=timedelta(seconds=-2)).delay_ns == 0
