"""dbos on SQLite: one workflow of so many no-op steps; prints the seconds that a step took."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dbos import DBOS


@DBOS.step()
def add(number: int) -> int:
    """Do nothing."""
    return number


@DBOS.workflow()
def many(count: int) -> float:
    """Do so many steps; returns the seconds of one."""
    began = time.perf_counter()
    for number in range(count):
        add(number)
    return (time.perf_counter() - began) / count


if __name__ == "__main__":
    database = Path(sys.argv[1]) / "dbos.db"
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{database}"})
    DBOS.launch()
    many(20)
    print(many(int(sys.argv[2])))
    DBOS.destroy()
