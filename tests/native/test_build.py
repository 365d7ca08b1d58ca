"""The extension is built where it can be, and what was built otherwise is not used."""

import json
import os
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from taskq import TaskQ
from taskq import _native as native
from taskq._native import build
from tests.cli.helpers import taskq
from tests.native.conftest import Choose
from tests.programs import run_python

#: Raise both versions (``native.h``, ``taskq/_native/__init__.py``) before you change this.
SOURCES: Final = (12, "aee2662ffb6d4fcb")
TELL: Final = "from taskq import _native; print(_native.language())"
#: Uses the extension of a path, or says that an interpreter does not get it.
USE: Final = """
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("taskq._native._plain", {path!r})
spec = importlib.util.spec_from_loader(loader.name, loader)
try:
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
except ImportError:
    print("refused", flush=True)
else:
    assert module.born_records(b"", [b"body"], 1, 2)[2] == 14
    print("works", flush=True)
"""
#: Does so here, in another interpreter, and here again once that is gone.
IN_TURN: Final = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
exec({use!r})
other = interpreters.create()
interpreters.run_string(other, {use!r})
interpreters.destroy(other)
exec({use!r})
"""


def test_a_change_of_the_c_sources_requires_a_new_version() -> None:
    assert (native.VERSION, build.digest()) == SOURCES


def test_all_sources_are_compiled(extension: Any) -> None:
    assert {path.name for path in build.FOLDER.glob("*.c")} == set(build.SOURCES)
    assert extension.VERSION == native.VERSION
    assert extension.BUILD.startswith(f"{native.VERSION}-{build.digest()[:8]}, ")


def test_what_was_built_of_other_sources_is_not_used(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKQ_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, "taskq._native._plain", extension)
    monkeypatch.setattr(native, "_plain", extension, raising=False)
    assert native._load() is extension
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native._load() is None


@pytest.mark.parametrize(("text", "is_used"), [(None, True), ("1", True), ("", True), ("0", False)])
def test_it_is_used_where_it_was_built_unless_it_is_turned_off(
    text: str | None, is_used: bool, library: Path, tmp_path: Path
) -> None:
    # A copy of the package that stands beside a binary; taskq's own may have none.
    package = shutil.copytree(
        build.FOLDER, tmp_path / "taskq/_native", ignore=shutil.ignore_patterns("*.so")
    )
    (tmp_path / "taskq/__init__.py").touch()
    environment = dict(os.environ)
    environment.pop("TASKQ_NATIVE", None)
    environment |= {} if text is None else {"TASKQ_NATIVE": text}
    assert language_in(tmp_path, environment) == "Python"
    shutil.copy(library, package / f"_plain{sysconfig.get_config_var('EXT_SUFFIX')}")
    assert language_in(tmp_path, environment) == ("C" if is_used else "Python")


def language_in(folder: Path, environment: dict[str, str]) -> str:
    return run_python("-c", TELL, check=True, cwd=folder, env=environment).stdout.strip()


def test_another_interpreter_has_a_state_of_its_own_or_is_refused(library: Path) -> None:
    use = USE.format(path=str(library))
    said = run_python("-W", "ignore", "-c", IN_TURN.format(use=use), check=True).stdout.split()
    assert said[0] == said[-1] == "works"
    assert said[1] == ("works" if sys.version_info < (3, 12) else "refused")


def test_without_a_compiler_there_is_none_and_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for compiler in (str(tmp_path / "missing"), "false", f"{sys.executable} -c pass"):
        monkeypatch.setenv("CC", compiler)
        assert build.compiled(tmp_path) is None
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("version", "implementation", "has_gil", "expected"),
    [
        ((3, 11), "cpython", True, True),
        ((3, 14), "cpython", True, True),
        ((3, 15), "cpython", True, False),
        ((3, 13), "cpython", False, False),
        ((3, 11), "pypy", True, False),
    ],
)
def test_it_is_for_the_pythons_that_it_was_made_for(
    version: tuple[int, int], implementation: str, has_gil: bool, expected: bool
) -> None:
    assert build.is_for(version, implementation, has_gil=has_gil) is expected


@pytest.mark.parametrize("version", ["standard", "editable"])
@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("is_off", [True, False])
def test_a_wheel_is_of_a_platform_only_with_it(
    version: str, is_built: bool, is_off: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    library = build.place_in(tmp_path)
    library.touch()
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "build_id", lambda: "9-db3b0b53")
    if is_off:
        monkeypatch.setenv("TASKQ_NATIVE", "0")
    else:
        monkeypatch.delenv("TASKQ_NATIVE", raising=False)
    monkeypatch.setattr(build, "compiled", lambda *_: library if is_built else None)
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    lines: list[str] = []
    hook = build.get_build_hook()(app=SimpleNamespace(display_info=lines.append))
    hook.initialize(version, data)
    (line,) = lines
    assert line.startswith(
        f"taskq: plain jobs run in {'C' if is_built and not is_off else 'Python'} ("
    )
    assert library.exists() is (version != "editable" or (is_built and not is_off))
    if is_built and not is_off and version == "standard":
        assert data.pop("infer_tag")
        assert data["force_include"] == {str(library): f"taskq/_native/{library.name}"}
        assert not data["pure_python"]
    else:
        assert data == {"force_include": {}, "pure_python": True}


@pytest.mark.usefixtures("own_settings")
@pytest.mark.parametrize("in_c", [True, False])
def test_commands_and_case_files_say_which_runs(in_c: bool, choose: Choose, tmp_path: Path) -> None:
    choose(in_c)
    label = f"C (build {native.build_id()})" if in_c else "Python"
    assert bool(native.build_id()) is in_c
    with TaskQ(tmp_path / "data", durability="os"):
        pass
    here = ("-d", tmp_path / "data")
    assert f"plain jobs in {label}" in taskq("check", *here).output
    assert taskq("stats", *here).output.strip().endswith(f"plain jobs in {label}")
    document = json.loads(taskq("stats", *here, "--json").output)
    assert document["plain_jobs"] == label.partition(" ")[0]
    assert document["plain_jobs_build"] == native.build_id()
    taskq("report", *here, "-o", tmp_path / "case.zip")
    with zipfile.ZipFile(tmp_path / "case.zip") as case:
        assert json.loads(case.read("case.json"))["plain_jobs"] == label
