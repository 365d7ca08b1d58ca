"""Real processes for tests: started from small scripts, spoken to by lines, ended by signals.

Nothing here sleeps for a guessed time. A test waits for a line of a child, for a future, or with
``eventually`` for a condition that another process brings about and that nobody announces.
"""

import contextlib
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import pytest

from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.format.record import Record
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.system import system
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.log.segments.identity import Identity, LockMark
from taskq.log.state.job_history import records
from taskq.log.store.store import Store, open_store
from tests.effort import ended
from tests.processes.warm import Program

SCRIPTS: Final = Path(__file__).parent / "scripts"
#: The torture runs check in the other modes what the default run checks in one.
MODES: Final = [Durability.FSYNC, pytest.param(Durability.OS, marks=pytest.mark.slow)]
#: Time for one step on a busy machine.
STEP_SECONDS: Final = 45.0 if hasattr(os, "fork") else 225.0
_LOOK_AGAIN_SECONDS: Final = 0.002


def eventually(condition: Callable[[], object], seconds: float = STEP_SECONDS) -> None:
    """Poll for a condition that another process brings about and does not announce."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        pause.wait(_LOOK_AGAIN_SECONDS)


def removed(path: Path) -> None:
    """Free the name of an open file of a log at once, which its removal does not under Wine."""
    path.replace(path.parents[1] / f"{path.name}.removed")


@contextlib.contextmanager
def mounted(place: Path, *commands: list[str]) -> Iterator[Path]:
    """Mount a file system at a place by these commands; the test is skipped without them."""
    place.mkdir()
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"{command[0]} is needed: {error}")
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    # A process of its own: a disk left by a killed test fails later runs, which remove old folders.
    words = [
        "sh",
        "-c",
        'if read _; then exec umount "$0"; else exec umount -l "$0"; fi',
        str(place),
    ]
    keeper = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield place
    finally:
        keeper.communicate(b"\n")
        assert keeper.returncode == 0


def memory_disk(place: Path, size: int) -> contextlib.AbstractContextManager[Path]:
    return mounted(place, ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)])


def same_log(path: Path) -> Identity:
    """Let a directory of copied files be the log itself, and return which it is."""
    disk = LocalDisk()
    identity = Identity.read(disk, str(path))
    assert identity is not None
    lock = disk.open(f"{path}/write.lock")
    identity = identity._replace(lock=LockMark(disk.identity(lock)[1], disk.born_ns(lock)))
    disk.close(lock)
    identity.write(disk, str(path))
    return identity


def is_readable(descriptor: int, seconds: float) -> bool:
    """Wait for something to read, or the end; ``select.select`` knows no number over 1 023."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


class Child:
    """A process that runs a script or command and prints lines; leaving the block kills it."""

    def __init__(self, *command: object, cwd: Path | None = None) -> None:
        words = [str(word) for word in command]
        if words[0].endswith(".py"):
            words[0] = str(SCRIPTS / words[0])
        self.started = time.monotonic()
        self.process = _started(words, cwd)
        self.pid = self.process.pid
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a line cut by a kill was never sent
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, seconds: float = STEP_SECONDS) -> str:
        before = self._work()
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                work, before = before, self._work()
                if work != before:
                    continue
                # Its faulthandler shows on stderr what each of its threads waits for.
                self.send(signal.SIGABRT)
                self.process.wait(STEP_SECONDS)
                raise AssertionError(f"{self.process.args!r} says nothing") from None
            assert line is not None, f"{self.process.args!r} ended with {self.process.wait()}"
            return line

    def _work(self) -> list[str]:
        """Return the processor time that it has had; none where the system does not show it."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return []
        return text.rpartition(") ")[2].split()[11:13]

    def expect(self, word: str, seconds: float = STEP_SECONDS) -> str:
        while not (line := self.line(seconds)).startswith(word):
            pass
        return line[len(word) :].strip()

    def lines_so_far(self, seconds: float = 0.01) -> list[str]:
        lines: list[str] = []
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._lines.get(timeout=seconds if not lines else 0)
                assert line is not None, f"{self.process.args!r} ended with {self.process.wait()}"
                lines.append(line)
        return lines

    def rest(self, seconds: float = STEP_SECONDS) -> list[str]:
        lines = []
        while (line := self._lines.get(timeout=seconds)) is not None:
            lines.append(line)
        return lines

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        if os.name == "nt" and number == signal.SIGTERM and system.ask_to_stop(self.pid):
            return
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STEP_SECONDS)

    def wait(self, seconds: float = STEP_SECONDS) -> int:
        return self.process.wait(seconds)

    def state(self) -> str:
        text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return text.rpartition(") ")[2][:1]

    def stop(self) -> None:
        self.send(signal.SIGSTOP)
        eventually(lambda: self.state() == "T")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.kill()
        ended(self._reader, STEP_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def start_worker(path: Path, *options: object, app: str = "jobs:app", cwd: Path = SCRIPTS) -> Child:
    return Child(sys.executable, "-m", "taskq", "worker", app, "-d", path, *options, cwd=cwd)


def preloaded(folder: Path, source: str) -> Path:
    """Compile a library that is loaded before the C library."""
    library = folder / "it.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    libraries = ["-ldl", "-lpthread"]
    subprocess.run(["cc", *flags, "-o", library, SCRIPTS / source, *libraries], check=True)
    return library


def _started(words: list[str], cwd: Path | None) -> subprocess.Popen[str] | Program:
    if not hasattr(os, "fork"):
        words = [sys.executable, *words] if words[0].endswith(".py") else words
    elif words[0].endswith(".py"):
        return Program(words, cwd)
    elif words[0] == sys.executable and words[1] in {"-m", "-c"}:
        return Program(words[1:], cwd)
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd=cwd)


class Pause:
    """Keeps a store's storage thread between two batches until told to go on."""

    def __init__(self, store: Store) -> None:
        self._go_on = threading.Event()
        reached = threading.Event()

        def chore() -> None:
            reached.set()
            assert self._go_on.wait(20)

        store.between_batches(chore)
        assert reached.wait(10)

    def end(self) -> None:
        self._go_on.set()


def open_here(path: Path, durability: Durability = Durability.OS, **options: float) -> Store:
    return open_store(str(path), LogConfig(durability=durability, **options))  # type: ignore[arg-type]


def put(store: Store, body: bytes, priority: int = 5) -> int:
    lsn = store.thread_port.enqueue(EnqueueSpec(priority=priority), body).result()
    assert isinstance(lsn, int)
    return lsn


def log_records(path: Path) -> list[Record]:
    journal = LogReader.open(str(path))._journal
    return list(records(journal, journal.start()))


def of_kind(records: list[Record], kind: Kind) -> list[Record]:
    return [record for record in records if record.type == kind]
