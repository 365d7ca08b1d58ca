"""The program: a loop in place of a window's event loop, and a worker on a thread.

Freeze it by ``pyinstaller --onedir examples/desktop/program.py``, or ``--onefile``.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
from typing import TYPE_CHECKING

from examples.desktop.tasks import app, count_words, shrink

if TYPE_CHECKING:
    from taskq import JobHandle

#: Pause between two looks at the jobs; toolkits have timers for this.
LOOK_SECONDS = 0.05


def main() -> None:
    """Open, run jobs during the loop, and close; unfinished jobs continue at the next start."""
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    with app, app.worker_thread(concurrency=4, on_event=lambda event: done.put(event.job_id)):
        words = count_words.enqueue_sync("to be or not to be")
        sizes = [shrink.enqueue_sync(size) for size in (100, 200)]
        waiting: set[str] = {words.id, *(job.id for job in sizes)}
        while waiting:  # the window's loop never waits for a job
            time.sleep(LOOK_SECONDS)
            while not done.empty():
                waiting.discard(done.get())
        show(words, sizes)


def show(words: JobHandle[int], sizes: list[JobHandle[tuple[int, int, bool]]]) -> None:
    print(f"{words.result_sync()} words")
    for size, process, is_frozen in (job.result_sync() for job in sizes):
        print(f"shrunk to {size}, frozen: {is_frozen}, elsewhere: {process != os.getpid()}")


if __name__ == "__main__":
    # A child process of the frozen program never returns from this line.
    multiprocessing.freeze_support()
    main()
