"""Parse input of people and other programs: numbers, sizes, names, job ids, JSON."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, SupportsIndex, TypeAlias

from taskq.core.errors import InvalidJobId, UsageError, WrongLog
from taskq.core.model import NAME_BYTES_MAX

#: Deepest nesting of lists and objects: pydantic's limit, far below the stack's.
DEPTH_MAX: Final = 200
#: Deepest nesting of a task's arguments, results and values: flows put results within lists.
VALUE_DEPTH_MAX: Final = 160


def refuse_constant(word: str) -> None:
    """Refuse NaN and Infinity in JSON that people write; for ``parse_constant``."""
    raise ValueError(f"{word} is no number in JSON")


def parse_json(
    data: bytes | str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value, whose depth is safe for recursive code.

    Args:
        data: JSON of bounded size.
        parse_constant: as of ``json.loads``.
        parse_float: as of ``json.loads``.

    Raises:
        ValueError: the data is no JSON, or nested deeper than DEPTH_MAX.
    """
    try:
        value = json.loads(data, parse_constant=parse_constant, parse_float=parse_float)
    except RecursionError:
        raise too_deep() from None
    opening = ("[", "{") if isinstance(data, str) else (b"[", b"{")
    if sum(map(data.count, opening)) > DEPTH_MAX and _is_deep(value):  # type: ignore[arg-type]
        raise too_deep()
    return value


def too_deep(limit: int = DEPTH_MAX) -> ValueError:
    """Return the error for a document that is nested too deeply."""
    return ValueError(f"nested more than {limit} deep")


def _is_deep(value: Any) -> bool:
    """Return whether lists and objects are nested deeper than DEPTH_MAX."""
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for nested in level:
            if isinstance(nested, dict):
                below += nested.values()
            elif isinstance(nested, list):
                below += nested
        if not below:
            return False
        level = below
    return any(isinstance(nested, dict | list) for nested in level)


def whole(value: Any, what: str) -> int:
    """Return a whole number of any library as an int.

    Args:
        value: from the caller.
        what: name of the value in an error.

    Raises:
        UsageError: the value is no whole number; True and False are refused, too.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise UsageError(f"{what} is {value!r:.60}, it must be a whole number")


#: Bytes, or text such as "500MB" (powers of ten) or "2GiB" (powers of two).
Size: TypeAlias = int | str

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (power + 1) for power, letter in enumerate("kmgt")},
}
_TEXT: Final = r"(?ai)\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]{0,3})\s*"
#: Largest size of a file or of memory.
_BYTES_MAX: Final = 2**63 - 1


def size_bytes(value: Size, what: str = "size") -> int:
    """Return the size in bytes, above 0.

    Args:
        value: bytes, or text with a unit.
        what: name of the value in an error.
    """
    size = -1
    given: object = value
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        size = whole(given, what)
    elif isinstance(value, str):
        match = re.fullmatch(_TEXT, value)
        if match is not None and match[2].lower() in _UNITS:
            size = round(float(match[1]) * _UNITS[match[2].lower()])
    if not 0 < size <= _BYTES_MAX:
        raise UsageError(
            f'{what} is {value!r:.60}: give a number of bytes above 0, or text such as "500MB", '
            f'"1GB" or "2GiB"'
        )
    return size


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most similar to this one; "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for mistakes

    return next(iter(get_close_matches(name, tuple(known), 1)), "")


def listed(names: Iterable[str], most: int) -> str:
    """Return names for people, shortened to ``most``: ``a, b and 3 more``."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def rather(name: str, known: Iterable[str], what: str) -> str:
    """Return the end of an error about a wrong name: the most similar name, or all names.

    Args:
        name: the wrong name.
        known: all right names.
        what: the word for all of them, such as "tasks".
    """
    names = tuple(known)
    near = nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    return f"the {what} are {', '.join(names)}" if names else f"there are no {what}"


