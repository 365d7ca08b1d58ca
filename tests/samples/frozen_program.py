"""A program that is frozen: ``module``, ``main``, or a command of taskq.

With FORGETS=1 it does not call ``freeze_support()``. Each copy that gets as far as ``main`` is
told in the file COPIES. STANDS_IN names what starts it where it is not frozen, but plays it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import sys
from pathlib import Path

import frozen_tasks

from taskq import TaskQ
from taskq.cli.main import main as commands

if "STANDS_IN" in os.environ:
    sys.frozen = True
    sys.executable = os.environ["STANDS_IN"]
    multiprocessing.freeze_support = multiprocessing.spawn.freeze_support

own = TaskQ(Path(os.environ["OWN_DATA"]))
#: A child that cannot start fails its job, which then is not tried again.
ATTEMPTS = 1 if "FORGETS" in os.environ else 5


@own.task(runs_in="process", retry=ATTEMPTS)
def of_main(number: int) -> tuple[int, int]:
    return number, os.getpid()


def main() -> None:
    """Run two jobs in children, or a command."""
    with Path(os.environ["COPIES"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    app, task = own, of_main
    if sys.argv[1:] == ["module"]:
        app, task = frozen_tasks.app, frozen_tasks.elsewhere
        app.data_dir = own.data_dir
    elif sys.argv[1:] != ["main"]:
        commands()
    with app, app.worker_thread(concurrency=2):
        for job in [task.enqueue_sync(number) for number in (1, 2)]:
            number, process = job.result_sync(timeout=float(os.environ["PATIENCE"]))
            sys.stdout.write(f"{number} {process != os.getpid()}\n")


if __name__ == "__main__":
    if "FORGETS" not in os.environ:
        multiprocessing.freeze_support()
    main()
