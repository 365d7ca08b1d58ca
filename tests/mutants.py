"""Break the code in one place after another, and find a test that notices.

    python -m tests.mutants --reach      # first: one run of the suite, or of some of its folders
    python -m tests.mutants taskq/core taskq/log workers --count 60 --seed 1

A mutant is one small change of one function: a comparison that is off by an equals sign, an
inverted condition, an omitted call. The tests that enter the function (``--reach`` finds them) run
on a copy of the tree, in one process, quickest first, until one fails, and fails again alone. The
program prints a Markdown row for each mutant, and the score of each folder at the end.

A survivor is a test to write, unless its behaviour is equal: then the ledger (tests/mutants.md)
says "equivalent: …" in its last column. ``--ledger`` keeps the rows of a run there and skips
mutants that the ledger calls killed or equivalent, so a stopped run can continue.
"""

import ast
import contextlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import anyio
import click
import hypothesis
import pydantic
import pytest
import rich.console

from taskq.core.values import NamedTuple

ROOT: Final = Path(__file__).parents[1]
LEDGER: Final = ROOT / "tests/mutants.md"
SURVIVES: Final = "**survives**"
#: Mark in the ledger of a mutant with equal behaviour.
EQUIVALENT: Final = "equivalent: "
HEAD: Final = "| place | before | after | killed by |\n|---|---|---|---|\n"
#: File with the functions that each test enters, and its duration.
REACH: Final = ROOT / "build/reach.json"
#: Tests of a function run in portions, quickest first; the first portion kills most mutants.
PORTIONS: Final = (30, 300, 2_000)
#: Total time of a mutant's tests; slower tests are left out.
SECONDS_MAX: Final = 120.0
#: CPU time of one portion, and time of one test, at most: a mutant may hang.
CPU_SECONDS: Final = 300
TEST_SECONDS: Final = 40
NOTES: Final = "tests.reach"
SOURCES: Final = ("taskq", "workers", "plugins")
#: Imported once, for all runs of pytest.
SHARED: Final = (anyio, hypothesis, pydantic, rich.console)
QUIETLY: Final = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
_OTHER: Final[dict[type[ast.AST], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.And: "or", ast.Or: "and", ast.Add: "-", ast.Sub: "+",
}  # fmt: skip
#: Messages and type hints change no behaviour.
_IDLE: Final = re.compile(r"_log\.|warnings\.|cast\(|super\(\)\.__init__|assert |TYPE_CHECKING")


class Mutant(NamedTuple):
    path: Path
    function: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def source(self) -> bytes:
        source = self.path.read_bytes()
        return source[: self.start] + self.after.encode() + source[self.end :]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield f"{inner}:{child.lineno}", child
            yield from functions(child, inner)
        else:
            yield from functions(child, name)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from own_nodes(child)


def mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(part: ast.expr | ast.stmt) -> tuple[int, int]:
        start = starts[part.lineno - 1] + part.col_offset
        return start, starts[(part.end_lineno or 1) - 1] + (part.end_col_offset or 0)

    def text(part: ast.expr | ast.stmt) -> str:
        start, end = span(part)
        return source[start:end].decode()

    for name, function in functions(ast.parse(source)):
        for node in own_nodes(ast.Module(function.body, [])):
            if not isinstance(node, ast.expr | ast.stmt):
                continue
            before, after = text(node), changed(node, text)
            if after is not None and not _IDLE.match(before):
                yield Mutant(path, name, node.lineno, *span(node), before, after)


def changed(node: ast.AST, text: Callable[[ast.expr], str]) -> str | None:
    after: str | None
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in _OTHER
        ):
            after = f"{text(left)} {_OTHER[type(operator)]} {text(right)}"
        case ast.BoolOp(op=operator, values=values):
            after = f"({f' {_OTHER[type(operator)]} '.join(f'({text(v)})' for v in values)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OTHER:
            after = f"{text(left)} {_OTHER[type(operator)]} {text(right)}"
        case ast.IfExp(test=test, body=body, orelse=other):
            after = f"{text(other)} if {text(test)} else {text(body)}"
        case (
            ast.Expr(value=ast.Call() | ast.Await())
            | ast.AugAssign()
            | ast.Assign(targets=[ast.Attribute()])
        ):
            after = "pass"
        case ast.Return(value=ast.Constant(value=bool(value))):
            after = f"return {not value}"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            after = text(operand)
        case _:
            after = None
    return after


