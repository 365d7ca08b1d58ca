"""What the operating system says of a process, and children that answer with one line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def family(pid: int) -> list[int]:
    """Return the process and all that it started, by way of whomever (Linux)."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


class Watch:
    """Looks again and again at a process and all that it starts, for what they take.

    Attributes:
        cpu_seconds: by who: ``driver`` is the process itself, ``java`` and ``python`` the others.
        peak_bytes: likewise the most resident memory, and of all at one moment as ``all``.
    """

    #: What ran for less than that may be missed.
    LOOK_SECONDS: Final = 0.1

    def __init__(self, pid: int) -> None:
        self.cpu_seconds: dict[str, float] = defaultdict(float)
        self.peak_bytes: dict[str, int] = defaultdict(int)
        self._pid = pid
        self._cpu_of: dict[int, tuple[str, float]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._thread.join()
        for who, seconds in self._cpu_of.values():
            self.cpu_seconds[who] += seconds

    def _look_on(self) -> None:
        while not self._stopped.wait(self.LOOK_SECONDS):
            self._look(family(self._pid))

    def _look(self, pids: Iterable[int]) -> None:
        resident: dict[str, int] = defaultdict(int)
        for pid in pids:
            try:
                name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
                size = rss_bytes(pid)
            except (OSError, IndexError):
                continue
            who = "driver" if pid == self._pid else "java" if "(java" in name else "python"
            ticks = sum(map(int, rest.split()[11:13]))
            self._cpu_of[pid] = who, ticks / os.sysconf("SC_CLK_TCK")
            resident[who] += size
            resident["all"] += size
        for who, size in resident.items():
            self.peak_bytes[who] = max(self.peak_bytes[who], size)


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Return a fresh Python that runs the module, with pipes to talk through."""
    return subprocess.Popen(
        (sys.executable, "-m", module, *map(str, arguments)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str], timeout_seconds: float = 600) -> dict[str, Any]:
    """Return the last line that the process prints, once it has ended well."""
    output, _ = process.communicate(timeout=timeout_seconds)
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}"
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def ask(module: str, *arguments: object) -> dict[str, Any]:
    """Start the module and wait for its answer."""
    return answer(start(module, *arguments))
