"""A kill of this process at the nth time of a moment."""

import functools
import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from taskq.log.machine.disk import LocalDisk, PatientDisk

#: Calls that change a disk.
_CHANGES: Final = (
    "write", "sync", "truncate", "sync_directory", "rename", "link", "remove", "make_directory",
)  # fmt: skip
#: Ends a process at once, and its exit code then; Windows, which has no signals, takes any number.
SIGKILL: Final = getattr(signal, "SIGKILL", 9)
KILLED: Final = -SIGKILL if hasattr(signal, "SIGKILL") else SIGKILL
#: Exit codes of struck processes.
STRUCK: Final = (KILLED, -getattr(signal, "SIGALRM", SIGKILL))
_EVENTS: Final = ("open", "os.", "fcntl", "shutil", "socket")


def strike(how: str, nth: int, *where: str) -> None:
    """Kill this process at the nth time of a moment, as kill -9 does.

    Args:
        how: "calls": before one of the functions does anything; "ends": once it is done; "turns":
            both; "steps": before a change of the disk that it makes, half of it written; "pieces":
            after a piece that it yields; "events": at a file, lock or socket of the interpreter;
            "time": ``nth`` milliseconds from now, or from the first call, by SIGALRM, at any
            instruction.
        nth: the number of the moment, from 1.
        where: the functions, as ``module:name``.
    """
    strike = _Strike(how, nth)
    if how == "time" and not where:
        strike.arm()
    elif how == "events":
        sys.addaudithook(strike.event)
    elif how == "steps":
        on_changes(strike.step)
    for place in where:
        module, _, name = place.partition(":")
        *above, last = name.split(".")
        owner: Any = functools.reduce(getattr, above, importlib.import_module(module))
        setattr(owner, last, strike.wrapped(getattr(owner, last)))


def _die() -> NoReturn:
    os.kill(os.getpid(), SIGKILL)
    raise AssertionError


class _Strike:
    def __init__(self, how: str, nth: int) -> None:
        self._how = how
        self._left = nth
        self._inside = 0

    def count(self, how: str, half: Callable[[], object] = lambda: None) -> None:
        if self._how == how or (self._how == "turns" and how in ("calls", "ends")):
            self._left -= 1
            if not self._left:
                half()
                _die()

    def arm(self) -> None:
        seconds = self._left / 1_000
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)
        else:  # between two byte codes, then
            timer = threading.Timer(seconds, _die)
            timer.daemon = True
            timer.start()

    def event(self, name: str, _: object) -> None:
        if name.startswith(_EVENTS):
            self.count("events")

    def step(self, half: Callable[[], object]) -> None:
        if self._inside:
            self.count("steps", half)

    def wrapped(self, function: Any) -> Any:
        if self._how == "pieces":
            wrapped: Any = self._piecewise(function)
        elif inspect.iscoroutinefunction(function):
            wrapped = self._awaited(function)
        else:
            wrapped = self._called(function)
        return functools.wraps(function)(wrapped)

    def _begin(self) -> None:
        if self._how == "time" and self._left:
            self.arm()
            self._left = 0
        self.count("calls")
        self._inside += 1

    def _end(self) -> None:
        self._inside -= 1
        self.count("ends")

    def _called(self, function: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            self._begin()
            try:
                return function(*arguments, **named)
            finally:
                self._end()

        return called

    def _awaited(self, function: Any) -> Any:
        async def called(*arguments: Any, **named: Any) -> Any:
            self._begin()
            try:
                return await function(*arguments, **named)
            finally:
                self._end()

        return called

    def _piecewise(self, function: Any) -> Any:
        def pieces(*arguments: Any) -> Iterator[Any]:
            for piece in function(*arguments):
                yield piece
                self.count("pieces")

        return pieces


def on_changes(look: Callable[[Callable[[], object]], None]) -> None:
    """Call a function before each change of the disk; its argument makes half of the change."""

    def seen(function: Any) -> Any:
        def change(*arguments: Any, **named: Any) -> Any:
            def half() -> None:
                if function.__name__ in ("write", "write_at"):
                    *where, data, offset = arguments
                    function(*where, bytes(data)[: len(data) // 2], offset)

            look(half)
            return function(*arguments, **named)

        return change

    for name in _CHANGES:
        setattr(LocalDisk, name, seen(getattr(LocalDisk, name)))
    setattr(PatientDisk, "write", seen(PatientDisk.write))  # noqa: B010 - its class says Final
    if (registries := sys.modules.get("taskq_plugins.hub.registry")) is None:
        return
    registry: Any = registries.Registry
    run, changes = registry.run, seen(registry.run)

    def chosen(self: Any, statement: str, *values: Any, **how: Any) -> Any:
        change = run if statement.startswith("SELECT") else changes
        return change(self, statement, *values, **how)

    registry.run = chosen
