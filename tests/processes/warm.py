"""Programs that begin at once, forked from a process with their common imports.

To import ``taskq`` and a worker takes a quarter of a second of CPU, and the programs of these tests
do little else. ``tests/test_import.py`` measures real imports.

Two processes stand between a test and its program: the one with the imports, which starts no thread
and so may fork, and a keeper for each program, which waits for its end and reports it. The keeper
kills a program that nobody can ask for its end any more: no test leaves one at work.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_NUMBER: Final = struct.Struct("<i")
_ORDER_BYTES_MAX: Final = 65_536
_IMPORTS: Final = (
    "anyio._backends._asyncio", "rich.console", "taskq.cli.main", "taskq.log.store.store",
    "taskq_workers.command", "taskq_workers.pool", "tests.processes.harness",
)  # fmt: skip


class Program:
    """A program with the methods of a ``subprocess.Popen`` that tests call."""

    def __init__(
        self, words: Sequence[str], cwd: Path | None = None, stderr: int = 2,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.args = words
        self.returncode: int | None = None
        self._line, theirs = socket.socketpair()
        stdin, say = os.pipe()
        hear, stdout = os.pipe()
        order = json.dumps([words, str(cwd or Path.cwd()), dict(env or os.environ)]).encode()
        with theirs, os.fdopen(stdin), os.fdopen(stdout, "w"):
            socket.send_fds(_forker(), [order], [stdin, stdout, stderr, theirs.fileno()])
        self.stdin, self.stdout = os.fdopen(say, "w"), os.fdopen(hear)
        (self.pid,) = _NUMBER.unpack(self._line.recv(_NUMBER.size))

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or minus a signal; raise ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            # No select(), which takes no descriptor over 1 023.
            poll = select.poll()
            poll.register(self._line, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1_000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._line:
                (self.returncode,) = _NUMBER.unpack(self._line.recv(_NUMBER.size))
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _forker() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-m", __name__, str(theirs.fileno())]
    process = subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# -- in the process with the imports ---------------------------------------------------------------


def _serve(line: socket.socket) -> list[str]:
    """Fork programs until nobody asks any more; returns in each of them, with its words."""
    while True:
        order, files, _, _ = socket.recv_fds(line, _ORDER_BYTES_MAX, 4)
        with contextlib.suppress(ChildProcessError):  # so that its time is counted as ours
            while os.waitpid(-1, os.WNOHANG if order else 0)[0]:
                pass
        if not order:
            os._exit(0)
        if os.fork():
            for file in files:
                os.close(file)
            continue
        with line, socket.socket(fileno=files.pop()) as line_back:
            if program := os.fork():
                for file in (0, 1, *files):
                    os.close(file)
                _keep(program, line_back, line)
                os._exit(0)
        words, cwd, environment = json.loads(order)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        if path := environment.get("PYTHONPATH"):
            sys.path[1:1] = path.split(os.pathsep)
        return words  # type: ignore[no-any-return]


def _keep(program: int, line_back: socket.socket, line: socket.socket) -> None:
    ended, poll = os.pidfd_open(program), select.poll()
    poll.register(ended, select.POLLIN)
    for at in (line_back, line):
        poll.register(at, 0)  # no event but that it hangs up
    with contextlib.suppress(BrokenPipeError):
        line_back.send(_NUMBER.pack(program))
        poll.poll()
    signal.pidfd_send_signal(ended, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        line_back.send(_NUMBER.pack(code))


def _main() -> None:
    faulthandler.enable()
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.freeze()
    first, *rest = _serve(socket.socket(fileno=int(sys.argv[1])))
    if first == "-c":
        sys.argv = [first, *rest[1:]]
        sys.path[0] = ""
        exec(rest[0], {"__name__": "__main__"})  # noqa: S102 - as Python's own -c
    elif first == "-m":
        sys.argv = rest
        sys.path[0] = str(Path.cwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    _main()
