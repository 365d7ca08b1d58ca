"""Programs that tests run to their end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

#: What a machine with everything else to do may take; a program that hangs fails its test.
SECONDS: Final = 120


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with these words, to its end; what it wrote is text."""
    options = {"check": False, "timeout": SECONDS, **options}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **options)  # noqa: PLW1510


def run_taskq(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``taskq`` in a process of its own."""
    return run_python("-m", "taskq", *words, **options)
