"""System calls of workers besides the log's; only this module distinguishes systems."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from taskq import engine

_IS_WINDOWS: Final = sys.platform == "win32"
#: True if every event loop supports callbacks for sockets and pipes, unlike on Windows.
LOOPS_READ: Final = not _IS_WINDOWS
IS_LINUX: Final = sys.platform == "linux"


def _number(name: str) -> signal.Signals | None:
    number: signal.Signals | None = getattr(signal, name, None)
    return number


#: Signals that Windows lacks.
SIGTSTP, SIGCONT, SIGCHLD, SIGHUP = map(_number, ("SIGTSTP", "SIGCONT", "SIGCHLD", "SIGHUP"))
SIGKILL: Final[int] = getattr(signal, "SIGKILL", 9)
#: Signals that end a worker, including Ctrl-Break of a Windows console.
STOP_SIGNALS: Final = tuple(filter(None, (signal.SIGTERM, signal.SIGINT, _number("SIGBREAK"))))
#: Signals that a terminal and a service manager send to all processes of a group.
GROUP_SIGNALS: Final = tuple(filter(None, (*STOP_SIGNALS, SIGHUP)))
#: The exit code of a process that was ended before it installed a handler.
TERMINATED: Final = 1 if _IS_WINDOWS else -signal.SIGTERM


#: Half of the interpreter's resolution of a turn's length, a microsecond.
_HALF_STEP_SECONDS: Final = 5e-7
#: Length of a thread's turn next to a CPU-bound thread. Python's default is 5 ms.
TURN_SECONDS: Final = 0.0005
#: CPU seconds of other threads in a second, above which turns are short.
_BUSY_SHARE: Final = 0.3


class _Turn:
    """Length of a thread's turn, one for all threads of the program."""

    guard = threading.Lock()
    #: requested seconds, by part of a worker
    wishes: Final[dict[object, float]] = {}
    #: the program's own length, and the length that was set here
    own = chosen = 0.0


def wish_turn(part: object, seconds: float | None) -> None:
    """Limit turns to this length until the part requests None.

    After the last request they have the length that the program has set.
    """
    with _Turn.guard:
        now = sys.getswitchinterval()
        if not _Turn.wishes or now != _Turn.chosen:
            _Turn.own = now
        if seconds is None:
            _Turn.wishes.pop(part, None)
        else:
            _Turn.wishes[part] = seconds
        wanted = min(_Turn.own, *_Turn.wishes.values(), math.inf)
        if wanted != now:
            sys.setswitchinterval(wanted + _HALF_STEP_SECONDS)
        _Turn.chosen = sys.getswitchinterval()


class Turns:
    """Shortens threads' turns while another thread of the program computes next to a worker's loop.

    Loop and storage thread hand each batch to one another, and next to a CPU-bound thread each
    waits a whole turn for the GIL. Without such a thread, short turns would cost a tenth of the
    throughput.
    """

    def __init__(self) -> None:
        self._looked = self._spent = 0.0

    def look(self) -> None:
        """Choose by the CPU time since the last look, unless that was over a second ago."""
        now = time.monotonic()
        spent = time.process_time() - time.thread_time() - _spent_by_storage()
        seconds, self._looked = now - self._looked, now
        others, self._spent = spent - self._spent, spent
        if IS_LINUX and seconds <= 1:
            wish_turn(self, TURN_SECONDS if others >= _BUSY_SHARE * seconds else None)

    def rest(self) -> None:
        """Restore the program's own length of turns."""
        wish_turn(self, None)


def _spent_by_storage() -> float:
    if not IS_LINUX:
        return 0.0
    spent = 0.0
    for thread in threading.enumerate():
        if thread.name == "taskq-storage" and thread.native_id:
            with contextlib.suppress(OSError):
                spent += time.clock_gettime(_clock_of(thread.native_id))
    return spent


def _clock_of(native_id: int) -> int:
    """Return Linux's id of a thread's CPU clock; using it fails once the thread has ended.

    ``time.pthread_getcpuclockid`` may crash in that case.
    """
    return ~native_id << 3 | 6


def at_fork(**actions: Callable[[], object]) -> None:
    """Do as ``os.register_at_fork``, on systems with forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**actions)


def mask(numbers: Collection[signal.Signals], how: str = "SIG_BLOCK") -> set[Any]:
    """Change this thread's blocked signals and return the former ones, on systems with masks."""
    change: Any = getattr(signal, "pthread_sigmask", None)
    return change(getattr(signal, how), numbers) if change else set()