def chosen(folders: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    paths = sorted(path for folder in folders for path in python_files(ROOT / folder))
    every = [mutant for path in paths for mutant in mutants(path)]
    random.Random(seed).shuffle(every)
    return list(itertools.islice(filter(is_python, every), count))


def is_python(mutant: Mutant) -> bool:
    """Return whether the mutant parses; before 3.12 nodes in an f-string have wrong places."""
    try:
        ast.parse(mutant.source())
    except SyntaxError:
        return False
    return True


def python_files(path: Path) -> list[Path]:
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


# -- functions that tests enter --------------------------------------------------------------------


def noted(source: str, first: int) -> tuple[str, list[str]]:
    """Return the source with a call in each function that notes its number, and the names."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    names: list[str] = []
    inserts: list[tuple[int, str]] = []
    for name, function in functions(tree):
        body = function.body[1:] if ast.get_docstring(function, clean=False) else function.body
        if not body:
            continue
        at = min(
            [body[0].lineno, *(item.lineno for item in getattr(body[0], "decorator_list", ()))]
        )
        if at > function.lineno and not lines[at - 1][: body[0].col_offset].strip():
            number = first + len(names)
            call = f"_reach_seen[{number}] or _reach_enter({number})\n"
            inserts.append((at, " " * body[0].col_offset + call))
            names.append(name)
    heads = [item for item in tree.body if not is_head(item)]
    if names:
        inserts.append((heads[0].lineno, f"from {NOTES} import enter as _reach_enter\n"))
        inserts.append((heads[0].lineno, f"from {NOTES} import seen as _reach_seen\n"))
    for at, text in sorted(inserts, reverse=True):
        lines.insert(at - 1, text)
    return "".join(lines), names


def is_head(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
            return True
        case _:
            return False


def reach(copy: Path, folders: tuple[str, ...], processes: int) -> None:
    """Run tests once, and store the functions that each test enters, added to earlier results."""
    keys: list[str] = []
    for folder in SOURCES:
        for path in python_files(copy / folder):
            source, names = noted(path.read_text(), len(keys))
            path.write_text(source)
            keys += [f"{path.relative_to(copy).as_posix()}::{name}" for name in names]
    notes = copy / "build/reach"
    notes.mkdir(parents=True)
    how = ("-p", NOTES, "-n", str(processes), "--dist", "loadgroup")
    click.echo(run(copy, *how, *folders, notes=notes)[1][-1_000:])
    seconds: dict[str, float] = {}
    enters: dict[str, set[str]] = {}
    if folders and REACH.exists():
        reached = json.loads(REACH.read_text())
        seconds = {
            test: took for test, took in reached["seconds"].items() if not test.startswith(folders)
        }
        for name, tests in reached["enters"].items():
            enters[name] = {test for test in tests if not test.startswith(folders)}
    for file in notes.iterdir():
        for line in file.read_text().splitlines():
            test, taken, numbers = line.split("\t")
            test = re.split(r"[\[@]", test)[0]
            if test and "::" in test:
                worst = min(float(taken), seconds.get(test, 0))
                seconds[test] = worst if worst < 0 else seconds.get(test, 0) + float(taken)
            for number in numbers.split():
                enters.setdefault(keys[int(number)], set()).add(test)
    REACH.parent.mkdir(exist_ok=True)
    kept = {name: sorted(tests) for name, tests in sorted(enters.items())}
    REACH.write_text(json.dumps({"seconds": seconds, "enters": kept}, indent=0))


class Reach:
    """Findings of a run of ``--reach``."""

    def __init__(self) -> None:
        reached = json.loads(REACH.read_text())
        self.seconds: dict[str, float] = reached["seconds"]
        #: Keys are file and name of a function, since lines move with each change.
        self.enters: dict[str, set[str]] = {}
        for name, tests in reached["enters"].items():
            self.enters.setdefault(name.rpartition(":")[0], set()).update(tests)
        self._there = {test: is_there(test) for test in self.seconds}

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that enter a mutant's function, the quickest first."""
        name = f"{mutant.path.relative_to(ROOT).as_posix()}::{mutant.function.rpartition(':')[0]}"
        enters = self.enters.get(name, ())
        them = {test for test in enters if "::" in test}
        them |= {test for test in self.seconds if test.partition("::")[0] in enters}
        right = [test for test in them if self._there.get(test) and self.seconds[test] >= 0]
        right.sort(key=lambda test: self.seconds[test])
        sums = itertools.accumulate(self.seconds[test] for test in right)
        return [test for test, sum_ in zip(right, sums, strict=True) if sum_ < SECONDS_MAX]


def is_there(test: str) -> bool:
    file, name = test.split("::")[:2]
    path = ROOT / file
    return path.exists() and re.search(rf"\b{name}\b", path.read_text()) is not None


def killer(mutant: Mutant, copy: Path, known: Reach) -> str | None:
    """Return a test that fails with a mutant; None if the mutant survives."""
    target = copy / mutant.path.relative_to(ROOT)
    target.write_bytes(mutant.source())
    tests = known.tests(mutant)
    shaky: list[str] = []
    try:
        for start, end in itertools.pairwise((0, *PORTIONS)):
            while asked := [test for test in tests[start:end] if test not in shaky]:
                failed = failure(copy, *asked)
                # Run it again alone: on a busy machine a test may fail for another reason.
                if failed is None:
                    break
                if "::" not in failed or failure(copy, failed):
                    return failed
                shaky.append(failed.partition("[")[0])
    finally:
        shutil.copyfile(mutant.path, target)
    return None


def failure(copy: Path, *tests: str) -> str | None:
    code, output = run(copy, "-x", "--timeout", str(TEST_SECONDS), *tests)
    if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", output, re.MULTILINE)
    if failed is None and code == pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError(output[-1_000:])
    return failed[1] if failed else f"exit {code} of {len(tests)} tests"


def run(copy: Path, *arguments: str, notes: Path | None = None) -> tuple[int, str]:
    """Run pytest in a fork of this process, which has already done the slow imports."""
    output = copy.with_name("output")
    child = os.fork()
    if not child:
        paths = [str(copy / folder) for folder in ("", "workers", "plugins")]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "REACH_FOLDER": str(notes or "")}
        sys.path[:0] = paths
        for name in [name for name in sys.modules if re.match(r"taskq|tests\b", name)]:
            del sys.modules[name]
        os.chdir(copy)
        os.setpgid(0, 0)
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if notes is None:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        code = 1
        try:
            code = pytest.main([*QUIETLY, *arguments])
        except BaseException:  # noqa: BLE001 - printed; then the fork ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with processes that a test left running
    return code, output.read_text(errors="replace")


