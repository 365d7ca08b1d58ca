"""What others wrote, as it may be shown: it drives no terminal, and makes up no lines."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with its control characters escaped, but for newlines."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def flat(text: str) -> str:
    """Return the text as a part of one line: its newlines are escaped, too."""
    return printable(text).replace("\n", "\\n")
