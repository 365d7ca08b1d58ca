"""Examples of the documents run unchanged and print the shown output; links lead somewhere."""

import ast
import asyncio
import inspect
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple
from unittest.mock import Mock

import click
import pytest

from taskq import TaskQ
from taskq import _native as native
from taskq.cli.main import main as command_line
from taskq.connection.logoptions import LogOptions
from taskq.connection.settings import Settings
from tests import drawings, tables
from tests.tables import DOCUMENTS, ROOT
from tests.terminal import Shell, matches, steps

Names = dict[str, Any]

COLUMNS_MAX: Final = 120
FRONT_LINES_MAX: Final = 160
TUTORIALS: Final = ("shop", "desktop", "fleet")
FRONT_BYTES_MAX: Final = 8_192
MAP: Final = ".github/CONTRIBUTING.md"
#: Needs a Spark session: tests/pipeline/test_pipeline_spark.py; tutorials are played by
#: tests/examples/test_examples.py.
ELSEWHERE: Final = {"plugins/README.md", *(f"examples/{name}/README.md" for name in TUTORIALS)}
TEXTS: Final = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
#: The first line of a block that is a file of its own.
_FILE: Final = re.compile(r"# (\w+)\.py\n")
_LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


#: Text that differs from run to run, and its placeholder on both sides of a comparison.
_VARIES: Final = (
    (r"\b[0-9a-f]{8}-\d+\b", "ID"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\b\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:?\d\d)?", "TIME"),
    (r"\b\d+(\.\d+)? ?(ms|s)\b", "SPAN"),
    (r"\bprocess \d+", "process N"),
    (r"\b\d+% part \d", "N% part N"),
    (r"  +", "  "),
)


class Block(NamedTuple):
    """Code between fences, with the last heading before it."""

    section: str
    language: str
    code: str
    #: the text after the code
    output: str


def blocks_of(text: str) -> list[Block]:
    matches = list(_FENCE.finditer(text))
    blocks = []
    for block, later in zip_longest(matches, matches[1:]):
        (*_, section) = re.findall(r"^##+ (.+)$", text[: block.start()], re.MULTILINE) or ["page"]
        is_output = later and later[1] == "text" and not text[block.end() : later.start()].strip()
        blocks.append(Block(section, block[1], block[2], later[2] if later and is_output else ""))
    return blocks


BLOCKS: Final = {name: blocks_of(text) for name, text in TEXTS.items()}
SECTIONS: Final = [
    (name, section)
    for name, blocks in BLOCKS.items()
    if name not in ELSEWHERE
    for section in dict.fromkeys(block.section for block in blocks if block.language == "python")
]


# -- Python blocks ---------------------------------------------------------------------------------


def is_shown(there_is: str, expected: str) -> bool:
    for pattern, word in _VARIES:
        there_is, expected = re.sub(pattern, word, there_is), re.sub(pattern, word, expected)
    return matches(there_is, expected)


async def one_is_scheduled_and_three_are_ready(names: Names) -> None:
    counted = {queue.queue: queue for queue in (await names["app"].stats()).queues}
    assert (counted["mail"].ready, counted["mail"].scheduled) == (4, 1)


async def it_waits(names: Names) -> None:
    assert len(names["upload"].requires) == 2


Hook = Callable[[Names], Any]
AFTER: Final[dict[str, Hook]] = {
    "Enqueue": one_is_scheduled_and_three_are_ready,
    "Conditions": it_waits,
}
#: Blocks that continue an earlier block.
GOES_ON: Final = {"Enqueue": "Tasks", "Circuit breakers": "Conditions"}


