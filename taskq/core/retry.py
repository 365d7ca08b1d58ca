"""Retry policies: after which error, and after how long, a job runs again. Pure; chance comes in.

::

    fixed        delay
    linear       base * attempt
    exponential  base * factor ** (attempt - 1)

each at most ``cap``. Jitter spreads jobs that failed together, with ``draw`` in [0, 1): "full" is
``draw * delay``, "equal" is ``delay / 2 + draw * delay / 2`` (M. Brooker, "Exponential Backoff And
Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from taskq.core.durations import Duration, seconds
from taskq.core.errors import UsageError
from taskq.core.model import ATTEMPTS_DEFAULT, ATTEMPTS_MAX, SECOND_NS
from taskq.core.signals import Discard, Retry

#: Classes of exceptions, as ``isinstance`` takes them.
ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]


class Shape(enum.StrEnum):
    """How the delay grows with the attempts."""

    #: always the same
    FIXED = "fixed"
    #: by one base each time
    LINEAR = "linear"
    #: by the factor each time
    EXPONENTIAL = "exponential"


class Jitter(enum.StrEnum):
    """How chance changes a delay."""

    #: not at all
    NONE = "none"
    #: half of it is drawn
    EQUAL = "equal"
    #: all of it is drawn
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Run the job again, this much later."""

    delay_seconds: float

    @property
    def delay_ns(self) -> int:
        """The delay in nanoseconds."""
        return round(self.delay_seconds * SECOND_NS)


@dataclass(frozen=True, slots=True)
class Die:
    """Give the job up.

    ``exhausted`` tells that its attempts were used up; else the policy gives up on such an error.
    """

    reason: str
    exhausted: bool = True


Decision: TypeAlias = RetryAfter | Die


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Decides what follows a failed attempt. Make one with the functions below.

    Attributes:
        attempts: how often a job may run; 0 for no limit.
        retry_on: errors worth another attempt.
        give_up_on: errors that are not, even if ``retry_on`` names them.
    """

    attempts: int = ATTEMPTS_DEFAULT
    shape: Shape = Shape.EXPONENTIAL
    base_seconds: float = 1.0
    cap_seconds: float = 300.0
    factor: float = 2.0
    jitter: Jitter = Jitter.FULL
    retry_on: ErrorTypes = Exception
    give_up_on: ErrorTypes = ()

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 0 <= self.attempts <= ATTEMPTS_MAX:
            raise UsageError(
                f"attempts is {self.attempts!r}, it must be 1 to {ATTEMPTS_MAX}, or 0 for no limit"
            )
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise UsageError(f"factor is {self.factor!r}, it must be 1 or more")

    def delay_seconds(self, attempt: int, draw: float) -> float:
        """How long to wait after the given attempt (1 is the first) failed."""
        delay = self._full_delay_seconds(max(attempt, 1))
        if self.jitter is Jitter.FULL:
            return draw * delay
        if self.jitter is Jitter.EQUAL:
            return delay / 2 + draw * delay / 2
        return delay

    def decide(
        self, attempt: int, error: BaseException, draw: float, attempts_max: int | None = None
    ) -> Decision:
        """What to do with a job whose attempt failed with this error.

        Args:
            attempt: number of the attempt that failed; 1 is the first.
            error: what the task raised; a ``Retry`` brings its own delay, a
                ``Discard`` its reason.
            draw: a random number in [0, 1).
            attempts_max: of the job, where it was enqueued with other attempts than the policy's.
        """
        limit = self.attempts if attempts_max is None else attempts_max
        if isinstance(error, Discard):
            return Die(str(error), exhausted=False)
        asked = isinstance(error, Retry)
        if not asked and (
            isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on)
        ):
            return Die(f"{type(error).__name__} is not retried", exhausted=False)
        if limit and attempt >= limit:
            return Die(f"attempt {attempt} of {limit} failed")
        if isinstance(error, Retry) and error.delay_ns is not None:
            return RetryAfter(error.delay_ns / SECOND_NS)
        return RetryAfter(self.delay_seconds(attempt, draw))

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
    retry_on: ErrorTypes = Exception,
    give_up_on: ErrorTypes = (),
) -> RetryPolicy:
    """The same delay after every attempt.

    Raises:
        UsageError: an argument is out of its range.
    """
    wait_seconds = seconds(delay, "delay")
    return RetryPolicy(
        attempts=attempts,
        shape=Shape.FIXED,
        base_seconds=wait_seconds,
        cap_seconds=wait_seconds,
        jitter=_jitter(jitter),
        retry_on=retry_on,
        give_up_on=give_up_on,
    )


def linear(
    attempts: int = ATTEMPTS_DEFAULT,
    base: Duration = 1,
    cap: Duration = 300,
    *,
    jitter: Literal["none", "equal", "full"] = "none",
    retry_on: ErrorTypes = Exception,
    give_up_on: ErrorTypes = (),
) -> RetryPolicy:
    """``base`` after the first attempt, twice that after the second, and so on up to ``cap``.

    Raises:
        UsageError: an argument is out of its range.
    """
    return RetryPolicy(
        attempts=attempts,
        shape=Shape.LINEAR,
        base_seconds=seconds(base, "base"),
        cap_seconds=seconds(cap, "cap"),
        jitter=_jitter(jitter),
        retry_on=retry_on,
        give_up_on=give_up_on,
    )


def exponential(
    attempts: int = ATTEMPTS_DEFAULT,
    base: Duration = 1,
    cap: Duration = 300,
    *,
    factor: float = 2.0,
    jitter: Literal["none", "equal", "full"] = "full",
    retry_on: ErrorTypes = Exception,
    give_up_on: ErrorTypes = (),
) -> RetryPolicy:
    """``base`` after the first attempt, ``factor`` times more after each, up to ``cap``.

    Raises:
        UsageError: an argument is out of its range.
    """
    return RetryPolicy(
        attempts=attempts,
        shape=Shape.EXPONENTIAL,
        base_seconds=seconds(base, "base"),
        cap_seconds=seconds(cap, "cap"),
        factor=float(factor),
        jitter=_jitter(jitter),
        retry_on=retry_on,
        give_up_on=give_up_on,
    )


def never() -> RetryPolicy:
    """One attempt: its claim is on disk before the task runs, so it never runs twice."""
    return RetryPolicy(attempts=1, shape=Shape.FIXED, base_seconds=0.0, cap_seconds=0.0)


#: What a task has that names no policy.
DEFAULT: Final = RetryPolicy()


def policy_of(value: RetryPolicy | int) -> RetryPolicy:
    """The policy itself, or the default one with so many attempts.

    Raises:
        UsageError: neither of the two, or a number that is not 1 to 65 535.
    """
    if isinstance(value, RetryPolicy):
        return value
    if type(value) is not int or not 1 <= value <= ATTEMPTS_MAX:
        raise UsageError(
            f"retry is {value!r}: give the number of attempts, 1 (no second one) to "
            f"{ATTEMPTS_MAX}, or a policy such as retry.exponential(attempts=5)"
        )
    return RetryPolicy(attempts=value)


def _jitter(name: str) -> Jitter:
    try:
        return Jitter(name)
    except ValueError:
        raise UsageError(f'jitter is {name!r}, it must be "none", "equal" or "full"') from None
