"""Standard streams that may be missing, full, or read by nobody: no reason for a command to fail.

A worker's exit code tells of its jobs; what became of its output changes nothing about them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from taskq.log.machine.forks import fill_standard


@contextlib.contextmanager
def whole_streams() -> Iterator[None]:
    """Let missing streams lead nowhere; and what cannot be written to its end fails no exit.

    Nor does a task that has put something else in their place.
    """
    fill_standard()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # its descriptor was closed, or there is no console
            descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for stream in streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                silence(stream)


def silence(stream: TextIO) -> None:
    """Let what is left in a stream's buffer, and what still comes, go nowhere."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