def run_block(code: str, names: Names) -> None:
    """Run a block as a module; top-level ``await`` runs on an event loop."""
    compiled = compile(code, names["__name__"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(compiled, names)  # noqa: S307 - our own text
    if inspect.isawaitable(made):
        asyncio.run(_await(made))


async def _await(made: Any) -> None:
    await made


@pytest.mark.parametrize(("document", "section"), SECTIONS, ids=str)
def test_the_python_of_a_section_runs_and_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    document: str, section: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = [block.code for block in BLOCKS[document] if block.section == GOES_ON.get(section)]
    here = [block for block in BLOCKS[document] if block.section == section]
    files = [named[1] for item in here if (named := _FILE.match(item.code))]
    module = ModuleType(files[0] if files else "shown")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(module)
    try:
        run_block('from taskq import TaskQ\n\napp = TaskQ("./data")', names)
        for code in before:
            run_block(code, names)
        for block in (item for item in here if item.language == "python"):
            capsys.readouterr()
            if named := _FILE.match(block.code):
                (tmp_path / f"{named[1]}.py").write_text(block.code, encoding="utf-8")
            run_block(block.code, names)
            printed = capsys.readouterr().out
            assert is_shown(printed, block.output), f"it prints:\n{printed}"
        if section in AFTER:
            asyncio.run(AFTER[section](names))
    finally:
        for app in {id(name): name for name in names.values() if isinstance(name, TaskQ)}.values():
            app.close_sync()
    play("\n".join(f"```console\n{item.code}```" for item in here if item.language == "console"))


def play(session: str) -> None:
    """Type the commands of a terminal session, and compare their output."""
    here = Path.cwd()
    shell = Shell(here)
    try:
        for step in steps(session):
            shown = shell.run(step.typed).replace(str(here), "/home/you")
            shown = shown.replace(f"plain jobs  {native.label()}", "plain jobs  C")
            assert is_shown(shown, step.shown), f"$ {step.typed}\n{shown}"
    finally:
        shell.close()


def test_every_session_that_is_shown_is_played() -> None:
    for document, blocks in BLOCKS.items():
        for block in blocks:
            played = block.language != "console" or (document, block.section) in SECTIONS
            # The output of the folder_sync example is free text; its own tests run it.
            assert played or document in ELSEWHERE or "folder_sync" in document, block


@pytest.mark.parametrize(
    "block", [item.code for all_ in BLOCKS.values() for item in all_ if item.language == "toml"]
)
def test_the_settings_shown_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taskq.toml").write_text(block)
    settings = TaskQ().settings
    assert settings.model_fields_set
    assert settings.queues


# -- generated parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_made_of_the_code_is_what_the_code_says(document: str) -> None:
    assert tables.anew(TEXTS[document]) == TEXTS[document], "run: python -m tests.tables"


def test_pictures_of_the_demo_show_its_recording() -> None:
    for name, text in drawings.pictures().items():
        path = drawings.FOLDER / name
        assert path.read_text("utf-8") == text, "run: python -m tests.drawings"


def test_each_part_that_can_be_made_stands_in_one_place() -> None:
    for name in tables.MADE:
        marks = [text.count(f"<!-- {name}: made by") for text in TEXTS.values()]
        assert sum(marks) == 1, name


def test_a_task_log_takes_all_settings_of_an_app_except_program_settings() -> None:
    of_the_program = {"data_dir", "log_level", "log_format", "hub", "plugins"}
    assert Settings.model_fields.keys() - of_the_program == set(LogOptions.__annotations__)


def commands_told() -> list[tuple[str, list[str]]]:
    seen = []
    for document, text in TEXTS.items():
        lines = [
            line
            for block in BLOCKS[document]
            for line in block.code.splitlines()
            if block.language in {"sh", "ini", "dockerfile"} or line.startswith("$ ")
        ]
        lines += re.findall(r"`(taskq [^`\n]+)`", _FENCE.sub("", text))
        for line in lines:
            _, result, rest = line.partition("taskq ")
            if result and re.match(r"(^|.*[\s/`])$", line[: -len(rest) - len("taskq ")]):
                words = shlex.split(rest.replace("…", " "), comments=True)
                seen.append((f"{document}: {line}", words))
    return seen


def test_every_documented_command_and_option_exists() -> None:
    answer = commands_told()
    assert len(answer) > 80
    for line, words in answer:
        command: click.Command = command_line
        while words and isinstance(command, click.Group):
            if words[0] in {"-d", "--data-dir"}:
                del words[:2]
                continue
            inner = command.get_command(click.Context(command), words[0])
            if inner is None:
                assert command is not command_line, f"{line}: there is no command {words[0]}"
                break
            command = inner
            del words[0]
        command = getattr(command, "commands", {}).get(words[0] if words else "", command)
        known = {
            name
            for parameter in command.params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        if "|" in words:
            del words[words.index("|") :]
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert given <= known | {"--help"}, line


# -- links and shape -------------------------------------------------------------------------------


def anchors_of(text: str) -> set[str]:
    titles = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    text = _FENCE.sub("", TEXTS[document])
    for target in _LINK.findall(text):
        if target.startswith("https://"):
            continue  # other sites may change
        place, _, anchor = target.partition("#")
        path = ((ROOT / document).parent / place).resolve() if place else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        if anchor:
            assert anchor in anchors_of(path.read_text(encoding="utf-8")), f"{document}: {target}"


def test_the_description_on_an_index_links_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "hatchling.metadata.plugin.interface", Mock(MetadataHookInterface=object)
    )
    hook = runpy.run_path(str(ROOT / ".docs/metadata.py"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    described = hook["without_links"](f"{text}\n[kept](https://example.org)\n")
    assert re.findall(r"\]\(([^)]*)\)", described) == ["https://example.org"]
    assert "| look something up | reference, workers," in described


def test_every_document_is_known_here_and_linked_from_another() -> None:
    seen = {
        path.relative_to(ROOT).as_posix()
        for folder in ("taskq", "workers", "plugins", "examples", "tests")
        for path in (ROOT / folder).rglob("README.md")
    }
    for pages in (".github/*.md", ".docs/pages/**/*.md"):
        seen |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pages)}
    assert seen | {"README.md"} == set(DOCUMENTS)
    linked = {
        ((ROOT / document).parent / target.partition("#")[0]).resolve()
        for document, text in TEXTS.items()
        for target in _LINK.findall(text)
    }
    assert {ROOT / name for name in seen} <= linked


def test_the_front_page_fits_three_screens() -> None:
    front = TEXTS["README.md"]
    assert len(front.splitlines()) <= FRONT_LINES_MAX
    assert len(front.encode()) <= FRONT_BYTES_MAX


def test_the_map_of_the_house_has_every_room() -> None:
    (text,) = [block.code for block in BLOCKS[MAP] if block.section == "The map of the code"]
    # A package is named at the beginning of a line or of its second half, its parts after a colon.
    rooms = set(re.findall(r"(?:^|   )((?:taskq/|)\w+)  ", text, re.MULTILINE))
    top = {"taskq", "workers", "plugins", "examples", "tests"}
    folders = {path.parent for path in (ROOT / "taskq").glob("*/__init__.py")}
    assert rooms == {path.relative_to(ROOT).as_posix() for path in folders} | top - {"taskq"}
    within = [*ROOT.glob("taskq/log/*/"), *ROOT.glob("workers/taskq_workers/*/")]
    for path in within:
        if not any(path.glob("*.py")):  # leftovers of a removed package
            continue
        assert path.name.startswith("_") or f"{path.name}: " in text, path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_of_ours_that_is_named_is_there(document: str) -> None:
    named = re.findall(r"`((?:taskq|workers|plugins|examples|tests)/[\w/.]+)`", TEXTS[document])
    for path in named:
        assert (ROOT / path).exists(), f"{document} names {path}"


def test_documented_extras_match_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (answer,) = re.findall(r"^Extras [^.]*\.$", TEXTS["README.md"], re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", answer)) == set(project["optional-dependencies"])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_line_is_wider_than_a_page(document: str) -> None:
    for number, line in enumerate(TEXTS[document].splitlines(), start=1):
        is_row = line.startswith("|") and document != "README.md"
        assert is_row or len(line) <= COLUMNS_MAX, f"{document}:{number} has {len(line)} columns"


def test_every_test_that_is_named_is_there() -> None:
    """Promises and features of other systems link the name of their test to its file."""
    named = tables.TEST_LINK.findall(TEXTS["tests/README.md"])
    assert len(named) > 100
    homes = tables.homes_of_tests()
    for title, place in named:
        name = title if title.endswith(".py") else f"test_{title.replace(' ', '_')}"
        assert place in homes.get(name, []), f"{place} has no {title}: run python -m tests.tables"


def test_each_line_of_what_others_do_names_a_test_or_says_that_it_is_to_come() -> None:
    _, _, rows = TEXTS["tests/README.md"].partition("### LedgerQ\n")
    assert tables.TEST_LINK.search(rows)
    for row in (line for line in rows.splitlines() if line.startswith("|")):
        is_heading = row.endswith("| here | held by |") or set(row) <= set("|-")
        assert is_heading or tables.TEST_LINK.search(row) or "not yet" in row, row
