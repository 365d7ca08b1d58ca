"""Keeps several worker processes running: ``taskq worker --processes N``."""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from taskq import engine
from taskq.values import dataclass
from taskq_workers.process import reporting, supervisor
from taskq_workers.runs import system
from taskq_workers.runs.guards import signal_name

#: Pauses before a worker that died is restarted: the first and the longest; each is twice the
#: one before.
RESTART_SECONDS_FIRST: Final = 0.5
RESTART_SECONDS_MAX: Final = 30.0
_DOUBLINGS_MAX: Final = 6
#: After a run of this length a worker starts again with the first pause.
STEADY_SECONDS: Final = 60.0
#: Exit code of a wrong command line, which a restart would not change.
_WRONG_USAGE: Final = 2
_SIGNALLED: Final = 128
_EXIT_AT: Final = 3
_ALARM_BYTES: Final = 4_096
_LOOK_SECONDS: Final = 0.2
_DRAIN_LOOK_SECONDS: Final = 1.0


class ProcessLife(enum.Enum):
    """States of a worker process."""

    #: the first process in its place, not ready yet
    STARTING = enum.auto()
    SERVING = enum.auto()
    #: it replaces the process of its place once it is ready
    COMING = enum.auto()
    #: was replaced, and drains
    LEAVING = enum.auto()
    #: the guard stops
    STOPPING = enum.auto()


class Event(enum.Enum):
    """Events of a worker process."""

    READY = enum.auto()
    #: exit code 0, or stopped by SIGTERM before its handler was installed
    DONE = enum.auto()
    #: ended before it was ready because of its command line
    WRONG = enum.auto()
    #: ended before it was ready, with another error
    REFUSED = enum.auto()
    DIED = enum.auto()


class WorkerProcess:
    """A started worker process; a socket pair connects it to the guard.

    Times are in monotonic seconds; ``deadline``, when it is killed, is None before the first
    SIGTERM. ``stops`` counts SIGTERMs.
    """

    def __init__(self, number: int, command: Sequence[str], life: ProcessLife) -> None:
        self.number = number
        self.life = life
        self.started = time.monotonic()
        self.ready = False
        self.error = ""
        self.stops = 0
        self.deadline: float | None = None
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        environment = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
        try:
            self._process = system.start(
                [
                    *command,
                    supervisor.LEASH_OPTION,
                    str(theirs.fileno()),
                    supervisor.PLACE_OPTION,
                    str(number),
                ],
                theirs,
                ends_with_us=False,
                # The terminal's signals go only to the guard, which forwards them.
                process_group=0,
                env=environment,
            )
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid

    def hear(self) -> bool:
        """Read its messages; return True if it has just become ready."""
        try:
            news = self.socket.recv(supervisor.ERROR_BYTES_MAX + 1)
        except OSError:
            return False
        was_ready, self.ready = self.ready, self.ready or news.startswith(supervisor.READY)
        if not was_ready:
            news = news.removeprefix(supervisor.READY)
        self.error += news.decode("utf-8", "replace")
        return self.ready and not was_ready

    def stop(self, drain_seconds: float) -> None:
        self.stops += 1
        if self.deadline is None:
            self.deadline = time.monotonic() + drain_seconds + supervisor.GRACE_SECONDS
        self.send(signal.SIGTERM)

    def send(self, number: int | None) -> None:
        system.send(self._process, number)

    def ended(self) -> int | None:
        """Return the exit code, or minus the number of the fatal signal; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self.hear()
            self.socket.close()
        return code


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A place for a worker process: its number from 1, and its successive deaths.

    ``start_at`` is in monotonic seconds; None: no start is scheduled.
    """

    number: int
    start_at: float | None = 0.0
    failures: int = 0


