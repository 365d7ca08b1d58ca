"""Commands and their output in a terminal, in the form of the documents.

A ``$`` line is typed, the lines up to the next one are its output, and ``[2]`` is an exit code.
``…`` matches text that differs from run to run (ids, spans, process numbers), a line of ``...``
matches any lines. All other text is exact.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.effort import run

_END: Final = "<end of what was typed>"
_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    line: int
    typed: str
    shown: str


def steps(text: str) -> Iterator[Step]:
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        parts = re.split(r"^\$ ", block[1], flags=re.MULTILINE)
        assert not parts[0], f"line {first}: a block begins with what is typed"
        for part in parts[1:]:
            typed, *rest = part.splitlines()
            while rest and (rest[0] == ">" or rest[0].startswith("> ")):
                typed += "\n" + rest.pop(0)[2:]
            yield Step(first, typed, "\n".join(rest))
            first += part.count("\n")


def answers(document: str) -> Iterator[tuple[str, str]]:
    """Yield what is typed, a line that begins with ``$`` or ``>>>``, and what is printed then."""
    typed, shown = "", list[str]()
    for line in (*document.splitlines(), "```"):
        if line.startswith(("$ ", ">>> ", "```", "#")):
            if typed:
                yield typed, "\n".join(shown)
            typed, shown = (line if line.startswith(("$ ", ">>> ")) else ""), []
        elif typed:
            shown.append(line)


class Shell:
    """One shell, which keeps its variables and its directory from line to line."""

    def __init__(self, home: Path) -> None:
        own = {name: text for name, text in os.environ.items() if not name.startswith("TASKQ_")}
        bin_folder = Path(sys.executable).parent
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home,
            env=own | {
                "HOME": str(home),
                "PATH": f"{bin_folder}{os.pathsep}{own['PATH']}",
                "TZ": "UTC",
                "COLUMNS": "80",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )  # fmt: skip

    def run(self, typed: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{typed}\nprintf '\\n{_END} %d\\n' $?\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_END):
                run.begin_limit()
                code = line.split()[-1]
                shown = "\n".join(lines).rstrip("\n")
                return shown if code == "0" else f"{shown}\n[{code}]".lstrip("\n")
            lines.append(line.rstrip())
        pytest.fail(f"the shell ended in {typed!r}: {lines}")

    def close(self) -> None:
        self._process.communicate("kill $(jobs -p) 2>/dev/null; wait; exit\n", timeout=30)


def matches(shown: str, expected: str) -> bool:
    lines = shown.splitlines()
    # Possible numbers of output lines that the lines of the file so far may match.
    taken = {0}
    for wanted in expected.splitlines():
        if wanted == "...":
            taken = set(range(min(taken, default=len(lines) + 1), len(lines) + 1))
            continue
        pattern = re.escape(wanted.rstrip()).replace("…", ".*")
        line = re.compile(pattern.replace("/", f"[/{re.escape(os.sep)}]"))
        taken = {n + 1 for n in taken if n < len(lines) and line.fullmatch(lines[n])}
    return len(lines) in taken
