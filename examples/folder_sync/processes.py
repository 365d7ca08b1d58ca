"""The processes that the example is made of, each started the way a user would start it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

_PACKAGE: Final = __package__ or "folder_sync"
#: What has to be on the path, so that a child finds this package under the same name.
_IMPORT_ROOT: Final = Path(__file__).resolve().parents[_PACKAGE.count(".") + 1]
_STOP_SECONDS: Final = 15


class SyncFailed(Exception):
    """The sync cannot go on; the message says why and where to look."""


@dataclass(slots=True)
class Processes:
    """Starts the receiver and the worker of one sync, and leaves none of them behind.

    Attributes:
        source: the tree to send.
        work: directory for the queue, the receiver's files and the processes' output.
        queue: the task log.
    """

    source: Path
    work: Path
    queue: Path
    concurrency: int
    #: set from the start, but nothing listens on it: connections are refused
    address: socket.socket = field(init=False)
    client: httpx.Client = field(init=False)
    worker: subprocess.Popen[bytes] | None = None
    receiver: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self.address = socket.socket()
        self.address.bind(("127.0.0.1", 0))
        self.client = httpx.Client(trust_env=False, timeout=10)

    @property
    def url(self) -> str:
        """Return where the receiver is, or will be."""
        return f"http://127.0.0.1:{self.address.getsockname()[1]}"

    def enqueue(self) -> dict[str, int]:
        """Run the enqueue step to its end; returns its counts."""
        command = [sys.executable, "-m", f"{_PACKAGE}.enqueue", str(self.source)]
        with self._log("enqueue").open("ab") as log:
            done = subprocess.run(
                command, env=self._environment(), stdout=subprocess.PIPE, stderr=log, check=False
            )
        if done.returncode:
            raise SyncFailed(f"the enqueue step failed: {self._tail('enqueue')}")
        counts: dict[str, int] = json.loads(done.stdout)
        return counts

    def start_worker(self) -> None:
        """Start a ``taskq worker`` process."""
        self.worker = self._start(
            "worker",
            [
                *("-m", "taskq", "worker", f"{_PACKAGE}.app:app"),
                *("--data-dir", str(self.queue), "--concurrency", str(self.concurrency)),
            ],
        )

    def kill_worker(self) -> None:
        """End the worker as the OOM killer or a battery would: it gets no chance to tidy up."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
            self.worker = None

    def start_receiver(self, *, fail_share: float, pause_at: int) -> None:
        """Start the receiver: from when it listens, connections are accepted."""
        self.receiver = self._start(
            "receiver",
            [
                *("-m", f"{_PACKAGE}.receiver", "--fd", str(self.address.fileno())),
                *("--base", str(self.work), "--fail-share", str(fail_share)),
                *("--pause-at", str(pause_at)),
            ],
            inherited=self.address.fileno(),
        )

    def ask(self, method: str, path: str) -> dict[str, int]:
        """Ask the receiver; empty while it does not listen yet."""
        try:
            answer = self.client.request(method, self.url + path)
        except httpx.ConnectError:
            return {}
        answer.raise_for_status()
        return dict(answer.json()) if answer.content else {}

    def check(self) -> None:
        """Raise SyncFailed when a process that should run has ended."""
        for name, process in (("worker", self.worker), ("receiver", self.receiver)):
            if process is not None and process.poll() is not None:
                raise SyncFailed(f"the {name} ended with {process.returncode}: {self._tail(name)}")

    def close(self) -> None:
        """Stop what still runs: politely, then not. Legal twice."""
        for process in (self.worker, self.receiver):
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.worker = self.receiver = None
        self.address.close()
        self.client.close()

    def _start(
        self, name: str, arguments: list[str], inherited: int | None = None
    ) -> subprocess.Popen[bytes]:
        with self._log(name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=self._environment(),
                # A pipe that nobody writes to: the receiver ends when this end of it is gone.
                stdin=subprocess.DEVNULL if inherited is None else subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=() if inherited is None else (inherited,),
                # Ctrl-C is for the sync as a whole, which then stops its processes itself.
                start_new_session=True,
            )

    def _environment(self) -> dict[str, Any]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH")))
            ),
            "TASKQ_DATA_DIR": str(self.queue),
            "SYNC_SOURCE": str(self.source),
            "SYNC_URL": self.url,
        }

    def _log(self, name: str) -> Path:
        return self.work / f"{name}.out"

    def _tail(self, name: str) -> str:
        """Return the last line that a process wrote: of a traceback, the one with the error."""
        lines = self._log(name).read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
