"""Decide after which errors, and after which delay, a job runs again. Pure."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, Unpack

from taskq.core.durations import Duration, nanoseconds, seconds
from taskq.core.errors import UsageError
from taskq.core.exceptions import failures, find_error, generations, is_a, names_of
from taskq.core.model import ATTEMPTS_DEFAULT, ATTEMPTS_MAX, SECOND_NS
from taskq.core.parsing import rather, whole
from taskq.core.values import TypedDict, dataclass

# Signals that a task raises to choose its end. They are no errors.


class Signal(Exception):
    """Base class of the three signals."""


def _until_ns(delay: Duration, what: str) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    is_over = isinstance(seconds, int | float) and seconds < 0
    return 0 if is_over else nanoseconds(delay, what)


class Retry(Signal):
    """This attempt failed: run the job again, even for an error that the policy gives up on.

    The attempt counts, so after the last one the job is dead all the same.

    ``raise Retry(delay="30s", reason="the server is busy")``

    Args:
        delay: until the next attempt; a negative number counts as 0. None leaves it to the task's
            policy.
        reason: kept with the attempt.

    Attributes:
        delay_ns: the delay in nanoseconds, or None.

    Raises:
        UsageError: the delay is no duration.
    """

    # For subclasses that do not call our ``__init__``.
    delay_ns: int | None = None
    reason: str = ""

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "the task asked for another attempt")
        self.delay_ns = None if delay is None else _until_ns(delay, "Retry(delay=)")
        self.reason = reason


class Snooze(Signal):
    """Put the job back for a while, without using up an attempt: ``raise Snooze("5m")``.

    Args:
        delay: until the job is due again; a negative number counts as 0.

    Attributes:
        delay_ns: the delay in nanoseconds.

    Raises:
        UsageError: the delay is no duration.
    """

    delay_ns: int = 0

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"the task asked to wait for {delay!s}")
        self.delay_ns = _until_ns(delay, "Snooze(delay)")


class Discard(Signal):
    """Move the job to the dead letters now, even if it has attempts left.

    ``raise Discard("no such address")``

    Attributes:
        reason: kept with the dead letter.
    """

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task discarded the job")
        self.reason = reason


def wish_in(error: BaseException) -> Retry | Snooze | Discard | None:
    """Return the signal in an exception: itself, in its group, or among its causes.

    The nearest one counts. In a group the most final one counts: ``Discard``, ``Retry``,
    ``Snooze``. Other errors of the group do not count: a signal cancels the other members, which
    mostly causes them.
    """
    return find_error(error, Discard, Retry, Snooze)  # type: ignore[return-value]


# Further rules of a retry policy: errors, age, and a function that decides.

#: Classes of exceptions, as ``isinstance`` takes them.
ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
#: Called with (error, number of the failed attempt); returns a signal, or None to leave the
#: decision to the policy.
Decider: TypeAlias = Callable[[BaseException, int], Retry | Snooze | Discard | None]

#: Longest delay of a Retry or Snooze, unless a policy sets another: 30 days.
DELAY_SECONDS_MAX: Final = 30 * 86_400.0


class RetryRules(TypedDict, total=False):
    """Further keywords of a policy; all may be left out."""

    #: errors worth another attempt; unless given, all but errors that end a program
    retry_on: ErrorTypes
    #: errors that are not, even if ``retry_on`` or ``per_error`` names them
    give_up_on: ErrorTypes
    #: another delay, or delays and attempts of another policy, for some errors; the first that fits
    per_error: Mapping[ErrorTypes, RetryPolicy | Duration]
    #: asked first: called with (error, attempt), gives a Retry, Snooze or Discard, or None to leave
    #: it to the policy
    decide: Decider | None
    #: no attempt begins at this age of the job: it is dead instead
    max_age: Duration | None
    #: longest delay that a Retry or Snooze may ask for; longer ones are cut. 30 days unless given
    delay_max: Duration


def wish_of(
    decider: Decider, error: BaseException, attempt: int
) -> Retry | Snooze | Discard | None:
    """Return the function's answer for an error, and for the members of a group.

    The most final of several answers counts, as in ``wish_in``. A raised signal counts as an
    answer.

    Raises:
        UsageError: the function returned neither a signal nor None.
        Exception: any error of the function.
    """
    wish = _wish_of(decider, error, attempt)
    if wish is not None or not is_a(error, BaseExceptionGroup):
        return wish
    wishes = [_wish_of(decider, item, attempt) for item in failures(error)]
    given = [wish for wish in wishes if wish is not None]
    return wish_in(ExceptionGroup("", given)) if given else None


def _wish_of(
    decider: Decider, error: BaseException, attempt: int
) -> Retry | Snooze | Discard | None:
    try:
        wish: object = decider(error, attempt)
    except (Retry, Snooze, Discard) as signal:
        return signal
    if wish is None or isinstance(wish, Retry | Snooze | Discard):
        return wish
    raise UsageError(
        f"decide gave {wish!r:.60} for {names_of(type(error))[1]}: "
        f"return Retry(...), Snooze(...), Discard(...) or None"
    )


class Shape(enum.StrEnum):
    """Growth of the delay with the attempts."""

    #: always the same
    FIXED = "fixed"
    #: by one base each time
    LINEAR = "linear"
    #: by the factor each time
    EXPONENTIAL = "exponential"


class Jitter(enum.StrEnum):
    """Random part of a delay."""

    #: not at all
    NONE = "none"
    #: half of it is drawn
    EQUAL = "equal"
    #: all of it is drawn
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Run the job again after a delay."""

    delay_seconds: float

    @property
    def delay_ns(self) -> int:
        """Delay in nanoseconds."""
        return round(self.delay_seconds * SECOND_NS)


