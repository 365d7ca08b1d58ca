"""The whole story: queue while offline, come online, lose the worker, go on, check every byte."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskq.engine import LogReader

from .processes import Processes, SyncFailed
from .scan import scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskq.views import QueueStats

    from .display import Lines, Live

_POLL_SECONDS: Final = 0.05
#: The log is read less often than the receiver is asked: a read costs more.
_LOG_POLL_SECONDS: Final = 0.25
#: Without any progress for so long, something is wrong.
_PATIENCE_SECONDS: Final = 60
_SILENCE_SECONDS: Final = 2
_NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to sync, and how hard to make it.

    Attributes:
        source: the tree to send.
        work: a directory for everything that the sync writes.
        queue: the task log's directory, which must not exist yet.
        fail_share: share of requests that the receiver answers 503, from 0 to 1.
        concurrency: uploads at a time.
    """

    source: Path
    work: Path
    queue: Path
    fail_share: float = 0.1
    concurrency: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How it went."""

    files: int
    size: int
    skipped: int
    attempts: int
    retries: int
    kills_survived: int
    #: jobs that ended as dead letters
    dead: int
    jobs_per_second: float
    #: paths that differ between the two trees
    different: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Return whether every file arrived, byte by byte, and nothing else."""
        return not self.different

    def lines(self) -> list[str]:
        """Return the summary for people."""
        skipped = f" ({self.skipped} skipped: links, unreadable)" if self.skipped else ""
        lines = [
            f"files: {self.files}{skipped}",
            f"bytes: {self.size} ({self.size / 2**20:.1f} MiB)",
            f"attempts: {self.attempts}",
            f"retries: {self.retries}",
            f"kills survived: {self.kills_survived}",
            f"jobs per second: {self.jobs_per_second:.0f}",
            f"identical: {'yes' if self.identical else 'no'}",
        ]
        if self.dead:
            lines.append(f"given up: {self.dead}")
        if self.different:
            shown = ", ".join(self.different[:_NAMES_SHOWN])
            lines.append(f"different: {len(self.different)} files, for example {shown}")
        return lines


def run(options: Options, display: Lines | Live) -> Summary:
    """Sync the tree through every trouble; returns once all files have arrived and are checked.

    Raises:
        SyncFailed: it cannot be done; the message says why.
    """
    processes = Processes(
        options.source, options.work, options.queue, concurrency=options.concurrency
    )
    with closing(processes):
        return _Story(options, display, processes).tell()


@dataclass(slots=True)
class _Story:
    options: Options
    display: Lines | Live
    processes: Processes
    kills: int = 0
    received: int = 0
    #: steady time at which a wait without progress is given up
    deadline: float = 0.0

    def tell(self) -> Summary:
        counts = self._queue_offline()
        files = counts["files"]
        started = time.perf_counter()
        self._deliver(files)
        seconds = time.perf_counter() - started
        self.processes.close()
        self.display.phase("Comparing both trees by SHA-256")
        sent = {entry.path: entry.digest for entry in scan(self.options.source).entries}
        arrived = {entry.path: entry.digest for entry in scan(self.options.work / "files").entries}
        jobs = self._reader().jobs(None, None, None, 2 * files)
        attempts = sum(job.attempt for job in jobs)
        return Summary(
            files=files,
            size=counts["bytes"],
            skipped=counts["skipped"],
            attempts=attempts,
            retries=attempts - len(jobs),
            kills_survived=self.kills,
            dead=sum(queue.dead for queue in self._queues()),
            jobs_per_second=files / seconds,
            different=tuple(
                path
                for path in sorted(sent.keys() | arrived.keys())
                if sent.get(path) != arrived.get(path)
            ),
        )

    def _queue_offline(self) -> dict[str, int]:
        """Enqueue everything while nobody listens, twice, and let the worker find that out."""
        display, processes = self.display, self.processes
        display.phase(f"Queueing {self.options.source} (the receiver is offline)")
        counts = processes.enqueue()
        if not counts["files"]:
            raise SyncFailed(
                f"{self.options.source} holds no files to sync: name another directory"
            )
        display.phase(
            f"Queued {counts['queued']} files durably; starting the worker, still offline"
        )
        processes.start_worker()
        self._wait(
            "a first upload to fail",
            lambda: any(queue.scheduled for queue in self._queues()),
            _LOG_POLL_SECONDS,
        )
        again = processes.enqueue()
        if again["queued"]:
            raise SyncFailed(
                f"a second scan queued {again['queued']} files that were queued already"
            )
        display.phase(f"Queueing the same tree again; already queued: {again['already_queued']}")
        return counts

    def _deliver(self, files: int) -> None:
        """Bring the receiver up, kill the worker half-way, and see every job through."""
        display, processes = self.display, self.processes
        share = self.options.fail_share
        display.phase(f"The receiver comes online, and fails {share:.0%} of all requests")
        processes.start_receiver(fail_share=share, pause_at=files // 2)
        self._wait("half of the files", lambda: self._received(files, "held") > 0)
        processes.kill_worker()
        display.phase(
            "Killed the worker with SIGKILL in the middle of its uploads; starting it again"
        )
        processes.ask("POST", "/resume")
        processes.start_worker()
        self._wait("the other half", lambda: self._received(files) >= files or self._stuck())
        self._wait("the last jobs to settle", self._settled, _LOG_POLL_SECONDS)
        self.kills += 1

    def _received(self, files: int, count: str = "received") -> int:
        status = self.processes.ask("GET", "/status")
        received = status.get("received", 0)
        if received != self.received:
            self.received = received
            self.deadline = time.monotonic() + _PATIENCE_SECONDS
        self.display.progress(received, files)
        return status.get(count, 0)

    def _stuck(self) -> bool:
        """Return whether nothing is left to move: files that changed meanwhile never arrive.

        The log is asked only when the receiver has been silent for a while.
        """
        silent = time.monotonic() > self.deadline - _PATIENCE_SECONDS + _SILENCE_SECONDS
        return silent and self._settled()

    def _settled(self) -> bool:
        return not any(queue.scheduled + queue.ready + queue.running for queue in self._queues())

    def _queues(self) -> tuple[QueueStats, ...]:
        return self._reader().stats().queues

    def _reader(self) -> LogReader:
        return LogReader.open(str(self.options.queue))

    def _wait(
        self, what: str, done: Callable[[], bool], poll_seconds: float = _POLL_SECONDS
    ) -> None:
        self.deadline = time.monotonic() + _PATIENCE_SECONDS
        while not done():
            self.processes.check()
            if time.monotonic() > self.deadline:
                raise SyncFailed(f"waited {_PATIENCE_SECONDS} s for {what} in vain")
            time.sleep(poll_seconds)
