"""The doors: commands, workers, plugins and ``taskq.testing`` come in by public faces only."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
#: Who comes from outside, and by which name its own modules begin.
OUTSIDE: Final = {
    "taskq/cli": "taskq.cli",
    "taskq/testing": "taskq.testing",
    "workers/taskq_workers": "taskq_workers",
    "plugins/taskq_plugins": "taskq_plugins",
}
PRIVATE: Final = ("taskq.core", "taskq.log", "taskq.cli.")
ENGINE_NAMES_MAX: Final = 60
CLI_NAMES_MAX: Final = 20
#: What the command line's own package names stands in modules that are private.
NAMED: Final = {f"taskq.cli.{name}" for name in importlib.import_module("taskq.cli").__all__}
#: Names that somebody outside takes past the doors, each with its why.
EXCEPTIONS: Final[dict[str, str]] = {
    "taskq.core.errors.no_loop": "stood here when the doors were built",
    "taskq.core.flows.Policy": "stood here when the doors were built",
    "taskq.core.flows.nested": "stood here when the doors were built",
    "taskq.core.folds.lanes.Lane": "stood here when the doors were built",
    "taskq.core.folds.taking.WEIGHT_MAX": "stood here when the doors were built",
    "taskq.core.folds.taking.Weights": "stood here when the doors were built",
    "taskq.core.model.__file__": "stood here when the doors were built",
    "taskq.core.records.PACKED": "stood here when the doors were built",
    "taskq.core.retry.Signal": "stood here when the doors were built",
    "taskq.core.schedules.ScheduleState": "stood here when the doors were built",
    "taskq.core.why.ready_jobs": "stood here when the doors were built",
    "taskq.log.format.flows.is_of_flow": "stood here when the doors were built",
    "taskq.log.format.flows.takes_of": "stood here when the doors were built",
    "taskq.log.format.history.encode_lines": "stood here when the doors were built",
    "taskq.log.machine.forks.fill_standard": "runs before any file is opened, and needs no log",
    "taskq.log.machine.forks.on_fork": "stood here when the doors were built",
    "taskq.log.read.flows.ENDS_MAX": "stood here when the doors were built",
    "taskq.log.read.flows.End": "stood here when the doors were built",
    "taskq.log.read.flows.look_at_ends": "stood here when the doors were built",
    "taskq.log.read.gauges.age_ns": "stood here when the doors were built",
    "taskq.log.read.why.live_workers": "stood here when the doors were built",
    "taskq.log.requests.TICKS_MAX": "stood here when the doors were built",
}


def looked_at(tree: ast.AST, module: str, alias: str) -> set[str]:
    """Return what a file takes of a module that it imports as a whole."""
    return {
        f"{module}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == alias
    }


def is_module(name: str) -> bool:
    folder = ROOT.joinpath(*name.split("."))
    return folder.with_suffix(".py").exists() or folder.is_dir()


def private_names(path: Path, own: str) -> Iterator[str]:
    """Yield the names of private modules that a file takes, type hints and inner imports too."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(PRIVATE))
        if not isinstance(node, ast.ImportFrom) or (node.module or "").startswith(own):
            continue
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if not whole.startswith(PRIVATE) or whole in NAMED:
                continue
            if is_module(whole):
                yield from looked_at(tree, whole, alias.asname or alias.name)
            else:
                yield whole


def taken() -> dict[str, set[str]]:
    """Return each private name that somebody outside takes, and the files that do."""
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


@pytest.mark.parametrize(
    "face", ["taskq.engine", "taskq.values", "taskq.views", "taskq.errors", "taskq.cli"]
)
def test_every_name_of_a_face_is_there_and_once(face: str) -> None:
    module = importlib.import_module(face)
    assert len(module.__all__) == len(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_door_of_the_command_line_is_narrow() -> None:
    assert len(importlib.import_module("taskq.cli").__all__) <= CLI_NAMES_MAX


def test_the_engines_door_is_narrow_and_says_what_each_name_is() -> None:
    engine = importlib.import_module("taskq.engine")
    assert len(engine.__all__) <= ENGINE_NAMES_MAX
    named = {name: getattr(engine, name) for name in engine.__all__}
    assert not [
        name for name, it in named.items() if isinstance(it, type | FunctionType) and not it.__doc__
    ]
