"""The extension is built where it can be, and what was built otherwise is not used."""

from __future__ import annotations

import hashlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskq import TaskQ
from taskq import _native as native
from taskq._native import build
from tests.cli.helpers import taskq
from tests.programs import run_python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.native.conftest import Choose

#: Raise both versions (``native.h``, ``taskq/_native/__init__.py``) before you change this.
SOURCES: Final = (8, "db3b0b5341266b9d")
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


def test_whoever_changes_the_sources_raises_their_version() -> None:
    digest = hashlib.sha256()
    for path in sorted((*build.FOLDER.glob("*.c"), *build.FOLDER.glob("*.h"))):
        digest.update(path.name.encode() + path.read_bytes())
    assert (native.VERSION, digest.hexdigest()[:16]) == SOURCES


def test_all_sources_are_compiled(extension: Any) -> None:
    assert {path.name for path in build.FOLDER.glob("*.c")} == set(build.SOURCES)
    assert extension.VERSION == native.VERSION


def test_what_was_built_of_other_sources_is_not_used(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_NATIVE", "1")
    monkeypatch.setitem(sys.modules, "taskq._native._plain", extension)
    monkeypatch.setattr(native, "_plain", extension, raising=False)
    assert native._load() is extension
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native._load() is None


def test_it_is_used_only_where_an_environment_variable_asks_for_it(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "taskq._native._plain", extension)
    for text in ("0", ""):
        monkeypatch.setenv("TASKQ_NATIVE", text)
        assert native._load() is None
    monkeypatch.delenv("TASKQ_NATIVE")
    assert native._load() is None
    assert run_python("-c", TELL, check=True).stdout == "Python\n"


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
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_wheel_is_of_a_platform_only_with_it(
    version: str, is_built: bool, is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    library = tmp_path / "_plain.so"
    monkeypatch.setenv("TASKQ_NATIVE", "1" if is_asked else "0")
    monkeypatch.setattr(build, "compiled", lambda *_: library if is_built else None)
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    build.get_build_hook()().initialize(version, data)
    if is_built and is_asked and version == "standard":
        assert data.pop("infer_tag")
        assert data["force_include"] == {str(library): "taskq/_native/_plain.so"}
        assert not data["pure_python"]
    else:
        assert data == {"force_include": {}, "pure_python": True}


@pytest.mark.usefixtures("own_settings")
@pytest.mark.parametrize("in_c", [True, False])
def test_check_and_stats_say_which_runs(in_c: bool, choose: Choose, tmp_path: Path) -> None:
    choose(in_c)
    word = "C" if in_c else "Python"
    with TaskQ(tmp_path / "data", durability="os"):
        pass
    assert f"plain jobs in {word}" in taskq("check", "-d", tmp_path / "data").output
    assert taskq("stats", "-d", tmp_path / "data").output.strip().endswith(f"plain jobs in {word}")
    assert (
        json.loads(taskq("stats", "-d", tmp_path / "data", "--json").output)["plain_jobs"] == word
    )
