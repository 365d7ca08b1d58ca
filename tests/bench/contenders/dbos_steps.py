"""dbos on SQLite: one workflow of ``count`` no-op steps; prints the seconds of a step."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from dbos import DBOS


def add(number: int) -> int:
    return number


step: Any = DBOS.step()(add)


def many(count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        step(number)
    return (time.perf_counter() - began) / count


workflow: Any = DBOS.workflow()(many)


if __name__ == "__main__":
    database = Path(sys.argv[1]) / "dbos.db"
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{database}"})
    DBOS.launch()
    workflow(20)
    print(workflow(int(sys.argv[2])))
    DBOS.destroy()
