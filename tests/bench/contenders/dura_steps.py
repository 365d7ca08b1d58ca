"""dura: one task of ``count`` no-op checkpoints; prints the seconds of one, and of a replay."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from dura import DurableEngine, process_task


def main(path: Path, count: int) -> None:
    engine: Any = DurableEngine(str(path / "dura.db"))
    spent: list[float] = []

    def many(engine: Any, task: Any) -> None:
        began = time.perf_counter()
        for number in range(count):
            engine.checkpoint(task_id=task.task_id, step_name=f"add{number}", fn=lambda: 1)
        spent.append(time.perf_counter() - began)
        raise OSError("once more")

    engine.spawn_task(name="many", params={})
    while len(spent) < 2:
        task = engine.claim_task(worker_id="worker", timeout_secs=60)
        process_task(engine, handlers={"many": many}, task=task)
    print(spent[0] / count, spent[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
