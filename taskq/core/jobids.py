"""Job ids as people give them: the log's tag and the job's number, or as much of it as will do."""

from __future__ import annotations

from typing import Final

from taskq.core.errors import InvalidJobId

#: Digits of 2^63.
_DIGITS_MAX: Final = 19


def split_id(text: object, example: str = "1a2b3c4d-17") -> tuple[str, int]:
    """The log's tag, "" where a number alone was given, and the job's lsn.

    Raises:
        InvalidJobId: it is neither an id nor a number.
    """
    if not isinstance(text, str):
        raise InvalidJobId(f"{text!r:.60} is no job id: give a handle, or text such as {example}")
    tag, dash, digits = text.strip().rpartition("-")
    if (dash and not tag.isalnum()) or not (digits.isascii() and digits.isdigit()):
        raise InvalidJobId(f"{text!r:.60} is no job id: one looks like {example}, or its number")
    if len(digits) > _DIGITS_MAX:
        raise InvalidJobId(f"{text!r:.60} is no job id: its number is too long")
    return tag, int(digits)
