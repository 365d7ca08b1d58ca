"""Shells complete what a log knows: queues, tasks and ids."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from taskq import TaskQ
from taskq.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    app = TaskQ(tmp_path / "data", durability="os")
    for queue, task in (("mail", "shop.send"), ("mail", "shop.spell"), ("films", "cut")):
        app.enqueue_sync(app.call_by_name(task).options(queue=queue))
    app.close_sync()
    return tmp_path / "data"


def completed(*words: object) -> list[str]:
    """Return what bash offers for the last word, types left out."""
    line = ["taskq", *map(str, words)]
    variables = {
        "_TASKQ_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(line),
        "COMP_CWORD": str(len(line) - 1),
    }
    result = CliRunner().invoke(main, env=variables, prog_name="taskq")
    assert result.exit_code == 0, result.output
    return [word.partition(",")[2] for word in result.stdout.split()]


def test_queues_tasks_and_ids_are_completed_wherever_a_command_takes_them(path: Path) -> None:
    tag = completed("show", "-d", path, "")[0].partition("-")[0]
    assert completed("show", "-d", path, "") == [f"{tag}-{number}" for number in (3, 2, 1)]
    assert completed("cancel", "-d", path, f"{tag}-2") == [f"{tag}-2"]
    assert completed("ls", path, "-Q", "") == ["films", "mail"]
    assert completed("pause", "-d", path, "m") == ["mail"]
    assert completed("-d", path, "cancel", "-t", "shop.s") == ["shop.send", "shop.spell"]
    assert completed("dead", "requeue", "-d", path, "-t", "c") == ["cut"]
    assert completed("tail", "-d", path, "-Q", "f") == ["films"]


def test_commands_are_completed_and_where_there_is_no_log_nothing_is(tmp_path: Path) -> None:
    assert "timeline" in completed("ti")
    assert completed("show", "-d", tmp_path / "nowhere", "") == []


def test_the_line_of_the_guide_turns_it_on(path: Path, tmp_path: Path) -> None:
    script = f"""
eval "$(_TASKQ_COMPLETE=bash_source taskq)"
COMP_WORDS=(taskq pause -d {path} m); COMP_CWORD=4
_taskq_completion taskq; echo "${{COMPREPLY[@]}}"
"""
    program = tmp_path / "bin" / "taskq"
    program.parent.mkdir()
    run = "from taskq.cli.main import main; main(prog_name='taskq')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{run}" "$@"\n')
    program.chmod(0o755)
    variables = os.environ | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=variables, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["mail"], done.stderr
