"""Count the habits that CONTRIBUTING rules out, in docstrings, comments, subjects and documents.

``python -m tests.words`` prints the share of each folder, and the share and length of each
document. With paths it prints their texts that have a habit. A text is a docstring, a run of
comment lines, the subject of a commit, or a sentence of a document's prose, lists or tables.
"""

import ast
import functools
import gc
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("taskq", "workers", "plugins", "examples", "tests")
#: The commit with the rules; older subjects do not count.
SINCE = "4729ee52"
SUBJECTS_MAX = 300

#: Each rule, and a pattern of its violations in a text without code and quoted words.
RULES: dict[str, re.Pattern[str]] = {
    # A noun is a noun, not a relative clause.
    "D1": re.compile(
        r"\b(whoever|whatever|whomever)\b"
        r"|(?<!\w, )(?<!\w\w) ?\bwho (asks?|waits?|reads?|writes?|looks?|wants?|calls?|comes?"
        r"|works?|holds?|knows?|runs?|sees?|opens?|has|may|does|lives?|claims?)\b(?!.*\?)"
        r"|\b(of|for|to|by|from|with|in|on|at|all|than|as) (what|who) (?!to\b)[a-z]+\b"
        r"|^(what|that which) \b(?!.*\?)"
        r"|\ball that\b",
        re.IGNORECASE | re.MULTILINE,
    ),
    # A pronoun has a noun nearby.
    "D2": re.compile(
        r"\b(those|one|ones|others|none) (that|who|of which|which)\b"
        r"|\b(those|that) (of|with|without)\b"
        r"|\bit is none\b|\bthere is none\b",
        re.IGNORECASE,
    ),
    # People talk, programs return and report.
    "D3": re.compile(
        r"\b(is|are|was|were|be|been|being|get|gets) (told|said)\b|\btells?\b|\btelling\b"
        r"|\bsays? (of|what|who|so|how|which|where|that it)\b",
        re.IGNORECASE,
    ),
    # A sentence begins with its subject, or with If or When.
    "D4": re.compile(
        r"(?:^|(?<=[.:;!?] )|(?<=[.:;!?]\n))(Nor|Not|Of|Else|Whose|Likewise|Beside|Besides|Where"
        r"|Whether|Behind|Likewise)\b(?! (seen|supported|implemented|all\b))"
    ),
    # Ordinary words for order and amount.
    "D5": re.compile(
        r"\bbehind\b|\bso (many|much|long|often)\b|\bas [a-z]+ (has|have|had) it\b"
        r"|\bfor what (it|they)\b",
        re.IGNORECASE,
    ),
}

