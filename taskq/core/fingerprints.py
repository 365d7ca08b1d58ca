"""Group failures by reason, without the parts that differ from job to job.

The rules are plain data. Python applies them here and Spark in ``failures``, with the same result.
So patterns use only syntax that both engines read alike: ASCII classes in full, and no dots,
shorthand classes, word borders, anchors or case folding.
"""

from __future__ import annotations

import re
from typing import Final

from taskq.core.values import NamedTuple

#: Characters of a reason's first line that are read. The limit bounds the patterns' time.
READ_CHARACTERS_MAX: Final = 500
#: Longest normalised reason; a longer one is cut.
PATTERN_CHARACTERS_MAX: Final = 200
#: Hex digits of a fingerprint: with 16, a million kinds of failure collide once in 10^7 lakes.
FINGERPRINT_DIGITS: Final = 16
#: Reasons for attempts without one: the worker was lost, or the caller gave no reason.
LOST_REASON: Final = "WorkerLost: the worker process died"
NO_REASON: Final = "(no reason given)"


class Rule(NamedTuple):
    """Replace every match of the pattern."""

    pattern: str
    replacement: str


_START: Final = r"(?<![0-9A-Za-z_])"
_END: Final = r"(?![0-9A-Za-z_])"
_HEX: Final = "[0-9A-Fa-f]"
#: The rest of a path or a URL after a slash; its last character is no punctuation.
_REST: Final = r"[^ \t\"'`<>(){}\[\],;|]*[^ \t\"'`<>(){}\[\],;|.:!?]"
_NAME: Final = r"[0-9A-Za-z_.~+-]+"
_HOST: Final = r"[0-9A-Za-z][0-9A-Za-z-]*+"
#: Start of a long token: otherwise each of its characters would be tried as a start in turn.
_NEW: Final = r"(?<![0-9A-Za-z_.%~+/-])"

#: Patterns that contain others come first (a quoted path is a string), plain numbers last.
RULES: Final[tuple[Rule, ...]] = (
    Rule(r"\x1b\[[0-9;]{0,20}m", ""),
    Rule(
        rf"{_START}[bfru]{{0,2}}(?:'(?:[^'\\]|\\[^\n])*'{_END}|\"(?:[^\"\\]|\\[^\n])*\"|`[^`]*`)",
        "<str>",
    ),
    Rule(rf"{_START}[A-Za-z][0-9A-Za-z+.-]{{1,20}}://{_REST}", "<url>"),
    Rule(rf"{_NEW}[0-9A-Za-z_.%+-]++@{_HOST}(?:\.{_HOST})++", "<email>"),
    Rule(rf"{_START}{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}{_END}", "<uuid>"),
    Rule(
        rf"{_START}[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ][0-9]{{2}}:[0-9]{{2}}"
        rf"(?::[0-9]{{2}}(?:[.,][0-9]{{1,9}})?)?(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?{_END}",
        "<time>",
    ),
    Rule(rf"{_START}[0-9]{{1,2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:[.,][0-9]{{1,9}})?)?{_END}", "<time>"),
    Rule(rf"{_START}[A-Za-z]:\\{_REST}", "<path>"),
    Rule(rf"(?<![0-9A-Za-z_.~<>/-])(?:~|\.{{1,2}})?/{_REST}", "<path>"),
    Rule(
        rf"{_NEW}{_NAME}(?:/{_NAME}){{1,60}}\.[A-Za-z][0-9A-Za-z]{{0,7}}(?::[0-9]{{1,7}})?{_END}",
        "<path>",
    ),
    Rule(
        rf"(?<![0-9A-Za-z_:.])\[?(?:{_HEX}{{0,4}}(?:::?{_HEX}{{1,4}}){{3,7}}"
        rf"|(?:{_HEX}{{3,4}}:){{1,6}}:{_HEX}{{1,4}}|::1|{_HEX}{{4}}::)(?:\]:[0-9]{{1,5}}|\])?{_END}",
        "<addr>",
    ),
    Rule(rf"{_START}[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}(?::[0-9]{{1,5}})?{_END}", "<addr>"),
    Rule(rf"{_NEW}{_HOST}(?:\.{_HOST}){{1,10}}+:[0-9]{{1,5}}{_END}", "<addr>"),
    Rule(rf"{_NEW}(?:localhost:[0-9]{{1,5}}|{_HOST}:[0-9]{{4,5}}){_END}", "<addr>"),
    Rule(rf"{_START}0[xX]{_HEX}+", "<hex>"),
    Rule(rf"{_START}(?={_HEX}*[0-9])(?=[0-9]*[A-Fa-f]){_HEX}{{8,}}{_END}", "<hex>"),
    Rule(
        rf"{_START}(?:(?=[A-Za-z]*[0-9]+[A-Za-z]+[0-9])[0-9A-Za-z]{{6,}}"
        rf"|(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[0-9A-Za-z]{{20,}}){_END}",
        "<id>",
    ),
    Rule(
        r"(?:(?<![0-9A-Za-z_)>\]])[+-])?[0-9]+(?:[.,_][0-9]+)*(?:[eE][+-]?[0-9]+)?",
        "<n>",
    ),
    Rule(r"(?<=<n>)(?: ?, ?<n>)+", ", ..."),
    Rule(r"(?<=<str>)(?: ?, ?<str>)+", ", ..."),
    Rule(r"[ \t\r\f\x0b]+", " "),
)
#: The class of an exception and its module: digits in them are no numbers.
CLASS: Final = r"(?:[A-Za-z_][0-9A-Za-z_]*\.){0,20}[A-Z][0-9A-Za-z_]*(?:: |(?![^\n]))"
#: Characters skipped before the first line.
BLANK: Final = " \t\r\n\f\x0b"
#: Outcomes of attempts that failed, or whose worker died.
FAILED: Final = frozenset({"retried", "dead", "lost"})


