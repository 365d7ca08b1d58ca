"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import importlib
import inspect
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import taskq
from taskq.cli.main import BUILT_IN
from tests.lines import SOURCES, Shape, house, known, place, sources
from tests.words import (
    FOLDERS,
    ROOT,
    count,
    documents,
    habits,
    nodes_of,
    of_document,
    of_folder,
    share,
    source,
    statements,
    subjects,
    tree_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The trees of all files are there once, and no longer than for these tests.
pytestmark = [
    pytest.mark.xdist_group("house"),
    pytest.mark.usefixtures("trees"),
    pytest.mark.timeout(300),  # the first test reads them all, also on a machine that is busy
]
FUNCTION_LINES_MAX = 60
#: Words of the documents, changelog and tables of rivals aside.
WORDS_MAX = 24_000
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

TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.fixture(scope="module")
def trees() -> Iterator[None]:
    yield
    for made in (tree_of, statements, nodes_of, source, sources):
        made.cache_clear()


def nodes(path: Path, having: str = "") -> list[ast.AST]:
    """Return the nodes of a file, none where its text has no match: a walk takes longer."""
    return list(nodes_of(path)) if re.search(having, source(path), re.MULTILINE) else []


def functions() -> list[tuple[str, int, str]]:
    return [function for facts in sources().values() for function in facts.functions]


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
        for path, facts in sources().items()
        if path.is_relative_to(ROOT / "taskq/core")
        for node, names, _ in facts.imports
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
    classes = [entry for facts in sources().values() for entry in facts.classes]
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


#: Owners of a ``wait`` or ``join`` that raises an error, fails the test, or is a pause itself.
LOUD = re.compile(
    r"(process|popen|screen|clocked|pause|barrier|flow|again|Event\(\)|Registry\(.*\))$"
)


def test_no_limit_of_time_expires_in_silence() -> None:
    """A wait with a limit goes on after it: its answer is looked at, or ``ended`` does so."""
    seen = [
        place(path, node)
        for path in TESTS
        if path.name not in {"effort.py", "conftest.py"} and "bench" not in path.parts
        for node in nodes(path, having=r"^ *[^=\n]*\.(wait|join)\([^)]")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        for call in [node.value]
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"wait", "join"}
        if (call.args or call.keywords) and not LOUD.search(ast.unparse(call.func.value))
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
    "LoopPort._commit": "a plain callback that hands out the answers of an interrupted commit",
    "LoopPort._summon": "a plain callback for each turn of the loop, on the hot path",
    "LoneCaller.answered": "a plain callback, one turn later: nothing is awaited",
    "CancelListener._on_ask": "a plain callback, one turn later: nothing is awaited",
    "Lasting.run": "it goes on after whoever asked was cancelled, and the next call takes it up",
    "Rounds.refill_soon": "a plain callback for each turn of the loop: one for all logs",
    "Attempt._look_soon": "a plain callback, one turn later: nothing is awaited",
    "Attempt._wait": "a plain callback, one turn later: nothing is awaited",
    "Run._answer": "a plain callback, should a task that it wakes end the program",
    "Settler.flush_soon": "a plain callback for each turn of the loop, on the hot path",
    "Batcher._close": "a call for many jobs is in no slot of theirs: it ends with the last of them",
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
    scopes: list[tuple[ast.AST, str]] = (
        [(tree_of(path), "")] if LOOSE_IN.search(source(path)) else []
    )
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


# -- words, names and rooms ------------------------------------------------------------------------

#: A share of texts; projects like this one have 1 to 3.5 %.
SHARE_MAX = 0.03
REPEATED_CLASSES_MAX = 15

BROKEN = {
    "D1": [
        "Answer whoever asks.",
        "The segments of one log for who compares.",
        "Return the time of what is due.",
        "Delete all that ended.",
    ],
    "D2": ["Keep those that wait.", "The file of one that died.", "Its pid is that of a worker."],
    "D3": ["The caller is told.", "As the record tells it.", "Return what help says of a command."],
    "D4": ["Nor does it log.", "It is kept. Not taken back: others wait.", "Of a body, a line."],
    "D5": ["The bytes behind a frame.", "Let so many jobs pass.", "As SQLite has it."],
}
GOOD = [
    "Return whether scanning from this job costs more than `count` single lookups.",
    "Append a frame; truncate it if the write was short.",
    "Jobs and the upload's progress go into one frame, so a crash neither skips nor repeats a job.",
    "Create the directory and fsync its parent: an earlier process may have died in between.",
    "What is a lease?",
    "Call ``whoever`` once.",
]


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_finds_its_habit(rule: str) -> None:
    assert [text for text in BROKEN[rule] if rule not in habits(text)] == []


def test_plain_sentences_have_no_habit() -> None:
    assert [text for text in GOOD if habits(text)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_few_texts_have_a_habit(folder: str) -> None:
    assert share(of_folder(ROOT / folder)) <= SHARE_MAX


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_few_sentences_of_a_document_have_a_habit(document: Path) -> None:
    assert share(of_document(document)) <= SHARE_MAX


def test_all_documents_can_be_read() -> None:
    """The tests and the benchmarks have a measure of their own."""
    own = {path for path in documents() if path.is_relative_to(ROOT / "tests")}
    assert sum(count(path) for path in documents() if path not in own) <= WORDS_MAX
    assert sum(map(count, own)) <= WORDS_MAX / 6


def test_few_subjects_of_commits_have_a_habit() -> None:
    """A copy without a history has none."""
    assert share(subjects()) <= SHARE_MAX


def test_few_class_names_are_used_twice() -> None:
    assert len(Shape().repeated_classes) <= REPEATED_CLASSES_MAX


def test_the_picture_of_the_house_has_each_room_after_those_that_it_imports() -> None:
    rooms = house()
    order = list(rooms)
    for room, imported in rooms.items():
        assert all(order.index(other) < order.index(room) for other in imported), room
    assert order.index("taskq.core") < order.index("taskq.log") < order.index("taskq.app")
    # Through the front page, which looks names up late.
    assert order.index("taskq.app") < order.index("taskq_workers")
    assert "taskq.log" not in rooms["taskq.app"], "taskq.connection implies it"


#: What tells systems apart: the log's machine, what workers ask besides, and the build of C.
SYSTEMS = ("taskq/log/machine/", "workers/taskq_workers/runs/system.py", "taskq/_native/")


def test_systems_are_told_apart_in_the_machine_and_one_module_of_workers() -> None:
    branches = re.compile(r"\bsys\.platform\b|\bos\.name\b")
    paths = [
        path for folder in ("taskq", "workers", "plugins") for path in (ROOT / folder).rglob("*.py")
    ]
    places = {str(path.relative_to(ROOT)) for path in paths if branches.search(source(path))}
    assert places
    assert not {place for place in places if not place.startswith(SYSTEMS)}
