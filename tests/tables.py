"""Generated parts of the documents: tables, the tree of errors, the diagram of states.

Each is between ``<!-- NAME: made by python -m tests.tables -->`` and ``<!-- end -->``. Run
``python -m tests.tables`` when a test reports a stale part: it writes all parts again, and mends
the links in tests/README.md to tests that have moved.
"""

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import click
from pydantic import ByteSize

from taskq import TaskQ
from taskq import errors as error_tree
from taskq.app.tasks import TaskChoices
from taskq.calls.call import JobOptions, OptionChanges, Options
from taskq.cli.main import BUILT_IN, SECTIONS
from taskq.cli.main import main as command_line
from taskq.connection.logoptions import LogOptions
from taskq.connection.settings import Settings
from taskq.core.kinds import diagram
from taskq.core.records import TABLE
from taskq_workers.pool import Worker

ROOT: Final = Path(__file__).parents[1]
#: Every page of the documentation.
DOCUMENTS: Final = (
    ".github/CONTRIBUTING.md",
    ".github/SECURITY.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(".docs/pages/**/*.md"))),
    "README.md",
    "taskq/README.md",
    "workers/README.md",
    "plugins/README.md",
    "examples/README.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("examples/*/README.md"))),
    "tests/README.md",
    "tests/bench/README.md",
)
_BLOCK: Final = re.compile(
    r"(<!-- ([\w ]+): made by python -m tests\.tables -->\n)(.*?)(<!-- end -->)", re.DOTALL
)
#: A link with a test's name to its file.
TEST_LINK: Final = re.compile(r"\[([^\]]+)\]\(([\w/]*test_\w+\.py)\)")
#: The format of the numbers in a record, for ``struct``.
_TYPES: Final = dict(
    zip(("B", "H", "I", "Q", "q", "16s"), ["u8", "u16", "u32", "u64", "i64", "16"], strict=True)
)
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n"
                   for line in lines)  # fmt: skip


def comments_of(cls: type) -> dict[str, str]:
    source = inspect.getsource(cls).splitlines()
    (body,) = ast.parse("\n".join(source)).body
    assert isinstance(body, ast.ClassDef)
    said = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = last = node.lineno - 1
            while source[first - 1].strip().startswith("#:"):
                first -= 1
            lines = (line.strip().removeprefix("#:").strip() for line in source[first:last])
            said[node.target.id] = " ".join(lines).replace("``", "`")
    return said


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1_000:g}ms"
    return next(f"{seconds / size:g}{unit}" for unit, size in _UNITS if seconds % size == 0)


def size(count: int) -> str:
    return next(f"{count // unit}{name}" for name, unit in _SIZES if count % unit == 0)


def written(value: Any) -> str:
    if value is None or value in ("", (), {}, []):
        return ""
    if isinstance(value, ByteSize):
        return f"`{size(value)}`"
    return f'`"{value}"`' if isinstance(value, str | Path) else f"`{value}`"


def task_options() -> str:
    async def bare(value: int) -> None: ...

    task = TaskQ(ROOT / "no-log").task(bare)
    common = Options()
    default = {
        "name": "`module.function`", "queue": written(common.queue),
        "priority": written(common.priority), "attempts": written(common.attempts),
        "retry": f"`{task.retry.attempts}` attempts, exponential", "delay": "`0`",
        "on_conflict": written(common.on_conflict.name.lower()),
        "store_result": "`True`" if task.store_result else "`False`",
        "durable_claim": "`False`, `True` with one attempt",
        "while_running": "`True`" if task.while_running else "`False`",
    }  # fmt: skip
    for name in ("timeout", "soft_timeout", "aliases", "on_dead", "requires", "runs_in"):
        assert not getattr(task, name), f"{name} has a default: add it to the table"
    shared = comments_of(JobOptions)
    whole, single = shared | comments_of(TaskChoices), shared | comments_of(OptionChanges)
    rows = []
    for name in (*whole, *(name for name in single if name not in whole)):
        where = "both" if name in single and name in whole else "task" if name in whole else "call"
        said = sentence(whole.get(name) or single[name])
        rows.append((f"`{name}`", where, default.get(name, ""), said))
    return table(("option", "of", "unless given", "what it says"), rows)


def choices_of(annotation: Any) -> tuple[str, ...]:
    if isinstance(annotation, type) and issubclass(annotation, enum.StrEnum):
        return tuple(annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def settings() -> str:
    rows = []
    own, of_log = comments_of(Settings), comments_of(LogOptions)
    for name in dict.fromkeys(("data_dir", *of_log, *own)):
        if name not in Settings.model_fields:
            continue
        said = own.get(name) or of_log[name]
        field = Settings.model_fields[name]
        value = field.get_default(call_default_factory=True)
        choices = ", ".join(f'`"{choice}"`' for choice in choices_of(field.annotation))
        is_span = isinstance(value, float)
        default = f"`{span(value)}`" if is_span else written(value)
        rows.append((f"`{name}`", default, sentence(said) + (f": {choices}" if choices else "")))
    return table(("setting", "unless given", "what it says"), rows)


def commands() -> str:
    context = click.Context(command_line)
    assert {*command_line.list_commands(context)} == {*chain.from_iterable(SECTIONS.values())}
    rows = []
    for names in SECTIONS.values():
        for name in names:
            rows.append((f"`taskq {name}`", BUILT_IN[name][1]))
            command = command_line.get_command(context, name)
            if isinstance(command, click.Group):
                rows.extend(_within(name, command))
    return table(("command", "what it does"), rows)


def _within(name: str, group: click.Group) -> Iterator[tuple[str, str]]:
    context = click.Context(group)
    for inner in group.list_commands(context):
        command = group.get_command(context, inner)
        assert command is not None
        yield f"`taskq {name} {inner}`", command.get_short_help_str(limit=200)


def worker_options() -> str:
    command = command_line.get_command(click.Context(command_line), "worker")
    assert command is not None
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        said, _, stated = (option.help or "").partition("  [default: ")
        default = stated.rstrip("]") or (str(option.default) if option.show_default else "")
        metavar = option.metavar or max(option.opts, key=len)[2:].upper()
        name = ", ".join(option.opts) + ("" if option.is_flag else f" {metavar}")
        rows.append((f"`{name}`", default, said))
    return table(("option", "unless given", "what it does"), rows)


def worker_keywords() -> str:
    documented = inspect.getdoc(Worker)
    assert documented
    listed = documented.split("Args:\n")[1].split("\n\n")[0]
    said = {
        match[1]: " ".join(match[2].split())
        for match in re.finditer(r"^    (\w+): (.*(?:\n     .*)*)", listed, re.MULTILINE)
    }
    rows = []
    for name, parameter in inspect.signature(Worker).parameters.items():
        if name != "app":
            words = sentence(said[name].replace("``", "`").rstrip("."))
            value = parameter.default
            is_span = isinstance(value, float)
            rows.append((f"`{name}`", f"`{span(value)}`" if is_span else written(value), words))
    return table(("keyword", "unless given", "what it says"), rows)


def errors() -> str:
    assert error_tree.__doc__
    tree = inspect.cleandoc(error_tree.__doc__.split("::\n", 1)[1].split('"""')[0])
    return f"```text\n{tree}\n```\n"


def states() -> str:
    return f"```mermaid\n{diagram()}\n```\n"


def specification() -> str:
    rule = "============ ==== " + "=" * 80
    lines = [
        rule, f"{'type':12} size {'what it says; its byte, its fixed fields and its body'}", rule,
    ]  # fmt: skip
    for row in TABLE.values():
        letters = re.findall(r"16s|.", row.layout.formats)
        fields = zip(row.layout.names.split(), letters, strict=True)
        said = f"{row.says}; byte: {row.byte}; "
        said += ", ".join(f"{name} {_TYPES[letter]}" for name, letter in fields)
        said += f"; body: {row.body.value}" * bool(row.body.value)
        lines += [
            f"{head:17} {line}"
            for head, line in zip_longest(
                [f"{row.name.upper():12} {row.layout.struct.size}"],
                textwrap.wrap(said, 80),
                fillvalue="",
            )
        ]
    return "\n".join([*lines, rule])


def specified(source: str) -> str:
    """Return the source of the codec with the current table of kinds."""
    table = textwrap.indent(specification(), "# ")
    made, count = re.subn(
        r"(?ms)^# =+ =+ =+\n# type\b.*?^# =+ =+ =+\n.*?^# =+ =+ =+$", lambda _: table, source
    )
    assert count == 1
    return made


MADE: Final[dict[str, Callable[[], str]]] = {
    "task options": task_options, "settings": settings, "commands": commands,
    "worker options": worker_options, "worker keywords": worker_keywords, "errors": errors,
    "states": states,
}  # fmt: skip


def anew(text: str) -> str:
    """Return a document with all generated parts up to date."""
    return _BLOCK.sub(lambda match: match[1] + MADE[match[2]]() + match[4], text)


@cache
def homes_of_tests() -> dict[str, list[str]]:
    """Return the files with each test, and with each file's name, relative to tests/."""
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(ROOT / "tests").as_posix()
        homes.setdefault(path.name, []).append(place)
        for name in re.findall(
            r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE
        ):
            homes.setdefault(name, []).append(place)
    return homes


def mended(text: str) -> str:
    """Return a text with broken links to tests repaired, if a test is in exactly one file."""

    def mend(match: re.Match[str]) -> str:
        title, place = match.groups()
        homes = homes_of_tests()
        name = title if title.endswith(".py") else f"test_{title.replace(' ', '_')}"
        there = homes.get(name, [])
        return match[0] if place in there or len(there) != 1 else f"[{title}]({there[0]})"

    return TEST_LINK.sub(mend, text)


def main() -> None:
    codec = ROOT / "taskq/log/format/codec.py"
    codec.write_text(specified(codec.read_text("utf-8")), "utf-8")
    for name in DOCUMENTS:
        path = ROOT / name
        text = anew(path.read_text(encoding="utf-8"))
        path.write_text(mended(text) if name == "tests/README.md" else text, encoding="utf-8")


if __name__ == "__main__":
    main()
