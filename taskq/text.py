"""Make foreign text safe to show: no terminal codes, no forged lines, no secrets.

A value with a secret's name is shown as ``(set)``, also in text that quotes it: ``password=…``.
"""

from __future__ import annotations

import re
from typing import Any, Final

# ``re`` compiles the patterns at first use: a start uses none of them.

#: The text in place of a secret.
_SET: Final = "(set)"
_SENSITIVE_PARTS: Final = (
    r"(?i)secret|token(?!s)|passw|passphrase|credential|authoriz|cookie|bearer"
    r"|(?:api|access|private|signing|encryption)[-_ ]?key"
)
#: Words that mark a secret only as a whole: "author" and "pinned" are no secrets.
_SECRET_WORDS: Final = frozenset({"auth", "oauth", "pin", "pwd"})
_WORDS: Final = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
#: A user and a password in an address.
_IN_URL: Final = r"//[^/@\s]*@"
_BEARER: Final = r"(?i)\b(bearer)\s+[\w.~+/=-]+"
#: A name and the text between it and its value, as programs, JSON and Python's repr write them.
_NAMED: Final = r"""(?<![\w-])([\w-]++)["']?\s*+[=:]\s*+"""
#: The value; a value with an opening bracket extends to the end of the line.
_VALUE: Final = (
    r"""(?i)[\[{(][^\n]*+|"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'"""
    r"""|(?:(?:basic|digest)\s+)?[^\s,;&)\]}]++"""
)


def printable(text: str) -> str:
    """Return the text with its control characters escaped, except newlines."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def flat(text: str) -> str:
    """Return the text as a part of one line: newlines are escaped, too."""
    return printable(text).replace("\n", "\\n")


def is_secret(name: str) -> bool:
    """Return whether a value with this name is a secret."""
    if re.search(_SENSITIVE_PARTS, name):
        return True
    return any(word.lower() in _SECRET_WORDS for word in re.findall(_WORDS, name))


def hidden(text: str) -> str:
    """Return free text without the secrets that it quotes: ``name=value``, ``Bearer …``."""
    if "=" not in text and ":" not in text and "earer" not in text.lower():
        return text
    text = re.sub(_BEARER, rf"\1 {_SET}", re.sub(_IN_URL, "//…@", text))
    pieces: list[str] = []
    at = 0
    for match in re.finditer(_NAMED, text):
        if match.start() >= at and is_secret(match[1]):
            value = re.compile(_VALUE).match(text, match.end())
            if value is not None:
                pieces += (text[at : match.end()], _SET)
                at = value.end()
    return "".join((*pieces, text[at:]))


def without_secrets(value: Any, name: str = "") -> Any:
    """Return a JSON value without secrets: a secret is replaced by ``(set)``."""
    if value and not isinstance(value, bool) and is_secret(name):
        return _SET
    if isinstance(value, dict):
        return {key: without_secrets(member, str(key)) for key, member in value.items()}
    if isinstance(value, list):
        return [without_secrets(member, name) for member in value]
    return hidden(value) if isinstance(value, str) else value
