"""What follows which error: rules of a retry policy, as tables and as properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq import Discard, Retry, Snooze, retry
from taskq.core.model import SECOND_NS
from taskq.errors import UsageError

ERRORS: list[Exception] = [
    OSError("down"),
    ConnectionError("reset"),
    TimeoutError("late"),
    ValueError("bad"),
    KeyError("no"),
    Retry(),
    Retry(delay=7),
    Discard("enough"),
]
KINDS = [Exception, OSError, ConnectionError, TimeoutError, ValueError, LookupError]


def test_an_errors_own_policy_has_its_own_number_of_attempts() -> None:
    policy = retry.fixed(attempts=10, per_error={OSError: retry.fixed(attempts=2), KeyError: 1})
    assert isinstance(policy.decide(1, OSError(), 0), retry.RetryAfter)
    assert policy.decide(2, OSError(), 0) == retry.Die("attempt 2 of 2 failed")
    assert isinstance(policy.decide(9, KeyError(), 0), retry.RetryAfter)
    assert isinstance(policy.decide(10, KeyError(), 0), retry.Die)
    # The job's own number is the most there is.
    assert isinstance(policy.decide(1, OSError(), 0, attempts_max=1), retry.Die)


@pytest.mark.parametrize(
    ("age", "delay", "is_too_old"),
    [
        (0, 0, False),
        (50, 49, False),
        (50, 50, True),
        (99, 0, False),
        (100, 0, True),
        (-5, 10, False),
    ],
)
def test_a_job_is_too_old_when_its_next_attempt_would_begin_after_its_longest_age(
    age: int, delay: int, is_too_old: bool
) -> None:
    policy = retry.fixed(max_age=100)
    assert policy.is_too_old(age * SECOND_NS, delay * SECOND_NS) is is_too_old
    assert not retry.fixed().is_too_old(age * SECOND_NS, delay * SECOND_NS)


@pytest.mark.parametrize("wish", [Retry(delay=3), Snooze(5), Discard("no"), None])
def test_decide_is_told_the_error_and_the_attempt_and_may_return_or_raise_its_wish(
    wish: Any,
) -> None:
    asked: list[tuple[BaseException, int]] = []

    def returns(error: BaseException, attempt: int) -> Any:
        asked.append((error, attempt))
        return wish

    def raises(error: BaseException, attempt: int) -> Any:
        if wish is not None:
            raise wish

    error = OSError("down")
    assert retry.fixed(decide=returns).wish(error, 4) is wish
    assert retry.fixed(decide=raises).wish(error, 4) is wish
    assert asked == [(error, 4)]
    assert retry.fixed().wish(error, 4) is None


@pytest.mark.parametrize("wrong", [5, "retry", Retry, True, OSError()])
def test_a_decision_that_is_none_is_refused_with_what_would_be_one(wrong: Any) -> None:
    policy = retry.fixed(decide=lambda *_: wrong)
    with pytest.raises(UsageError, match=r"decide gave .* for OSError: return Retry"):
        policy.wish(OSError(), 1)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"retry_on": "OSError"}, "retry_on is 'OSError': give a class"),
        ({"give_up_on": [OSError]}, "give_up_on is .*: give a class"),
        ({"per_error": {"OSError": 1}}, "per_error is 'OSError': give a class"),
        ({"per_error": {OSError: "soon"}}, r"per_error\[OSError\] is 'soon'"),
        ({"per_error": {OSError: retry.fixed(max_age=1)}}, "has rules of its own"),
        ({"decide": 5}, "decide is 5: give a function"),
        ({"max_age": "-1s"}, "max_age is '-1s'"),
        ({"delay_max": "x"}, "delay_max is 'x'"),
        (
            {"retry_for": OSError},
            "there is no rule 'retry_for' for retries: did you mean",
        ),
    ],
)
@pytest.mark.parametrize("shape", [retry.fixed, retry.linear, retry.exponential])
def test_a_wrong_rule_is_refused_by_name(shape: Any, rules: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shape(**rules)


@given(
    st.integers(0, 12),
    st.lists(st.sampled_from(KINDS), max_size=2).map(tuple),
    st.lists(st.sampled_from(KINDS), max_size=2).map(tuple),
    st.dictionaries(st.sampled_from(KINDS), st.integers(0, 50), max_size=2),
    st.sampled_from(ERRORS),
    st.integers(1, 15),
    st.floats(0, 1, exclude_max=True),
)
def test_every_decision_follows_from_the_rules(
    attempts: int,
    retry_on: tuple[type[Exception], ...],
    give_up_on: tuple[type[Exception], ...],
    per_error: dict[type[BaseException], float],
    error: Exception,
    attempt: int,
    draw: float,
) -> None:
    policy = retry.exponential(
        attempts, retry_on=retry_on, give_up_on=give_up_on, per_error=per_error, delay_max=5
    )
    decision = policy.decide(attempt, error, draw)
    own = next((delay for kind, delay in per_error.items() if isinstance(error, kind)), None)
    if isinstance(error, Discard):
        assert decision == retry.Die("enough", exhausted=False)
    elif not isinstance(error, Retry) and (
        isinstance(error, give_up_on) or (own is None and not isinstance(error, retry_on))
    ):
        assert decision == retry.Die(f"{type(error).__name__} is not retried", exhausted=False)
    elif attempts and attempt >= attempts:
        assert decision == retry.Die(f"attempt {attempt} of {attempts} failed")
    elif isinstance(error, Retry) and error.delay_ns is not None:
        assert decision == retry.RetryAfter(5)
    elif own is not None:
        assert decision == retry.RetryAfter(own)
    else:
        assert isinstance(decision, retry.RetryAfter)
        assert 0 <= decision.delay_seconds <= policy.cap_seconds


def test_a_policy_tells_of_which_errors_its_rules_speak() -> None:
    """Be it to retry them or not: one that only programs raise is no failure unless it is named."""
    policy = retry.fixed(
        delay=1, retry_on=(SystemExit,), give_up_on=(ValueError,), per_error={OSError: "5s"}
    )
    spoken_of = [SystemExit(), ValueError(), UnicodeError(), OSError(), TimeoutError()]
    assert [policy.names(error) for error in spoken_of] == [True] * 5
    assert [policy.names(item) for item in (KeyError(), KeyboardInterrupt())] == [False] * 2