@contextlib.contextmanager
def blocked(numbers: Collection[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread."""
    before = mask(numbers)
    try:
        yield
    finally:
        mask(before, "SIG_SETMASK")


def start(
    command: list[Any],
    channel: socket.socket | None,
    *others: int,
    ends_with_us: bool,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a taskq program with one end of a socket, which it opens by ``channel_of``.

    Args:
        command: its words; the number of the socket is among them.
        channel: its socket; None for none, with this process's standard input.
        others: further descriptors that it inherits, on systems with forks.
        ends_with_us: end it when this process ends, if the system can; otherwise it checks.
        options: options of ``Popen``.
    """
    if not _IS_WINDOWS:
        if channel is None:
            return subprocess.Popen(command, **options)  # noqa: S603 - our own
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(command, pass_fds=(channel.fileno(), *others), **options)  # noqa: S603 - our own
    options.pop("process_group", None)
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    if command[0] == sys.executable != base and not hasattr(sys, "frozen"):
        # A virtual environment's interpreter starts this one, whose pid its socket needs.
        command = [base, *command[1:]]
        before = options.get("env") or os.environ
        options["env"] = {**before, "__PYVENV_LAUNCHER__": sys.executable}
    # The console's Ctrl-C goes only to the first process, which passes it on.
    group: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    options |= {} if channel is None else {"stdin": subprocess.PIPE}
    process = subprocess.Popen(command, creationflags=group, **options)  # noqa: S603 - our own
    if ends_with_us:
        try:
            engine.system.end_with_parent(process)
        except OSError:
            process.kill()
            raise
    if process.stdin is None:
        return process
    share: Any = getattr(channel, "share", None)
    with contextlib.suppress(OSError):  # the process has ended, which is noticed elsewhere
        process.stdin.write(share(process.pid).hex().encode() + b"\n")
        process.stdin.close()
    return process


def start_frozen(
    message: int, work: socket.socket, life: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start this frozen program like multiprocessing does, with a pipe that it reads from."""
    from multiprocessing import spawn  # noqa: PLC0415 - few workers start children

    if not _IS_WINDOWS:
        command = spawn.get_command_line(tracker_fd=None, pipe_handle=message)
        try:
            return start(command, work, life, message, ends_with_us=True, env=environment)
        finally:
            os.close(message)
    handle: Any = importlib.import_module("msvcrt").get_osfhandle(message)
    command = spawn.get_command_line(parent_pid=os.getpid(), pipe_handle=handle)
    process = start(command, work, ends_with_us=True, env=environment)
    weakref.finalize(process, os.close, message)  # the process copies the pipe from here later
    return process


def channel_of(number: int) -> socket.socket:
    """Return the socket with which this process was started, without a time limit.

    ``socket.setdefaulttimeout`` of the app sets one, in its parent or here.
    """
    channel: socket.socket
    if not _IS_WINDOWS:
        channel = socket.socket(fileno=number)
    else:
        shared: Any = getattr(socket, "fromshare", None)
        with open(0, "rb", closefd=False) as line:
            channel = shared(bytes.fromhex(line.readline().decode()))
    channel.settimeout(None)
    return channel


def send(process: subprocess.Popen[bytes], number: int | None) -> None:
    """Send a signal; on Windows SIGTERM is the request to stop, if the process listens for it."""
    if not _IS_WINDOWS and number is not None:
        process.send_signal(number)
    elif number == SIGKILL or (
        number == signal.SIGTERM and not engine.system.ask_to_stop(process.pid)
    ):
        process.kill()


def stop_this() -> None:
    """Stop this process (SIGSTOP) until it is continued."""
    stop: Any = getattr(signal, "SIGSTOP", None)
    to: Any = getattr(signal, "pthread_kill", None)
    if stop is not None:
        to(threading.get_ident(), stop)


@contextlib.contextmanager
def alarm(seconds: float, action: Callable[..., None]) -> Iterator[None]:
    """Interrupt the main thread with ``action`` after a while, even while it sleeps."""
    number = _number("SIGALRM") or signal.SIGINT
    before = signal.signal(number, action)
    timer = threading.Timer(seconds, signal.raise_signal, (number,))
    set_timer: Any = getattr(signal, "setitimer", None)
    try:
        if set_timer is None:
            timer.daemon = True
            timer.start()
        else:
            set_timer(0, seconds)
        yield
    finally:
        timer.cancel()
        if set_timer is not None:
            set_timer(0, 0)
        signal.signal(number, before)
