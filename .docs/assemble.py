"""Make the pages of the site: from the Markdown in place, section by section, and from the code.

MkDocs calls ``on_files`` (a hook). A guide's section becomes a page of its own, links between
documents lead to these pages, and the reference lists what the public modules name in ``__all__``.
"""

from __future__ import annotations

import html
import importlib
import json
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
#: Documents that are cut into a page a section, and the folder of these pages.
GUIDES: Final = {
    "taskq/README.md": "guide",
    "workers/README.md": "workers",
    "plugins/README.md": "fleet",
    "examples/README.md": "examples",
}
#: Documents that are one page.
PAGES: Final = (
    {
        "README.md": "index.md",
        "plugins/taskq_plugins/hub/PROTOCOL.md": "hub-protocol.md",
        "tests/README.md": "project/tests.md",
        "tests/bench/README.md": "project/figures.md",
        "CHANGELOG.md": "project/changelog.md",
        ".github/CONTRIBUTING.md": "project/contributing.md",
        ".github/SECURITY.md": "project/security.md",
    }
    | {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / ".docs/pages").as_posix()
        for path in ROOT.glob(".docs/pages/**/*.md")
    }
    | {
        path.relative_to(ROOT).as_posix(): f"examples/{path.parent.name.replace('_', '-')}.md"
        for path in ROOT.glob("examples/*/README.md")
    }
)
#: What .github/CONTRIBUTING.md calls public.
MODULES: Final = (
    "taskq",
    "taskq.errors",
    "taskq.views",
    "taskq.durable",
    "taskq.retry",
    "taskq.conditions",
    "taskq.testing",
    "taskq.values",
    "taskq.hooks",
    "taskq.engine",
    "taskq.arrow",
    "taskq.cli",
)
#: Public names that stand for some of Python's own, which has their documentation.
STANDARD: Final = {
    "NamedTuple": "## NamedTuple\n\n`typing.NamedTuple`, whose methods are made at the first use.",
    "dataclass": "## dataclass\n\n`dataclasses.dataclass`, with methods made at the first use.",
}
#: How much a find weighs, by folder: whoever asks a question wants a page that explains.
BOOSTS: Final = {
    "how": 4,
    "wrong.md": 2,
    "reference": 0.3,
    "from": 0.3,
    "project": 0.3,
}
#: Other libraries, each with a page of what its users write here.
LIBRARIES: Final = ("Celery", "Huey", "arq", "dramatiq", "taskiq", "dbos")
_COMING: Final = "coming-from-"
_FENCED: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
#: The last comment of a page: words that people search for, and that its text need not have.
_WORDS: Final = re.compile(r"<!-- words: (.*?)\s*-->\n*", re.DOTALL)
_SESSION: Final = re.compile(r'<div class="highlight">(<pre>.*?</pre>)</div>', re.DOTALL)
_MERMAID: Final = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
_STEP: Final = re.compile(r"^ *(\S+) --> (\S+?)(?:: (.*))?$", re.MULTILINE)


def slug(heading: str) -> str:
    """Return a heading as GitHub and MkDocs write it in an address."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


class Section(NamedTuple):
    """A part of a document: the page it becomes, its text, and the headings within."""

    page: str
    text: str
    anchors: tuple[str, ...]


def headings(text: str) -> list[re.Match[str]]:
    """Return the headings of a text, without what looks like one in code."""
    code = [range(*fence.span()) for fence in _FENCED.finditer(text)]
    return [
        match
        for match in _HEADING.finditer(text)
        if not any(match.start() in block for block in code)
    ]


def sections_of(document: str) -> Iterator[Section]:
    """Yield the pages of a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    if document in PAGES:
        yield Section(PAGES[document], text, tuple(slug(match[2]) for match in headings(text)))
        return
    folder = GUIDES[document]
    starts = [match for match in headings(text) if match[1] == "##"]
    yield Section(f"{folder}/index.md", text[: starts[0].start()], ())
    ends = [match.start() for match in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=True):
        body = text[start.start() : end]
        inner = tuple(slug(match[2]) for match in headings(body))
        name = slug(start[2])
        page = "from/index.md" if name.startswith(_COMING) else f"{folder}/{name}.md"
        yield Section(page, body, inner)


