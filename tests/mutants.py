"""Break the code in one place after another, and see which test notices.

    python -m tests.mutants taskq/core taskq/log workers --count 60 --seed 1

Each mutant is one small change of one function: a comparison that is off by an equals sign, a
condition turned round, a call left out. It is tried on a copy of the tree, by the tests of its own
room first and by the rest of the default suite last, until one fails. Prints a row for each, in
Markdown: keep those of a run that matters beside what was argued of the survivors. A survivor is a
test to write, unless nobody could ever see the difference.
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
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import pytest

from taskq.core.values import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
#: How long the tests of one stage may take: a mutant that hangs is noticed.
STAGE_SECONDS: Final = 1_800
#: Behind the tests of its own room: those of the engine, of who uses it, and of everything else.
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
#: What is said to people, or to the type checker, changes nothing that is done.
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
        """Return the file as changed."""
        source = self.path.read_bytes()
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file's functions."""
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
    """Return what stands in place of a node, None for those that are left as they are."""

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
    """Return so many mutants: each file as likely as its number of mutants."""
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    all_of_them = list(dict.fromkeys(mutant for path in files for mutant in mutants(path)))
    return random.Random(seed).sample(all_of_them, min(count, len(all_of_them)))


def stages(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield folders of tests, those of the file's own room first."""
    room = path.relative_to(ROOT).parent
    own = Path("tests", *(part for part in room.parts if part not in {"taskq", "taskq_workers"}))
    while not (ROOT / own).is_dir():
        own = own.parent
    if own != Path("tests"):
        yield (str(own),)
    yield from STAGES


def killer(mutant: Mutant, copy: Path, processes: int) -> str | None:
    """Return the test that fails beside a mutant; None: it survives them all."""
    target = copy / mutant.path.relative_to(ROOT)
    target.write_bytes(mutant.source())
    folders = [str(copy / folder) for folder in ("", "workers", "plugins")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-m", "pytest", "-x", "-n", str(processes), "--dist", "loadgroup"]
    try:
        for stage in stages(mutant.path):
            there = [folder for folder in stage if (copy / folder).is_dir()]
            try:
                done = subprocess.run(
                    [*command, *there],
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=STAGE_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "a hang"
            if done.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
                return failed[1] if failed else f"exit {done.returncode} of {' '.join(there)}"
    finally:
        shutil.copyfile(mutant.path, target)
    return None


@click.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--count", default=20, show_default=True, help="Mutants to try.")
@click.option("--seed", default=1, show_default=True, help="Chooses them.")
@click.option("-n", "processes", default=2, show_default=True, help="Processes of pytest.")
@click.option("--list", "only_list", is_flag=True, help="Say which they are, and try none.")
def main(folders: tuple[str, ...], count: int, seed: int, processes: int, only_list: bool) -> None:
    """Try mutants of FOLDERS."""
    survivors = 0
    tried = chosen(list(folders), count, seed)
    click.echo("| place | before | after | killed by | s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="taskq-mutants-") as folder:
        copy = Path(folder, "copy")
        if not only_list:
            files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
            for name in files:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy / name)
        for mutant in tried:
            began = time.monotonic()
            test = "not tried" if only_list else killer(mutant, copy, processes)
            survivors += test is None
            place = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
            cells = [place, mutant.before, mutant.after, test or "**survives**"]
            row = " | ".join(" ".join(cell.split()).replace("|", "\\|")[:100] for cell in cells)
            click.echo(f"| {row} | {time.monotonic() - began:.0f} |")
    if not only_list:
        click.echo(f"\n{len(tried) - survivors} of {len(tried)} killed.")


if __name__ == "__main__":
    main()
