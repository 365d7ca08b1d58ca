"""A task of batches in child processes, which import this module."""

from __future__ import annotations

import os

from taskq import TaskQ

app = TaskQ("unused")


@app.task(runs_in="process", batch=3, within="10s")
def square(items: list[int]) -> list[tuple[int, int, int]]:
    if min(items) < 0:
        raise ValueError("a negative number")
    return [(item * item, len(items), os.getpid()) for item in items]
