from __future__ import annotations

import io
import threading
from math import inf
from types import SimpleNamespace
from typing import Any

from taskq.core.records import Kind
from taskq.core.views import Waiting
from taskq_workers.events import JobEnd, JobFinished
from taskq_workers.process.reporting import (
    LINES_PER_SECOND_MAX,
    BannerFacts,
    LineReporter,
    Style,
    banner,
    drain_lines,
    job_line,
    overdue_lines,
    rest_of,
    stopped_line,
    style_for,
    summary_line,
)

PLAIN = Style(colours=False)


def event(outcome: JobEnd = "succeeded", **changes: object) -> JobFinished:
    made = JobFinished("abcd-7", "mail.send", outcome, 0.1234, 1, 5)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def facts(**changes: object) -> BannerFacts:
    values: dict[str, object] = {
        "version": "0.1.0",
        "pid": 42,
        "directory": "/data",
        "durability": "fsync",
        "recovered": 3,
        "queues": None,
        "tasks": frozenset({"mail.send"}),
        "concurrency": 8,
        "ready_seconds": 0.0421,
    }
    return BannerFacts(**{**values, **changes})  # type: ignore[arg-type]


def test_the_banner_has_at_most_8_lines_and_says_what_matters() -> None:
    many = frozenset(f"jobs.task_{n}" for n in range(100))
    lines = banner(facts(tasks=many, queues=frozenset({"b", "a"})), PLAIN)
    text = "\n".join(lines)
    assert len(lines) <= 8
    for part in ("0.1.0", "/data", "fsync", "3 in-flight jobs", "a, b", "94 more", "in 42 ms"):
        assert part in text


def test_the_banner_says_what_runs_plain_jobs_unless_an_executor_does() -> None:
    row = "  plain jobs  C (build 9-db3b0b53, 12.2.0)"
    assert row in banner(facts(plain_jobs="C (build 9-db3b0b53, 12.2.0)"), PLAIN)
    far = banner(facts(executor="spark"), PLAIN)
    assert "  executor    spark" in far
    assert len(far) <= 8
    assert "plain jobs" not in "\n".join(far)


def test_the_banner_names_the_files_that_settings_come_from() -> None:
    lines = banner(facts(settings_files=("/app/.env", "/app/taskq.toml\x1b[31m")), PLAIN)
    assert "fsync, with the settings of /app/.env, /app/taskq.toml\\x1b[31m" in "\n".join(lines)
    assert len(lines) <= 8


def test_a_job_line_has_sign_task_id_and_duration() -> None:
    assert job_line(event(), 0.0, PLAIN)[8:] == " ✓ mail.send  abcd-7  123 ms"


def test_a_failed_job_says_which_attempt_it_was_and_why_on_one_line() -> None:
    dead = job_line(event("dead", attempt=5, reason="ValueError: no\nFile ..."), 0.0, PLAIN)
    assert dead.endswith("✗ mail.send  abcd-7  123 ms  attempt 5/5  ValueError: no")
    retried = job_line(event("retried", delay_seconds=2.5, reason="X: y"), 0.0, PLAIN)
    assert retried.endswith("↻ mail.send  abcd-7  123 ms  attempt 1/5  again in 2.5 s  X: y")
    released = job_line(event("released", delay_seconds=0.0), 0.0, PLAIN)
    assert released.endswith("↻ mail.send  abcd-7  123 ms  given back")


def test_a_reason_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in job_line(event("dead", reason="\x1b[2J"), 0.0, PLAIN)


def test_colours_are_for_terminals_and_signs_for_encodings_that_have_them() -> None:
    assert "\x1b[32m✓" in job_line(event(), 0.0, Style(colours=True))
    assert " ok mail.send" in job_line(event(), 0.0, style_for("ascii", colours=False))
    assert style_for("utf-8", colours=False) == PLAIN


def test_a_summary_groups_digits() -> None:
    assert summary_line({"succeeded": 12_345, "dead": 1}) == "… 12 345 jobs succeeded, 1 dead"
    assert summary_line({"retried": 1}) == "… 1 job retried"


