"""Keeps several worker processes running: ``taskq worker --processes N``, and ``--reload``.

The guard claims nothing and opens no log. It starts workers, starts those again that die, forwards
signals, and is one thread around one ``select``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from taskq.values import dataclass
from taskq_workers.process.leash import WorkerProcess, told
from taskq_workers.process.reporting import spoken_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskq_workers.process.leash import Notifier

#: Before a worker that died is started again: the first and the longest pause; each is twice the
#: one before.
RESTART_SECONDS_FIRST: Final = 0.5
RESTART_SECONDS_MAX: Final = 30.0
_DOUBLINGS_MAX: Final = 6
#: A worker that ran for so long starts again after the first pause.
STEADY_SECONDS: Final = 60.0
#: What running jobs get to finish when the code changed.
RELOAD_DRAIN_SECONDS: Final = 2.0
#: What a worker exits with that was started wrongly, which no restart would change.
_WRONG_USAGE: Final = 2
_SIGNALLED: Final = 128
_EXIT_AT: Final = 3
_ALARM_BYTES: Final = 4_096


@dataclass(slots=True, eq=False)
class Place:
    """A place in which a worker process is to run.

    Attributes:
        number: from 1.
        current: the worker that serves; None while none does.
        coming: the one that takes its place once it is ready.
        restart_at: when a new one is started, in monotonic seconds; None: not by time.
        failures: deaths in a row.
        over: nothing is started here any more.
    """

    number: int
    current: WorkerProcess | None = None
    coming: WorkerProcess | None = None
    restart_at: float | None = 0.0
    failures: int = 0
    over: bool = False


class Guard:
    """Runs ``count`` workers until they are told to stop.

    Signals mean what they mean to one worker: SIGTERM or SIGINT lets running jobs finish, a second
    one cancels and gives them back, a third ends all at once. SIGHUP replaces the workers one by
    one, each by a new one that is ready before the old one drains; where there is a terminal it
    keeps its usual meaning.

    Args:
        command: the command line of one worker.
        count: how many.
        burst: a worker that ends by itself without failure has done its part.
        reloads: workers start again when ``changed`` is called, and not by themselves.
        drain_seconds: what running jobs get to finish; who needs much longer is killed.
        say: prints one line.
        complain: prints an error that ended a worker.
        notifier: tells the service manager.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        burst: bool,
        reloads: bool,
        drain_seconds: float,
        say: Callable[[str], None],
        complain: Callable[[str], None],
        notifier: Notifier,
    ) -> None:
        self._command = list(command)
        self._places = [Place(number) for number in range(1, count + 1)]
        self._leaving: list[WorkerProcess] = []
        self._burst = burst
        self._reloads = reloads
        self._drain_seconds = drain_seconds
        self._say = say
        self._complain = complain
        #: errors of workers that were told; the same one ends them all
        self._told: set[str] = set()
        self._began = time.monotonic()
        self._notifier = notifier
        self._stops_asked = self._stops = 0
        self._replace_asked = False
        self._to_replace: deque[Place] = deque()
        self._changes: deque[str] = deque()
        self._told_ready = False
        self._exit_code = 0
        self._alarm, self._poke = socket.socketpair()
        self._alarm.setblocking(False)
        self._poke.setblocking(False)

    def run(self, *, has_terminal: bool) -> int:
        """Return the exit code once all workers have ended."""
        self._take_signals(has_terminal=has_terminal)
        try:
            while not self._is_over():
                self._start_due()
                self._wait()
                self._act()
                self._reap()
            self._notifier.stopping()
            seconds = time.monotonic() - self._began
            self._say(f"guard stopped after {spoken_seconds(seconds)}: all workers have ended")
        finally:
            signal.set_wakeup_fd(-1)
            for process in self._processes():
                process.send(signal.SIGKILL)
            self._alarm.close()
            self._poke.close()
        return self._exit_code

    def changed(self, what: str) -> None:
        """Note that the code changed; from any thread."""
        self._changes.append(what)
        with contextlib.suppress(OSError):  # full: it will look anyway
            self._poke.send(b"\0")

    def _processes(self) -> list[WorkerProcess]:
        pairs = [process for place in self._places for process in (place.current, place.coming)]
        return [*(process for process in pairs if process is not None), *self._leaving]

    def _is_over(self) -> bool:
        return not self._processes() and all(place.over for place in self._places)

    # Waiting.

    def _wait(self) -> None:
        now = time.monotonic()
        deadlines = (process.deadline for process in self._processes())
        moments = [deadline for deadline in deadlines if deadline is not None]
        empty = [place for place in self._places if place.current is None]
        moments += [place.restart_at for place in empty if place.restart_at is not None]
        if self._notifier.watchdog_seconds and self._told_ready:
            self._notifier.alive()
            moments.append(now + self._notifier.watchdog_seconds)
        seconds = max(min(moments) - now, 0) if moments else None
        sockets = {process.socket: process for process in self._processes() if not process.ready}
        ready, _, _ = select.select([self._alarm, *sockets], [], [], seconds)
        if self._alarm in ready:
            self._alarm.recv(_ALARM_BYTES)
        for process in ready:
            if process in sockets and sockets[process].hear():
                self._on_ready(sockets[process])

    def _take_signals(self, *, has_terminal: bool) -> None:
        signal.set_wakeup_fd(self._poke.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGTSTP, self._on_pause)
        signal.signal(signal.SIGCONT, self._on_go_on)
        if not has_terminal:
            signal.signal(signal.SIGHUP, self._on_hang_up)

    def _on_stop(self, number: int, _: object) -> None:
        self._stops_asked += 1
        if self._stops_asked >= _EXIT_AT:
            for process in self._processes():
                process.send(signal.SIGKILL)
            os._exit(_SIGNALLED + number)

    def _on_hang_up(self, *_: object) -> None:
        self._replace_asked = True

    def _on_pause(self, *_: object) -> None:
        for process in self._processes():
            process.send(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _on_go_on(self, *_: object) -> None:
        for process in self._processes():
            process.send(signal.SIGCONT)

    # Acting on what was asked.

    def _act(self) -> None:
        while self._stops < min(self._stops_asked, _EXIT_AT - 1):
            self._stops += 1
            self._stop_all()
        if self._stops:
            return
        if self._changes:
            self._reload()
        if self._replace_asked:
            self._replace_asked = False
            if not self._to_replace:
                self._say("replacing the workers one by one")
                self._notifier.reloading()
            self._to_replace = deque(self._places)
        self._replace_next()

    def _stop_all(self) -> None:
        workers = _workers(len(self._processes()))
        if self._stops == 1:
            limit = f"{self._drain_seconds:g} s for what runs"
            self._say(f"draining {workers}: {limit}; once more cancels")
        else:
            self._say(f"cancelling the jobs of {workers}; once more exits at once")
        self._notifier.stopping()
        self._to_replace.clear()
        for place in self._places:
            place.over, place.restart_at = True, None
        for process in self._processes():
            process.stop(self._drain_seconds)

    def _reload(self) -> None:
        what = self._changes.pop()
        self._changes.clear()
        self._told.clear()
        self._say(f"{what} changed: starting again")
        self._notifier.reloading()
        for place in self._places:
            place.restart_at = time.monotonic()
            if place.current is not None:
                place.current.stop(RELOAD_DRAIN_SECONDS)
                place.current.deadline = time.monotonic() + RELOAD_DRAIN_SECONDS

    def _replace_next(self) -> None:
        if any(place.coming is not None for place in self._places):
            return
        while self._to_replace:
            place = self._to_replace.popleft()
            if place.current is not None:
                try:
                    place.coming = WorkerProcess(place.number, self._command)
                except OSError as error:
                    self._keep_old(place.number, str(error))
                return

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            due = place.restart_at is not None and place.restart_at <= now
            if due and place.current is None:
                place.restart_at = None
                try:
                    place.current = WorkerProcess(place.number, self._command)
                except OSError as error:  # no room for a process now; those there are serve on
                    place.failures += 1
                    problem = f"worker {place.number} cannot be started ({error})"
                    self._try_again(place, problem)

    def _on_ready(self, process: WorkerProcess) -> None:
        self._told.clear()
        place = self._places[process.number - 1]
        if place.coming is process:
            place.coming = None
            if place.current is not None:
                place.current.stop(self._drain_seconds)
                self._leaving.append(place.current)
            place.current = process
            self._replace_next()
        serving = [other.current for other in self._places if other.current is not None]
        if all(other.ready for other in serving) and len(serving) == len(self._places):
            self._told_ready = True
            if not self._stops and not any(other.coming for other in self._places):
                self._notifier.ready(f"{_workers(len(serving))} claim jobs")

    # What has ended.

    def _reap(self) -> None:
        now = time.monotonic()
        for process in self._processes():
            code = process.ended()
            if code is not None:
                self._on_ended(process, code)
            elif process.deadline is not None and process.deadline <= now:
                self._overdue(process, now)

    def _overdue(self, process: WorkerProcess, now: float) -> None:
        """Cancel the jobs of a process that had its time, and kill it if that was tried."""
        if self._reloads and process.stops == 1:
            process.deadline = now + self._drain_seconds
            process.stop(self._drain_seconds)
            return
        self._say(f"worker {process.number}, process {process.pid}, did not end in time: killed")
        process.deadline = None
        process.send(signal.SIGKILL)

    def _on_ended(self, process: WorkerProcess, code: int) -> None:
        if process.error and process.error not in self._told:
            self._told.add(process.error)
            self._complain(process.error)
        if process in self._leaving:
            self._leaving.remove(process)
            return
        place = self._places[process.number - 1]
        if place.coming is process:
            place.coming = None
            if place.over:
                return
            self._keep_old(process.number, told(code))
            return
        place.current = None
        if place.over:
            # Told to end before it listened for that, it ended by the signal itself.
            is_well = not code or (code == -signal.SIGTERM and process.stops and not process.ready)
            self._exit_code = self._exit_code or (0 if is_well else 1)
        elif place.restart_at is not None:
            return  # it was told to end, and starts again
        elif self._reloads:
            self._say(f"worker {process.number} ended ({told(code)}): waiting for a change")
        elif code == _WRONG_USAGE and not process.ready:
            self._give_up(code)
        elif code == 0 or (self._burst and process.error and not process.ready):
            # A burst that cannot use its log ends as a single one would; others may be luckier.
            self._exit_code = self._exit_code or code
            place.over, place.failures = self._burst, 0
            place.restart_at = None if self._burst else time.monotonic()
        else:
            self._restart_later(place, process, code)

    def _restart_later(self, place: Place, process: WorkerProcess, code: int) -> None:
        now = time.monotonic()
        place.failures = 1 if now - process.started > STEADY_SECONDS else place.failures + 1
        self._try_again(
            place, f"worker {process.number}, process {process.pid}, died ({told(code)})"
        )

    def _try_again(self, place: Place, problem: str) -> None:
        # No power is needed of a number that has grown for days.
        doublings = min(place.failures - 1, _DOUBLINGS_MAX)
        seconds = min(RESTART_SECONDS_FIRST * 2**doublings, RESTART_SECONDS_MAX)
        place.restart_at = time.monotonic() + seconds
        self._say(f"{problem}: started again in {seconds:g} s")

    def _keep_old(self, number: int, problem: str) -> None:
        self._to_replace.clear()
        self._say(f"a new worker {number} does not start ({problem}): the old ones stay")
        self._notifier.ready("the old workers claim jobs")

    def _give_up(self, code: int) -> None:
        """Stop all: what is wrong with the command is wrong for all, and the worker told it."""
        self._exit_code = code
        for place in self._places:
            place.over, place.restart_at = True, None
        for process in self._processes():
            process.stop(self._drain_seconds)


def _ignore(*_: object) -> None:
    """Do nothing: the arrival of SIGCHLD ends the wait."""


def _workers(count: int) -> str:
    return f"{count} worker process{'' if count == 1 else 'es'}"