def check_name(what: str, name: str) -> bytes:
    """Return the name in UTF-8; raise a UsageError that says why it is no name."""
    if not isinstance(name, str):
        raise UsageError(f"{what} is {name!r:.60}, it must be text")
    encoded = name.encode("utf-8", "surrogatepass")
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        raise UsageError(
            f"{what} {name[:40]!r} has {len(encoded)} bytes, it must have 1 to {NAME_BYTES_MAX}"
        )
    if not name.isprintable():
        raise UsageError(f"{what} {name!r} holds characters that do not print: remove them")
    return encoded


def checked_names(what: str, names: Iterable[str]) -> frozenset[str]:
    """Return the names of a filter; ``what`` is the argument's name in an error.

    Raises:
        UsageError: the value is no list of texts.
    """
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise UsageError(f"{what} is {names!r:.60}: give a list of names")
    checked = tuple(names)
    for name in checked:
        if not isinstance(name, str):
            raise UsageError(f"{what} has {name!r:.60}: give names as text")
    return frozenset(checked)


def checked_queues(names: Iterable[str]) -> frozenset[str]:
    """Return the names of queues to read from.

    Raises:
        UsageError: the value is no list of names, is empty, or has a name that no queue can have.
    """
    checked = checked_names("queues", names)
    if not checked:
        raise UsageError("queues is empty: name at least one, or leave it out for all")
    for name in checked:
        check_name("queue name", name)
    return checked


# Job ids as users give them: the log's tag and the job's number; the tag may be left out.

_PARENTS_NAMED_MAX: Final = 5
#: Digits of 2^63.
_DIGITS_MAX: Final = 19


class Tag(str):
    """Prefix of the ids of a log's own jobs; jobs of its parents keep the parents' prefix.

    Attributes:
        parents: (tag, first lsn after that log's jobs), the oldest first.
    """

    __slots__ = ("parents",)
    parents: tuple[tuple[str, int], ...]

    def __new__(cls, text: str, parents: tuple[tuple[str, int], ...] = ()) -> Self:
        tag = super().__new__(cls, text)
        tag.parents = parents
        return tag

    def __getnewargs__(self) -> tuple[str, tuple[tuple[str, int], ...]]:  # type: ignore[override]
        return str(self), self.parents

    def of(self, job: int) -> str:
        """Return the tag of the log in which a job was enqueued: this log or a parent."""
        for tag, next_lsn in self.parents:
            if job < next_lsn:
                return tag
        return str(self)

    def id(self, job: int) -> str:
        """Return a job's id by its number."""
        return f"{self.of(job)}-{job}"

    def takes(self, prefix: str, job: int) -> bool:
        """Return whether the parts of an id name a job of this log; the prefix may be empty."""
        return not prefix or self.of(job) == prefix

    @staticmethod
    def of_id(text: str) -> tuple[str, int]:
        """Return the tag and the number of an id, like ``split_id``."""
        return split_id(text)

    def refusal(self, prefix: str, job: int, path: str) -> WrongLog:
        """Return the error for an id that the log does not take."""
        older = [f"jobs of log {tag} below {tag}-{next_lsn}" for tag, next_lsn in self.parents]
        has = f", which has {listed(older, _PARENTS_NAMED_MAX)} as well" if older else ""
        return WrongLog(
            f"job {prefix}-{job} belongs to log {prefix}, but {path} is log {self}{has}: open the "
            f"directory that the job was enqueued in"
        )


def split_id(text: object, example: str = "1a2b3c4d-17") -> tuple[str, int]:
    """Return (tag, lsn) of a job id; the tag is "" for a bare number."""
    if not isinstance(text, str):
        raise InvalidJobId(f"{text!r:.60} is no job id: give a handle, or text such as {example}")
    tag, dash, digits = text.strip().rpartition("-")
    if (dash and not tag.isalnum()) or not (digits.isascii() and digits.isdigit()):
        raise InvalidJobId(f"{text!r:.60} is no job id: one looks like {example}, or its number")
    if len(digits) > _DIGITS_MAX:
        raise InvalidJobId(f"{text!r:.60} is no job id: its number is too long")
    return tag, int(digits)
