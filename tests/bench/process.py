"""What the operating system says of a process, and children that answer with one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MIB: Final = 1024 * 1024


def rss_bytes(pid: int | str = "self") -> int:
    """Resident memory now (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads that now live in the process (Linux), to the nanosecond."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        spent += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return spent / 1e9


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    """A fresh Python that runs the module, with pipes to talk through."""
    return subprocess.Popen(
        (sys.executable, "-m", module, *map(str, arguments)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str], timeout_seconds: float = 600) -> dict[str, Any]:
    """The last line that the process prints, once it has ended well."""
    output, _ = process.communicate(timeout=timeout_seconds)
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}"
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def ask(module: str, *arguments: object) -> dict[str, Any]:
    """Start the module and wait for its answer."""
    return answer(start(module, *arguments))