class Site:
    """All pages, and where each place of each document has gone."""

    def __init__(self) -> None:
        self.sections = {document: list(sections_of(document)) for document in (*GUIDES, *PAGES)}
        self.sources: set[str] = set()
        self.pictures: set[str] = set()

    def address(self, document: str, anchor: str) -> str | None:
        """Return the page of a place in a document, with its anchor; None if it is in none."""
        sections = self.sections.get(document, [])
        for section in sections:
            if anchor in section.anchors:
                is_first = document in GUIDES and section.anchors[0] == anchor
                return section.page if is_first else f"{section.page}#{anchor}"
        return sections[0].page if sections and not anchor else None

    def link(self, document: str, page: str, match: re.Match[str]) -> str:
        """Return a link of a document as it is on a page."""
        is_picture, text, target = match.groups()
        if re.match(r"\w+:", target):
            return match[0]
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
        there = document if not path else there
        if is_picture:
            there = there.replace("demo-still", "demo")  # a site can play it
            self.pictures.add(there)
            address = picture(there)
        elif there in self.sections:
            found = self.address(there, anchor)
            if found is None:
                raise ValueError(f"{document}: there is no {target}")
            address = found
        elif there.startswith("examples/") and (ROOT / there).is_file():
            self.sources.add(there)
            address = f"source/{there}.md"
        elif (ROOT / there).exists():
            return text  # the tests and the code are in the repository
        else:
            raise ValueError(f"{document}: there is no {target}")
        name, sharp, anchor = address.partition("#")
        near = posixpath.relpath(name, posixpath.dirname(page) or ".")
        return f"{is_picture}[{text}]({near}{sharp}{anchor})"

    def written(self, document: str, section: Section) -> str:
        """Return a section as MkDocs reads it."""
        text = _MERMAID.sub(drawn_as_table, section.text)
        parts, last = [], 0
        for fence in _FENCED.finditer(text):
            parts += [self.prose(document, section.page, text[last : fence.start()])]
            parts += [re.sub(r"^ +", lambda m: m[0] * 2, fence[0], flags=re.MULTILINE)
                      if fence[1] else fence[0]]  # fmt: skip
            last = fence.end()
        whole = "".join([*parts, self.prose(document, section.page, text[last:])])
        if document in GUIDES and not section.page.endswith("/index.md"):
            whole = promoted(whole)
        return promoted(whole) if section.page == "from/index.md" else whole

    def prose(self, document: str, page: str, text: str) -> str:
        """Return text between code with its links, and its lists as Python-Markdown nests them."""
        text = re.sub(r"^ +(?=\S)", lambda match: match[0] * 2, text, flags=re.MULTILINE)
        return _LINK.sub(lambda match: self.link(document, page, match), text)


def picture(path: str) -> str:
    """Return the address of a picture; MkDocs leaves out hidden folders."""
    return f"files/{path.removeprefix('.')}"


def promoted(text: str) -> str:
    """Return a text whose headings stand one level higher."""
    for match in reversed(headings(text)):
        text = text[: match.start()] + text[match.start() + 1 :]
    return text


def drawn_as_table(match: re.Match[str]) -> str:
    """Return a diagram of states as a table: no script from elsewhere draws it."""
    rows = [
        f"| {'' if old == '[*]' else old} | {how or 'for good'} | {'' if new == '[*]' else new} |"
        for old, new, how in _STEP.findall(match[1])
    ]
    return "\n".join(["| from | what happens | to |", "|---|---|---|", *rows]) + "\n"


def coming_from(text: str, library: str) -> str:
    """Return the page for users of one library: the rows of the table that are of it."""
    rows = re.findall(r"^\| (?!you know|---)(.+) \| ([^|]+) \| (.+) \|$", text, re.MULTILINE)
    lines = [
        f"| {old} | {new} |"
        for old, of, new in rows
        if of == "all" or library in re.split(r",? (?:on \w+)?,? ?|, ", of) or library in of
    ]
    comparison = "../examples/compared-with-other-job-frameworks.md"
    return "\n".join([
        f"# Coming from {library}",
        "",
        "What you write there, and what you write here; words of other libraries are answered with",
        f"the word to write instead. [All libraries](index.md), [a comparison]({comparison}).",
        "",
        f"| {library} | taskq |",
        "|---|---|",
        *lines,
        "",
    ])  # fmt: skip


