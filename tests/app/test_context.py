from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, cast

import pytest

from taskq import TaskQ, current_job
from taskq.app.context import JobContext, running_job
from taskq.core.parsing import Tag
from taskq.errors import JobNotYetEnqueued, PayloadTooLarge, UsageError
from taskq.log.requests import Delivery, Duplicate


class FakeDelivery:
    tag = Tag("0123abcd")
    job_id = "0123abcd-9"
    attempt = 2
    attempts_max = 5
    task = "parent"
    queue = "mail"
    headers: dict[str, str] = {"a": "b"}  # noqa: RUF012 - never changed


@pytest.fixture
def context(app: TaskQ) -> JobContext:
    return JobContext(cast("Delivery", FakeDelivery()), app)


def test_outside_a_task_there_is_no_current_job() -> None:
    with pytest.raises(UsageError, match=r"current_job\(\) is for code that runs inside a task"):
        current_job()


def test_inside_a_task_the_current_job_tells_about_itself(context: JobContext) -> None:
    token = running_job.set(context)
    try:
        job = current_job()
        assert (job.id, job.attempt, job.attempts_max) == ("0123abcd-9", 2, 5)
        assert (job.task, job.queue, job.headers) == ("parent", "mail", {"a": "b"})
        assert repr(job) == "<JobContext parent 0123abcd-9 attempt 2>"
    finally:
        running_job.reset(token)


def test_children_wait_for_the_success_and_then_have_ids(app: TaskQ, context: JobContext) -> None:
    @app.task(name="child")
    def child(n: int) -> int:
        return n

    assert not context.children
    first, second = (context.enqueue(child.options(priority=n).call(n)) for n in (1, 2))
    assert repr(first) == "<PendingJob child no id yet>"
    for name in ("id", "duplicate"):
        with pytest.raises(JobNotYetEnqueued, match="the child job has no id yet"):
            getattr(first, name)
    assert [(spec.priority, body) for _, spec, body, _ in context.children or ()] == [
        (1, b'{"n":1}'),
        (2, b'{"n":2}'),
    ]
    context.resolve([10, Duplicate(4)])
    assert (first.id, second.id) == ("0123abcd-10", "0123abcd-4")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.handle._task is cast("Any", child)
    assert repr(first) == "<PendingJob child 0123abcd-10>"


def test_children_fit_one_transaction(app: TaskQ, context: JobContext) -> None:
    @app.task
    def child(text: str) -> None: ...

    call = child.call("x" * 1_000_000)
    for _ in range(17):
        context.enqueue(call)
    with pytest.raises(PayloadTooLarge, match="the jobs enqueued by parent 0123abcd-9"):
        context.enqueue(call)
    context.enqueue(child.call("small"))
    assert len(context.children or ()) == 18


# -- route -----------------------------------------------------------------------------------------


ROUTE: Final = Path(__file__).parents[1] / "bench" / "route.py"
#: Limits of rooms, files and functions of ours, there and back.
MOST: Final = {
    "jobs": {
        "enqueue": (8, 15, 75),
        "enqueue to result": (20, 56, 278),
        "enqueue to ack": (22, 60, 305),
        "taskq ls": (15, 40, 245),
    },
    "dead": {"dead letter": (24, 61, 320)},
    "killed": {"open after kill -9": (18, 60, 262)},
}


@pytest.mark.parametrize("way", MOST)
def test_a_route_stays_short(way: str) -> None:
    command = [sys.executable, str(ROUTE), way, "--shortest", "--json"]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for title, most in MOST[way].items():
        counts = tuple(measured[title].values())
        assert all(map(int.__le__, counts, most)), (title, counts)
