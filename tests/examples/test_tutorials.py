"""Tutorials are played as they stand, and leave the files that are beside them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import pytest

from tests.tables import ROOT
from tests.terminal import Shell, steps
from tests.test_readme import TUTORIALS, is_shown

_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"# ([\w/]+\.py)( goes on)?\n")


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_does_what_it_shows(tmp_path: Path, tutorial: str) -> None:
    """With ``-s`` it prints how long each command takes."""
    folder = ROOT / "examples" / tutorial
    took: list[tuple[float, str]] = []
    shell = Shell(tmp_path)
    try:
        for language, code in _FENCE.findall((folder / "README.md").read_text(encoding="utf-8")):
            if language == "python" and (named := _FILE.match(code)):
                with (tmp_path / named[1]).open("a" if named[2] else "w") as file:
                    file.write(code.partition("\n")[2] if named[2] else code)
                whole = (tmp_path / named[1]).read_text()
                assert (folder / named[1]).read_text().startswith(whole)
            if language == "console":
                for step in steps(f"```console\n{code}```"):
                    began = time.perf_counter()
                    shown = shell.run(step.typed).replace(str(tmp_path), "/home/you")
                    took.append((time.perf_counter() - began, step.typed))
                    assert is_shown(shown, step.shown), f"$ {step.typed}\n{shown}"
    finally:
        shell.close()
    print("\n".join(f"{seconds:6.2f} s  {line}" for seconds, line in took))  # noqa: T201
