"""The app of ``backlog``: jobs that only count, in pure Python, so one process uses one core."""

from __future__ import annotations

from taskq import TaskQ

app = TaskQ("never-made")


@app.task
def count(number: int, rounds: int) -> int:
    total = number
    for one in range(rounds):
        total = (total * 31 + one) & 0xFFFF_FFFF
    return total
