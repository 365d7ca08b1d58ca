"""Spark sessions: open ports, remains, and their owners."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from taskq_plugins.spark.errors import SparkError
from taskq_plugins.spark.lake.errors import LakeDiskError
from tests.bench.harness import family

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTENS = "0A"
_LOOPBACKS = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}

KILLED = """
from taskq_plugins.spark.session import open_session
conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = open_session("killed", master="local[1]", conf=conf)
print(spark.sparkContext.defaultParallelism, spark.sparkContext._gateway.proc.pid, flush=True)
input()
"""


def addresses_listened_on(pids: list[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                name = str(descriptor.readlink())
            except OSError:
                continue
            inodes.add(name.removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    result = [row[1] for row in rows if row[3] == _LISTENS and row[9] in inodes]
    return {address.partition(":")[0] for address in result}


def test_nothing_listens_beyond_loopback(spark: SparkSession) -> None:
    spark.sparkContext.parallelize(range(2), 2).map(lambda item: item + 1).collect()
    listening = addresses_listened_on(family(os.getpid()))
    assert listening
    assert listening <= _LOOPBACKS


def test_what_listens_takes_orders_from_who_knows_the_secret_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    from taskq_plugins.spark.session import settings  # noqa: PLC0415 - 1 s to import

    assert spark.sparkContext.getConf().get("spark.authenticate") == "true"
    folder = tmp_path
    own = settings("own", "local[2]", folder, {"spark.authenticate": "false"})
    assert own["spark.authenticate"] == "false", "what is given wins"
    assert "spark.authenticate" not in settings("far", "spark://host:7077", folder, {})


def test_a_session_has_a_clock_without_zones_and_folders_of_its_own(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.speculation") == "false"
    folder = Path(conf.get("spark.local.dir") or "").parent
    assert folder.name.startswith("taskq-spark-")
    warehouse = str(spark.conf.get("spark.sql.warehouse.dir"))
    assert Path(warehouse.removeprefix("file:")).parent == folder
    assert folder.stat().st_mode & 0o077 == 0, "for nobody else to read"


def test_executors_import_what_the_driver_can(
    spark: SparkSession,
) -> None:
    def names(_: object) -> list[str]:
        import taskq_plugins.spark.session  # noqa: PLC0415 - there, and not here
        import taskq_workers  # noqa: PLC0415

        return [sys.executable, taskq_plugins.spark.session.__name__, taskq_workers.__name__]

    (result,) = spark.sparkContext.parallelize([1], 1).map(names).collect()
    assert result == [sys.executable, "taskq_plugins.spark.session", "taskq_workers"]


def test_a_second_open_gives_the_session_that_is_there(spark: SparkSession) -> None:
    from taskq_plugins.spark.session import (  # noqa: PLC0415 - 1 s to import
        open_session,
        spark_session,
    )

    with spark_session("within") as result:
        assert result is spark
    assert open_session("again", conf={"spark.sql.shuffle.partitions": "9"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_session_of_the_users_is_neither_changed_nor_stopped(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskq_plugins.spark import session  # noqa: PLC0415 - 1 s to import

    monkeypatch.setattr(session, "_ours", {})  # as if somebody else had made it
    before = sorted(spark.sparkContext.getConf().getAll()), dict(spark.conf.getAll)
    conf = {"spark.sql.shuffle.partitions": "7"}
    with session.spark_session("ours", master="local[1]", conf=conf) as result:
        assert result is spark
    assert before == (sorted(spark.sparkContext.getConf().getAll()), dict(spark.conf.getAll))
    assert spark.range(3).count() == 3


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_killed_process_leaves_no_java(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KILLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        cores, jvm = process.stdout.readline().split()
        assert cores == "1"
        java = os.pidfd_open(int(jvm))
        process.send_signal(signal.SIGKILL)
        signal_of_its_end(java)
        # Nothing of the usual output of Java and Spark came through.
        assert not process.stderr.read()


def signal_of_its_end(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(60_000), "Java went on without its driver"
    os.close(pidfd)


def test_a_master_that_does_not_answer_is_told_at_once() -> None:
    from taskq_plugins.spark.session import _check_answers  # noqa: PLC0415 - 1 s to import

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        _check_answers(f"spark://nobody:x,127.0.0.1:{port}")
    with pytest.raises(SparkError, match=r"does not answer .*--master local"):
        _check_answers(f"spark://127.0.0.1:{port}")


def test_java_that_ends_while_it_is_told_to_leaves_no_session_behind(tmp_path: Path) -> None:
    """A process that was just killed may be there still, though nobody answers any more."""
    from taskq_plugins.spark import session as sessions  # noqa: PLC0415 - 1 s to import

    class Context:
        _jsc: object = "java"
        _gateway = mock.Mock(**{"proc.poll.return_value": None})
        stopped = False

        def stop(self) -> None:
            assert self._jsc is None
            self.stopped = True

    context, refused = Context(), ConnectionRefusedError(111, "Connection refused")
    folder = mock.Mock(name=str(tmp_path))
    session = mock.Mock(sparkContext=context, **{"stop.side_effect": refused})
    with mock.patch.dict(sessions._ours, {context: folder}):
        sessions.close_session(session)
    assert context.stopped
    folder.cleanup.assert_called_once()


@pytest.mark.parametrize("error", [EOFError(), TypeError("'JavaPackage' object is not callable")])
def test_whatever_a_run_meets_whose_java_has_ended_the_error_says_so(error: Exception) -> None:
    from taskq_plugins.spark import session as sessions  # noqa: PLC0415 - 1 s to import

    opened = mock.Mock(**{"sparkContext._gateway.proc.poll.return_value": -9})
    with (
        mock.patch.object(sessions, "open_session", return_value=opened),
        pytest.raises(SparkError, match="Java ended before") as raised,
        sessions.spark_session("x"),
    ):
        raise error
    assert raised.value.__cause__ is error


def test_a_connection_that_is_refused_in_a_batch_is_told_as_javas_end(tmp_path: Path) -> None:
    from taskq_plugins.spark import session as sessions  # noqa: PLC0415 - 1 s to import

    refused = ConnectionRefusedError(111, "Connection refused")
    error, process = LakeDiskError(tmp_path, refused), mock.Mock()
    process.poll.side_effect = lambda: -9 if process.wait.call_args.args[0] else None
    opened = mock.Mock(**{"sparkContext._gateway.proc": process})
    with (
        mock.patch.object(sessions, "open_session", return_value=opened),
        pytest.raises(SparkError, match="Java ended before"),
        sessions.spark_session("x"),
    ):
        raise error from refused
