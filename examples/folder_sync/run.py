"""The whole demo: queue while offline, go online, lose the worker, continue, check every byte."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskq.engine import LogReader

from .receiver import Receiver, serving
from .scan import scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.views import QueueStats

    from .display import Display

_PACKAGE: Final = __package__ or "folder_sync"
#: Entry for a child's ``sys.path``, so that it imports this package under the same name.
_IMPORT_ROOT: Final = Path(__file__).resolve().parents[_PACKAGE.count(".") + 1]
_POLL_SECONDS: Final = 0.05
#: Interval of reads of the log, which cost more than looks at the receiver.
_LOG_POLL_SECONDS: Final = 0.25
#: Seconds without progress after which the demo gives up.
_PATIENCE_SECONDS: Final = 60
_STOP_SECONDS: Final = 15
_NAMES_SHOWN: Final = 5


class SyncFailed(Exception):
    """The sync cannot continue; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Result of the sync.

    Attributes:
        dead: jobs that ended as dead letters.
        different: paths that differ between the two trees.
    """

    files: int
    size: int
    skipped: int
    attempts: int
    retries: int
    kills_survived: int
    dead: int
    jobs_per_second: float
    different: tuple[str, ...]

    def lines(self) -> list[str]:
        skipped = f" ({self.skipped} skipped: links, unreadable)" if self.skipped else ""
        lines = [
            f"files: {self.files}{skipped}",
            f"bytes: {self.size} ({self.size / 2**20:.1f} MiB)",
            f"attempts: {self.attempts}",
            f"retries: {self.retries}",
            f"kills survived: {self.kills_survived}",
            f"jobs per second: {self.jobs_per_second:.0f}",
            f"identical: {'no' if self.different else 'yes'}",
        ]
        if self.dead:
            lines.append(f"given up: {self.dead}")
        if self.different:
            shown = ", ".join(self.different[:_NAMES_SHOWN])
            lines.append(f"different: {len(self.different)} files, for example {shown}")
        return lines


@dataclass(slots=True, kw_only=True)
class Sync:
    """One sync of a tree; its processes are started by the same commands that a user types.

    Attributes:
        source: the tree to send.
        work: a directory for the receiver's files and the processes' output.
        queue: the task log's directory, which must not exist yet.
        fail_share: share of requests that the receiver answers 503, from 0 to 1.
        concurrency: uploads at a time.
    """

    source: Path
    work: Path
    queue: Path
    display: Display
    fail_share: float = 0.1
    concurrency: int = 8
    _url: str = field(default="", init=False)
    _received: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)
    _worker: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def run(self) -> Summary:
        """Sync the tree despite all failures; return after all files were compared.

        Raises:
            SyncFailed: the sync cannot continue; the message has the reason.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        # The socket is bound but does not listen, so connections are refused.
        with socket.socket() as address, ExitStack() as stack:
            address.bind(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{address.getsockname()[1]}"
            stack.callback(self._stop_worker)
            counts = self._queue_offline()
            self._total = counts["files"]
            started = time.perf_counter()
            self._deliver(address)
            seconds = time.perf_counter() - started
        self.display.phase("Comparing both trees by SHA-256")
        sent, arrived = (
            {(entry.path, entry.digest) for entry in scan(tree).entries}
            for tree in (self.source, self.work / "files")
        )
        jobs = self._reader().jobs(None, None, None, 2 * self._total)
        attempts = sum(job.attempt for job in jobs)
        return Summary(
            files=self._total,
            size=counts["bytes"],
            skipped=counts["skipped"],
            attempts=attempts,
            retries=attempts - len(jobs),
            kills_survived=1,
            dead=sum(queue.dead for queue in self._queues()),
            jobs_per_second=self._total / seconds,
            different=tuple(sorted({path for path, _ in sent ^ arrived})),
        )

    def _queue_offline(self) -> dict[str, int]:
        """Enqueue everything twice while the receiver is offline, and let the worker try."""
        phase = self.display.phase
        phase(f"Queueing {self.source} (the receiver is offline)")
        counts = self._enqueue()
        if not counts["files"]:
            raise SyncFailed(f"{self.source} holds no files to sync: name another directory")
        phase(f"Queued {counts['queued']} files durably; starting the worker, still offline")
        self._start_worker()
        self._wait(
            "a first upload to fail",
            lambda: any(queue.scheduled for queue in self._queues()),
            _LOG_POLL_SECONDS,
        )
        again = self._enqueue()
        if again["queued"]:
            raise SyncFailed(f"a second scan queued {again['queued']} files once more")
        phase(f"Queueing the same tree again; already queued: {again['already_queued']}")
        return counts

    def _deliver(self, address: socket.socket) -> None:
        """Start the receiver, kill the worker half-way, and wait for the end of every job."""
        phase = self.display.phase
        phase(f"The receiver comes online, and fails {self.fail_share:.0%} of all requests")
        half = self._total // 2
        receiver = Receiver(self.work, fail_share=self.fail_share, pause_at=half)
        with serving(receiver, address):

            def look() -> int:
                self._received = len(receiver.received)
                self.display.progress(self._received, self._total)
                return receiver.held

            self._wait("half of the files", lambda: look() > 0)
            self._kill_worker()
            phase("Killed the worker with SIGKILL in the middle of its uploads; starting it again")
            receiver.is_open.set()
            self._start_worker()
            self._wait("the other half", lambda: look() >= 0 and self._settled(), _LOG_POLL_SECONDS)
            look()
            self._stop_worker()

    def _settled(self) -> bool:
        return not any(queue.scheduled + queue.ready + queue.running for queue in self._queues())

    def _queues(self) -> tuple[QueueStats, ...]:
        return self._reader().stats().queues

    def _reader(self) -> LogReader:
        return LogReader.open(str(self.queue))

    def _wait(
        self, what: str, done: Callable[[], bool], poll_seconds: float = _POLL_SECONDS
    ) -> None:
        received, deadline = -1, 0.0
        while not done():
            if self._worker is not None and (code := self._worker.poll()) is not None:
                raise SyncFailed(f"the worker ended with {code}: {self._last_line()}")
            now = time.monotonic()
            if received != self._received:
                received, deadline = self._received, now + _PATIENCE_SECONDS
            elif now > deadline:
                raise SyncFailed(f"waited {_PATIENCE_SECONDS} s for {what} in vain")
            time.sleep(poll_seconds)

    # -- processes --

    def _enqueue(self) -> dict[str, int]:
        command = [sys.executable, "-m", f"{_PACKAGE}.enqueue", str(self.source)]
        with self._output.open("ab") as log:
            done = subprocess.run(
                command, env=self._environment(), stdout=subprocess.PIPE, stderr=log, check=False
            )
        if done.returncode:
            raise SyncFailed(f"the enqueue step failed: {self._last_line()}")
        counts: dict[str, int] = json.loads(done.stdout)
        return counts

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "taskq", "worker", f"{_PACKAGE}.app:app"]
        with self._output.open("ab") as log:
            self._worker = subprocess.Popen(
                [*command, "--concurrency", str(self.concurrency)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches only this process, which then stops its worker.
                start_new_session=True,
            )

    def _kill_worker(self) -> None:
        """Kill the worker without a chance to clean up, like the OOM killer or an empty battery."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None

    def _stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._worker.wait(_STOP_SECONDS)
            self._kill_worker()

    def _environment(self) -> dict[str, Any]:
        path = (str(_IMPORT_ROOT), os.environ.get("PYTHONPATH"))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "TASKQ_DATA_DIR": str(self.queue),
            "SYNC_SOURCE": str(self.source),
            "SYNC_URL": self._url,
        }

    @property
    def _output(self) -> Path:
        return self.work / "processes.out"

    def _last_line(self) -> str:
        lines = self._output.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
