"""What a person types in the first hour, and what they see: ``terminal_session.md``, word by word.

The file is played from its first line to its last in one shell, in an empty directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.terminal import Shell, matches, steps

SESSION: Final = Path(__file__).with_name("terminal_session.md")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_hour_at_a_terminal_reads_as_it_is_written(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    wrong: list[str] = []
    try:
        for step in steps(SESSION.read_text()):
            shown = shell.run(step.typed).replace(str(tmp_path), "/home/you")
            if not matches(shown, step.shown):
                parts = (f"line {step.line}: $ {step.typed}", step.shown, shown)
                wrong.append("\n--- ".join(parts))
    finally:
        shell.close()
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize(
    ("shown", "expected", "fits"),
    [
        ("a 12 b", "a … b", True),
        ("a 12 b\nc", "a … b", False),
        ("a\nb\nc", "a\n...\nc", True),
        ("a\nc", "a\n...\nc", True),
        ("a\nb\nc", "a\n...", True),
        ("a\nb", "...\nc", False),
        ("", "", True),
        ("x", "", False),
    ],
)
def test_only_what_is_marked_may_differ(shown: str, expected: str, fits: bool) -> None:
    assert matches(shown, expected) is fits
