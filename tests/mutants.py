"""Break the code in one place after another, and see which test notices.

    python -m tests.mutants taskq/core taskq/log workers --count 60 --seed 1

Each mutant is one small change of one function: a comparison that is off by an equals sign, a
condition turned round, a call left out. It is tried on a copy of the tree, by the tests of its own
room first and by the rest of the default suite last, until one fails, and fails again when it runs
alone. Prints a row for each as it is tried, in Markdown, and the score of each folder at the end.

A survivor is a test to write, unless nobody could ever see the difference: then the ledger
(tests/mutants.md) says "equivalent: …" in its last column. ``--ledger`` keeps the rows of a run
there, and tries no mutant again that it calls killed or equivalent.
"""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pytest

from taskq.core.values import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
LEDGER: Final = ROOT / "tests/mutants.md"
SURVIVES: Final = "**survives**"
#: The ledger's mark of a mutant that equals the code.
EQUIVALENT: Final = "equivalent: "
HEAD: Final = "| place | before | after | killed by |\n|---|---|---|---|\n"
#: How long the tests of one stage may take: a mutant that hangs is noticed.
STAGE_SECONDS: Final = 1_800
#: After the tests of its own room: tests of the engine, of its users, and all others.
STAGES: Final = (
    ("tests/core", "tests/log"),
    ("tests/app", "tests/workers", "tests/reading", "tests/calls", "tests/connection"),
    ("tests/processes", "tests/flows", "tests/schedules", "tests/testing", "tests/cli"),
    ("tests/hub", "tests/shards", "tests/fleet", "tests/web", "tests/top", "tests/prometheus"),
)
_OTHER: Final[dict[type[ast.AST], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.And: "or", ast.Or: "and", ast.Add: "-", ast.Sub: "+",
}  # fmt: skip
#: Messages and type hints change no behaviour.
_IDLE: Final = re.compile(r"_log\.|warnings\.|cast\(|super\(\)\.__init__|assert |TYPE_CHECKING")


class Mutant(NamedTuple):
    """One change of one file."""

    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str

    def source(self) -> bytes:
        source = self.path.read_bytes()
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                if not isinstance(node, ast.expr | ast.stmt):
                    continue
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
                before = source[start:end].decode()
                after = changed(node, source.decode())
                if after is not None and not _IDLE.match(before):
                    yield Mutant(path, node.lineno, start, end, before, after)


def changed(node: ast.AST, source: str) -> str | None:
    def text(part: ast.AST) -> str:
        return ast.get_source_segment(source, part) or ""

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


def chosen(folders: list[str], count: int, seed: int) -> list[Mutant]:
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    all_of_them = list(dict.fromkeys(mutant for path in files for mutant in mutants(path)))
    return random.Random(seed).sample(all_of_them, min(count, len(all_of_them)))


def stages(path: Path) -> Iterator[tuple[str, ...]]:
    room = path.relative_to(ROOT).parent
    own = Path("tests", *(part for part in room.parts if part not in {"taskq", "taskq_workers"}))
    while not (ROOT / own).is_dir():
        own = own.parent
    if own != Path("tests"):
        yield (str(own),)
    yield from STAGES


def killer(mutant: Mutant, copy: Path, processes: int, *, only_own: bool) -> str | None:
    """Return the test that fails beside a mutant; None: it survives them all."""
    target = copy / mutant.path.relative_to(ROOT)
    target.write_bytes(mutant.source())
    try:
        for stage in list(stages(mutant.path))[: 1 if only_own else None]:
            folders = [folder for folder in stage if (copy / folder).is_dir()]
            shaky: list[str] = []
            while failed := failure(copy, processes, *folders, *(f"--deselect={t}" for t in shaky)):
                # Alone and once more: on a busy machine a test may fail for another reason.
                if "::" not in failed or failure(copy, 0, failed):
                    return failed
                shaky.append(failed)
    finally:
        shutil.copyfile(mutant.path, target)
    return None


def failure(copy: Path, processes: int, *arguments: str) -> str | None:
    """Return the first of these tests that fails, None if all pass."""
    paths = [str(copy / folder) for folder in ("", "workers", "plugins")]
    command = [sys.executable, "-m", "pytest", "-x", "-n", str(processes), "--dist", "loadgroup"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=STAGE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "a hang"
    if done.returncode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit {done.returncode} of {' '.join(arguments)}"


# -- the ledger ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A line of the ledger."""

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
    """Put the lines of a run into the ledger, over older ones of the same mutants."""
    head, _, table = LEDGER.read_text().partition(HEAD)
    kept = {row[:1] + row[2:4]: row for row in [*rows_in(table), *rows]}
    lines = [str(row) for row in sorted(kept.values())]
    LEDGER.write_text(head + HEAD + "\n".join(lines) + "\n")


@click.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--count", default=20, show_default=True, help="Mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Chooses them.")
@click.option("-n", "processes", default=2, show_default=True, help="Processes of pytest.")
@click.option("--own", "only_own", is_flag=True, help="Try only the tests of a mutant's own room.")
@click.option("--ledger", is_flag=True, help="Try what tests/mutants.md leaves open, and keep it.")
@click.option("--list", "only_list", is_flag=True, help="Say which they are, and try none.")
def main(
    folders: tuple[str, ...],
    count: int,
    seed: int,
    processes: int,
    only_own: bool,
    ledger: bool,
    only_list: bool,
) -> None:
    """Try mutants of FOLDERS."""
    known = {row[:1] + row[2:4]: row.verdict for row in rows_in(LEDGER.read_text()) if ledger}
    rows: list[Row] = []
    click.echo(HEAD, nl=False)
    with tempfile.TemporaryDirectory(prefix="taskq-mutants-") as folder:
        copy = Path(folder, "copy")
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
        for mutant in chosen(list(folders), count, seed):
            row = row_of(mutant, "not tried")
            verdict = known.get(row[:1] + row[2:4], SURVIVES)
            if verdict.startswith(SURVIVES) and not only_list:
                verdict = killer(mutant, copy, processes, only_own=only_own) or SURVIVES
            rows.append(row._replace(verdict="not tried" if only_list else verdict))
            click.echo(rows[-1])
            if ledger:
                keep(rows)
    if not only_list:
        click.echo("\n" + "\n".join(scores(rows)))


if __name__ == "__main__":
    main()
