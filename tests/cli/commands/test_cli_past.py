"""``--at``: the read commands show the log as it stood then."""

from __future__ import annotations

import pytest

from tests.cli.helpers import Sample, taskq, taskq_json


def lsn_of(sample: Sample, name: str) -> int:
    """Return the position of a job's enqueue; each job of the sample came in a frame of its own."""
    return int(sample.ids[name].rpartition("-")[2])


def test_stats_count_what_there_was_at_an_lsn(sample: Sample) -> None:
    """After the second job nothing was claimed yet, and the other queues were not there."""
    lsn = lsn_of(sample, "dead")
    [queue] = taskq_json("stats", "-d", sample.path, "--at", lsn)["queues"]
    assert (queue["queue"], queue["ready"], queue["dead"]) == ("default", 2, 0)
    printed = taskq("stats", "-d", sample.path, "--at", lsn)
    assert f"next position {lsn + 1}," in printed.stdout
    assert printed.stdout.rstrip().endswith(f"as of {lsn}")


def test_ls_and_show_tell_a_job_as_it_was(sample: Sample) -> None:
    lsn, job_id = lsn_of(sample, "retried"), sample.ids["retried"]
    listed = taskq_json("ls", "-d", sample.path, "--at", lsn)
    assert [(job["id"], job["state"]) for job in listed[:1]] == [(job_id, "ready")]
    assert len(listed) == 3
    then = taskq_json("show", job_id, "-d", sample.path, "--at", lsn)
    assert (then["state"], then["attempts"], then["reason"]) == ("ready", [], None)
    assert taskq_json("show", job_id, "-d", sample.path)["state"] == "scheduled"


def test_a_span_back_from_now_reaches_the_time_before_the_log_began(sample: Sample) -> None:
    assert taskq_json("stats", "-d", sample.path, "--at", "1d")["queues"] == []
    assert taskq_json("ls", "-d", sample.path, "--at", "1d") == []
    assert taskq("ls", "-d", sample.path, "--at", "1d").stdout == "No jobs yet.\n"


def test_a_job_that_was_not_there_yet_is_told_with_the_newest_of_then(sample: Sample) -> None:
    lsn = lsn_of(sample, "dead")
    result = taskq("show", sample.ids["task"], "-d", sample.path, "--at", lsn)
    assert result.exit_code == 1
    assert f"at that moment (its newest was {sample.ids['dead']})" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tomorrow", "--at is 'tomorrow': give a span back from now"),
        ("2300-01-01", "must lie between 1970 and 2116"),
        ("2100-01-01", "is still to come"),
        ("999999", "the log has no lsn 999999 yet"),
    ],
)
@pytest.mark.parametrize("command", ["ls", "stats"])
def test_a_moment_that_cannot_be_is_wrong_usage(
    sample: Sample, command: str, text: str, message: str
) -> None:
    result = taskq(command, "-d", sample.path, "--at", text)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2