class Guard:
    """Runs ``count`` workers until it is stopped.

    Signals mean the same as for one worker: SIGTERM or SIGINT lets running jobs finish, a second
    cancels and gives them back, a third ends all at once. SIGHUP replaces the workers one by one:
    each new worker is ready before the old one drains. In a terminal it keeps its usual meaning.

    A worker of a ``burst`` that ends by itself without failure is not replaced. A worker that
    needs much longer than ``drain_seconds`` is killed.

    The guard claims nothing and opens no log. One table of a process's state and event has the
    actions; one thread with one ``select`` finds the events.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        burst: bool,
        drain_seconds: float,
        say: Callable[[str], None],
        complain: Callable[[str], None],
        notifier: supervisor.Notifier,
    ) -> None:
        self._command = list(command)
        self._places = [WorkerSlot(number) for number in range(1, count + 1)]
        self._processes: list[WorkerProcess] = []
        self._burst = burst
        self._drain_seconds = drain_seconds
        self._say = say
        self._complain = complain
        #: printed errors; the same error ends all workers
        self._complaints: set[str] = set()
        self._began = time.monotonic()
        self._notifier = notifier
        self._stops_asked = self._stops = 0
        self._replace_asked = False
        self._to_replace: deque[WorkerSlot] = deque()
        self._has_served = False
        self._exit_code = 0
        self._alarm, self._poke = socket.socketpair()
        self._alarm.setblocking(False)
        self._poke.setblocking(False)
        self._end_watch: Callable[[], None] = lambda: None

    def run(self, *, has_terminal: bool) -> int:
        """Return the exit code once all workers have ended."""
        self._take_signals(has_terminal=has_terminal)
        try:
            while self._processes or any(place.start_at is not None for place in self._places):
                self._start_due()
                self._wait()
                self._act()
                self._reap()
            self._notifier.stopping()
            seconds = time.monotonic() - self._began
            self._say(
                f"guard stopped after {reporting.spoken_seconds(seconds)}: all workers have ended"
            )
        finally:
            signal.set_wakeup_fd(-1)
            self._end_watch()
            self._send_all(system.SIGKILL)
            self._alarm.close()
            self._poke.close()
        return self._exit_code

    # Waiting.

    def _wait(self) -> None:
        now = time.monotonic()
        moments = [process.deadline for process in self._processes if process.deadline is not None]
        if moments:
            moments.append(now + _DRAIN_LOOK_SECONDS)
        moments += [
            place.start_at
            for place in self._places
            if place.start_at is not None and self._current(place.number) is None
        ]
        if self._notifier.watchdog_seconds and self._has_served:
            self._notifier.alive()
            moments.append(now + self._notifier.watchdog_seconds)
        if system.SIGCHLD is None:  # no signal reports the end of a worker
            moments.append(now + _LOOK_SECONDS)
        seconds = max(min(moments) - now, 0) if moments else None
        sockets = {process.socket: process for process in self._processes if not process.ready}
        ready, _, _ = select.select([self._alarm, *sockets], [], [], seconds)
        # If the guard was stopped (SIGSTOP), its workers may have been, too.
        late = 0.0 if seconds is None else max(time.monotonic() - now - seconds, 0.0)
        for process in self._processes:
            if process.deadline is not None:
                process.deadline += late
        if self._alarm in ready:
            self._alarm.recv(_ALARM_BYTES)
        for process in (sockets[channel] for channel in ready if channel in sockets):
            if process.hear():
                self._happened(process, Event.READY)

    def _take_signals(self, *, has_terminal: bool) -> None:
        signal.set_wakeup_fd(self._poke.fileno(), warn_on_full_buffer=False)
        for number in system.STOP_SIGNALS:
            signal.signal(number, self._on_stop)
        self._end_watch = engine.system.watch_stop(self._on_asked)
        # The arrival alone ends the wait.
        handlers: dict[signal.Signals | None, Callable[..., None]] = {
            system.SIGCHLD: lambda *_: None,
            system.SIGTSTP: self._on_pause,
            system.SIGCONT: lambda *_: self._send_all(system.SIGCONT),
        }
        if not has_terminal:
            handlers[system.SIGHUP] = self._on_hang_up
        for known, handler in handlers.items():
            if known is not None:
                signal.signal(known, handler)

    def _on_stop(self, number: int, _: object) -> None:
        self._stops_asked += 1
        if self._stops_asked >= _EXIT_AT:
            self._send_all(system.SIGKILL)
            os._exit(_SIGNALLED + number)

    def _on_asked(self) -> None:
        self._on_stop(signal.SIGTERM, None)
        with contextlib.suppress(OSError):  # closed, or full
            self._poke.send(b"\0")

    def _on_hang_up(self, *_: object) -> None:
        self._replace_asked = True

    def _on_pause(self, *_: object) -> None:
        self._send_all(system.SIGTSTP)
        system.stop_this()

    def _send_all(self, number: int | None) -> None:
        for process in self._processes:
            process.send(number)

    # Acting on signals and time.

    def _act(self) -> None:
        while self._stops < min(self._stops_asked, _EXIT_AT - 1):
            self._stops += 1
            workers = _workers(len(self._processes))
            if self._stops == 1:
                limit = f"{self._drain_seconds:g} s for running jobs"
                self._say(f"draining {workers}: {limit}; once more cancels")
            else:
                self._say(f"cancelling the jobs of {workers}; once more exits at once")
            self._stop_all()
        if self._replace_asked and not self._stops:
            self._replace_asked = False
            if not self._to_replace:
                self._say("replacing the workers one by one")
                self._notifier.reloading()
            self._to_replace = deque(self._places)
            self._replace_next()

    def _stop_all(self) -> None:
        self._notifier.stopping()
        self._to_replace.clear()
        for place in self._places:
            place.start_at = None
        for process in self._processes:
            process.life = ProcessLife.STOPPING
            # A replaced worker is draining: another signal would cancel its jobs.
            if process.stops < max(self._stops, 1):
                process.stop(self._drain_seconds)

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            due = place.start_at is not None and place.start_at <= now
            if due and self._current(place.number) is None:
                place.start_at = None
                try:
                    self._start(place, ProcessLife.STARTING)
                except OSError as error:  # no process can be started now; the others go on
                    place.failures += 1
                    self._start_later(place, f"worker {place.number} cannot be started ({error})")

    def _replace_next(self) -> None:
        if any(process.life is ProcessLife.COMING for process in self._processes):
            return
        while self._to_replace:
            place = self._to_replace.popleft()
            if self._current(place.number) is not None:
                try:
                    self._start(place, ProcessLife.COMING)
                except OSError as error:
                    self._give_replacing_up(place.number, str(error))
                return

    def _start(self, place: WorkerSlot, life: ProcessLife) -> None:
        self._processes.append(WorkerProcess(place.number, self._command, life))

    def _current(self, number: int) -> WorkerProcess | None:
        lives = ProcessLife.STARTING, ProcessLife.SERVING
        here = (process for process in self._processes if process.number == number)
        return next((process for process in here if process.life in lives), None)

    def _reap(self) -> None:
        now = time.monotonic()
        for process in list(self._processes):
            code = process.ended()
            if code is not None:
                self._ended(process, code)
            elif process.deadline is not None and process.deadline <= now:
                number, pid = process.number, process.pid
                self._say(f"worker {number}, process {pid}, did not end in time: killed")
                process.deadline = None
                process.send(system.SIGKILL)

    def _ended(self, process: WorkerProcess, code: int) -> None:
        self._processes.remove(process)
        if process.error and process.error not in self._complaints:
            self._complaints.add(process.error)
            self._complain(process.error)
        self._happened(process, _end_of(process, code), code)

    # Actions of events.

    def _happened(self, process: WorkerProcess, event: Event, code: int = 0) -> None:
        action = TABLE[process.life, event]
        action(self, process, code)

    def _serve(self, process: WorkerProcess, _: int) -> None:
        process.life = ProcessLife.SERVING
        self._complaints.clear()
        current = [self._current(place.number) for place in self._places]
        if all(other is not None and other.ready for other in current):
            self._has_served = True
            if not any(other.life is ProcessLife.COMING for other in self._processes):
                self._notifier.ready(f"{_workers(len(current))} claim jobs")

    def _take_over(self, process: WorkerProcess, code: int) -> None:
        old = self._current(process.number)
        if old is not None:
            old.life = ProcessLife.LEAVING
            old.stop(self._drain_seconds)
        self._places[process.number - 1].start_at = None
        process.life = ProcessLife.SERVING
        self._replace_next()
        self._serve(process, code)

    def _follow(self, process: WorkerProcess, code: int) -> None:
        """Replace a worker that ended by itself after ``--max-jobs``; a burst is not replaced."""
        place = self._places[process.number - 1]
        self._exit_code = self._exit_code or code
        place.failures = 0
        place.start_at = None if self._burst else time.monotonic()

    def _refused(self, process: WorkerProcess, code: int) -> None:
        # A burst that cannot use its log ends like a single worker; others are restarted.
        (self._follow if self._burst else self._died)(process, code)

    def _died(self, process: WorkerProcess, code: int) -> None:
        place = self._places[process.number - 1]
        is_steady = time.monotonic() - process.started > STEADY_SECONDS
        place.failures = 1 if is_steady else place.failures + 1
        number, pid = process.number, process.pid
        self._start_later(place, f"worker {number}, process {pid}, died ({_in_words(code)})")

    def _start_later(self, place: WorkerSlot, problem: str) -> None:
        # Limit the exponent: the count may have grown for days.
        doublings = min(place.failures - 1, _DOUBLINGS_MAX)
        seconds = min(RESTART_SECONDS_FIRST * 2**doublings, RESTART_SECONDS_MAX)
        place.start_at = time.monotonic() + seconds
        self._say(f"{problem}: started again in {seconds:g} s")

    def _keep_old(self, process: WorkerProcess, code: int) -> None:
        self._give_replacing_up(process.number, _in_words(code))

    def _give_replacing_up(self, number: int, problem: str) -> None:
        self._to_replace.clear()
        self._say(f"a new worker {number} does not start ({problem}): the old ones stay")
        self._notifier.ready("the old workers claim jobs")

    def _give_up(self, _: WorkerProcess, code: int) -> None:
        self._exit_code = code
        self._stop_all()

    def _fail(self, _: WorkerProcess, __: int) -> None:
        self._exit_code = self._exit_code or 1

    def _pass(self, _: WorkerProcess, __: int) -> None: ...


_ENDS: Final = frozenset(Event) - {Event.READY}
#: (life of a process, event) -> action.
TABLE: Final[dict[tuple[ProcessLife, Event], Callable[[Guard, WorkerProcess, int], None]]] = {
    (ProcessLife.STARTING, Event.READY): Guard._serve,
    (ProcessLife.STARTING, Event.DONE): Guard._follow,
    (ProcessLife.STARTING, Event.WRONG): Guard._give_up,
    (ProcessLife.STARTING, Event.REFUSED): Guard._refused,
    (ProcessLife.STARTING, Event.DIED): Guard._died,
    (ProcessLife.SERVING, Event.DONE): Guard._follow,
    (ProcessLife.SERVING, Event.DIED): Guard._died,
    (ProcessLife.COMING, Event.READY): Guard._take_over,
    **{(ProcessLife.COMING, event): Guard._keep_old for event in _ENDS},
    **{(ProcessLife.LEAVING, event): Guard._pass for event in Event},
    **{(ProcessLife.STOPPING, event): Guard._fail for event in _ENDS},
    (ProcessLife.STOPPING, Event.READY): Guard._pass,
    (ProcessLife.STOPPING, Event.DONE): Guard._pass,
}


def _end_of(process: WorkerProcess, code: int) -> Event:
    is_deaf = bool(process.stops) and not process.ready
    if not code or (code == system.TERMINATED and is_deaf):
        return Event.DONE
    if process.ready:
        return Event.DIED
    if code == _WRONG_USAGE:
        return Event.WRONG
    return Event.REFUSED if process.error else Event.DIED


def _in_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def _workers(count: int) -> str:
    return f"{count} worker process{'' if count == 1 else 'es'}"
