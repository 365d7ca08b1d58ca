"""A script whose child processes import it: what it starts as it is imported starts no workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.errors import UsageError
from taskq_workers.runs.guards import importing
from tests.programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 60
SCRIPT = """
import asyncio
from taskq import TaskQ

app = TaskQ("data")

@app.task(runs_in="process")
def double(number: int) -> int:
    return 2 * number

async def main() -> None:
    async with app, app.worker(process_limit=1):
        await double.enqueue(1)
        async with app.stream(kinds=["released"]) as records:
            async for record in records:
                print(record.reason)
                break

asyncio.run(main())
"""


def test_a_script_without_a_main_guard_is_told_so_and_starts_no_workers_in_its_children(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    ended = run_python("script.py", cwd=tmp_path, timeout=SECONDS, check=True)
    errors = [
        line for line in ended.stdout.splitlines() if line.startswith("a child process cannot")
    ]
    assert len(errors) == 1
    assert "a child process cannot import script: UsageError: a worker is started" in errors[0]
    assert 'if __name__ == "__main__":' in errors[0]
    assert 'if __name__ == "__main__":' in ended.stderr  # the worker says it, too


def test_no_worker_is_made_while_a_child_imports_and_one_may_be_afterwards(tmp_path: Path) -> None:
    app = TaskQ(tmp_path)
    with importing(), pytest.raises(UsageError, match="put it under"):
        app.worker()
    app.worker()
