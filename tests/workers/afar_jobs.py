"""Tasks that child processes import by the name of this module."""

import asyncio
import ctypes
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from taskq import (
    Discard,
    Inject,
    Retry,
    Snooze,
    SoftTimeout,
    TaskQ,
    current_job,
    injected,
    retry,
)  # fmt: skip
from taskq.core.exceptions import NO_TEXT
from taskq_workers.runs import system

app = TaskQ("unused", durability="os")
ONCE = retry.fixed(attempts=2, delay=0)
#: A task's place: what runs it, and whether that awaits it.
PLACES: dict[str, tuple[Any, bool]] = {
    "loop": (None, True), "thread": (None, False), "own loop": ("thread", True),
    "child": ("process", False), "child's loop": ("process", True),
}  # fmt: skip


#: Without a process of their own.
HERE = [*PLACES][:3]


def on_all(
    app: TaskQ, name: str, act: Callable[..., Any], act_async: Any = None,
    places: Iterable[str] = PLACES, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Make a task for each place; an async task runs ``act`` as well if it has no function."""

    @functools.wraps(act)
    async def acts(*args: Any, **kwargs: Any) -> Any:
        return await act_async(*args, **kwargs) if act_async else act(*args, **kwargs)

    return {
        place: app.task(name=f"{name} in {place}", runs_in=runs_in, **options)(
            acts if awaits else act
        )
        for place in places
        for runs_in, awaits in [PLACES[place]]
    }


@app.task(runs_in="process")
def where(text: str) -> tuple[int, str]:
    return os.getpid(), text


@app.task(runs_in="thread")
async def on_own_loop() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


Facts = tuple[str, int, dict[str, str], datetime | None, int, bool]


def facts() -> Facts:
    job = current_job()
    is_main = threading.current_thread() is threading.main_thread()
    return job.id, job.attempt, job.headers, job.deadline, os.getpid(), is_main


async def facts_in_a_task() -> Facts:
    async def later() -> Facts:
        await asyncio.sleep(0)
        return facts()

    return await asyncio.create_task(later())


FACTS = on_all(app, "facts", facts, facts_in_a_task, timeout="1h")


@app.task(runs_in="process", batch=3, within="10s")
def square(items: list[int]) -> list[tuple[int, int, int]]:
    if min(items) < 0:
        raise ValueError("a negative number")
    return [(item * item, len(items), os.getpid()) for item in items]


@app.task(runs_in="process", keep_log="1KB", retry=1)
def logs_and_dies() -> None:
    logging.getLogger("shop").error("alas")
    os.kill(os.getpid(), system.SIGKILL)


@app.task(runs_in="process", keep_log="1KB")
def logs(word: str) -> None:
    logging.getLogger("shop").error("%s", word)


@app.task(runs_in="process", queue="heavy")
def current_span() -> int:
    from opentelemetry import trace  # noqa: PLC0415 - other tests' children need it not

    return trace.get_current_span().get_span_context().span_id


@app.task(runs_in="process", queue="heavy", retry=retry.fixed(attempts=9, max_age="1m", delay="2m"))
def fails_slowly() -> None:
    raise ValueError("bad")


@app.task
async def child(text: str) -> str:
    return text


@app.task(runs_in="process", retry=ONCE)
def parent(*, fails: bool) -> str:
    current_job().enqueue(child.call("of a process"))
    if fails and current_job().attempt == 1:
        raise ValueError("not yet")
    return "enqueued"


@app.task(runs_in="process", retry=ONCE)
def dies(how: str) -> str:
    if current_job().attempt == 2:
        return "the second time"
    if how == "null":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), system.SIGKILL)
    os._exit(3)


@app.task(runs_in="process", retry=1)
def waits_for(path: str) -> int:
    while not Path(path).exists():
        threading.Event().wait(0.002)
    return os.getpid()


def last(path: str) -> None:
    """Write the process's number, and never end."""
    Path(path).write_text(str(os.getpid()), encoding="ascii")
    threading.Event().wait()


lasts = app.task(name="lasts", runs_in="process", retry=1)(last)
hangs = app.task(name="hangs", runs_in="process", timeout=0.3, retry=1)(last)


@app.task(runs_in="process", retry=1)
def leaves_one(path: str) -> None:
    """Dies; a process that it forked keeps all open that it had."""
    if pid := os.fork():
        Path(path).write_text(str(pid), encoding="ascii")
        os._exit(1)
    threading.Event().wait()


def one() -> int:
    return 1


BRIEF = on_all(app, "brief", one, timeout=0.3, retry=1)


def cleans_up() -> str:
    """Sleeps without an end where a signal ends that, else from one step of Python to the next."""
    seconds = 1_000 if threading.current_thread() is threading.main_thread() else 0.001
    try:
        # The jump back of a ``while`` stands outside of its ``try`` from Python 3.12 on.
        for _ in itertools.repeat(None):
            time.sleep(seconds)  # noqa: TID251 - Windows interrupts that alone
    except SoftTimeout as error:
        return f"cleaned up: {error}"
    return "?"


async def cleans_up_async() -> str:
    try:
        await asyncio.Event().wait()
    except SoftTimeout as error:
        return f"cleaned up: {error}"
    return "?"


SOFT = on_all(app, "soft", cleans_up, cleans_up_async, soft_timeout=0.2, timeout="1m", retry=1)


@app.task(runs_in="process", retry=1)
def grows() -> int:
    global _kept  # noqa: PLW0603 - a leak is what it is for
    _kept += bytes(60_000_000)
    return os.getpid()


_kept = bytearray()


class Breaks(Exception):
    """Raises its argument whenever it is read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def refuse(self, *_: object) -> Any:
        raise self._error

    __module__ = "__main__"
    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = __reduce_ex__ = refuse


class Unreadable(Breaks):
    __module__ = "__main__"
    args = __cause__ = __context__ = property(Breaks.refuse)
    __class__ = property(lambda _: int)  # if it raised, it would break asyncio


class BreaksHere(Exception):
    """Travels well, and breaks its reader after that."""

    __module__ = "__main__"

    def __setstate__(self, _: object) -> None:
        raise SystemExit(3)


def in_circle() -> BaseException:
    first, other = ValueError("one"), KeyError("other")
    first.__cause__, other.__cause__ = other, first
    return first


def nested(depth: int, *errors: BaseException) -> BaseException:
    return BaseExceptionGroup("", [nested(depth - 1, *errors)] if depth else errors)


def wrapped(cause: BaseException) -> BaseException:
    error = RuntimeError("a library's")
    error.__cause__ = cause
    return error


BROKEN = f"Breaks: {NO_TEXT}"
MANY = (ValueError("b"), asyncio.CancelledError(), KeyError("a"), ValueError("c"), SystemExit())
#: Exceptions of tasks, and the first line of the recorded reason.
FAILURES: dict[str, tuple[str, Callable[[], BaseException]]] = {
    "interrupt": ("KeyboardInterrupt: out", lambda: KeyboardInterrupt("out")),
    "exit": ("SystemExit: 4", lambda: SystemExit(4)),
    "generator": ("GeneratorExit: out", lambda: GeneratorExit("out")),
    "interrupts": (BROKEN, lambda: Breaks(KeyboardInterrupt())),
    "exits": (BROKEN, lambda: Breaks(SystemExit(3))),
    "cancels": (BROKEN, lambda: Breaks(asyncio.CancelledError())),
    "unreadable": (f"Unreadable: {NO_TEXT}", lambda: Unreadable(GeneratorExit())),
    "breaks here": ("BreaksHere: x", lambda: BreaksHere("x")),
    "no module": ("Bare: x", lambda: type("Bare", (Exception,), {"__module__": None})("x")),
    "circle": ("ValueError: one", in_circle),
    "deep": ("ValueError: deep", lambda: nested(300, ValueError("deep"))),
    "many": ("KeyError: 'a'; ValueError: b", lambda: nested(0, *MANY)),
    "ends": ("SystemExit: 3", lambda: nested(1, asyncio.CancelledError(), SystemExit(3))),
    "wishes": ("Discard: no", lambda: nested(2, ValueError(), Retry(), Discard("no"), Snooze(9))),
    "wrapped": ("Discard: no", lambda: wrapped(nested(0, Discard("no")))),
}
#: Errors after whose first attempt the job is to run again, as it does at once.
AGAIN: dict[str, Callable[[], BaseException]] = {
    "snooze": lambda: nested(1, Snooze(0), KeyboardInterrupt(), asyncio.CancelledError()),
    "retry": lambda: nested(1, Snooze(3600), Retry(delay=0), FileNotFoundError()),
    "per_error": lambda: nested(3, TimeoutError()),
    "cause": lambda: wrapped(TimeoutError()),
}
_RULES = retry.fixed(
    attempts=2, delay=3_600, give_up_on=FileNotFoundError, per_error={TimeoutError: 0}
)


def raise_once(name: str, path: str) -> int:
    """Raise what the name stands for; of those in ``AGAIN`` only until the path is there."""
    if name in FAILURES:
        error = FAILURES[name][1]()
        raise error
    if not Path(path).exists():
        Path(path).touch()
        error = AGAIN[name]()
        raise error
    return 1


RAISERS = on_all(app, "raises", raise_once, retry=_RULES)


lent = TaskQ("unused", durability="os")
#: Longer than a child without lifespans gets to end.
CLOSE_SECONDS = 0.7


class Desk:
    """Says in which process it was opened, and whether it still is."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_open = True


@lent.lifespan
async def desk(app: TaskQ) -> AsyncIterator[Desk]:
    answers = Desk()
    yield answers
    answers.is_open = False
    await asyncio.sleep(CLOSE_SECONDS)
    mark = Path(app.data_dir).parent / f"closed-{answers.pid}"
    await asyncio.to_thread(mark.touch)


def look(desk: Inject[Desk] = injected()) -> tuple[int, int, bool]:
    return os.getpid(), desk.pid, desk.is_open


LENT = on_all(lent, "lent", look)
