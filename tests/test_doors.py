"""Commands, workers, plugins and ``taskq.testing`` import only public modules (doors)."""

import ast
import functools
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.words import ROOT, nodes_of, source

#: In the same process as test_house.py, whose syntax trees are cached.
pytestmark = pytest.mark.xdist_group("house")
#: Outsiders, and the prefix of their own modules.
OUTSIDE: Final = {
    "taskq/cli": "taskq.cli", "taskq/testing": "taskq.testing",
    "workers/taskq_workers": "taskq_workers", "plugins/taskq_plugins": "taskq_plugins",
}  # fmt: skip
PRIVATE: Final = ("taskq.core", "taskq.log", "taskq.cli.")
#: Modules that only commands may use, besides ``taskq`` itself.
ROOMS: Final = (
    "taskq.app", "taskq.calls", "taskq.connection", "taskq.flows", "taskq.reading",
    "taskq.schedules", "taskq.shards",
)  # fmt: skip
#: The doors, with the largest number of names of each.
NAMES_MAX: Final = {"taskq.engine": 62, "taskq.hooks": 31, "taskq.cli": 21}
#: Variable names of an app or its log.
HOLDERS: Final = frozenset({"app", "_app", "log", "_log", "connection", "_connection"})
#: Public names of the doors within private modules.
NAMED: Final = {
    f"{door}.{name}" for door in ("taskq.cli",) for name in importlib.import_module(door).__all__
}
#: Private names with an exception, and its reason.
EXCEPTIONS: Final[dict[str, str]] = {
    "taskq.log.machine.forks.READER_GONE": "the error of a pipe without a reader, on each system",
    "taskq.log.machine.forks.fill_standard": "runs before any file is opened, and needs no log",
    "taskq.reading.replay.REPLAY_HEADER": "of a replay's jobs, be it from a log or a lake",
}


def looked_at(nodes: tuple[ast.AST, ...], module: str, alias: str) -> set[str]:
    """Return the names that a file uses of a module that it imports as a whole."""
    return {
        f"{module}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == alias
    }


def is_module(name: str) -> bool:
    folder = ROOT.joinpath(*name.split("."))
    return folder.with_suffix(".py").exists() or folder.is_dir()


def private_names(path: Path, own: str) -> Iterator[str]:
    """Yield names of private modules in a file, including type hints and inner imports."""
    nodes = nodes_of(path)
    private = PRIVATE if own == "taskq.cli" else PRIVATE + ROOMS
    for node in nodes:
        if isinstance(node, ast.Import):
            modules = (alias.name for alias in node.names if not alias.name.startswith(own))
            yield from (module for module in modules if module.startswith(private))
        if not isinstance(node, ast.ImportFrom) or (node.module or "").startswith(own):
            continue
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if not whole.startswith(private) or whole in NAMED:
                continue
            if is_module(whole):
                yield from looked_at(nodes, whole, alias.asname or alias.name)
            else:
                yield whole


@functools.cache
def taken() -> dict[str, set[str]]:
    """Return each private name used outside, with the files that use it."""
    names = defaultdict(set)
    for folder, own in OUTSIDE.items():
        for path in (ROOT / folder).rglob("*.py"):
            for name in private_names(path, own):
                names[name].add(str(path.relative_to(ROOT)))
    return names


def test_nobody_outside_takes_more_of_the_engine_than_its_doors_name() -> None:
    past = {name: sorted(files) for name, files in taken().items() if name not in EXCEPTIONS}
    assert not past


def test_no_exception_stands_that_nobody_needs() -> None:
    assert not EXCEPTIONS.keys() - taken().keys()


@pytest.mark.parametrize("face", [*NAMES_MAX, "taskq.values", "taskq.views", "taskq.errors"])
def test_a_face_is_narrow_and_each_of_its_names_is_there_once(face: str) -> None:
    module = importlib.import_module(face)
    assert len(module.__all__) == len(set(module.__all__)) <= NAMES_MAX.get(face, 100)
    assert all(hasattr(module, name) for name in module.__all__)


def looks_at_privates(path: Path) -> Iterator[str]:
    """Yield the lines of a file with private names of an app or its log."""
    uses = re.search(rf"\b({'|'.join(HOLDERS)})\b\s*\.\s*_", source(path))
    for node in nodes_of(path) if uses else ():
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[:2] != "__":
            holder = node.value
            name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            if name in HOLDERS and node.attr != "_replace":
                yield f"{path.relative_to(ROOT)}:{node.lineno} {name}.{node.attr}"


def test_nobody_outside_looks_at_what_an_app_keeps_to_itself() -> None:
    files = [path for folder in OUTSIDE for path in (ROOT / folder).rglob("*.py")]
    assert not [look for path in files for look in looks_at_privates(path)]
    # A file with such lines is found.
    assert [*looks_at_privates(ROOT / "tests/app/test_steering.py")]


def test_the_workers_are_found_by_name_in_one_place() -> None:
    """``taskq.extras`` finds the workers; their own package names the parts that it uses."""
    finders = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "taskq").rglob("*.py")
        if "taskq_workers" in source(path)
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if "taskq_workers" in ast.unparse(node)
    }
    assert finders == {"taskq/extras.py"}