def reference(module: str) -> str:
    """Return the page of a public module: what it says of itself, and each name it lists."""
    loaded: Any = importlib.import_module(module)
    names = "\n\n".join(
        STANDARD.get(name, f"::: {module}.{name}") for name in loaded.__all__ if name[0] != "_"
    )
    return f"# {module}\n\n{(loaded.__doc__ or '').strip()}\n\n{names}\n"


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    """Yield each command with its arguments and options."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        yield f"## {inner.command_path}\n\n`{inner.command_path} {usage}`\n"
        yield re.sub(r"(?m)^ +|\x08", "", command.help or "") + "\n"
        records = [item.get_help_record(inner) for item in command.get_params(inner)]
        rows = [f"| `{row[0]}` | {row[1].replace('|', '/')} |" for row in records if row]
        yield "\n".join(["| option | |", "|---|---|", *rows]) + "\n"
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def pages(site: Site) -> Iterator[tuple[str, str]]:
    """Yield all pages that are made: address and Markdown."""
    for document, sections in site.sections.items():
        for section in sections:
            if section.page not in {"guide/index.md", "examples/index.md"}:
                yield section.page, site.written(document, section)
            if section.page == "from/index.md":
                for library in LIBRARIES:
                    yield f"from/{library.lower()}.md", coming_from(section.text, library)
    for module in MODULES:
        yield f"reference/{module}.md", reference(module)
    main = importlib.import_module("taskq.cli.main").main
    text = "\n".join(commands(main, click.Context(main, info_name="taskq")))
    yield "reference/commands.md", f"# Commands and their options\n\n{text}"
    for path in sorted(site.sources):
        code = (ROOT / path).read_text(encoding="utf-8")
        head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
        yield f"source/{path}.md", f"{head}````{Path(path).suffix[1:]}\n{code}\n````\n"


def named(nav: Any) -> Iterator[str]:
    """Yield the pages that the navigation names."""
    for item in nav if isinstance(nav, list) else nav.values():
        yield from [item] if isinstance(item, str) else named(item)


def on_files(files: Files, config: Any) -> Files:
    """Add what is made to what is written (a hook of MkDocs)."""
    sys.path[:0] = [str(ROOT)]
    site = Site()
    made = list(pages(site))
    listed = set(named(config.nav))
    for address, _ in made:
        if address not in listed and not address.startswith("source/"):
            raise ValueError(f"{address} is in no line of nav, in .docs/mkdocs.yml")
    for address, text in made:
        boost = BOOSTS.get(address.partition("/")[0], 1)
        says = f"boost: {boost}" if not address.endswith("/index.md") else "exclude: true"
        words = [word for run in _WORDS.findall(text) for word in re.split(r",\s+", run)]
        tags = f"tags: {json.dumps(words)}\n" if words else ""
        head = "" if text.startswith("---") else f"---\n{tags}search:\n  {says}\n---\n\n"
        files.append(File.generated(config, address, content=head + _WORDS.sub("", text)))
    icon = "plugins/taskq_plugins/web/static/icon.svg"
    for path in sorted(site.pictures):
        files.append(File.generated(config, picture(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "icon.svg", abs_src_path=str(ROOT / icon)))
    return files


def typed(session: str) -> str:
    """Return the commands of a session at a terminal, without prompts and output."""
    lines = html.unescape(re.sub(r"<[^>]+>", "", session)).splitlines()
    return "\n".join(line[2:] for line in lines if line.startswith(("$ ", "> ")))


def on_page_content(content: str, /, **_: Any) -> str:
    """Let a button copy the commands of a session alone (a hook of MkDocs)."""

    def copied(match: re.Match[str]) -> str:
        if 'class="gp"' not in match[1]:
            return match[0]
        words = html.escape(typed(match[1])).replace("\n", "&#10;")
        return f'<div class="highlight" data-copy="{words}">{match[1]}</div>'

    return _SESSION.sub(copied, content)
