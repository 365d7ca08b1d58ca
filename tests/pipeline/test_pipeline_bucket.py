"""A lake in object storage, compared with one in a directory; moto plays the store."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import obstore
import pytest
from deltalake import DeltaTable
from obstore.store import S3Store

from taskq_plugins.spark.errors import LakeConflict
from taskq_plugins.spark.lake.store import DERIVED, Lake, LakeWriter
from tests.cli.helpers import taskq, taskq_json
from tests.fleet.made_logs import MadeLog, claimed, enqueued
from tests.pipeline.kit import do_steps, killing, run, table_rows
from tests.pipeline.test_pipeline_histories import Fleet
from tests.programs import free_port, run_python

pytestmark = pytest.mark.slow
LAKE = "s3://lakes/the/lake"


#: In a process of its own: deltalake holds the interpreter's lock while it waits for an answer.
SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
input()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    names = {
        "ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s",
        "REGION": "us-east-1", "ALLOW_HTTP": "true",
    }  # fmt: skip
    for name, value in names.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for path, method in (("moto-api/reset", "POST"), ("lakes", "PUT")):
        urlopen(Request(f"{endpoint}/{path}", method=method)).close()  # noqa: S310 - our own
    return S3Store("lakes", prefix="the/lake")


def paths(store: S3Store) -> set[str]:
    return {entry["path"] for entry in obstore.list(store).collect()}


@pytest.mark.xdist_group("spark")
def test_a_lake_in_a_bucket_equals_one_in_a_directory(tmp_path: Path, store: S3Store) -> None:
    """Driver and executors of a Spark of its own write there, and every command reads it."""
    fleet = Fleet(tmp_path, Random(1))
    asyncio.run(do_steps(tmp_path / "hub" / "orders", 3))
    for _ in range(2):
        for _ in range(60):
            fleet.act()
        for lake in (LAKE, tmp_path / "lake"):
            words = ("pipeline", "run", "--journals", tmp_path / "hub", "--lake", lake)
            run_python("-m", "taskq", *words, "--master", "local[2]", check=True, timeout=600)
    there, here = table_rows(LAKE), table_rows(tmp_path / "lake")
    assert there == here
    assert here.keys() == {"records", "jobs", "attempts", "steps", *DERIVED}
    jobs = len(here["jobs"])
    assert DeltaTable(f"{LAKE}/jobs").to_pyarrow_dataset().count_rows() == jobs
    assert taskq_json("sql", "--lake", LAKE, "SELECT count(*) n FROM jobs") == [{"n": jobs}]
    shown = taskq_json("pipeline", "status", "--lake", LAKE, "--journals", tmp_path / "hub")
    assert {log["left_bytes"] for log in shown["logs"]} == {0}
    before = {path for path in paths(store) if path.startswith("jobs/") and "parquet" in path}
    assert taskq("pipeline", "erase", "--lake", LAKE, "--where", "true", "--yes").exit_code == 0
    assert Lake.open(LAKE).dataset("jobs").to_table()["payload"].null_count == jobs
    assert not before & paths(store), "files with payloads are gone"


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("nth", range(6))
def test_two_runs_at_once_change_a_batch_once(
    tmp_path: Path, store: S3Store, monkeypatch: pytest.MonkeyPatch, nth: int, is_late: bool
) -> None:
    """The other run overtakes this one before or within its nth commit; this one may fail."""
    made = MadeLog(tmp_path / "hub" / "edge-1")
    made.enqueue(3)
    run(None, tmp_path / "hub", LAKE)
    made.frame(claimed(1), enqueued(5))
    owner, name = (DeltaTable, "create_write_transaction") if is_late else (LakeWriter, "commit")
    real, commits = getattr(owner, name), count()

    def overtaken(self: Any, *args: Any, **options: Any) -> Any:
        if next(commits) == nth:
            run(None, tmp_path / "hub", LAKE)
        return real(self, *args, **options)

    with monkeypatch.context() as racing:
        racing.setattr(owner, name, overtaken)
        with suppress(LakeConflict):
            run(None, tmp_path / "hub", LAKE)
    assert next(commits) > nth
    run(None, tmp_path / "hub", LAKE)
    run(None, tmp_path / "hub", tmp_path / "lake")
    assert table_rows(LAKE) == table_rows(tmp_path / "lake")


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("table", ["_positions", "records", "jobs", "_open"])
def test_another_machine_finishes_a_killed_run(tmp_path: Path, store: S3Store, table: str) -> None:
    made = MadeLog(tmp_path / "hub" / "edge-1")
    made.enqueue(3)
    run(None, tmp_path / "hub", LAKE)
    made.frame(claimed(1), enqueued(5))
    with killing(table), pytest.raises(KeyboardInterrupt):
        run(None, tmp_path / "hub", LAKE)
    run(None, tmp_path / "hub", LAKE)
    run(None, tmp_path / "hub", tmp_path / "lake")
    assert table_rows(LAKE) == table_rows(tmp_path / "lake")


def test_what_a_store_lacks_or_refuses_is_said_before_java_starts(
    tmp_path: Path, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = taskq("pipeline", "status", "--lake", LAKE)
    assert (shown.exit_code, f"{LAKE}: is not a lake" in shown.stderr) == (1, True)
    for bucket, said in (
        ("no-such-bucket", "bucket does not exist"),
        ("lakes", "error sending request"),
    ):
        shown = taskq("pipeline", "run", "--journals", tmp_path, "--lake", f"s3://{bucket}/lake")
        assert (shown.exit_code, said in shown.stderr, shown.stderr.count("\n")) == (1, True, 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
