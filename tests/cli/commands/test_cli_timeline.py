"""``taskq timeline``: what happened to a job, for people and for programs."""

from __future__ import annotations

from tests.cli.helpers import Sample, taskq, taskq_json


def test_a_timeline_shows_each_event_with_its_worker_and_note(sample: Sample) -> None:
    result = taskq("timeline", sample.ids["retried"], "-d", sample.path)
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["TIME", "(UTC)", "AFTER", "KIND", "ATTEMPT", "WORKER", "NOTE"]
    assert [row.split()[2] for row in rows] == ["enqueued", "claimed", "retried"]
    assert " sample" in rows[1]
    assert "due in 59m: TimeoutError: slow" in rows[2] or "due in 1h: TimeoutError" in rows[2]


def test_a_timeline_tells_programs_everything(sample: Sample) -> None:
    events = taskq_json("timeline", sample.ids["dead"], "-d", sample.path)
    assert [event["kind"] for event in events] == ["enqueued", "claimed", "dead"]
    dead = events[-1]
    assert (dead["attempt"], dead["worker"], dead["cause"]) == (1, "sample", "exhausted")
    assert dead["reason"].endswith("line 2 of the traceback")
    assert dead["lsn"] > events[0]["lsn"]
    assert dead["time"].endswith("+00:00")


def test_a_reason_does_not_drive_the_terminal(sample: Sample) -> None:
    printed = taskq("timeline", sample.ids["dead"], "-d", sample.path).stdout
    assert "\x1b" not in printed
    assert "ValueError: [red]bad\\x1b[31m" in printed


def test_a_timeline_of_no_job_says_so(sample: Sample) -> None:
    tag = sample.ids["dead"].partition("-")[0]
    result = taskq("timeline", f"{tag}-999", "-d", sample.path)
    assert result.exit_code == 1
    assert "there is no job" in result.stderr
