"""The type checker knows what a task takes and gives: mypy over a sample finds just its errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
SAMPLES = ("typed_app", "typed_flows")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SAMPLES)
def test_mypy_finds_the_sample_errors_and_no_others(tmp_path: Path, name: str) -> None:
    sample = ROOT / "tests" / "samples" / f"{name}.py"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            f"--config-file={ROOT / 'pyproject.toml'}",
            f"--cache-dir={tmp_path}",
            "--no-error-summary",
            "--no-pretty",
            str(sample),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = _matches(rf"{name}\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout.splitlines())
    source = sample.read_text().splitlines()
    wanted = {
        (number, match[1])
        for number, line in enumerate(source, 1)
        if (match := re.search(r"# E: ([\w-]+)$", line))
    }
    assert wanted
    assert found == wanted, done.stdout + done.stderr


def _matches(pattern: str, lines: Iterable[str]) -> set[tuple[int, str]]:
    matches = [match for line in lines if (match := re.search(pattern, line))]
    return {(int(match[1]), match[2]) for match in matches}
