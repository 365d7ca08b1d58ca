"""The program's tasks, in a module of their own, which child processes import."""

from __future__ import annotations

import os
import sys
import threading

from taskq import TaskQ

#: In the user's data directory, regardless of the working directory.
app = TaskQ.user_data("Picture Book")


@app.task
def count_words(text: str) -> int:
    """Run on a thread of the program."""
    assert threading.current_thread() is not threading.main_thread()
    return len(text.split())


@app.task(runs_in="process")
def shrink(size: int) -> tuple[int, int, bool]:
    """Run in a child process, so that heavy work does not make the window stutter."""
    return size // 2, os.getpid(), bool(getattr(sys, "frozen", False))
