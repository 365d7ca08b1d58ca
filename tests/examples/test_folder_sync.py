"""The example from its first file to its last check, on a tree made by the test."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from examples.folder_sync.display import Lines
from examples.folder_sync.enqueue import priority
from examples.folder_sync.run import Options, run
from examples.folder_sync.scan import scan
from taskq.cli.commands import demo
from taskq.cli.main import main
from taskq.log.read.reader import LogReader

if TYPE_CHECKING:
    from pathlib import Path

FILES = 80
ODD_NAMES = ("a b.txt", "100%.txt", "q?x#y.txt", "grüße.txt", "it's.txt", "-dash", "a\\b", "c:d")


def make_tree(root: Path) -> Path:
    """Small files in nested directories, odd names, an empty file, one sent in blocks, a link."""
    chance = random.Random(7)
    for number in range(FILES - len(ODD_NAMES) - 2):
        file = root / f"dir{number % 7}" / f"sub{number % 3}" / f"file{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(chance.randrange(1, 5_000)))
    for name in ODD_NAMES:
        (root / name).write_text(name)
    (root / "empty").touch()
    (root / "large").write_bytes(chance.randbytes(700_000))
    (root / "link").symlink_to("large")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").touch()
    return root


class Told(Lines):
    """Keeps the chapters that were told."""

    def __init__(self) -> None:
        super().__init__()
        self.chapters: list[str] = []

    def phase(self, text: str) -> None:
        super().phase(text)
        self.chapters.append(text)


def test_every_file_arrives_through_an_offline_receiver_failures_and_a_killed_worker(
    tmp_path: Path,
) -> None:
    source, work, told = make_tree(tmp_path / "tree"), tmp_path / "work", Told()
    summary = run(Options(source=source, work=work, queue=tmp_path / "queue"), told)
    assert summary.identical
    assert (summary.files, summary.skipped, summary.dead) == (FILES, 1, 0)
    assert summary.kills_survived == 1
    assert summary.attempts == summary.files + summary.retries
    assert summary.retries > 0
    assert summary.lines()[-1] == "identical: yes"
    assert any(f"already queued: {FILES}" in chapter for chapter in told.chapters)
    # The kill met uploads in flight: their claims were taken back, and they ran again.
    jobs = LogReader.open(str(tmp_path / "queue")).jobs(None, None, None, 2 * FILES)
    assert any("lost" in attempt.outcome for job in jobs for attempt in job.attempts)
    assert list((work / "parts").iterdir()) == []


def test_demo_runs_the_example_as_a_user_does(tmp_path: Path) -> None:
    tree, queue = make_tree(tmp_path / "tree"), tmp_path / "queue"
    done = subprocess.run(
        [sys.executable, "-m", "taskq", "demo", "--directory", str(tree), "-d", str(queue)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in (f"files: {FILES} (1 skipped", "kills survived: 1\n", "identical: yes\n"):
        assert line in done.stdout
    assert "\x1b" not in done.stdout
    assert list(tmp_path.glob("taskq-demo-*")) == []
    listed = CliRunner().invoke(main, ["ls", "-d", str(queue), "--limit", "1000", "--json"])
    assert {job["state"] for job in json.loads(listed.stdout)} == {"succeeded"}


def test_a_tree_of_one_file_is_synced_too(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "only").write_text("one")
    options = Options(source=tmp_path / "tree", work=tmp_path / "w", queue=tmp_path / "q")
    assert run(options, Told()).identical


def test_demo_refuses_a_queue_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "taskq.json").touch()
    result = CliRunner().invoke(main, ["demo", "-d", str(tmp_path / "queue")])
    assert result.exit_code == 2
    assert "is not empty; give the demo a new directory" in result.stderr


def test_demo_refuses_to_sync_its_own_files(tmp_path: Path) -> None:
    words = ["demo", "--directory", str(tmp_path), "-d", str(tmp_path / "queue")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "would sync it to itself" in result.stderr


def test_demo_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ("httpx", "no_such_module_here"))
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == (
        "taskq: the demo needs no_such_module_here; install them: pip install -e '.[demo]'\n"
    )


def test_an_empty_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    result = CliRunner().invoke(main, ["demo", "--directory", str(tmp_path / "tree")])
    assert result.exit_code == 1
    assert "holds no files to sync" in result.stderr


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 9), (1_023, 9), (1_024, 8), (4_096, 7), (2**24, 1), (2**40, 0)]
)
def test_small_files_come_first(size: int, expected: int) -> None:
    assert priority(size) == expected


def test_a_scan_leaves_out_what_cannot_be_sent(tmp_path: Path) -> None:
    found = scan(make_tree(tmp_path))
    assert len(found.entries) == FILES
    assert found.skipped == [str(tmp_path / "link")]
    assert [entry.size for entry in found.entries] == sorted(e.size for e in found.entries)
