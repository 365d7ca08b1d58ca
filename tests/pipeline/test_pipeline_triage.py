from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from taskq.core.fingerprints import LOST_REASON, NO_REASON, pattern_of
from taskq_plugins.spark.triage import find
from tests.cli.helpers import taskq, taskq_json
from tests.pipeline.lakes import fill

if TYPE_CHECKING:
    from pathlib import Path

    from taskq_plugins.spark.triage import Finding

FAR_PAST = datetime(2020, 1, 1, tzinfo=UTC)
FAR_FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def kind(fingerprint: str, failed: int, **other: Any) -> dict[str, Any]:
    return {"fingerprint": fingerprint, "failed_attempts": failed} | other


def names(findings: list[Finding]) -> list[str]:
    return [finding.row["fingerprint"] for finding in findings]


def test_poison_comes_first_then_what_fails_most(tmp_path: Path) -> None:
    rows = [kind("some", 5), kind("most", 50), kind("poison", 1, poison=True, poison_jobs=2)]
    findings = find(fill(tmp_path, failures=rows), FAR_FUTURE)
    assert names(findings) == ["poison", "most", "some"]
    assert not any(finding.is_new for finding in findings)


def test_new_is_what_the_lake_did_not_know_then(tmp_path: Path) -> None:
    """A device's wrong clock, or a log that comes late, makes nothing old or new."""
    fill(tmp_path, failures=[kind("old", 90), kind("grows", 10)])
    then = datetime.now(UTC)
    rows = [kind("old", 90), kind("grows", 13), kind("new", 1)]
    findings = find(fill(tmp_path, failures=rows), then)
    assert names(findings) == ["new", "grows", "old"]
    assert [finding[1:] for finding in findings] == [(True, 1), (False, 3), (False, 0)]


@pytest.mark.parametrize("vacuumed", [False, True])
def test_without_an_older_version_the_devices_clocks_tell_what_is_new(
    tmp_path: Path, *, vacuumed: bool
) -> None:
    since = datetime(2024, 5, 1, 12, tzinfo=UTC)
    rows = [kind("old", 9), kind("new", 1, first_seen=datetime(2024, 5, 2, tzinfo=UTC))]
    if vacuumed:
        lake = fill(tmp_path, failures=[kind("old", 9)])
        for path in lake.paths("failures"):
            (tmp_path / path).unlink()
    findings = find(fill(tmp_path, failures=rows), since)
    assert names(findings) == ["new", "old"]
    assert [finding.grown for finding in findings] == [None, None]


REASONS = {
    "plain": "ValueError: it's order 7 of 'ann'",
    "shell": 'OSError: "a" costs $5 `x`!',
    "none": None,
}


@pytest.mark.parametrize("name", list(REASONS))
def test_the_commands_can_be_typed_and_find_what_they_are_about(tmp_path: Path, name: str) -> None:
    reason = REASONS[name]
    rows: list[dict[str, Any]] = [
        {"job_id": "a-1", "task": "it's.task", "reason": reason},
        {"job_id": "a-2", "task": "it's.task", "reason": "other"},
        {"job_id": "a-3", "reason": reason},
        {"job_id": "a-4", "task": "it's.task", "reason": reason, "state": "ready"},
        {"job_id": "a-5", "task": "it's.task", "reason": reason},
    ]
    about = {"task": "it's.task", "pattern": NO_REASON if reason is None else pattern_of(reason)}
    poison = {"dead_jobs": 2, "poison": True, "poison_jobs": 1, "poison_job_ids": ["a-5"]}
    lake = fill(tmp_path / "a lake", jobs=rows, failures=[kind("f", 1, **about, **poison)])
    (finding,) = find(lake, FAR_PAST)
    actions = {action.what: shlex.split(action.command) for action in finding.actions(lake.path)}
    assert list(actions) == ["poison", "look", "replay"]
    assert [row["job_id"] for row in taskq_json(*actions["poison"][1:])] == ["a-5"]
    replay = actions["replay"]
    assert replay[:3] == ["taskq", "pipeline", "replay"]
    assert replay[-2:] == ["--to", "DIR"]
    where = replay[replay.index("--where") + 1]
    shown = taskq_json("sql", "--lake", lake.path, f"FROM jobs WHERE {where}")
    assert [row["job_id"] for row in shown] == ["a-1"]


def test_lost_workers_are_looked_up_by_their_outcome(tmp_path: Path) -> None:
    lake = fill(tmp_path, failures=[kind("f", 1, pattern=LOST_REASON, dead_jobs=0, task=None)])
    (finding,) = find(lake, FAR_PAST)
    (action,) = finding.actions(tmp_path)
    assert action.command.endswith("\"FROM attempts WHERE outcome = 'lost' AND task IS NULL\"")


def test_the_command_tells_it_to_people(tmp_path: Path) -> None:
    rows = [kind("a", 1_000, dead_jobs=3, jobs=40), kind("b", 2), kind("c", 1)]
    fill(tmp_path, failures=rows)
    result = taskq("pipeline", "triage", "--lake", tmp_path, "--since", "2023-01-01", "-n", 2)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("3 kinds of failure, 3 new since ")
    assert lines[2] == "1. NEW app.send: ValueError: <n>"
    assert lines[3].startswith("   1000 failed attempts, 3 dead of 40 jobs, on d1 alone, last ")
    assert lines[4] == "   for example 0123abcd-7 of d1: ValueError: 7"
    assert lines[-1] == "and 1 more kind; --limit shows more"


def test_the_command_tells_it_to_programs(tmp_path: Path) -> None:
    fill(tmp_path, failures=[kind("a", 10, dead_jobs=3)])
    document = taskq_json("pipeline", "triage", "--lake", tmp_path)
    (failure,) = document["failures"]
    assert (document["kinds"], document["new"], failure["poison"]) == (1, 0, False)
    assert (failure["fingerprint"], failure["failed_attempts"]) == ("a", 10)
    assert failure["last_seen"] == "2024-05-01T00:00:00+00:00"
    assert [action["what"] for action in failure["next"]] == ["look", "replay"]


def test_where_nothing_fails_that_is_said(tmp_path: Path) -> None:
    fill(tmp_path, failures=[])
    result = taskq("pipeline", "triage", "--lake", tmp_path)
    assert result.stdout == "Nothing fails: no attempt failed, and no job is dead.\n"


def test_a_lake_without_the_table_is_told_with_what_it_has(tmp_path: Path) -> None:
    fill(tmp_path, jobs=[])
    result = taskq("pipeline", "triage", "--lake", tmp_path)
    assert result.exit_code == 1
    assert "there is no table 'failures'; there are: jobs" in result.stderr


def test_a_moment_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    fill(tmp_path, failures=[])
    result = taskq("pipeline", "triage", "--lake", tmp_path, "--since", "yore")
    assert result.exit_code == 2
    assert "--since 'yore'" in result.stderr
