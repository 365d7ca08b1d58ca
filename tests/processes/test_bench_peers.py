"""The program of tests/bench that measures taskq beside its peers, with tiny sizes and no peer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def run(*arguments: object) -> str:
    command = (sys.executable, "-m", "tests.bench.peers", *map(str, arguments))
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=50).stdout


def figures(output: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for line in output.splitlines()[1:]:
        rows |= json.loads(line)["rows"]
    return rows


def test_its_help_names_the_scenarios_and_the_contenders() -> None:
    output = run("--help")
    assert all(
        name in output for name in ("cycle", "takeover", "huey", "flexiq", "dbos", "--venvs")
    )


@pytest.mark.slow
def test_a_cycle_a_drain_and_a_takeover_of_ours_have_figures(tmp_path: Path) -> None:
    """Each sample asserts its end state; a job whose worker was killed runs again."""
    chosen = ("--only", "cycle", "--only", "drain", "--only", "takeover", "--rounds", 1)
    output = run("--contender", "taskq os", *chosen, "--jobs", 100, "--json", "--dir", tmp_path)
    rows = figures(output)
    assert rows["full cycle, jobs/s"]["taskq os"]["median"] > 0
    assert rows["drain, jobs/s"]["taskq os"]["jobs"] == 100
    assert rows["takeover after kill -9, s"]["taskq os"]["median"] < 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_peer_that_fails_is_told_with_its_message_and_stops_nobody(tmp_path: Path) -> None:
    """Its interpreter knows its version, and nothing else."""
    python = tmp_path / "venvs" / "huey" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exec echo 9.9\necho it is broken >&2; exit 3\n')
    python.chmod(0o755)
    contenders = ("--contender", "huey", "--contender", "taskq os", "--venvs", tmp_path / "venvs")
    output = run(
        *contenders, "--only", "lone", "--rounds", 1, "--jobs", 10, "--json", "--dir", tmp_path
    )
    head = json.loads(output.splitlines()[0])
    assert head["versions"]["huey"] == "left out: it ended with 3: it is broken"
    assert set(figures(output)["lone enqueue, jobs/s"]) == {"taskq os"}