#: Strings and comments, except nested f-strings; three times as fast as Python's tokenizer.
STRING_OR_COMMENT = re.compile(
    r'''(?P<long>"""(?:[^\\]|\\.)*?""")|\'{3}(?:[^\\]|\\.)*?\'{3}'''
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\#[:!]?[ ]?(?P<comment>[^\n]*)""",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"^(noqa|type:|fmt:|pragma|mypy:|ruff:).*")
#: End of a line before a docstring.
_OPENS = re.compile(r":\s*(#.*)?$")


@functools.cache
def source(path: Path) -> str:
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree; without GC, which would scan each new node in vain."""
    gc.disable()
    try:
        return ast.parse(source(path))
    finally:
        gc.enable()


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


class Text(NamedTuple):
    """A docstring, a run of comment lines or a subject, and its place."""

    place: str
    text: str


def plain(text: str) -> str:
    text = re.sub(r"``.*?``|`[^`]*`|\"[^\"\n]*\"|«[^»]*»|https?://\S+", "X", text, flags=re.DOTALL)
    return re.sub(r"(?m)^\s*(>>>|\.\.\.|\$ ).*$", "", text)


def habits(text: str) -> list[str]:
    words = plain(text)
    return [rule for rule, pattern in RULES.items() if pattern.search(words)]


def texts(path: Path) -> Iterator[Text]:
    """Yield the docstrings and comments of a file, without linters' directives."""
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    run: list[str] = []
    begun = last = at = 0
    line = 1
    for match in STRING_OR_COMMENT.finditer(code := source(path)):
        if match["long"] is None and match["comment"] is None:
            continue
        line, at = line + code.count("\n", at, match.start()), match.start()
        begin = code.rfind("\n", 0, at) + 1
        own = code[begin:at].strip() in {"", "r"}
        if match["long"] is not None:
            before = code[code.rfind("\n", 0, begin - 1) + 1 : begin].strip() if begin else ":"
            if own and _OPENS.search(before):
                yield Text(f"{name}:{line}", inspect.cleandoc(match["long"][3:-3]))
            continue
        comment = _DIRECTIVE.sub("", match["comment"], count=1)
        if run and (line != last + 1 or not own):
            yield Text(f"{name}:{begun}", "\n".join(run))
            run = []
        if comment:
            begun = line if not run else begun
            run.append(comment)
            last = line
    if run:
        yield Text(f"{name}:{begun}", "\n".join(run))


def subjects() -> list[Text]:
    log = ["git", "log", f"--max-count={SUBJECTS_MAX}", "--format=%h %s", f"{SINCE}.."]
    shown = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = (line.partition(" ") for line in shown.stdout.splitlines())
    return [Text(revision, subject) for revision, _, subject in rows]


def of_folder(folder: Path) -> list[Text]:
    return [text for path in sorted(folder.rglob("*.py")) for text in texts(path)]


def prose(text: str) -> str:
    """Return a document without code, drawings, generated parts, targets and names of tests."""
    text = re.sub(r"<!-- [^>]*made by.*?<!-- end -->|<svg.*?</svg>", "", text, flags=re.DOTALL)
    text = re.sub(r"(?ms)^( *)```.*?^\1```$|<!--.*?-->|^\|[-:| ]+\|$", "", text)
    text = re.sub(r"!\[[^\]]*\]\([^)\s]+\)|\[[^\]]*\]\([^)\s]*test_\w+\.py\)", "", text)
    return re.sub(r"\]\([^)\s]+\)", "", text)


def of_document(path: Path) -> list[Text]:
    name = str(path.relative_to(ROOT))
    parts = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |^#+ |\s*\|\s*|\n(?=#)", prose(path.read_text()))
    runs = (" ".join(part.replace("**", "").split()) for part in parts)
    sentences = (re.split(r"(?<=[.!?]) (?=[A-Z`*\[])", run) for run in runs)
    return [Text(name, sentence) for run in sentences for sentence in run if " " in sentence]


def documents() -> list[Path]:
    """Return the documents, without the changelog and ledgers of tests, which are lists."""
    seen = [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob(".docs/**/*.md")]
    for folder in ("taskq", "workers", "plugins", "examples"):
        seen += (ROOT / folder).rglob("*.md")
    seen += [ROOT / "tests/README.md", ROOT / "tests/bench/README.md"]
    return sorted(path for path in seen if path.name != "CHANGELOG.md")


#: Sections that compare with other systems are counted apart, since people look things up there.
_RIVALS: Final = re.compile(
    r"^###? (Compared with other job|Durable steps elsewhere|The page compared|LedgerQ|sej|codeQ)"
    r".*?(?=^##|\Z)",
    re.MULTILINE | re.DOTALL,
)


def count(path: Path, *, rivals: bool = False) -> int:
    text = path.read_text() if rivals else _RIVALS.sub("", path.read_text())
    return sum(any(map(str.isalnum, word)) for word in prose(text).split())


def share(seen: list[Text]) -> float:
    return sum(bool(habits(text.text)) for text in seen) / max(1, len(seen))


def main(paths: list[str]) -> None:
    if paths:
        for path in map(Path, paths):
            files = [path] if path.is_file() else sorted(path.rglob("*.py"))
            take = of_document if path.suffix == ".md" else texts
            for text in (text for file in files for text in take(file.resolve())):
                if rules := habits(text.text):
                    print(f"{text.place} {' '.join(rules)}: {text.text!r}")  # noqa: T201
        return
    everything = {folder: of_folder(ROOT / folder) for folder in FOLDERS} | {"commits": subjects()}
    everything["all"] = [text for seen in everything.values() for text in seen]
    for name, seen in everything.items():
        broken = Counter(rule for text in seen for rule in habits(text.text))
        counts = " ".join(f"{rule} {broken[rule]}" for rule in RULES)
        print(f"{name:9} {len(seen):6} texts {share(seen):6.1%}  {counts}")  # noqa: T201
    for path in documents():
        shown = f"{share(of_document(path)):6.1%} {count(path):6} words"
        print(f"{shown}  {path.relative_to(ROOT)}")  # noqa: T201
    whole = sum(count(path, rivals=True) for path in documents())
    print(f"{sum(map(count, documents())):13} words, {whole} with tables of rivals")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
