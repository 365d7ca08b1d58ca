"""Conditions of a job: the base class, functions as conditions, and conditions of the machine."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, TypeAlias, TypeVar

from taskq.core import durations, errors, parsing

Check: TypeAlias = Callable[[], "bool | Awaitable[bool]"]


T = TypeVar("T")

_log: Final = logging.getLogger("taskq")

#: Interval of probes while jobs wait for a condition.
INTERVAL_SECONDS: Final = 0.4
#: Longest time of a probe.
TIMEOUT_SECONDS: Final = 5.0
#: Most threads at a time with calls that may hang, for all probes together.
ASIDE_MAX: Final = 32

_aside = threading.BoundedSemaphore(ASIDE_MAX)


class Condition(ABC):
    """The base of all conditions. They are compared by value, so define ``__eq__``.

    Attributes:
        interval_seconds: time between probes while jobs wait for it.
        timeout_seconds: a longer probe counts as "does not hold".
    """

    __slots__ = ()

    interval_seconds: float = INTERVAL_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS
    #: whether it concerns the network, so that a network error causes a probe at once
    is_network: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return its name in messages."""
        return type(self).__name__

    def bound(self, data_dir: Path) -> Condition:  # noqa: ARG002 - for subclasses that need it
        """Return the condition for an app with this data directory."""
        return self

    @abstractmethod
    async def problem(self) -> str:
        """Probe: return "" if it holds, else why not. An error counts as "does not hold", too."""


@dataclass(frozen=True)
class Custom(Condition):
    """A user's condition: a function without arguments.

    A sync function runs in a thread, so it may block.
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
    every: durations.Duration = INTERVAL_SECONDS,
    timeout: durations.Duration = TIMEOUT_SECONDS,
) -> Condition:
    """Make a condition of a function without arguments, async or not, that returns a bool.

    Args:
        check: the function.
        name: its name in the answer of ``why``; by default the function's name.
        every: time between calls while jobs wait for it.
        timeout: how long a call may take.

    Raises:
        UsageError: the function takes arguments, or a duration is not valid.
    """
    if not callable(check):
        raise errors.UsageError(
            f"a condition is {check!r:.60}: give online(...), disk_free(...), on_power(), "
            f"unmetered(), or a function that returns a bool"
        )
    if _gives_condition(check):
        takes = "" if _takes_nothing(check) else "..."
        raise errors.UsageError(
            f"the condition {_name_of(check)} makes conditions and is none: call it, "
            f"for example {_name_of(check)}({takes})"
        )
    if inspect.isclass(check) or not _takes_nothing(check):
        raise errors.UsageError(
            f"the condition {_name_of(check)} must be a function that needs no arguments: wrap it, "
            f"for example in a lambda or with functools.partial"
        )
    interval, limit = durations.seconds(every, "every"), durations.seconds(timeout, "timeout")
    if interval <= 0 or limit <= 0:
        raise errors.UsageError(
            f"the condition {_name_of(check)}: every and timeout must be above 0"
        )
    return Custom(check, name, interval, limit)


def checked_conditions(
    task: str, requires: object, option: str = "requires"
) -> tuple[Condition, ...]:
    """Return the conditions of ``requires=``, each once.

    Args:
        task: name of the task in an error.
        requires: a list or tuple of conditions and functions.
        option: name of the option in an error.

    Raises:
        UsageError: it is no list or tuple, or an item is no condition.
    """
    if not isinstance(requires, list | tuple):
        raise errors.UsageError(f"{task}: {option} is {requires!r:.60}: give a list of conditions")
    conditions: list[Condition] = []
    for given in requires:
        try:
            made = given if isinstance(given, Condition) else condition(given)
            hash(made)
        except errors.UsageError as error:
            raise errors.UsageError(f"{task}: {option}: {error}") from None
        except TypeError:
            raise errors.UsageError(
                f"{task}: {option}: the condition {given!r:.60} must be hashable, so that tasks "
                f"can share its probe"
            ) from None
        if made not in conditions:
            conditions.append(made)
    return tuple(conditions)


async def aside(call: Callable[[], T], room: threading.BoundedSemaphore | None = None) -> T:
    """Run a blocking call in a daemon thread, and return its result.

    If the waiting task is cancelled, the thread ends after its call.

    Args:
        call: the blocking function.
        room: limit of such calls at a time; None: the limit for probes.

    Raises:
        RuntimeError: too many calls hang already.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    room = room or _aside
    if not room.acquire(blocking=False):
        raise RuntimeError("too many calls hang in their threads already")

    def answer(value: T | None, error: BaseException | None) -> None:
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
        except BaseException as raised:  # noqa: BLE001 - raised in the waiting task
            # A future cannot hold a StopIteration.
            stops = isinstance(raised, StopIteration)
            error = RuntimeError(f"it raised {raised!r}") if stops else raised
        finally:
            room.release()
        try:
            loop.call_soon_threadsafe(answer, value, error)
        except RuntimeError:
            return  # the loop is closed: no task is waiting

    try:
        threading.Thread(target=work, name="taskq-probe", daemon=True).start()
    except RuntimeError:  # the system refuses another thread
        room.release()
        raise
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
        return True  # a builtin without a signature
    return True


