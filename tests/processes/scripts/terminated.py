"""A process that is to be killed: a producer that prints acknowledged jobs, or a worker.

Usage: terminated.py DIRECTORY paced|worker|both NAME COUNT [BATCH]

``acked N`` after each batch of a producer, whose N keys are then ``NAME-0`` and so on; ``began``
once a worker has run a job. A ``paced`` producer waits for the results of each batch.
"""

import contextlib
import sys
from pathlib import Path

from taskq import TaskQ
from taskq_workers import WorkerThread


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def produce(app: TaskQ, name: str, count: int, batch: int, *, is_paced: bool) -> None:
    for start in range(0, count, batch):
        numbers = range(start, min(start + batch, count))
        jobs = app.enqueue_many_sync(
            [app.call_by_name("echo", f"{name}-{n}").options(key=f"{name}-{n}") for n in numbers]
        )
        say(f"acked {numbers[-1] + 1}")
        if is_paced:
            assert jobs[-1].result_sync() == f"{name}-{numbers[-1]}"


def main(path: Path, role: str, name: str, count: int, batch: int = 1) -> None:
    app = TaskQ(path, durability="os", segment_bytes=256 * 1024, keep="1h")
    texts = list[str]()

    # The next worker begins with the jobs of a killed one, and may be killed at them.
    @app.task(name="echo", retry=10_000)
    def echo(text: str) -> str:
        if not texts:
            texts.append(text)
            say("began")
        return text

    with contextlib.ExitStack() as stack:
        if role in {"worker", "both"}:
            stack.enter_context(WorkerThread(app, concurrency=4))
        say("open")
        if role != "worker":
            produce(app, name, count, batch, is_paced=role == "paced")
            say("done")
        if role in {"worker", "both"}:
            sys.stdin.readline()
    app.close_sync()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
