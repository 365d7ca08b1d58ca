"""A taskq with one kind of record more: a job that runs is abandoned. It prints what that shows.

The row stands in the table before anything else is loaded, as if it were written there.
"""

from __future__ import annotations

import json
import sys
from typing import cast

from click.testing import CliRunner

from taskq.core import records
from taskq.core.model import State

ABANDONED = cast("records.Kind", 99)
records.TABLE[ABANDONED] = records.Row(
    ABANDONED, "abandoned", "nobody wants it any more", records.JOB, records.Body.REASON, "cause",
    {State.RUNNING: (State.CANCELLED,)}, (records.Option.KEY_HASH,),
)  # fmt: skip

from taskq.cli.main import main  # noqa: E402 - now that the table is whole
from taskq.engine import (  # noqa: E402
    ClaimRequest,
    EnqueueSpec,
    LogConfig,
    LogReader,
    Settlement,
)
from taskq.log.store.store import open_store  # noqa: E402

path = sys.argv[1]
store = open_store(path, LogConfig())
port = store.thread_port
job = cast("int", port.enqueue(EnqueueSpec("mail", "send"), b"{}").result(10))
(delivery,) = port.claim(ClaimRequest(1)).result(10)
port.settle([Settlement(ABANDONED, delivery, b"no use", cause=records.Cause.CALLER)]).result(10)
store.close()


def run(*words: str) -> str:
    done = CliRunner().invoke(main, [*words, "-d", path], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


with LogReader.open(path) as reader:
    view = reader.job(job)
    assert view is not None
    name, folded = view.job_id, reader.stats().queues[0].cancelled
seen = {
    "state": str(view.state),
    "counted": folded,
    "reason": view.reason,
    "timeline": json.loads(run("timeline", name, "--json")),
    "tail": [json.loads(line) for line in run("tail", "--json").splitlines()],
    "records": json.loads(run("sql", "SELECT kind, job_id, value FROM records", "--json")),
    "jobs": json.loads(run("sql", "SELECT state, reason FROM jobs", "--json")),
}
sys.stdout.write(json.dumps(seen))
