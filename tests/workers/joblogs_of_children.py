"""Tasks of child processes that keep what they log."""

from __future__ import annotations

import logging
import os
import signal

from taskq import TaskQ

app = TaskQ("unused")


@app.task(runs_in="process", keep_log="1KB", retry=1)
def die() -> None:
    logging.getLogger("shop").error("alas")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(runs_in="process", keep_log="1KB")
def speak(word: str) -> int:
    logging.getLogger("shop").error("%s", word)
    return len(word)
