"""Rules of the code that no linter has; those for sleeps and circles are in pyproject.toml."""

import ast
import fnmatch
import functools
import gc
import importlib
import inspect
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskq.cli.main import BUILT_IN
from tests import words
from tests.words import FOLDERS, ROOT, nodes_of, source, tree_of

#: These tests run in one process, which parses all sources once.
pytestmark = [
    pytest.mark.xdist_group("house"),
    pytest.mark.usefixtures("trees"),
    pytest.mark.timeout(300),  # the first test parses all sources, even on a busy machine
]
SOURCES = sorted(path for tree in FOLDERS[:-1] for path in (ROOT / tree).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
OURS = [path for path in SOURCES if path.parts[len(ROOT.parts)] != "examples"]


@pytest.fixture(scope="module")
def trees() -> Iterator[None]:
    """Freeze a million nodes, which the collector would scan in vain."""
    gc.disable()
    yield
    for made in (tree_of, nodes_of, source, code):
        made.cache_clear()
    gc.enable()


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


# -- code ------------------------------------------------------------------------------------------


@functools.cache
def code(path: Path) -> str:
    """Return a file without its comments and the contents of its strings."""

    def cut(match: re.Match[str]) -> str:
        return "" if match["comment"] is not None else "''" + "\n" * match[0].count("\n")

    return words.STRING_OR_COMMENT.sub(cut, source(path))


#: Modules that print without ``render.echo``, which escapes: errors, help, and a coloured title.
PRINTERS = {"errors.py", "main.py", "render.py"}
#: Modules with code for one system: the log's machine, one of workers, and the build of C.
SYSTEMS = ("taskq/log/machine/", "workers/taskq_workers/runs/system.py", "taskq/_native/")
NAMES = r"(?:one|told|found)\b"
#: Owners of a ``wait`` or ``join`` that raises an error, fails the test, or is a pause.
LOUD = r"(?:process|popen|screen|clocked|pause|barrier|flow|again|Event\(\)|Registry\(.*\))"
WAITERS = {"effort.py", "conftest.py"}
#: Forbidden patterns in code: reason, files, pattern, and an example.
NEVER = {
    "text of strangers drives the terminal": (
        [path for path in OURS if path.name not in PRINTERS],
        r"\bclick\.s?echo\(|(?<![\w.])print\(|\bsys\.stdout\.write\(",
        "click.secho(text)",
    ),
    # A program may occupy these threads; see ``taskq.log.machine.threads``.
    "work waits for the threads of a loop": (
        OURS,
        r"\basyncio\.to_thread\(|\.run_in_executor\(\s*None\b",
        "await asyncio.to_thread(print)",
    ),
    "systems are told apart outside the machine and one module of workers": (
        [path for path in OURS if not str(path.relative_to(ROOT)).startswith(SYSTEMS)],
        r"\bsys\.platform\b|\bos\.name\b",
        "if sys.platform == ''",
    ),
    "a variable is not named for what it holds": (
        [*SOURCES, *TESTS],
        (
            rf"^\s*\(?(?:\w+, )*{NAMES}(?:, \w+)*,?\)?(?:: [^=\n]+)? = "
            rf"|\b(?:for|as|lambda) \(?(?:\w+, )*{NAMES}|\b{NAMES} :="
            rf"|\bdef \w+\((?:.*, )?{NAMES}:|^\s+{NAMES}: .+,$"
        ),
        "    found = look()",
    ),
    # A test must check the result of the wait, or use ``ended``.
    "a limit of time expires in silence": (
        [path for path in TESTS if path.name not in WAITERS and "bench" not in path.parts],
        rf"^ *(?!\S*{LOUD}\.(?:wait|join)\()\w[\w.\[\]]*(?:\(\))?(?:\.\w+)*\.(?:wait|join)\([^)\n]",
        "    thread.join(5)",
    ),
}


@pytest.mark.parametrize("what", NEVER)
def test_it_never_happens_that(what: str) -> None:
    paths, pattern, example = NEVER[what]
    assert len(paths) > 100
    assert re.search(pattern, example, re.MULTILINE)
    assert not [
        place(path, code(path).count("\n", 0, match.end()) + 1)
        for path in paths
        for match in re.finditer(pattern, code(path), re.MULTILINE)
    ]


FUNCTION_LINES_MAX = 60
#: First words of a docstring that does not begin with the action.
NO_VERBS = {
    "all", "how", "if", "it", "one", "that", "those", "what", "when", "where", "whether", "which",
    "who", "whose", "why",
}  # fmt: skip


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node's statements; expressions, most of a tree, are skipped."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)


def test_functions_fit_a_page_and_docstrings_begin_with_what_is_done() -> None:
    seen, count = [], 0
    for path in SOURCES:
        of_classes = path.is_relative_to(ROOT / "taskq") or path.is_relative_to(ROOT / "workers")
        for node in statements(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            count += 1
            is_class = isinstance(node, ast.ClassDef)
            first = re.split(r"\W", ast.get_docstring(node, clean=False) or "", maxsplit=1)[0]
            is_long = (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX and not is_class
            if is_long or (first.lower() in NO_VERBS and (of_classes or not is_class)):
                seen.append(place(path, node.lineno))
    assert count > 1_000
    assert not seen


def test_every_command_that_a_message_prints_names_its_directory() -> None:
    """``taskq.core.errors.command`` writes it; help texts name commands in general."""
    commands = "|".join(sorted(BUILT_IN.keys() - {"pipeline"}))
    named = re.compile(rf"(?<!`)\btaskq ({commands})\b(?!.*--help)")
    help_texts = ("Run the jobs of an app: taskq worker module:app", "see taskq dead ")
    seen = []
    for path in SOURCES:
        nodes = () if "plugins" in path.parts or not named.search(source(path)) else nodes_of(path)
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        seen += [
            place(path, node.lineno)
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in docs and named.search(node.value)
            if not node.value.endswith(help_texts)
        ]
    assert seen == []


#: Calls that start work outside a task group.
LOOSE = {"call_soon", "create_task", "ensure_future"}
#: Functions with such a call, and the reason.
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


def loose_calls(node: ast.AST, name: str = "") -> Iterator[str]:
    """Yield the functions that start work outside a task group."""
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{name}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            yield from [name] if child.func.attr in LOOSE else []
        yield from loose_calls(child, inner)


def test_whatever_no_task_group_owns_has_its_reason() -> None:
    paths = [path for path in OURS if re.search("|".join(LOOSE), code(path))]
    assert {name for path in paths for name in loose_calls(tree_of(path))} == REASONS.keys()


# -- names -----------------------------------------------------------------------------------------

REPEATED_CLASSES_MAX = 15
#: The modules whose names are public (CONTRIBUTING).
PUBLIC = (
    "taskq", "taskq.errors", "taskq.views", "taskq.durable", "taskq.retry", "taskq.conditions",
    "taskq.testing", "taskq.engine", "taskq.arrow", "taskq.hooks", "taskq.cli", "taskq.values",
)  # fmt: skip


def undocumented(place: str, item: object) -> list[str]:
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
    """The linter does not know the public names, so it cannot check their docstrings."""
    seen = [
        where
        for module in map(importlib.import_module, PUBLIC)
        for name in module.__all__
        for where in undocumented(f"{module.__name__}.{name}", getattr(module, name))
    ]
    assert not seen


def test_few_class_names_are_used_twice() -> None:
    seen = Counter(
        node.name
        for path in OURS
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert sum(count > 1 for count in seen.values()) <= REPEATED_CLASSES_MAX


TOP_LEVEL = {
    ".ci", ".docs", ".github", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "examples",
    "plugins", "pyproject.toml", "taskq", "tests", "uv.lock", "workers",
}  # fmt: skip


def test_the_top_level_holds_only_what_belongs_there() -> None:
    """Ignored files, and dot-files outside the repository, do not count."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    names -= {name for name in names if any(fnmatch.fnmatch(name, item) for item in ignored)}
    git = shutil.which("git") or "true"  # without git the list is empty
    listed = subprocess.run(
        [git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names |= {path.split("/")[0] for path in listed.stdout.splitlines()}
    assert names <= TOP_LEVEL


# -- words -----------------------------------------------------------------------------------------

#: Limit of the share of texts with a habit; similar projects have 1 to 3.5 %.
SHARE_MAX = 0.03
#: Limit of the documents' words, without the changelog and comparisons with other systems.
WORDS_MAX = 24_000


@pytest.mark.parametrize("folder", words.FOLDERS)
def test_few_texts_have_a_habit(folder: str) -> None:
    assert words.share(words.of_folder(ROOT / folder)) <= SHARE_MAX


def test_few_sentences_of_a_document_have_a_habit() -> None:
    shares = {path: words.share(words.of_document(path)) for path in words.documents()}
    assert not {path: share for path, share in shares.items() if share > SHARE_MAX}


def test_all_documents_can_be_read() -> None:
    """The documents of tests and benchmarks have limits of their own."""
    own = {path for path in words.documents() if path.is_relative_to(ROOT / "tests")}
    assert sum(map(words.count, {*words.documents()} - own)) <= WORDS_MAX
    assert sum(map(words.count, own)) <= WORDS_MAX / 6


def test_few_subjects_of_commits_have_a_habit() -> None:
    """A copy without a history has no subjects."""
    assert words.share(words.subjects()) <= SHARE_MAX
