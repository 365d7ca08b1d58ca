"""Strangers to Python use the API over a real socket: a worker in JavaScript, and schemathesis."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from taskq import TaskLog, TaskQ
from taskq.log.read.reader import LogReader
from taskq.reading.record import Choice
from taskq.reading.stream import look_at_records
from tests.processes.harness import Child

WORKER: Final = Path(__file__).parents[2] / "examples" / "js_worker" / "worker.mjs"


class Site:
    """``taskq web`` with leave to act, as a program finds it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data"
        with TaskQ(self.path, durability="os"):
            """There is a log now."""
        token = folder / "token"
        words = (self.path, "--allow-actions", "--token-file", token)
        self.child = Child(sys.executable, "-m", "taskq", "web", *words)
        self.home = self.child.line().partition("/enter")[0]
        self.secret = token.read_text().strip()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.home.partition("//")[2], timeout=60)

    def send(self, connection: http.client.HTTPConnection, path: str, **body: Any) -> None:
        head = {"Authorization": f"Bearer {self.secret}"}
        connection.request("POST", f"/api/{path}", json.dumps(body), head)

    def post(self, path: str, **body: Any) -> Any:
        connection = self.connect()
        self.send(connection, path, **body)
        answer = connection.getresponse()
        answered = json.loads(answer.read())
        assert answer.status == 200, answered
        connection.close()
        return answered


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with site.child:
        yield site


def counts(site: Site) -> dict[str, int]:
    with LogReader.open(str(site.path)) as reader:
        queues = reader.stats().queues
    states = ("ready", "scheduled", "running", "succeeded", "dead", "cancelled", "expired")
    return {name: sum(getattr(queue, name) for queue in queues) for name in states}


def test_who_hangs_up_while_it_waits_has_claimed_nothing(site: Site) -> None:
    for _ in range(3):
        waiting = site.connect()
        site.send(waiting, "claims", wait=60, lease=3_600)
        waiting.close()
    # The last of them may be heard only now: what it has got by then is given back.
    made = site.post("jobs", task="a")
    (claim,) = site.post("claims", wait=30)
    assert claim["id"] == made["id"]
    site.post(f"claims/{claim['token']}/ack")
    assert counts(site)["succeeded"] == 1


@pytest.mark.skipif(not shutil.which("node"), reason="needs node: apt-get install nodejs")
def test_a_worker_in_plain_javascript_runs_a_hundred_jobs(site: Site) -> None:
    good = [
        site.post("jobs", task="text.upper", arguments={"text": f"ü{n}"}, queue="js")["id"]
        for n in range(49)
    ]
    sums = [
        site.post("jobs", task="orders.total", arguments={"prices": [n, 0.5]}, queue="js")["id"]
        for n in range(49)
    ]
    bad = [
        site.post("jobs", task=task, arguments={}, queue="js", attempts=1)["id"]
        for task in ("text.upper", "nobody.knows")
    ]
    environment = {**os.environ, "TASKQ_URL": site.home, "TASKQ_TOKEN": site.secret}
    with subprocess.Popen(
        ["node", WORKER], env=environment, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline().split()[:3:2] for _ in range(100)]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert sorted(said) == sorted(
        [*(["succeeded", job] for job in good + sums), *(["failed", f"{job}:"] for job in bad)]
    )
    with LogReader.open(str(site.path)) as reader:
        jobs = {job: reader.job(reader.parse_id(job)) for job in good + sums + bad}
    assert [jobs[job].result for job in good] == [f'"Ü{n}"'.encode() for n in range(49)]  # type: ignore[union-attr]
    assert [json.loads(jobs[job].result or b"") for job in sums] == [n + 0.5 for n in range(49)]  # type: ignore[union-attr]
    assert [jobs[job].reason.partition("\n")[0] for job in bad] == [  # type: ignore[union-attr]
        "TypeError: Cannot read properties of undefined (reading 'toUpperCase')",
        "Error: this worker has no task nobody.knows",
    ]
    assert counts(site)["running"] == 0


async def kinds(path: Path) -> Counter[str]:
    every = look_at_records(str(path), 10**6, Choice(), follow=False, body_bytes_max=0)
    return Counter([record.kind async for record in every])


async def run_the_rest(path: Path) -> None:
    async with TaskLog.open(path, durability="os") as log:
        for queue in (await log.stats()).queues:
            await log.resume(queue.queue)
        while claimed := await log.claim(100):
            for delivery in claimed:
                await log.ack(delivery)


@pytest.mark.slow  # some requests may wait for a minute
def test_nothing_that_the_document_allows_breaks_the_api_or_loses_a_job(
    site: Site, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis", reason="needs the extra browser")
    made = [site.post("jobs", task="kept", queue="kept")["id"] for _ in range(50)]
    words = [
        "run", f"{site.home}/api/openapi.json", "--header", f"Authorization: Bearer {site.secret}",
        # Rules outside of a schema: one of two fields is required, and the length of names in
        # bytes.
        "--exclude-checks", "positive_data_acceptance",
        "--max-examples", "5", "--seed", "1", "--request-timeout", "70", "--no-color",
    ]  # fmt: skip
    program = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    run = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout[-5_000:] + run.stderr[-1_000:]
    site.child.send(signal.SIGINT)
    assert site.child.process.wait(20) == 0
    happened, left = anyio.run(kinds, site.path), counts(site)
    assert sum(left.values()) == happened["enqueued"] - happened["purged"]
    # The kept ones may be cancelled by now, or due later: each is reported.
    anyio.run(run_the_rest, site.path)
    after = counts(site)
    assert sum(after.values()) == sum(left.values())
    assert (after["ready"], after["running"]) == (0, 0)
    with LogReader.open(str(site.path)) as reader:
        assert not reader.verify().damage
        assert None not in [reader.job(reader.parse_id(job)) for job in made]
