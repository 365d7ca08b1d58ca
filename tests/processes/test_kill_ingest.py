"""A program that ingests a file is killed again and again: each line is a job once.

``python -m tests.processes.test_kill_ingest LINES`` does it with a file of so many lines.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from taskq import TaskLog
from tests.effort import grows, some
from tests.processes.harness import Child


def ingest(directory: Path, lines: int, step: int, seconds: float, seed: int) -> int:
    """Ingest a file by programs that are killed after a while each; returns how many were."""
    chance, kills = random.Random(seed), 0
    source, path = directory / "lines.txt", directory / "log"
    source.write_text("".join(f"line {number}\n" for number in range(lines)))
    while True:
        with Child("ingest_file.py", source, path, chance.uniform(0, seconds), step) as child:
            code = child.wait()
        if not code:
            return kills
        assert code == -signal.SIGALRM
        kills, seconds = kills + 1, seconds * 1.1  # also the slowest machine comes to the end


def payloads(path: Path) -> list[str]:
    taken: list[str] = []
    with TaskLog.open(path) as log:
        while deliveries := log.claim_sync(10_000):
            taken += [delivery.payload.decode() for delivery in deliveries]
    return taken


@grows
@pytest.mark.parametrize("seed", range(some(2, of=40)))
def test_a_kill_at_any_moment_leaves_each_line_of_a_file_once(tmp_path: Path, seed: int) -> None:
    kills = ingest(tmp_path, 2_000, 20, 0.02, seed)
    assert kills >= 2
    assert payloads(tmp_path / "log") == [f"line {number}" for number in range(2_000)]


if __name__ == "__main__":
    COUNT = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        killed = ingest(Path(name), COUNT, 100, 0.5, 1)
        assert payloads(Path(name, "log")) == [f"line {number}" for number in range(COUNT)]
    sys.stdout.write(f"{COUNT} lines: each once, {killed} programs were killed\n")
