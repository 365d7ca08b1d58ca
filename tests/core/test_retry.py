"""Retry policies: how they are written, and their rules as tables and properties."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from taskq import Discard, Retry, Snooze, retry
from taskq.core.errors import UsageError
from taskq.core.exceptions import MEMBERS_MAX, NO_TEXT, members, names_of, text_of
from taskq.core.model import SECOND_NS
from taskq.core.retry import DEFAULT, policy_of, wish_in
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
    [("none", 0.25, 8), ("equal", 0.0, 4), ("equal", 0.25, 5), ("full", 0.0, 0), ("full", 0.25, 2)],
)
def test_jitter_draws_none_half_or_all_of_a_delay(jitter: Any, draw: float, delay: float) -> None:
    policy = retry.exponential(base=1, cap=300, jitter=jitter)
    assert policy.delay_seconds(4, draw) == delay


def test_the_default_is_five_attempts_with_exponential_backoff_and_full_jitter() -> None:
    assert retry.exponential(attempts=5, base=1, cap=300, jitter="full") == DEFAULT
    assert policy_of(3) == retry.exponential(attempts=3)
    assert retry.never().attempts == 1
    assert policy_of(DEFAULT) is DEFAULT


def test_signals_check_their_delay_and_are_no_errors_of_taskq() -> None:
    assert Snooze("2m").delay_ns == 120_000_000_000
    assert Retry().delay_ns is None
    # A pause that another wait has outlasted is over already.
    assert Snooze(-0.25).delay_ns == Retry(delay=timedelta(seconds=-2)).delay_ns == 0
    assert str(Retry(reason="busy")) == "busy"
    assert str(Discard()) == "the task discarded the job"
    with pytest.raises(UsageError, match=r"Snooze\(delay\) is 'soon'"):
        Snooze("soon")


@pytest.mark.parametrize(
    ("age", "delay", "is_too_old"),
    [
        (0, 0, False), (50, 49, False), (50, 50, True), (99, 0, False), (100, 0, True),
        (-5, 10, False),
    ],
)  # fmt: skip
def test_a_job_is_too_old_when_its_next_attempt_would_begin_after_its_longest_age(
    age: int, delay: int, is_too_old: bool
) -> None:
    policy = retry.fixed(max_age=100)
    assert policy.is_too_old(age * SECOND_NS, delay * SECOND_NS) is is_too_old
    assert not retry.fixed().is_too_old(age * SECOND_NS, delay * SECOND_NS)


@pytest.mark.parametrize("wish", [Retry(delay=3), Snooze(5), Discard("no"), None])
def test_decide_gets_error_and_attempt_and_may_return_or_raise_a_decision(wish: Any) -> None:
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


def raised_from(error: BaseException, *causes: BaseException) -> BaseException:
    for later, cause in pairwise([error, *causes]):
        later.__cause__ = cause
    return error


def grouped(*errors: BaseException, depth: int = 1) -> BaseException:
    group: BaseException = BaseExceptionGroup("unhandled", errors)
    for _ in range(depth - 1):
        group = BaseExceptionGroup("around", [group])
    return group


def handling(error: BaseException) -> BaseException:
    later = ValueError()
    later.__context__ = error  # no cause
    return later


DISCARD, RETRY, SNOOZE = Discard("no"), Retry(delay=7), Snooze(9)


@pytest.mark.parametrize(
    ("error", "wish"),
    [
        (grouped(DISCARD), DISCARD),
        (grouped(SNOOZE, depth=500), SNOOZE),
        (grouped(SNOOZE, RETRY, DISCARD), DISCARD),
        (grouped(SNOOZE, grouped(RETRY)), RETRY),
        (grouped(ValueError(), RETRY, SystemExit(), KeyboardInterrupt()), RETRY),
        (grouped(asyncio.CancelledError(), SNOOZE, ValueError()), SNOOZE),
        (raised_from(RuntimeError("a library's"), DISCARD), DISCARD),
        (raised_from(Retry(delay=7), DISCARD), Retry),  # the nearest
        (grouped(raised_from(RuntimeError(), grouped(SNOOZE))), SNOOZE),
        (grouped(ValueError(), SystemExit()), None),
        (handling(DISCARD), None),
    ],
)
def test_a_wish_is_found_wherever_it_is(error: BaseException, wish: object) -> None:
    """In groups of groups and as the cause of another; of several in a group the most final."""
    seen = wish_in(error)
    assert seen is wish or type(seen) is wish


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (FileNotFoundError(), retry.Die("FileNotFoundError is not retried", exhausted=False)),
        (TimeoutError(), retry.RetryAfter(5)),
        (ValueError(), retry.RetryAfter(60)),
        (raised_from(ValueError(), TimeoutError()), retry.RetryAfter(5)),
        (raised_from(ValueError(), KeyError(), PermissionError()), retry.Die),
        (raised_from(TimeoutError(), PermissionError()), retry.RetryAfter(5)),  # the nearest
        (Retry(delay=7), retry.RetryAfter(7)),
        (Discard("no"), retry.Die("no", exhausted=False)),
    ],
)
def test_rules_hold_for_what_is_in_groups_and_for_causes(
    error: BaseException, decision: object, depth: int
) -> None:
    policy = retry.fixed(
        delay=60, give_up_on=(FileNotFoundError, PermissionError), per_error={TimeoutError: 5}
    )
    decided = policy.decide(1, grouped(error, depth=depth) if depth else error, 0)
    assert decided == decision or type(decided) is decision


ASKED = retry.fixed(attempts=2, delay=5, retry_on=OSError)
OWN = retry.fixed(
    attempts=10, per_error={OSError: retry.fixed(attempts=2), (KeyError, IndexError): 1}
)
ENDED = retry.fixed(delay=1, give_up_on=(SystemExit,), per_error={KeyboardInterrupt: "5s"})
SEVERAL = retry.fixed(delay=60, give_up_on=KeyError, per_error={TimeoutError: 5})


@pytest.mark.parametrize(
    ("policy", "attempt", "error", "decision"),
    [
        # A task that asks for a retry names its delay, and spends an attempt.
        (ASKED, 1, Retry(delay="2s"), retry.RetryAfter(2)),
        (ASKED, 1, Retry(), retry.RetryAfter(5)),
        (ASKED, 2, Retry(delay=1), retry.Die),
        # An error's own policy has its own number of attempts.
        (OWN, 1, OSError(), retry.RetryAfter),
        (OWN, 2, OSError(), retry.Die("attempt 2 of 2 failed")),
        (OWN, 9, KeyError(), retry.RetryAfter),
        (OWN, 10, KeyError(), retry.Die),
        # A library's sys.exit() says nothing of the job, unless a rule names it.
        (ENDED, 1, GeneratorExit(), retry.RetryAfter(1)),
        (ENDED, 1, KeyboardInterrupt(), retry.RetryAfter(5)),
        (ENDED, 1, SystemExit(), retry.Die),
        (retry.fixed(retry_on=OSError), 1, SystemExit(), retry.Die),
        (retry.fixed(retry_on=SystemExit), 1, SystemExit(), retry.RetryAfter),
        # The most final decision about several failures counts.
        (SEVERAL, 1, grouped(TimeoutError(), ValueError()), retry.RetryAfter(60)),
        (SEVERAL, 1, grouped(TimeoutError(), KeyError()), retry.Die),
        (SEVERAL, 1, grouped(TimeoutError(), SystemExit()), retry.RetryAfter(5)),
        (retry.fixed(give_up_on=Discard), 1, handling(Discard()), retry.RetryAfter),
    ],
)
def test_an_error_is_decided_by_the_rule_that_names_it(
    policy: RetryPolicy, attempt: int, error: BaseException, decision: object
) -> None:
    decided = policy.decide(attempt, error, 0)
    assert decided == decision or type(decided) is decision
    # The job's own number is the most there is.
    assert isinstance(policy.decide(attempt, error, 0, attempts_max=1), retry.Die)


def test_decide_is_asked_of_a_group_and_then_of_its_failures() -> None:
    asked: list[type] = []

    def decide(error: BaseException, attempt: int) -> Any:
        asked.append(type(error))
        answers: dict[type, Any] = {KeyError: Discard("gone"), OSError: Snooze(1)}
        return answers.get(type(error))

    policy = retry.fixed(decide=decide)
    assert isinstance(policy.wish(grouped(OSError(), KeyError()), 1), Discard)
    assert asked == [ExceptionGroup, OSError, KeyError]
    assert policy.wish(grouped(ValueError()), 1) is None


class Meta(type):
    def __subclasscheck__(cls, _: object) -> bool:
        raise SystemExit


class Untouchable(Exception):
    """Raise the given exception."""

    def refuse(self, *_: object) -> Any:
        raise KeyboardInterrupt

    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = __len__ = refuse
    __class__ = __cause__ = __context__ = __traceback__ = args = property(refuse)


class UntouchableGroup(Untouchable, ExceptionGroup[Exception]):
    exceptions = message = property(Untouchable.refuse)


def test_an_exception_that_breaks_its_reader_is_judged_as_any() -> None:
    circle, group = ValueError(), UntouchableGroup("x", [Untouchable(), Discard()])
    raised_from(circle, KeyError(), circle)
    assert isinstance(retry.fixed(give_up_on=KeyError).decide(1, circle, 0), retry.Die)
    kinds: Any = (Meta("Kind", (Exception,), {}), OSError)
    policy = retry.fixed(delay=1, give_up_on=kinds)
    assert policy.decide(1, Untouchable(), 0) == retry.RetryAfter(1)
    assert isinstance(wish_in(group), Discard)
    assert text_of(group) == text_of(Untouchable()) == NO_TEXT
    assert names_of(type("Bare", (Exception,), {"__module__": None})) == ("", "Bare")


def test_looking_into_a_group_ends() -> None:
    wide = grouped(*(grouped(*(ValueError() for _ in range(100))) for _ in range(100)))
    assert len(members(wide)) == MEMBERS_MAX
    assert len(members(grouped(ValueError(), depth=2_000))) == 1
