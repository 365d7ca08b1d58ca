"""``taskq pipeline doctor``: each finding has a grade and a remedy, and the exit code follows."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from taskq.cli.main import main
from taskq_plugins.spark import doctor as doctor_module
from taskq_plugins.spark.doctor import (
    PACKAGES,
    Finding,
    Grade,
    look_at_disk,
    look_at_java,
    look_at_journals,
    look_at_loopback,
    look_at_master,
    look_at_package,
    start_spark,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["pipeline", "doctor", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", PACKAGES)
def test_the_packages_of_the_extras_are_known_with_their_bounds(name: str) -> None:
    """The bounds here are those of pyproject.toml."""
    from importlib.metadata import requires  # noqa: PLC0415

    low, high, extra = PACKAGES[name]
    wanted = {f">={low}", *([f"<{high}"] if high else [])}
    found = [line for line in requires("taskq-local") or [] if line.startswith(name)]
    assert any(all(one in line for one in wanted) for line in found), (name, extra, found)


@pytest.mark.parametrize(
    ("version", "grade"),
    [
        ("4.2", Grade.OK),
        ("4.3.0", Grade.OK),
        ("4.10.1", Grade.OK),
        ("4.1.9", Grade.FAIL),
        ("5.0.0.dev1", Grade.FAIL),
        (None, Grade.FAIL),
    ],
)
def test_a_package_has_to_lie_within_its_bounds(version: str | None, grade: Grade) -> None:
    found = look_at_package("pyspark", version)
    assert found.grade is grade
    assert bool(found.remedy) == (grade is not Grade.OK)


def test_a_missing_package_that_few_commands_need_is_a_warning_with_its_extra() -> None:
    found = look_at_package("matplotlib", None)
    assert found.grade is Grade.WARN
    assert found.remedy == 'pip install "taskq-local[charts]"'


def test_no_java_is_a_failure_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq_plugins.spark.java._packaged", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = look_at_java()
    assert found.grade is Grade.FAIL
    assert found.detail == ("Spark needs Java 17 or later, but there is none in JAVA_HOME or PATH")
    assert found.remedy.startswith("install Java 17 or later and set JAVA_HOME")
    assert found.remedy.endswith('pip install "taskq-local[spark-jre]"')


def test_a_lake_that_is_yet_to_be_made_is_looked_at_where_it_will_be(tmp_path: Path) -> None:
    found = look_at_disk("lake", tmp_path / "not" / "made")
    assert f"free under {tmp_path}" in found.detail


def test_little_room_is_a_warning_and_less_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1 << 30

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    assert look_at_disk("temp", tmp_path).grade is Grade.WARN
    Usage.free = 1 << 20
    found = look_at_disk("temp", tmp_path)
    assert found.grade is Grade.FAIL
    assert "TMPDIR" in found.remedy


def test_logs_are_counted_one_or_many_deep(tmp_path: Path) -> None:
    assert look_at_journals(tmp_path).grade is Grade.WARN
    for device in ("a", "b"):
        (tmp_path / device).mkdir()
        (tmp_path / device / "taskq.json").touch()
    assert look_at_journals(tmp_path).detail.startswith("2 task logs")
    assert look_at_journals(tmp_path / "a").detail.startswith("1 task log")
    assert look_at_journals(tmp_path / "none").grade is Grade.FAIL


def test_loopback_works_here_and_its_failure_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_at_loopback().grade is Grade.OK

    def refuse(*_: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    found = look_at_loopback()
    assert found.grade is Grade.FAIL
    assert "lo up" in found.remedy


def test_a_master_that_does_not_answer_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look_at_master(f"spark://127.0.0.1:{port}").grade is Grade.OK
    assert look_at_master(f"spark://127.0.0.1:{port}").grade is Grade.FAIL
    assert look_at_master("local[2]").grade is Grade.OK


def as_if(monkeypatch: pytest.MonkeyPatch, name: str, look: Callable[..., Finding]) -> None:
    monkeypatch.setattr(doctor_module, name, look)


@pytest.mark.parametrize(("grade", "code"), [(Grade.OK, 0), (Grade.WARN, 0), (Grade.FAIL, 1)])
def test_the_exit_code_is_1_only_if_something_fails(
    grade: Grade, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("look_at_memory", "look_at_java"):
        as_if(monkeypatch, name, lambda: Finding("seen", Grade.OK, "fine"))
    as_if(monkeypatch, "look_at_disk", lambda *_: Finding("disk", grade, "so much", "make room"))
    exit_code, output = run("--lake", str(tmp_path))
    assert exit_code == code
    assert f"{grade:<4}  disk        so much. make room\n" in output


def test_json_has_every_finding(tmp_path: Path) -> None:
    code, output = run("--json", "--lake", str(tmp_path), "--journals", str(tmp_path))
    findings = {one["name"]: one for one in json.loads(output)["findings"]}
    assert code == any(one["grade"] == "fail" for one in findings.values())
    assert findings.keys() == {
        "java", *PACKAGES, "loopback", "temp", "lake", "journals", "memory", "master",
    }  # fmt: skip
    assert findings["journals"]["grade"] == "warn"


def test_spark_runs_python_where_it_starts(spark: SparkSession) -> None:
    found = start_spark("local[2]")
    assert found.grade in {Grade.OK, Grade.WARN}, found
    assert "runs Python 3." in found.detail
    assert spark.range(1).count() == 1
