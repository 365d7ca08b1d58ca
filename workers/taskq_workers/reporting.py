"""Prints what a worker does, from a thread of its own, so that a slow terminal slows no job."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TextIO

from taskq.cli.streams import silence
from taskq_workers.lines import Style, job_line, summary_line

if TYPE_CHECKING:
    from taskq_workers.events import JobEnd, JobFinished

#: Lines in one second; what comes above that is counted, and told in one line.
LINES_PER_SECOND_MAX: Final = 200
#: Time between two writes.
TICK_SECONDS: Final = 0.05
_SECOND: Final = 1.0
#: How long ``close`` waits for a terminal that takes no more.
_CLOSE_SECONDS: Final = 1.0


class Reporter:
    """Hand it to a worker as ``on_event``. Never blocks its caller; idle, it sleeps.

    Nothing is printed before ``open``, so that the banner comes first. Memory is bounded: the
    thread alone renews the quota of lines, so while the output is stuck, events are only counted.
    """

    def __init__(self, output: TextIO, style: Style) -> None:
        self._output = output
        self._style = style
        self._lines: deque[str | tuple[float, JobFinished]] = deque()
        self._quota = LINES_PER_SECOND_MAX
        self._surplus: Counter[JobEnd] = Counter()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._broken = False
        self._thread = threading.Thread(target=self._work, name="taskq-report", daemon=True)

    def open(self, banner: list[str]) -> None:
        """Print these lines, and from now on what happens and what has happened."""
        self._lines.extendleft(reversed(banner))
        self._news.set()
        self._thread.start()

    def __call__(self, event: JobFinished) -> None:
        """Tell of one job."""
        if self._quota > 0:
            self._quota -= 1
            self._lines.append((time.time(), event))
        else:
            self._surplus[event.outcome] += 1
        if not self._news.is_set():
            self._news.set()

    def say(self, line: str) -> None:
        """Print one line as it is."""
        self._lines.append(line)
        self._news.set()

    def close(self) -> None:
        """Write what is left; gives up on an output that is stuck. Legal twice, and before open."""
        self._closing.set()
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        window_end = time.monotonic() + _SECOND
        while True:
            self._news.wait(max(window_end - time.monotonic(), 0) if self._surplus else None)
            self._news.clear()
            closing = self._closing.is_set()
            now = time.monotonic()
            lines = self._take_lines()
            if closing or now >= window_end:
                window_end = now + _SECOND
                lines += self._take_summary()
            self._write(lines)
            if closing:
                return
            self._closing.wait(TICK_SECONDS)

    def _take_lines(self) -> list[str]:
        lines = []
        while self._lines:
            item = self._lines.popleft()
            lines.append(item if isinstance(item, str) else job_line(item[1], item[0], self._style))
        return lines

    def _take_summary(self) -> list[str]:
        counts, self._surplus = self._surplus, Counter()
        self._quota = LINES_PER_SECOND_MAX
        return [summary_line(counts)] if counts else []

    def _write(self, lines: list[str]) -> None:
        if not lines or self._broken:
            return
        try:
            self._output.write("\n".join(lines) + "\n")
            self._output.flush()
        except (OSError, ValueError):
            # Its reader went away. The jobs matter more than the lines.
            self._broken = True
            silence(self._output)
