"""``taskq verify`` on damaged bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.helpers import Sample, taskq, taskq_json


def damaged(sample: Sample, tmp_path: Path) -> Path:
    """Return a copy of the sample with one flipped bit inside the first job's payload."""
    copy = tmp_path / "queue"
    shutil.copytree(sample.path, copy)
    segment = min((copy / "log").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[data.index(b'{"n":1}')] ^= 1
    segment.write_bytes(data)
    return copy


def test_verify_reports_damage_with_its_place_and_jobs_and_exits_1(
    sample: Sample, tmp_path: Path
) -> None:
    copy = damaged(sample, tmp_path)
    result = taskq("verify", "-d", copy)
    assert result.exit_code == 1
    assert "DAMAGED" in result.stdout
    assert "SEGMENT" in result.stdout
    assert f"job {sample.ids['succeeded']}\n" in result.stdout
    document = taskq("verify", "-d", copy, "--json")
    assert document.exit_code == 1


def test_the_other_jobs_of_a_damaged_log_are_still_listed(sample: Sample, tmp_path: Path) -> None:
    ids = {job["id"] for job in taskq_json("ls", "-d", damaged(sample, tmp_path))}
    assert sample.ids["task"] in ids
