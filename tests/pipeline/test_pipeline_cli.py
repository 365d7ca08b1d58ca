"""``taskq pipeline``: errors name missing packages, and which Java is taken."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from taskq.extras import install_line, missing
from taskq_plugins.spark import session
from taskq_plugins.spark.errors import SparkError, missing_package
from taskq_plugins.spark.session import java_home, start_error, write_shim
from tests.programs import run_python


@pytest.mark.parametrize("chosen", ["", "mimalloc"])
def test_a_run_has_arrow_take_memory_that_it_can_give_back(chosen: str) -> None:
    """Unless somebody chose another pool; what the run starts is not told."""
    program = (
        "import os, sys\n"
        "from taskq.cli.main import main\n"
        "try: main(['pipeline', 'run', '--help'])\n"
        "except SystemExit: pass\n"
        "import pyarrow\n"
        "told = os.environ.get('ARROW_DEFAULT_MEMORY_POOL')\n"
        "print(pyarrow.default_memory_pool().backend_name, told, file=sys.stderr)"
    )
    pool = {"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {}
    done = run_python("-c", program, check=True, env={**os.environ, **pool})
    assert done.stderr.split() == ([chosen, chosen] if chosen else ["system", "None"])


def test_without_pyspark_a_command_says_in_one_line_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from taskq.cli.main import main\n"
        "main(['pipeline', 'run', '--lake', 'x'])\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 1
    assert done.stderr == f"taskq: {missing('this command', 'pyspark', 'spark')}\n"


def test_a_package_too_old_for_pyspark_is_reported_in_one_line() -> None:
    class PySparkImportError(ImportError):
        pass

    result = missing_package(PySparkImportError("[UNSUPPORTED] pandas >= 2.2.0"), "run")
    assert result == missing("run", "pandas", "spark")
    shop = ModuleNotFoundError("No module named 'shop'", name="shop")
    assert missing_package(shop, "this") is None, "it keeps its traceback"


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_packaged", lambda: None)


def fake_java(home: Path) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'for one in "$@"; do printf \'%s\\n\' "$one"; done > {shlex.quote(f"{home}/arguments")}\n'
        "echo words >&2; exit 7\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("home", "path", "package", "chosen"), [
    (1, 1, 1, "home"), (0, 1, 1, "shim"), (0, 0, 1, "shim"), (0, 1, 0, "path"),
])  # fmt: skip
def test_java_of_the_user_goes_before_that_of_the_package_and_that_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: bool, path: bool, package: bool,
    chosen: str,
) -> None:  # fmt: skip
    there = {"home": home, "path": path, "package": package}
    programs = {name: str(fake_java(tmp_path / name)) for name, is_one in there.items() if is_one}
    monkeypatch.setattr(session, "_packaged", lambda: programs.get("package"))
    given = {"PATH": f"{tmp_path}/path/bin", "JAVA_HOME": f"{tmp_path}/home"}
    assert java_home(tmp_path / "shim", given) == str(tmp_path / chosen)
    if chosen == "path":
        del given["JAVA_HOME"]
        assert not java_home(tmp_path / "shim", given), "Spark finds it"


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    for given in ({"PATH": "/nowhere"}, {"PATH": "/nowhere", "JAVA_HOME": str(tmp_path)}):
        with pytest.raises(SparkError, match=r"no Java in JAVA_HOME or PATH") as caught:
            java_home(tmp_path, given)
        assert str(caught.value).endswith(f"have it from pip: {install_line('spark-jre')}")


def test_the_shim_drops_the_one_argument_and_keeps_all_others_as_they_are(tmp_path: Path) -> None:
    home = tmp_path / "it's a folder"
    folder = write_shim(str(fake_java(home)), tmp_path / "shim")
    done = subprocess.run(
        [folder / "bin" / "java", "-version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, "words\n")
    given = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "$HOME", "'", "--last"]
    subprocess.run([folder / "bin" / "java", *given], check=False, capture_output=True)
    kept = (home / "arguments").read_text().split("\n")[:-1]
    assert kept == ["-cp", "a b:c", "", "$HOME", "'", "--last"]


@pytest.mark.parametrize(("said", "remedy"), [
    ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "needs Java 17 or later"),
    ("java.net.BindException: Cannot assign", "could not listen on its port"),
    ("java.io.IOException: No space left on device", "set TMPDIR"),
    ("Error occurred: Could not reserve enough space", "too little memory"),
    ("java.io.FileNotFoundException: HADOOP_HOME is unset", "needs winutils.exe"),
    ("something else", "did not start on local"),
])  # fmt: skip
def test_a_failed_start_is_reported_with_its_remedy(said: str, remedy: str) -> None:
    result = start_error(RuntimeError(said), "local[2]")
    assert isinstance(result, SparkError)
    assert remedy in str(result)
    assert "\n" not in str(result)
    ours = SparkError("no Java")
    assert start_error(ours, "local[2]") is ours
