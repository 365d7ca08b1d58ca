"""What a retry policy takes besides its delays: which errors, how long, and who is asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict

from taskq.core.errors import UsageError
from taskq.core.signals import Discard, Retry, Snooze

if TYPE_CHECKING:
    from taskq.core.durations import Duration
    from taskq.core.retry import RetryPolicy

#: Classes of exceptions, as ``isinstance`` takes them.
ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
#: Told (error, number of the attempt that failed), says what to do; None: as the policy says.
Decider: TypeAlias = Callable[[BaseException, int], Retry | Snooze | Discard | None]

#: Longest delay that a Retry or Snooze may ask for, unless a policy says otherwise: 30 days.
DELAY_SECONDS_MAX: Final = 30 * 86_400.0


class RetryRules(TypedDict, total=False):
    """Further keywords of a policy; all may be left out."""

    #: errors worth another attempt; all but those that end a program, unless given
    retry_on: ErrorTypes
    #: errors that are not, even if ``retry_on`` or ``per_error`` names them
    give_up_on: ErrorTypes
    #: another delay, or delays and attempts of another policy, for some errors; the first that fits
    per_error: Mapping[type[BaseException], RetryPolicy | Duration]
    #: asked first: called with (error, attempt), gives a Retry, Snooze or Discard, or None to leave
    #: it to the policy
    decide: Decider | None
    #: no attempt begins so long after the job was enqueued: it is dead instead
    max_age: Duration | None
    #: longest delay that a Retry or Snooze may ask for; longer ones are cut. 30 days unless given
    delay_max: Duration


def wish_of(
    decider: Decider, error: BaseException, attempt: int
) -> Retry | Snooze | Discard | None:
    """What the function says of an error.

    Raises:
        UsageError: it gave neither a signal nor None.
        Exception: whatever it raised; a signal that it raises is as good as one that it returns.
    """
    try:
        wish: object = decider(error, attempt)
    except (Retry, Snooze, Discard) as signal:
        return signal
    if wish is None or isinstance(wish, Retry | Snooze | Discard):
        return wish
    raise UsageError(
        f"decide gave {wish!r:.60} for {type(error).__name__}: "
        f"return Retry(...), Snooze(...), Discard(...) or None"
    )
