"""A module of a program that is frozen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from taskq import TaskQ

app = TaskQ(Path(sys.executable).parent / "frozen-data")


@app.task(runs_in="process", retry=1 if "FORGETS" in os.environ else 5)
def elsewhere(number: int) -> tuple[int, int]:
    """Print the process."""
    return number, os.getpid()
