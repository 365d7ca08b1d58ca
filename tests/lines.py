"""Count the lines of this tree by folder, compared with a revision, and describe its shape.

python -m tests.lines [REVISION]
"""

import ast
import statistics
import subprocess
from collections import Counter

import click
from rich.console import Console
from rich.table import Table

from tests.words import FOLDERS, ROOT, tree_of

SOURCES = sorted(path for tree in FOLDERS[:-1] for path in (ROOT / tree).rglob("*.py"))


def counted(revision: str | None) -> Counter[str]:
    if revision is None:
        paths = _git("ls-files", *FOLDERS).splitlines()
        lines = {
            path: (ROOT / path).read_text().count("\n") for path in paths if path[-3:] == ".py"
        }
    else:
        # One call prints "REVISION:path:lines" for every non-empty file.
        rows = _git("grep", "-c", "", revision, "--", *FOLDERS).splitlines()
        named = (row.split(":", 1)[1].rsplit(":", 1) for row in rows)
        lines = {path: int(count) for path, count in named if path[-3:] == ".py"}
    rooms = Counter[str]()
    for path, count in lines.items():
        parts = path.split("/")[:-1]
        rooms["/".join(parts[: 3 if parts[0] == "plugins" else 2])] += count
    return rooms


def head_lines(tree: ast.Module) -> int:
    """Return the lines before a module's first statement that is neither docstring nor import."""
    for node in tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_hint = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (is_docstring or is_hint or isinstance(node, ast.Import | ast.ImportFrom)):
            decorators = getattr(node, "decorator_list", [])
            return int(min([node.lineno, *(item.lineno for item in decorators)])) - 1
    return 0


def repeated_classes() -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in tree_of(path).body if path.parts[len(ROOT.parts)] != "examples" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


@click.command()
@click.argument("revision", required=False)
def main(revision: str | None) -> None:
    now, before = counted(None), counted(revision) if revision else Counter[str]()
    table = Table("", "lines", *["before"] * bool(revision), title="folder")
    for name, count in [*now.most_common(), ("all", now.total())]:
        was = f"{before.total() if name == 'all' else before[name]:,}"
        table.add_row(name, f"{count:,}", *[was] * bool(revision))
    heads = [head_lines(tree) for tree in map(tree_of, SOURCES) if tree.body]
    shape = Table("shape of taskq, workers, plugins, examples", "", title="shape")
    shape.add_row("modules", str(len(SOURCES)))
    shape.add_row("lines before the first definition", f"{statistics.mean(heads):.1f}")
    shape.add_row("class names used twice", str(len(repeated_classes())))
    console = Console()
    console.print(table)
    console.print(shape)


if __name__ == "__main__":
    main()
