"""Count the lines of this tree by folder, beside those of a revision; its shape.

python -m tests.lines [REVISION]
python -m tests.lines --house      rooms, and the rooms that each imports
"""

from __future__ import annotations

import ast
import functools
import graphlib
import statistics
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

import taskq
from tests.words import ROOT, statements, tree_of

TREES: Final = ("taskq", "workers", "plugins", "examples", "tests")
SOURCES: Final = sorted(path for tree in TREES[:-1] for path in (ROOT / tree).rglob("*.py"))


def folder_of(path: str) -> str:
    """Return the room a file counts for: two levels deep, three among plugins."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: 3 if parts[0] == "plugins" else 2])


def counted(revision: str | None) -> dict[str, int]:
    if revision is None:
        paths = _git("ls-files", *TREES).splitlines()
        texts = {path: (ROOT / path).read_text() for path in paths if path.endswith(".py")}
        return {path: text.count("\n") for path, text in texts.items()}
    # One call: "REVISION:path:lines" of every file with a line in it.
    rows = _git("grep", "-c", "", revision, "--", *TREES).splitlines()
    named = (row.split(":", 1)[1].rsplit(":", 1) for row in rows)
    return {path: int(lines) for path, lines in named if path.endswith(".py")}


def by_folder(lines: dict[str, int]) -> Counter[str]:
    folders = Counter[str]()
    for path, count in lines.items():
        folders[folder_of(path)] += count
    return folders


def shown(now: Counter[str], before: Counter[str] | None) -> Table:
    table = Table("", "lines", *(["before"] if before is not None else []), title="folder")
    for name, count in [*now.most_common(), ("all", now.total())]:
        was = [] if before is None else [f"{before.total() if name == 'all' else before[name]:,}"]
        table.add_row(name, f"{count:,}", *was)
    return table


def head_lines(tree: ast.Module) -> int:
    """Return the lines before a module's first statement that is neither docstring nor import."""
    for node in tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_hint = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (is_docstring or is_hint or isinstance(node, ast.Import | ast.ImportFrom)):
            decorators = getattr(node, "decorator_list", [])
            return int(min([node.lineno, *(item.lineno for item in decorators)])) - 1
    return 0


def place(path: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", 0)
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] in {"workers", "plugins"} else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def hints(tree: ast.Module) -> set[int]:
    return {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }


class Source(NamedTuple):
    """Facts about a source file, which is parsed once for all tests."""

    #: place, number of lines, and first line of the docstring of each
    functions: list[tuple[str, int, str]]
    #: place, and first line of the docstring of each
    classes: list[tuple[str, str]]
    #: each import, with the modules that it may be of, and whether only type hints need it
    imports: list[tuple[ast.AST, list[str], bool]]


@functools.cache
def sources() -> dict[Path, Source]:
    result = {}
    for path in SOURCES:
        only_hints, source = hints(tree_of(path)), Source([], [], [])
        for node in statements(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                first, _, _ = (ast.get_docstring(node) or "").partition("\n")
                if isinstance(node, ast.ClassDef):
                    source.classes.append((place(path, node), first))
                else:
                    source.functions.append((place(path, node), count, first))
            elif names := imported(node):
                source.imports.append((node, names, id(node) in only_hints))
        result[path] = source
    return result


@functools.cache
def face(path: Path) -> frozenset[str]:
    """Return the names that a package imports from its modules; none of another file."""
    froms = [node for node, _, _ in sources()[path].imports if isinstance(node, ast.ImportFrom)]
    names = (alias.asname or alias.name for node in froms for alias in node.names)
    return frozenset(names) if path.name == "__init__.py" else frozenset()


def needs(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Return the modules of ours that a file needs, but for hints at classes in its own folder.

    A module that is a name of its package's face, and is imported as that, needs the package.
    """
    result = set()
    for node, names, is_hint in sources()[path].imports:
        if isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            home = modules.get(node.module or "")
            faced = home is not None and face(home) & {alias.name for alias in node.names}
            others = names if faced or set(whole) - modules.keys() else ()
            names = [*(set(whole) & modules.keys()), *others]  # noqa: PLW2901
        for name in names:
            if name in modules and not (is_hint and modules[name].parent == path.parent):
                result.add(name)
    return result


@functools.cache
def known() -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Return our modules, and which others each needs.

    The front page ``taskq`` is not asked: it looks its names up when somebody wants them.
    """
    modules = {module_of(path): path for path in SOURCES if not place(path).startswith("examples")}
    del modules["taskq"]
    return modules, {name: needs(path, modules) - {name} for name, path in modules.items()}


class Shape:
    """Modules of the source, the lines at their heads, and class names in several modules."""

    def __init__(self) -> None:
        paths = [path for tree in TREES[:3] for path in sorted((ROOT / tree).rglob("*.py"))]
        self.modules = {path: tree_of(path) for path in paths}

    @property
    def head_mean(self) -> float:
        heads = [head_lines(tree) for tree in self.modules.values() if tree.body]
        return statistics.mean(heads)

    @property
    def repeated_classes(self) -> dict[str, list[str]]:
        places: dict[str, list[str]] = {}
        for path, tree in self.modules.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
        return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}

    def shown(self) -> Table:
        table = Table("shape of taskq, workers, plugins", "", title="shape")
        table.add_row("modules", str(len(self.modules)))
        table.add_row("lines before the first definition", f"{self.head_mean:.1f}")
        table.add_row("class names used twice", str(len(self.repeated_classes)))
        return table


def house() -> dict[str, set[str]]:
    """Return the rooms in an order in which each imports earlier ones only.

    Imports inside functions and type hints count. An import that another one implies is left out.

    Raises:
        CycleError: there is a circle.
    """
    modules, needed = known()
    modules = {name: path for name, path in modules.items() if name != "taskq_plugins"}
    homes = {name: home for home, names in taskq._HOMES.items() for name in names.split()}
    graph: dict[str, set[str]] = {room_of(name): set() for name in modules}
    for module in modules:
        graph[room_of(module)] |= {room_of(name) for name in needed[module] & modules.keys()}
    for module, path in modules.items():
        for node in statements(path):
            if isinstance(node, ast.ImportFrom) and node.module == "taskq":
                named = {homes[alias.name] for alias in node.names if alias.name in homes}
                graph[room_of(module)] |= {room_of(name) for name in named}
    for room, below in graph.items():
        below.discard(room)
    result: dict[str, set[str]] = {}
    under: dict[str, set[str]] = {}
    for room in graphlib.TopologicalSorter(graph).static_order():
        implied = set[str]().union(*(under[other] for other in graph[room]))
        under[room] = implied | graph[room]
        result[room] = graph[room] - implied
    return result


def room_of(module: str) -> str:
    first, *others = module.split(".")
    return ".".join([first, *others[:1]]) if first in {"taskq", "taskq_plugins"} else first


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


@click.command()
@click.argument("revision", required=False)
@click.option("--house", "as_house", is_flag=True, help="Rooms, and the rooms that each imports.")
def main(revision: str | None, as_house: bool) -> None:
    """Print the lines by folder, and the shape."""
    if as_house:
        rooms = house()
        for room in reversed(rooms):
            click.echo(f"{room:<26}{'-> ' * bool(rooms[room])}{', '.join(sorted(rooms[room]))}")
        click.echo(f"{len(rooms)} rooms, each imports rooms below it only: no circle")
        return
    before = by_folder(counted(revision)) if revision else None
    console = Console()
    console.print(shown(by_folder(counted(None)), before))
    console.print(Shape().shown())


if __name__ == "__main__":
    main()