def _gives_condition(check: Callable[..., object]) -> bool:
    """Return whether the function returns a condition, as in ``requires=[on_power]``."""
    annotations: dict[str, object] = getattr(check, "__annotations__", {})
    return annotations.get("return") in (Condition, Condition.__name__)


def _name_of(check: object) -> str:
    function = check.func if isinstance(check, functools.partial) else check
    return str(getattr(function, "__qualname__", type(function).__qualname__))


_BATTERY: Final = "the machine runs from its battery"
_SUPPLIES: Final = Path("/sys/class/power_supply")


@dataclass(frozen=True)
class DiskFree(Condition):
    """The disk of a path has ``free_bytes`` free; "" is the data directory."""

    free_bytes: int
    path: str = ""

    @property
    def name(self) -> str:
        where = f", {self.path}" if self.path else ""
        return f"disk_free({_spoken(self.free_bytes)}{where})"

    def bound(self, data_dir: Path) -> Condition:
        return self if self.path else replace(self, path=str(data_dir))

    async def problem(self) -> str:
        """Check in a thread, since a network drive may hang."""
        free = (await aside(lambda: shutil.disk_usage(self.path or "."))).free
        return "" if free >= self.free_bytes else f"{_spoken(free)} are free"


@dataclass(frozen=True)
class OnPower(Condition):
    """The machine does not run from its battery, according to Linux or Windows."""

    @property
    def name(self) -> str:
        return "on_power()"

    async def problem(self) -> str:
        from taskq.log.machine.system import system  # noqa: PLC0415 - few jobs ask for power

        if (on_battery := system.on_battery()) is not None:
            return _BATTERY if on_battery else ""
        supplies = await aside(lambda: read_supplies(_SUPPLIES))
        if supplies is None:
            say_once(f"on_power() cannot be known here, without {_SUPPLIES}: it counts as holding")
            return ""
        return "" if is_on_power(supplies) else _BATTERY


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Power supply of the machine, according to the kernel."""

    #: "Mains", "USB", "Battery", …
    kind: str
    #: 1 if it supplies power now
    online: str
    #: of a battery: "Charging", "Discharging", "Full", …
    status: str
    #: "Device" for the battery of a mouse or a headset
    scope: str


def disk_free(size: parsing.Size, path: str | os.PathLike[str] | None = None) -> Condition:
    """Require free space on the data directory's disk: ``disk_free("1GB")``.

    Args:
        size: bytes, or text such as "500MB" or "2GiB".
        path: a file or folder on another disk.

    Raises:
        UsageError: it is not a size.
    """
    if path is not None and not isinstance(path, str | os.PathLike):
        raise errors.UsageError(f"disk_free: path is {path!r:.60}: give a path")
    where = "" if path is None else str(Path(os.fspath(path)).absolute())
    return DiskFree(parsing.size_bytes(size, "disk_free: size"), where)


def on_power() -> Condition:
    """Require that the machine is not known to run from its battery; see ``OnPower``."""
    return OnPower()


def read_supplies(directory: Path) -> list[Supply] | None:
    """Read the kernel's power supplies from a directory; None without a directory or supplies."""
    if not directory.is_dir():
        return None
    return [
        Supply(
            kind=_word(path / "type"),
            online=_word(path / "online"),
            status=_word(path / "status"),
            scope=_word(path / "scope"),
        )
        for path in sorted(directory.iterdir())
    ]


def is_on_power(supplies: Iterable[Supply]) -> bool:
    own = [supply for supply in supplies if supply.scope != "Device"]
    if any(supply.kind != "Battery" and supply.online == "1" for supply in own):
        return True
    return not any(supply.kind == "Battery" and supply.status == "Discharging" for supply in own)


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _spoken(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
