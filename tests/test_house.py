"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import fnmatch
import functools
import graphlib
import importlib
import inspect
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import taskq
from taskq.cli.main import BUILT_IN
from tests.words import parsed

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
SOURCE_FOLDERS = ("taskq", "workers", "plugins", "examples")
FUNCTION_LINES_MAX = 60
TOP_LEVEL = {
    ".ci",
    ".docs",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "examples",
    "plugins",
    "pyproject.toml",
    "taskq",
    "tests",
    "uv.lock",
    "workers",
}
#: Programs of their own that tests start; to take time is what they are for.
STARTED = {"bench", "samples", "scripts"}

SOURCES = sorted(path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def place(path: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", 0)
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def nodes(path: Path, having: str = "") -> list[ast.AST]:
    """Return the nodes of a file, none where its text has no match: to parse takes longer."""
    text = path.read_text()
    return list(ast.walk(parsed(text))) if re.search(having, text, re.MULTILINE) else []


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
        tree = parsed(path.read_text())
        only_hints, source = hints(tree), Source([], [], [])
        for node in ast.walk(tree):
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


def functions() -> list[tuple[str, int, str]]:
    return [function for source in sources().values() for function in source.functions]


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


def test_no_modules_know_each_other_in_a_circle() -> None:
    """Imports inside functions count, and type hints, but for classes of one folder."""
    graphlib.TopologicalSorter(known()[1]).prepare()  # or a CycleError, which shows the circle


def test_no_folders_know_each_other_in_a_circle() -> None:
    """Type hints count; a folder and those inside it are of one house."""
    modules, needed = known()
    faces = {name for name, path in modules.items() if path.parent == ROOT / "taskq"}
    graph: dict[Path, set[Path]] = defaultdict(set)
    for name in modules.keys() - faces:
        here = modules[name].parent
        there = {modules[other].parent for other in needed[name] - faces}
        graph[here] |= {
            folder
            for folder in there
            if not folder.is_relative_to(here) and not here.is_relative_to(folder)
        }
    graphlib.TopologicalSorter(graph).prepare()  # or a CycleError, which shows the circle


def test_no_function_is_longer_than_a_page() -> None:
    assert not [where for where, count, _ in functions() if count > FUNCTION_LINES_MAX]


def test_the_core_knows_nothing_of_what_stands_on_it() -> None:
    """That it takes time, disk, threads and chance from nobody is a contract (pyproject.toml)."""
    seen = [
        f"{place(path, node)} imports {name}"
        for path, source in sources().items()
        if path.is_relative_to(ROOT / "taskq/core")
        for node, names, _ in source.imports
        for name in names
        if name.startswith("taskq") and not name.startswith("taskq.core")
    ]
    assert not seen


def test_every_public_name_is_there_and_listed_in_order() -> None:
    assert list(taskq.__all__) == sorted(set(taskq.__all__))
    assert set(taskq.__all__) <= set(dir(taskq))


#: The modules whose names are public (CONTRIBUTING).
PUBLIC = (
    "taskq", "taskq.errors", "taskq.views", "taskq.durable", "taskq.retry", "taskq.conditions",
    "taskq.testing", "taskq.engine", "taskq.arrow", "taskq.hooks", "taskq.cli", "taskq.values",
)  # fmt: skip


def undocumented(place: str, item: object) -> list[str]:
    """Return a public function or class and its public methods, as far as they say nothing."""
    if getattr(item, "__module__", "").partition(".")[0] != "taskq":
        return []
    missing = [] if inspect.getdoc(item) else [place]
    if inspect.isclass(item):
        for name, member in vars(item).items():
            inner = getattr(member, "__func__", member)
            if not name.startswith("_") and (
                inspect.isroutine(inner) or isinstance(inner, property)
            ):
                missing += [] if inspect.getdoc(inner) else [f"{place}.{name}"]
    return missing


def test_public_names_have_a_docstring() -> None:
    """Private ones have one if it says more than name and types; the linter cannot see which."""
    seen = [
        where
        for module in map(importlib.import_module, PUBLIC)
        for name in module.__all__
        for where in undocumented(f"{module.__name__}.{name}", getattr(module, name))
    ]
    assert not seen


def test_every_command_that_a_message_prints_names_its_directory() -> None:
    """``taskq.core.errors.command`` writes it, with ``-d`` and the whole path.

    Help texts name commands in general, and a line of help has no log.
    """
    commands = "|".join(sorted(BUILT_IN.keys() - {"pipeline"}))
    named = re.compile(rf"(?<!`)\btaskq ({commands})\b(?!.*--help)")
    help_texts = ("Run the jobs of an app: taskq worker module:app", "see taskq dead ")
    seen = [
        place(path, node)
        for path in SOURCES
        if "plugins" not in path.parts
        for node in texts(path, having=rf"taskq ({commands})\b")
        if named.search(str(node.value)) and not str(node.value).endswith(help_texts)
    ]
    assert seen == []


#: Modules that print without ``render.echo``, which escapes: errors, help, and a coloured title.
PRINTERS = {"errors.py", "main.py", "render.py"}


def test_commands_print_by_what_lets_no_stranger_drive_the_terminal() -> None:
    seen = [
        place(path, node)
        for path in SOURCES
        if path.name not in PRINTERS and "examples" not in path.parts
        for node in nodes(path, having=r"click\.s?echo|\bprint\(|stdout\.write")
        if isinstance(node, ast.Call)
        if ast.unparse(node.func) in {"click.echo", "click.secho", "print", "sys.stdout.write"}
    ]
    assert seen == []


def texts(path: Path, having: str) -> list[ast.Constant]:
    result = nodes(path, having)
    docs = {
        id(node.body[0].value)
        for node in result
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in result
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_nothing_of_ours_waits_for_the_threads_of_a_loop() -> None:
    """A program may fill those; see ``taskq.log.machine.threads``."""
    calls = {
        ast.unparse(node.func if not node.args else ast.Call(node.func, node.args[:1], []))
        for path in SOURCES
        if "examples" not in path.parts
        for node in nodes(path, having="run_in_executor|to_thread")
        if isinstance(node, ast.Call)
    }
    names = {call.partition("(")[0] for call in calls if call.endswith(".run_in_executor(None)")}
    assert not names | {call for call in calls if call.startswith("asyncio.to_thread")}


def names_given(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    return [getattr(node, "name", None) or ""] if isinstance(node, ast.ExceptHandler) else []


def test_variables_are_named_for_what_they_hold() -> None:
    given = r"\b(one|told|found)\b\s*([-+*/%&|^@<>=:,)\]]|in\b|$)"
    seen = [
        f"{place(path, node)}: {name}"
        for path in (*SOURCES, *TESTS)
        for node in nodes(path, having=given)
        for name in names_given(node)
        if name in {"one", "told", "found"}
    ]
    assert not seen


#: First words of a docstring that describes instead of naming the action.
NO_VERBS = {
    "all", "how", "if", "it", "one", "that", "those", "what", "when", "where", "whether", "which",
    "who", "whose", "why",
}  # fmt: skip


def test_docstrings_begin_with_what_is_done_or_what_it_is() -> None:
    classes = [entry for source in sources().values() for entry in source.classes]
    of_classes = [entry for entry in classes if entry[0].startswith(("taskq/", "workers/"))]
    seen = [
        f"{where}: {text}"
        for where, text in [*((where, text) for where, _, text in functions()), *of_classes]
        if re.split(r"\W", text, maxsplit=1)[0].lower() in NO_VERBS
    ]
    assert not seen


def test_no_test_sleeps() -> None:
    """A test waits for an event, or drives a clock of its own: a sleep is too short or too long."""
    seen = [
        place(path, node)
        for path in TESTS
        if not STARTED & set(path.relative_to(ROOT).parts)
        for node in nodes(path, having=r"time\.sleep")
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "time"
    ]
    assert not seen


def test_test_files_have_names_of_their_own() -> None:
    """Test folders are no packages, so two files of one name would be one module to pytest."""
    names = Counter(path.name for path in TESTS if path.name != "conftest.py")
    assert not {name for name, count in names.items() if count > 1 and name.startswith("test_")}


def test_the_top_level_holds_only_what_belongs_there() -> None:
    """Leave out what .gitignore names, and dot-files that are not in the repository."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    names -= {name for name in names if any(fnmatch.fnmatch(name, item) for item in ignored)}
    git = shutil.which("git") or "true"  # without one nothing is listed
    listed = subprocess.run(
        [git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names |= {path.split("/")[0] for path in listed.stdout.splitlines()}
    assert names <= TOP_LEVEL


#: Calls that begin something which no task group owns.
LOOSE = {"call_soon", "create_task", "ensure_future"}
LOOSE_IN = re.compile("|".join(LOOSE))
#: By the function that does it: why no task group owns it.
REASONS = {
    "LoopPort._rung": "each job would pay for more: a plain callback that hands out the answers",
    "LoneCaller.answered": "a plain callback, one turn later: nothing is awaited",
    "CancelListener._on_ask": "a plain callback, one turn later: nothing is awaited",
    "Lasting.run": "it goes on after whoever asked was cancelled, and the next call takes it up",
    "Rounds.refill_soon": "a plain callback for each turn of the loop: one for all logs",
    "Attempt._look_soon": "a plain callback, one turn later: nothing is awaited",
    "Attempt._wait": "a plain callback, one turn later: nothing is awaited",
    "Run._answer": "a plain callback, should a task that it wakes end the program",
    "Settler.flush_soon": "a plain callback for each turn of the loop, on the hot path",
    "Slot.__init__": "each job would pay for more: the worker waits for its slots as it drains",
    "Slots._spread_soon": "each job would pay for more: a plain callback, one turn later",
    "SparkCrew._end": "a task for each result that is stored, counted until it is done",
    "SparkCrew.wake": "a task for each batch, counted until it is done; and a plain callback",
    "Supervisor.run": "the root of a loop",
    "_Bench._run_async.take_turns": "a job has its context and its cancellation to itself",
    "_Call.begin": "a thread waits for it, and cancels it if it is interrupted",
    "_in_forked_child": "a plain callback that ends the process, in a child that nothing owns",
    "begin": "what users wrote may be left behind, and is cancelled but once",
    "end": "the loop closes",
    "run_to_the_end": "the root of a loop",
}


def loose_calls(path: Path) -> set[str]:
    """Return the functions of a file that begin what no task group owns."""
    seen = set()
    text = path.read_text()
    scopes: list[tuple[ast.AST, str]] = [(parsed(text), "")] if LOOSE_IN.search(text) else []
    while scopes:
        node, name = scopes.pop()
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{name}.{child.name}" if name else child.name
            scopes.append((child, inner))
            function = child.func if isinstance(child, ast.Call) else None
            if isinstance(function, ast.Attribute) and function.attr in LOOSE:
                seen.add(name)
    return seen


def test_whatever_no_task_group_owns_has_its_reason() -> None:
    files = [source for source in SOURCES if "examples" not in source.parts]
    names = {name for path in files for name in loose_calls(path)}
    assert names == REASONS.keys()
