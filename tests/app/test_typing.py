"""The type checker knows what a task takes and gives: mypy over a sample finds just its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.programs import run_python

ROOT = Path(__file__).parents[2]
SAMPLES = ("typed_app", "typed_flows")


@pytest.fixture(scope="module")
def output() -> list[str]:
    """Return the output of one run of mypy over all samples: its start is the largest cost."""
    done = run_python(
        "-m",
        "mypy",
        f"--config-file={ROOT / 'pyproject.toml'}",
        f"--cache-dir={ROOT / '.mypy_cache'}",
        "--no-error-summary",
        "--no-pretty",
        *(str(ROOT / "tests" / "samples" / f"{name}.py") for name in SAMPLES),
        cwd=ROOT,
    )
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("typing")
@pytest.mark.parametrize("name", SAMPLES)
def test_mypy_finds_the_sample_errors_and_no_others(output: list[str], name: str) -> None:
    sample = ROOT / "tests" / "samples" / f"{name}.py"
    result = _matches(rf"{name}\.py:(\d+): error: .*\[([\w-]+)\]$", output)
    source = sample.read_text().splitlines()
    wanted = {
        (number, match[1])
        for number, line in enumerate(source, 1)
        if (match := re.search(r"# E: ([\w-]+)$", line))
    }
    assert wanted
    assert result == wanted, output


def _matches(pattern: str, lines: Iterable[str]) -> set[tuple[int, str]]:
    matches = [match for line in lines if (match := re.search(pattern, line))]
    return {(int(match[1]), match[2]) for match in matches}
