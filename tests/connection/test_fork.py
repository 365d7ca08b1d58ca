"""A preloading server makes its app, uses it, and forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import asyncio, logging, os, sys
from taskq import State, TaskQ

# In development mode asyncio warns of each turn over 0.1 s: that tells how busy the machine is.
logging.getLogger("asyncio").setLevel(logging.ERROR)

app = TaskQ(sys.argv[1])

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

async def look(job):
    return await app.job(job.id).status()

before = add.enqueue_sync(1)
pids = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = add.enqueue_sync(10 + n)
            also = asyncio.run(add.enqueue_many([(20 + n,)]))[0]
            assert asyncio.run(look(before)) is State.READY
            assert mine.status_sync() is also.status_sync() is State.READY
            assert mine.lsn != also.lsn != before.lsn
            app.close_sync()
            code = 0
        finally:
            os._exit(code)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert codes == [0, 0, 0], codes
after = add.enqueue_sync(2)
assert before.status_sync() is after.status_sync() is State.READY

async def count():
    stats = await (await app.open()).store().port().stats()
    return sum(queue.ready for queue in stats.queues)

print(asyncio.run(count()))
app.close_sync()
"""


# From 3.12 on Python warns of every fork beside threads; that it may be done is what is shown here.
@pytest.mark.parametrize("options", [[], ["-X", "dev"]])
def test_an_app_used_before_a_fork_serves_parent_and_children(
    tmp_path: Path, options: list[str]
) -> None:
    done = run_python(*options, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "8"
    assert done.stderr == ""