# -- the ledger ------------------------------------------------------------------------------------


class Row(NamedTuple):
    path: str
    line: int
    before: str
    after: str
    verdict: str

    def __str__(self) -> str:
        return f"| {self.path}:{self.line} | {self.before} | {self.after} | {self.verdict} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:100]


def row_of(mutant: Mutant, verdict: str) -> Row:
    path = mutant.path.relative_to(ROOT).as_posix()
    return Row(path, mutant.line, cell(mutant.before), cell(mutant.after), verdict)


def rows_in(text: str) -> list[Row]:
    rows = re.findall(r"^\| (\S+\.py):(\d+) \| (.*?) \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    return [Row(path, int(line), *cells) for path, line, *cells in rows]


def scores(rows: list[Row]) -> Iterator[str]:
    yield "| folder | mutants | killed | equivalent | survive | killed of those that count |"
    yield "|---|---|---|---|---|---|"
    folders = sorted({str(Path(row.path).parent) for row in rows})
    for folder in [*folders, "all"]:
        verdicts = [row.verdict for row in rows if folder in {str(Path(row.path).parent), "all"}]
        same = sum(verdict.startswith(EQUIVALENT) for verdict in verdicts)
        alive = sum(verdict.startswith(SURVIVES) for verdict in verdicts)
        killed, count = len(verdicts) - same - alive, len(verdicts) - same
        share = f"{killed / count:.0%}" if count else ""
        yield f"| {folder} | {len(verdicts)} | {killed} | {same} | {alive} | {share} |"


def keep(rows: list[Row]) -> None:
    """Write the rows of a run into the ledger, in place of older rows of the same mutants."""
    head, _, table = LEDGER.read_text().partition(HEAD)
    kept = {row[:1] + row[2:4]: row for row in [*rows_in(table), *rows]}
    lines = [str(row) for row in sorted(kept.values())]
    LEDGER.write_text(head + HEAD + "\n".join(lines) + "\n")


@click.command()
@click.argument("folders", nargs=-1)
@click.option("--reach", "only_reach", is_flag=True, help="Note which test enters which function.")
@click.option("--count", default=20, show_default=True, help="Mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Chooses them.")
@click.option("-n", "processes", default=2, show_default=True, help="Processes of --reach.")
@click.option("--ledger", is_flag=True, help="Try what tests/mutants.md leaves open, and keep it.")
def main(
    folders: tuple[str, ...], count: int, seed: int, processes: int, only_reach: bool, ledger: bool
) -> None:
    old = rows_in(LEDGER.read_text()) if ledger else []
    known = {row[:1] + row[2:4]: row.verdict for row in old}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="taskq-mutants-") as folder:
        copy = Path(folder, "copy")
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
        if only_reach:
            reach(copy, folders, processes)
            return
        click.echo(HEAD, nl=False)
        reached = Reach()
        for mutant in chosen(folders, count, seed):
            row = row_of(mutant, SURVIVES)
            verdict = known.get(row[:1] + row[2:4], SURVIVES)
            if verdict.startswith(SURVIVES):
                verdict = killer(mutant, copy, reached) or SURVIVES
            rows.append(row._replace(verdict=verdict))
            click.echo(rows[-1])
            if ledger:
                keep(rows)
    click.echo("\n" + "\n".join(scores(rows)))


if __name__ == "__main__":
    main()
