"""taskq replay: past jobs once more, shown before they are, and never all of them by accident."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.helpers import Sample, taskq, taskq_json


@pytest.fixture
def copy(sample: Sample, tmp_path: Path) -> Sample:
    """Return a mutable copy."""
    return Sample(shutil.copytree(sample.path, tmp_path / "queue"), sample.ids)


def test_a_replay_tells_each_old_and_new_job(copy: Sample) -> None:
    result = taskq("replay", "-d", copy.path, "--state", "dead", "--since", "2h")
    assert result.exit_code == 0, result.output
    line, last = result.stdout.splitlines()
    old, arrow, new, state, queue = line.split()
    assert (old, arrow, state, queue) == (copy.ids["dead"], "->", "dead", "default")
    assert last == "replayed 1 job"
    shown = taskq_json("show", "-d", copy.path, new)
    assert shown["headers"] == {"from": "here", "replay_of": old}
    assert (shown["state"], shown["payload"]["data"]) == ("ready", "/wA=")


def test_a_dry_run_shows_the_same_and_leaves_no_trace(sample: Sample) -> None:
    before = {path: path.stat().st_mtime_ns for path in sample.path.rglob("*")}
    output = taskq_json("replay", "-d", sample.path, "--all", "--dry-run")
    assert (output["dry_run"], output["count"], output["problems"]) == (True, 3, 0)
    ids = sample.ids
    assert [(job["id"], job["new_id"], job["state"]) for job in output["jobs"]] == [
        (ids["succeeded"], None, "succeeded"),
        (ids["dead"], None, "dead"),
        (ids["cancelled"], None, "cancelled"),
    ]
    result = taskq("replay", "-d", sample.path, "-Q", "default", "--dry-run", "-n", "2")
    assert result.stdout.splitlines()[-1] == "would replay 2 jobs, enqueued nothing"
    assert {path: path.stat().st_mtime_ns for path in sample.path.rglob("*")} == before


@pytest.mark.parametrize("options", [[], ["--limit", "5"], ["--dry-run"]])
def test_without_a_choice_nothing_is_replayed(sample: Sample, options: list[str]) -> None:
    result = taskq("replay", "-d", sample.path, *options)
    assert result.exit_code == 2
    assert "or jobs with --since, --before, --task, --queue or --state" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since", "yesterday"], "--since 'yesterday': give a span back from now"),
        (["--before", "2h2"], "--before '2h2': give a span back from now"),
        (["--state", "running"], "'running' is not one of"),
        (["--limit", "0"], "0 is not in the range x>=1"),
    ],
)
def test_a_wrong_choice_is_named(sample: Sample, options: list[str], message: str) -> None:
    result = taskq("replay", "-d", sample.path, *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--before", "2020-01-01T00:00"], 0),
        (["--since", "2020-01-01"], 3),
        (["--since", "1h", "--task", "mail.send"], 0),
    ],
)
def test_moments_are_spans_or_times(sample: Sample, options: list[str], count: int) -> None:
    output = taskq_json("replay", "-d", sample.path, *options, "--dry-run")
    assert output["count"] == count
