"""A lake in object storage, held against one in a directory; moto plays the store."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.request import Request, urlopen

import obstore
import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from taskq_plugins.spark.lake import bucket
from taskq_plugins.spark.lake.errors import LakeBusy, LakeConflict, LakeError
from taskq_plugins.spark.lake.store import Lake
from tests.cli.helpers import taskq, taskq_json
from tests.pipeline.rowmaking import live
from tests.pipeline.twolakes import rows_of_equal_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAKE = "s3://lakes/the/lake"
STORED = ("records", "jobs", "failures")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return an empty store that the environment names."""
    names = {
        "ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s",
        "REGION": "us-east-1", "ALLOW_HTTP": "true",
    }  # fmt: skip
    for name, value in names.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for path, method in (("moto-api/reset", "POST"), ("lakes", "PUT")):
        urlopen(Request(f"{endpoint}/{path}", method=method)).close()  # noqa: S310 - our own
    return S3Store("lakes", prefix="the/lake")


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: S3Store
) -> Callable[[str], None]:
    """Return what makes this process one of another machine, with a cache of its own."""
    del store

    def be(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    be("first")
    return be


def run(tmp_path: Path, lake: object = LAKE, *words: object) -> Any:
    return taskq("pipeline", "run", "--journals", tmp_path / "hub", "--lake", lake, *words)


def test_runs_of_two_machines_make_the_tables_that_a_directory_has(
    tmp_path: Path, machine: Callable[[str], None], store: S3Store
) -> None:
    for turn, name in enumerate(("first", "second", "second")):
        machine(name)
        if turn < 2:
            asyncio.run(live(tmp_path / "hub" / f"edge-{turn}", turn, 8))
        shown = run(tmp_path, LAKE, "--keep", "1d")
        assert (shown.exit_code, "nothing new" in shown.stdout) == (0, turn == 2), shown.stderr
    assert run(tmp_path, tmp_path / "lake").exit_code == 0
    machine("third")
    counts = rows_of_equal_tables(Lake.open(LAKE).path, tmp_path / "lake")
    assert min(counts["jobs"], counts["attempts"], counts["failures"]) > 0
    for name in STORED:  # any engine reads what is in the store
        assert DeltaTable(f"{LAKE}/{name}").to_pyarrow_dataset().count_rows() == counts[name]
    paths = {entry["path"] for entry in obstore.list(store).collect()}
    assert {"last_batch.json", "_lock"} & paths == {"last_batch.json"}
    assert not [path for path in paths if path.startswith(("_staging", "_trying"))]
    shown = taskq_json("sql", "--lake", LAKE, "FROM jobs")
    assert len(shown) == counts["jobs"]
    assert taskq("pipeline", "erase", "--lake", LAKE, "--where", "true", "--yes").exit_code == 0
    machine("fourth")
    assert Lake.open(LAKE).dataset("jobs").to_table()["payload"].null_count == counts["jobs"]
    here = set(Lake.open(LAKE).path.rglob("*.parquet"))
    there = {entry["path"] for entry in obstore.list(store).collect()}
    assert len(here) == sum(path.endswith(".parquet") for path in there), "what was erased is gone"


def test_one_writes_at_a_time_and_whoever_dies_is_followed_after_a_minute(
    tmp_path: Path, machine: Callable[[str], None], store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 3))
    assert run(tmp_path).exit_code == 0
    with Lake.open(LAKE).writer() as writer:
        holder = json.loads(bytes(obstore.get(store, "_lock").bytes()))
        machine("second")
        with pytest.raises(LakeBusy, match=f"process {holder['pid']} on {holder['host']} writes"):
            Lake.open(LAKE).writer().__enter__()
        obstore.put(store, "_lock", json.dumps(holder | {"until": 0}).encode())
        with Lake.open(LAKE).writer():  # as if the first had died
            pass
        assert writer.lake.bucket is not None
    monkeypatch.setattr(bucket, "LEASE_SECONDS", 0.03)
    with Lake.open(LAKE).writer() as writer:
        before = obstore.head(store, "_lock")["e_tag"]
        lost = writer.lake.bucket._lost  # type: ignore[union-attr]
        while obstore.head(store, "_lock")["e_tag"] == before:  # it is renewed
            assert not lost.wait(0.01)
        obstore.put(store, "_lock", b"{}")
        assert lost.wait(10)
        with pytest.raises(LakeBusy):
            writer.note()
    assert bytes(obstore.get(store, "_lock").bytes()) == b"{}", "the lock is another's"


