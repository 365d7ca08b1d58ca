"""A run takes Spark only where that is no slower, unless somebody says otherwise."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("deltalake")

from taskq_plugins.spark import java
from taskq_plugins.spark.run import command
from tests.cli.helpers import taskq
from tests.pipeline.rowmaking import live

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def seconds(cores: int, size_bytes: int) -> tuple[float, float]:
    mib = size_bytes / MIB
    by_spark = java.DRIVER_SECONDS + java.EXECUTOR_SECONDS / cores
    return java.DIRECT_SECONDS * mib, java.START_SECONDS + by_spark * mib


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 64])
def test_spark_is_taken_from_the_size_on_where_it_is_no_slower(cores: int) -> None:
    least = java.spark_from(cores)
    if least is None:
        direct, by_spark = seconds(cores, 2**50)
        assert cores < 8
        assert direct < by_spark
        return
    for size_bytes, is_slower in ((least - 4 * MIB, True), (least + 4 * MIB, False)):
        direct, by_spark = seconds(cores, size_bytes)
        assert (by_spark > direct) is is_slower


@pytest.mark.parametrize(
    ("asked", "master", "wanted"),
    [
        ("auto", None, (False, True)),
        ("auto", "local[2]", (True, True)),
        ("spark", None, (True, True)),
        ("local", None, (False, False)),
    ],
)
def test_a_master_or_a_word_decide_and_else_the_size(
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    master: str | None,
    wanted: tuple[bool, bool],
) -> None:
    monkeypatch.setattr(java, "spark_from", lambda _: 100 * MIB)
    assert tuple(java.takes_spark(asked, master, mib * MIB) for mib in (99, 100)) == wanted


def test_the_doctor_says_from_what_size_on_spark_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, said in ((16, "new log on, with 16 cores"), (1, "never, with 1 core: reading dir")):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert said in java.advice()
        assert f"takes Spark {java.advice()}" in taskq("pipeline", "doctor").output
        shown = json.loads(taskq("pipeline", "doctor", "--json").stdout)
        assert shown["runs_take_spark"] == java.advice()


def test_a_run_reads_directly_or_by_spark_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(live(tmp_path / "hub" / "edge", 1, 4))
    where = ("pipeline", "run", "--journals", tmp_path / "hub", "--lake", tmp_path / "lake")
    asked: list[str | None] = []

    def by_spark(*given: object) -> None:
        asked.append(given[3])  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", by_spark)
    assert taskq(*where, "--engine", "spark").exit_code != 0
    assert taskq(*where, "--master", "local[2]").exit_code != 0
    assert asked == [None, "local[2]"]
    wrong = taskq(*where, "--engine", "local", "--master", "local[2]")
    assert (wrong.exit_code, "leave out --master" in wrong.output) == (2, True)
    assert taskq(*where, "--engine", "local").exit_code == 0
    assert len(asked) == 2
