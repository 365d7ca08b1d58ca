"""What a condition is: something that must hold before a job runs. Equal ones share one probe."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, TypeVar

from taskq.core.durations import Duration, seconds
from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

if TYPE_CHECKING:
    #: What ``requires`` takes beside conditions: no arguments, true if the job may run.
    Check: TypeAlias = Callable[[], "bool | Awaitable[bool]"]

T = TypeVar("T")

_log: Final = logging.getLogger("taskq")

#: While jobs wait for it, a condition is probed so often.
INTERVAL_SECONDS: Final = 0.4
#: How long a probe may take.
TIMEOUT_SECONDS: Final = 5.0
#: Calls that may hang in threads at a time, of all probes together.
ASIDE_MAX: Final = 32

_aside = threading.BoundedSemaphore(ASIDE_MAX)


class Condition(ABC):
    """The base of all conditions; they are compared by value, so give them ``__eq__``.

    Attributes:
        interval_seconds: how often it is probed while jobs wait for it.
        timeout_seconds: a probe that takes longer counts as "does not hold".
    """

    __slots__ = ()

    interval_seconds: float = INTERVAL_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS
    #: whether it tells that a network is there, so that a network error makes it be probed at once
    is_network: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return what people call it."""
        return type(self).__name__

    def bound(self, data_dir: Path) -> Condition:  # noqa: ARG002 - for those that need it
        """Return the condition as it is for an app with this data directory."""
        return self

    @abstractmethod
    async def problem(self) -> str:
        """Probe: "" if it holds, else why not. What it raises counts as "does not hold", too."""


@dataclass(frozen=True)
class Custom(Condition):
    """A condition of the user's own: a function without arguments.

    A sync one runs in a thread, so that it may block.
    """

    check: Check
    label: str = ""
    interval_seconds: float = INTERVAL_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def name(self) -> str:
        return self.label or _name_of(self.check)

    async def problem(self) -> str:
        check = self.check
        if inspect.iscoroutinefunction(check) or inspect.iscoroutinefunction(type(check).__call__):
            holds = check()
        else:
            holds = await aside(check)
        if inspect.isawaitable(holds):
            holds = await holds
        return "" if holds else f"it returned {holds!r:.40}"


def condition(
    check: Check,
    *,
    name: str = "",
    every: Duration = INTERVAL_SECONDS,
    timeout: Duration = TIMEOUT_SECONDS,
) -> Condition:
    """Make a condition of a function without arguments, async or not, that returns a bool.

    Args:
        check: the function.
        name: what ``why`` calls it; the function's name unless given.
        every: how often it is asked while jobs wait for it.
        timeout: how long it may take to answer.

    Raises:
        UsageError: it cannot be called so, or a span is none.
    """
    if not callable(check):
        raise UsageError(
            f"a condition is {check!r:.60}: give online(...), disk_free(...), on_power(), "
            f"unmetered(), or a function that returns a bool"
        )
    if _gives_condition(check):
        takes = "" if _takes_nothing(check) else "..."
        raise UsageError(
            f"the condition {_name_of(check)} makes conditions and is none: call it, "
            f"for example {_name_of(check)}({takes})"
        )
    if inspect.isclass(check) or not _takes_nothing(check):
        raise UsageError(
            f"the condition {_name_of(check)} must be a function that needs no arguments: wrap it, "
            f"for example in a lambda or with functools.partial"
        )
    interval, limit = seconds(every, "every"), seconds(timeout, "timeout")
    if interval <= 0 or limit <= 0:
        raise UsageError(f"the condition {_name_of(check)}: every and timeout must be above 0")
    return Custom(check, name, interval, limit)


def checked_conditions(
    task: str, requires: object, option: str = "requires"
) -> tuple[Condition, ...]:
    """Return what ``requires=`` says, each condition once.

    Args:
        task: how an error names the task.
        requires: a list or tuple of conditions and functions.
        option: how an error names what holds them.

    Raises:
        UsageError: it is none, or one of them is no condition.
    """
    if not isinstance(requires, list | tuple):
        raise UsageError(f"{task}: {option} is {requires!r:.60}: give a list of conditions")
    conditions: list[Condition] = []
    for given in requires:
        try:
            made = given if isinstance(given, Condition) else condition(given)
            hash(made)
        except UsageError as error:
            raise UsageError(f"{task}: {option}: {error}") from None
        except TypeError:
            raise UsageError(
                f"{task}: {option}: the condition {given!r:.60} must be hashable, so that tasks "
                f"can share its probe"
            ) from None
        if made not in conditions:
            conditions.append(made)
    return tuple(conditions)


async def aside(call: Callable[[], T], room: threading.BoundedSemaphore | None = None) -> T:
    """Return what the call returns, from a daemon thread of its own: it may block, and even hang.

    Whoever waits may be cancelled; the thread then ends with its call.

    Args:
        call: what blocks.
        room: how many of its kind may at a time; None: as many as probes.

    Raises:
        RuntimeError: too many calls hang already.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    room = room or _aside
    if not room.acquire(blocking=False):
        raise RuntimeError("too many calls hang in their threads already")

    def tell(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001 - the waiter's, not the thread's
            # A future cannot hold a StopIteration.
            stops = isinstance(raised, StopIteration)
            error = RuntimeError(f"it raised {raised!r}") if stops else raised
        finally:
            room.release()
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=work, name="taskq-probe", daemon=True).start()
    return await future


@functools.cache
def say_once(text: str) -> None:
    _log.warning("%s", text)


def _takes_nothing(check: Callable[..., object]) -> bool:
    try:
        inspect.signature(check).bind()
    except TypeError:
        return False
    except ValueError:
        return True  # a builtin that does not tell
    return True


def _gives_condition(check: Callable[..., object]) -> bool:
    """Return whether the brackets were forgotten, as in ``requires=[on_power]``."""
    annotations: dict[str, object] = getattr(check, "__annotations__", {})
    return annotations.get("return") in (Condition, Condition.__name__)


def _name_of(check: object) -> str:
    function = check.func if isinstance(check, functools.partial) else check
    return str(getattr(function, "__qualname__", type(function).__qualname__))