def pattern_of(reason: str) -> str:
    """Return a reason's first line with placeholders for the parts that differ between jobs.

    Strings in quotes, URLs, e-mail addresses, UUIDs, times, paths, network addresses, hex numbers,
    long ids and numbers become placeholders. The exception's class and its message's words stay.
    """
    line = reason.strip(BLANK).partition("\n")[0][:READ_CHARACTERS_MAX]
    named = re.match(CLASS, line)
    head = named.group() if named else ""
    rest = line[len(head) :]
    for rule in RULES:
        rest = re.sub(rule.pattern, rule.replacement, rest)
    return f"{head}{rest}"[:PATTERN_CHARACTERS_MAX].strip(" ") or NO_REASON


def fingerprint(task: str | None, pattern: str) -> str:
    """Return a short name for one kind of failure: a task and a normalised reason."""
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, and a log may have no failures

    text = f"{task or ''}\n{pattern}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:FINGERPRINT_DIGITS]


def failure_of(task: str, outcome: str, reason: str) -> tuple[str, str, str]:
    """Return (class of the error, its message, fingerprint) of an attempt; all "" unless it failed.

    A snoozed attempt with an error counts as failed.
    """
    if not reason:
        if outcome not in FAILED:
            return "", "", ""
        reason = LOST_REASON if outcome == "lost" else NO_REASON
    line = reason.strip(BLANK).partition("\n")[0]
    named = re.match(CLASS, line)
    error = named.group() if named else ""
    return error.rstrip(": "), line[len(error) :], fingerprint(task, pattern_of(reason))


class FailureKind(NamedTuple):
    """Kind of failure: a task, and a reason without the parts that differ between jobs.

    Attributes:
        task: its name, None for jobs that were put as bytes.
        pattern: the normalised reason.
    """

    task: str | None
    pattern: str

    @staticmethod
    def pattern_of(reason: str, *, lost: bool = False) -> str:
        """Return the pattern of a reason. Without a reason, ``lost`` names a lost worker."""
        return pattern_of(reason or (LOST_REASON if lost else NO_REASON))

    @property
    def fingerprint(self) -> str:
        """Return the short name of this kind, the same on every machine."""
        return fingerprint(self.task, self.pattern)