def test_a_version_that_another_made_is_never_written_over(
    tmp_path: Path, machine: Callable[[str], None], store: S3Store
) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 3))
    assert run(tmp_path, LAKE, "duplicates").exit_code == 0
    asyncio.run(live(tmp_path / "hub" / "edge-1", 2, 3))
    with (
        mock.patch.object(bucket.Bucket, "lock", mock.MagicMock()),
        Lake.open(LAKE).writer() as late,
    ):
        version = late.lake.delta("records").version() + 1
        machine("second")
        assert run(tmp_path, LAKE, "duplicates").exit_code == 0
        taken = bytes(obstore.get(store, f"records/_delta_log/{version:020}.json").bytes())
        gone = late.lake.data_files("records")[:1]
        with pytest.raises(LakeConflict):
            late.commit("records", bucket_change(gone))
    assert bytes(obstore.get(store, f"records/_delta_log/{version:020}.json").bytes()) == taken
    machine("first")
    assert Lake.open(LAKE).delta("records").version() >= version
    run(tmp_path, tmp_path / "lake", "duplicates")
    rows_of_equal_tables(Lake.open(LAKE).path, tmp_path / "lake")


def bucket_change(gone: Any) -> Any:
    from taskq_plugins.spark.lake.store import Change  # noqa: PLC0415

    return Change(removed=tuple(gone), operation="DELETE")


@pytest.mark.parametrize(
    "sent",
    [0, 5, pytest.param(3, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)],
)
def test_a_run_that_is_killed_between_two_files_is_gone_on_with(
    tmp_path: Path, machine: Callable[[str], None], store: S3Store, sent: int
) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge-1", 1, 3))
    assert run(tmp_path, LAKE, "duplicates").exit_code == 0
    asyncio.run(live(tmp_path / "hub" / "edge-1", 2, 3))
    send, count = bucket.Bucket._send, iter(range(100))

    def killed(own: bucket.Bucket, path: str, *, is_new: bool) -> None:
        if next(count) >= sent:
            raise KeyboardInterrupt
        send(own, path, is_new=is_new)

    with mock.patch.object(bucket.Bucket, "_send", killed):
        assert run(tmp_path, LAKE, "duplicates").exit_code != 0
    run(tmp_path, tmp_path / "lake", "duplicates")
    for name in ("first", "second"):
        machine(name)
        assert run(tmp_path, LAKE, "duplicates").exit_code == 0
        rows_of_equal_tables(Lake.open(LAKE).path, tmp_path / "lake")


def test_what_a_store_lacks_or_refuses_is_said(
    tmp_path: Path, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub").mkdir()
    shown = taskq("pipeline", "status", "--lake", LAKE)
    assert (shown.exit_code, f"{LAKE}: is not a lake" in shown.stderr) == (1, True)
    shown = run(tmp_path, LAKE, "--master", "spark://other:7077")
    assert (shown.exit_code, "all of them see" in shown.stderr) == (2, True)
    with pytest.raises(LakeError, match=r"no-such-bucket/lake: .*AWS_"):
        Lake.open("s3://no-such-bucket/lake")
    monkeypatch.setitem(sys.modules, "obstore", None)
    shown = taskq("pipeline", "status", "--lake", LAKE)
    assert (shown.exit_code, "of the extra 's3'" in shown.stderr) == (1, True)