def held(seconds: float | None, task: str = "mail.send", job: int = 7) -> Any:
    return SimpleNamespace(task=task, job_id=f"abcd-{job}"), seconds


def test_a_new_log_is_told_from_one_that_somebody_used() -> None:
    assert "  directory   /data (new, empty)" in banner(facts(is_empty=True), PLAIN)
    assert "  directory   /data" in banner(facts(), PLAIN)


def test_a_drain_names_what_it_waits_for_and_for_how_long() -> None:
    assert drain_lines([], 10.0) == ["stopping"]
    assert drain_lines([held(0.4), held(63.0, "x.y", 8)], 10.0) == [
        "draining: 2 running jobs get 10 s to finish; once more cancels",
        "  x.y  abcd-8  running for 63.0 s",
        "  mail.send  abcd-7  running for 400 ms",
    ]
    assert drain_lines([held(None)], inf, "process 9 ") == [
        "process 9 draining: 1 running job gets as long as it takes to finish; once more cancels",
        "  mail.send  abcd-7",
    ]
    assert drain_lines([held(1.0)] * 8, 10.0)[-1] == "  and 3 more"
    assert overdue_lines([held(12.0)], 10.0) == [
        "10 s are over: 1 running job cancelled and given back",
        "  mail.send  abcd-7  running for 12.0 s",
    ]


def test_the_last_line_sums_a_workers_life_up() -> None:
    ended = {Kind.SUCCEEDED: 12_345, Kind.DEAD: 1, Kind.RETRIED: 2, Kind.RELEASED: 1}
    assert stopped_line(ended, 3_600.0, 0.25) == (
        "stopped after 60 min, drained in 250 ms: "
        "12 345 jobs succeeded, 1 dead, 2 retried, 1 given back"
    )
    assert stopped_line({Kind.DEAD: 1}, 2.0, None, "process 9 ") == (
        "process 9 stopped after 2.0 s: 1 job dead"
    )
    assert stopped_line({Kind.RELEASED: 0}, 2.0, None) == "stopped after 2.0 s: no job ran"


def test_a_burst_ends_with_what_is_left_and_when_it_is_due() -> None:
    assert rest_of(Waiting(), None, 0) == ""
    assert rest_of(Waiting(1, 2), None, 0) == "; 1 waits, 2 wait in a paused queue"
    left = rest_of(Waiting(later=3), 360 * 10**9, 60 * 10**9)
    assert left == "; 3 are due later, the first in 5m"


class Gate(io.StringIO):
    """An output that notes each write, and may block."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def write(self, text: str, /) -> int:
        self.entered.set()
        assert self.open.wait(30)
        return super().write(text)


def test_what_happens_before_the_banner_is_printed_after_it() -> None:
    output = io.StringIO()
    reporter = LineReporter(output, PLAIN)
    reporter(event())
    reporter.open(["the banner"])
    reporter.close()
    assert output.getvalue().startswith("the banner\n")
    assert "abcd-7" in output.getvalue()


def test_a_reporter_that_was_never_opened_closes() -> None:
    LineReporter(io.StringIO(), PLAIN).close()


def test_a_flood_is_summed_up_and_a_stuck_output_holds_nobody_up() -> None:
    """The thread is held within a write: ten thousand events must neither block nor pile up."""
    output = Gate()
    output.open.clear()
    reporter = LineReporter(output, PLAIN)
    reporter.open(["the banner"])
    assert output.entered.wait(30)
    for _ in range(10_000):
        reporter(event())
    assert len(reporter._lines) <= LINES_PER_SECOND_MAX
    output.open.set()
    reporter.close()
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + LINES_PER_SECOND_MAX + 1
    assert lines[-1] == "… 9 800 jobs succeeded"


def test_an_output_whose_reader_went_away_stops_nothing_and_is_written_to_once() -> None:
    tries: list[str] = []

    class Closed(io.StringIO):
        def write(self, text: str, /) -> int:
            tries.append(text)
            raise BrokenPipeError

    reporter = LineReporter(Closed(), PLAIN)
    reporter._write(["the banner"])
    reporter.open(["more"])
    reporter(event())
    reporter.close()
    assert not reporter._thread.is_alive()
    assert tries == ["the banner\n"]