@dataclass(frozen=True, slots=True)
class Die:
    """Give the job up.

    ``exhausted``: its attempts are used up; else the policy gives up on this error.
    """

    reason: str
    exhausted: bool = True


Decision: TypeAlias = RetryAfter | Die


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Decision about failed attempts. Make a policy with the functions below.

    The delays of a policy::

        fixed        delay
        linear       base * attempt
        exponential  base * factor ** (attempt - 1)

    each at most ``cap``. Jitter spreads jobs that failed together, with ``draw`` in [0, 1): "full"
    is ``draw * delay``, "equal" is ``delay / 2 + draw * delay / 2`` (M. Brooker, "Exponential
    Backoff And Jitter", AWS Architecture Blog, 2015).

    Attributes:
        attempts: most attempts of a job; 0 for no limit.
        retry_on: errors worth another attempt.
        give_up_on: errors that are not, even if ``retry_on`` names them.
        per_error: other delays for some errors; the first entry that fits counts.
        decider: called first with each error.
        max_age_seconds: age of a job after which no attempt begins. None: any age.
        asked_seconds_max: longest delay of a ``Retry`` or ``Snooze``; longer delays are cut.
    """

    attempts: int = ATTEMPTS_DEFAULT
    shape: Shape = Shape.EXPONENTIAL
    base_seconds: float = 1.0
    cap_seconds: float = 300.0
    factor: float = 2.0
    jitter: Jitter = Jitter.FULL
    retry_on: ErrorTypes = Exception
    give_up_on: ErrorTypes = ()
    per_error: tuple[tuple[ErrorTypes, RetryPolicy], ...] = ()
    decider: Decider | None = None
    max_age_seconds: float | None = None
    asked_seconds_max: float = DELAY_SECONDS_MAX

    def __post_init__(self) -> None:
        object.__setattr__(self, "attempts", whole(self.attempts, "attempts"))
        if not 0 <= self.attempts <= ATTEMPTS_MAX:
            raise UsageError(
                f"attempts is {self.attempts!r}, it must be 1 to {ATTEMPTS_MAX}, or 0 for no limit"
            )
        factor: object = self.factor
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        if not (is_number and math.isfinite(self.factor) and self.factor >= 1):
            raise UsageError(f"factor is {self.factor!r:.60}, it must be a number, 1 or more")

    if not TYPE_CHECKING:  # or the type checker would take a policy for a function

        def __call__(self, *_args: object, **_choices: object) -> None:
            raise UsageError(
                "task.retry is the task's policy: write raise Retry(delay=30) within the task"
            )

    def delay_seconds(self, attempt: int, draw: float) -> float:
        """Return the delay after a failed attempt; 1 is the first attempt."""
        delay = self._full_delay_seconds(max(attempt, 1))
        if self.jitter is Jitter.FULL:
            return draw * delay
        if self.jitter is Jitter.EQUAL:
            return delay / 2 + draw * delay / 2
        return delay

    def decide(
        self, attempt: int, error: BaseException, draw: float, attempts_max: int | None = None
    ) -> Decision:
        """Decide about a job whose attempt failed with this error.

        For a group, the most final decision about its members counts: to give up, else the longest
        delay. The causes (``raise … from``) of an error count as well: the nearest one named by a
        rule decides.

        Args:
            attempt: number of the attempt that failed; 1 is the first.
            error: raised by the task; a ``Retry`` has its own delay, a ``Discard`` its reason.
            draw: a random number in [0, 1).
            attempts_max: attempts of the job, if they differ from the policy's.
        """
        limit = self.attempts if attempts_max is None else attempts_max
        wish = wish_in(error)
        if is_a(wish, Discard):
            return Die(str(wish), exhausted=False)
        if wish is not None and is_a(wish, Retry):
            delay_ns = getattr(wish, "delay_ns", None)
            return self._after(self._own_policy(wish) or self, attempt, limit, draw, delay_ns)
        decisions = [self._judge(item, attempt, limit, draw) for item in failures(error)]
        return max(decisions, key=_finality)

    def _judge(self, error: BaseException, attempt: int, limit: int, draw: float) -> Decision:
        own = self._own_policy(error)
        if own is None:
            return Die(f"{names_of(type(error))[1]} is not retried", exhausted=False)
        return self._after(own, attempt, limit, draw)

    def _after(
        self,
        own: RetryPolicy,
        attempt: int,
        limit: int,
        draw: float,
        asked_ns: int | None = None,
    ) -> Decision:
        if own.attempts and own is not self:
            limit = min(limit or own.attempts, own.attempts)
        if limit and attempt >= limit:
            return Die(f"attempt {attempt} of {limit} failed")
        if asked_ns is not None:
            return RetryAfter(self.bounded_ns(asked_ns) / SECOND_NS)
        return RetryAfter(own.delay_seconds(attempt, draw))

    def bounded_ns(self, delay_ns: int) -> int:
        """Return the delay of a signal in nanoseconds, cut to the policy's maximum.

        Such delays often come from other systems, for example a server's Retry-After.
        """
        return min(delay_ns, round(self.asked_seconds_max * SECOND_NS))

    def is_too_old(self, age_ns: int, delay_ns: int) -> bool:
        """Return whether a job of this age would be too old for ``max_age`` after the delay."""
        limit = self.max_age_seconds
        return limit is not None and max(age_ns, 0) + delay_ns >= round(limit * SECOND_NS)

    def wish(self, error: BaseException, attempt: int) -> Retry | Snooze | Discard | None:
        """Return the answer of ``decider`` for an error; None leaves it to the other rules.

        Raises:
            UsageError: another answer.
            Exception: any error of ``decider``.
        """
        return None if self.decider is None else wish_of(self.decider, error, attempt)

    def _own_policy(self, error: BaseException) -> RetryPolicy | None:
        is_broad = issubclass(Exception, self.retry_on)  # it names no error in particular
        if not is_broad or self.give_up_on or self.per_error:
            rules = [(self.give_up_on, None), *self.per_error]
            rules += [] if is_broad else [(self.retry_on, self)]
            for generation in generations(error):
                for item in generation:
                    for kinds, own in rules:
                        if is_a(item, kinds):
                            return own
        if is_a(error, Exception):
            return self if is_broad else None
        # A sys.exit() or a cancelled connection within a library is no property of the job. Unless
        # a rule names it, it is judged like any failure, and not as "no Exception".
        return self if is_a(error, self.retry_on) else self._own_policy(RuntimeError())

    def _full_delay_seconds(self, attempt: int) -> float:
        base, cap = self.base_seconds, self.cap_seconds
        if self.shape is Shape.FIXED:
            return base
        if self.shape is Shape.LINEAR:
            return min(cap, base * attempt)
        if base <= 0 or base >= cap or self.factor <= 1:
            return min(cap, base)
        # A power past the cap is never computed: 2.0 ** 10 000 would overflow.
        if attempt - 1 >= math.log(cap / base) / math.log(self.factor):
            return cap
        return min(cap, base * self.factor ** (attempt - 1))


def fixed(
    attempts: int = ATTEMPTS_DEFAULT,
    delay: Duration = 1,
    *,
    jitter: Literal["none", "equal", "full"] = "none",
    **rules: Unpack[RetryRules],
) -> RetryPolicy:
    """Return a policy with the same delay after every attempt.

    Args:
        attempts: most attempts of a job; 0 for no limit.
        delay: between two attempts.
        jitter: random part of the delay.
        rules: see ``RetryRules``.

    Raises:
        UsageError: an argument is out of its range.
    """
    wait_seconds = seconds(delay, "delay")
    return _policy(Shape.FIXED, attempts, wait_seconds, wait_seconds, jitter, rules)


def linear(
    attempts: int = ATTEMPTS_DEFAULT,
    base: Duration = 1,
    cap: Duration = 300,
    *,
    jitter: Literal["none", "equal", "full"] = "none",
    **rules: Unpack[RetryRules],
) -> RetryPolicy:
    """Return a policy with delays of once, twice, three times ``base`` and so on, up to ``cap``.

    Args:
        attempts: most attempts of a job; 0 for no limit.
        base: the first delay, and the difference between two delays.
        cap: the longest delay.
        jitter: random part of the delays.
        rules: see ``RetryRules``.

    Raises:
        UsageError: an argument is out of its range.
    """
    limits = seconds(base, "base"), seconds(cap, "cap")
    return _policy(Shape.LINEAR, attempts, *limits, jitter, rules)


def exponential(
    attempts: int = ATTEMPTS_DEFAULT,
    base: Duration = 1,
    cap: Duration = 300,
    *,
    factor: float = 2.0,
    jitter: Literal["none", "equal", "full"] = "full",
    **rules: Unpack[RetryRules],
) -> RetryPolicy:
    """Return a policy whose delays begin with ``base`` and grow by ``factor`` up to ``cap``.

    Args:
        attempts: most attempts of a job; 0 for no limit.
        base: the first delay.
        cap: the longest delay.
        factor: ratio of a delay to the one before, 1 or more.
        jitter: random part of the delays.
        rules: see ``RetryRules``.

    Raises:
        UsageError: an argument is out of its range.
    """
    limits = seconds(base, "base"), seconds(cap, "cap")
    return _policy(Shape.EXPONENTIAL, attempts, *limits, jitter, rules, factor)


def never() -> RetryPolicy:
    """Return a policy with one attempt. Its claim is on disk first, so the job never runs twice."""
    return RetryPolicy(attempts=1, shape=Shape.FIXED, base_seconds=0.0, cap_seconds=0.0)


DEFAULT: Final = RetryPolicy()


def policy_of(value: RetryPolicy | int) -> RetryPolicy:
    """Return the policy itself, or the default policy with this number of attempts."""
    if isinstance(value, RetryPolicy):
        return value
    try:
        attempts = whole(value, "retry")
    except UsageError:
        attempts = 0
    if not 1 <= attempts <= ATTEMPTS_MAX:
        raise UsageError(
            f"retry is {value!r:.60}: give the number of attempts, 1 (no second one) to "
            f"{ATTEMPTS_MAX}, or a policy such as retry.exponential(attempts=5)"
        )
    return RetryPolicy(attempts=attempts)


def _finality(decision: Decision) -> tuple[int, float]:
    if isinstance(decision, RetryAfter):
        return 0, decision.delay_seconds
    return 1 if decision.exhausted else 2, 0.0


def _policy(
    shape: Shape,
    attempts: int,
    base_seconds: float,
    cap_seconds: float,
    jitter: str,
    rules: RetryRules,
    factor: float = 2.0,
) -> RetryPolicy:
    unknown = rules.keys() - RetryRules.__annotations__.keys()
    if unknown:
        name, known = min(unknown), RetryRules.__annotations__
        raise UsageError(f"there is no rule {name!r} for retries: {rather(name, known, 'rules')}")
    decider = rules.get("decide")
    if decider is not None and not callable(decider):
        raise UsageError(f"decide is {decider!r:.60}: give a function of (error, attempt)")
    if inspect.iscoroutinefunction(decider):
        raise UsageError("decide is async: give a plain function of (error, attempt)")
    max_age = rules.get("max_age")
    return RetryPolicy(
        attempts=attempts,
        shape=shape,
        base_seconds=base_seconds,
        cap_seconds=cap_seconds,
        factor=factor,
        jitter=_jitter(jitter),
        retry_on=_types(rules.get("retry_on", Exception), "retry_on"),
        give_up_on=_types(rules.get("give_up_on", ()), "give_up_on"),
        per_error=tuple(_own_policies(rules.get("per_error", {}))),
        decider=decider,
        max_age_seconds=None if max_age is None else seconds(max_age, "max_age"),
        asked_seconds_max=seconds(rules.get("delay_max", DELAY_SECONDS_MAX), "delay_max"),
    )


def _own_policies(
    per_error: Mapping[ErrorTypes, RetryPolicy | Duration],
) -> Iterator[tuple[ErrorTypes, RetryPolicy]]:
    for kind, value in per_error.items():
        _types(kind, "per_error")
        entry = f"per_error[{getattr(kind, '__name__', kind)}]"
        if not isinstance(value, RetryPolicy):
            yield kind, fixed(0, seconds(value, entry))
            continue
        if value.per_error or value.decider is not None or value.max_age_seconds is not None:
            raise UsageError(
                f"{entry} has rules of its own: give per_error, decide and max_age to the outer "
                f"policy"
            )
        yield kind, value


def _types(kinds: ErrorTypes, what: str) -> ErrorTypes:
    try:
        isinstance(None, kinds)
    except TypeError:
        raise UsageError(
            f"{what} is {kinds!r:.60}: give a class of exceptions, or a tuple of them"
        ) from None
    return kinds


def _jitter(name: str) -> Jitter:
    try:
        return Jitter(name)
    except ValueError:
        raise UsageError(f'jitter is {name!r}, it must be "none", "equal" or "full"') from None
