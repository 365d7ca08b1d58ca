"""What somebody meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: What the same thing is called elsewhere, and here: the first that the place knows.
_ELSEWHERE: Final = {
    "attempts": ("retry",),
    "countdown": ("delay",),
    "max_retries": ("retry", "attempts"),
    "on_failure": ("on_dead",),
    "rate_limit": ("rate",),
    "retries": ("retry", "attempts"),
    "retry": ("attempts",),
    "soft_time_limit": ("soft_timeout",),
    "time_limit": ("timeout",),
    "ttl": ("expires",),
}


def same(name: str, known: Collection[str]) -> str:
    """What is called so elsewhere; "" if nothing that is known is."""
    return next((other for other in _ELSEWHERE.get(name, ()) if other in known), "")


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was meant; "" if none of those that are known is near."""
    names = tuple(known)
    return same(name, names) or next(iter(difflib.get_close_matches(name, names, 1)), "")


def rather(name: str, known: Iterable[str], what: str) -> str:
    """The end of a sentence that begins with a wrong name: the one that was meant, or all of them.

    Args:
        name: what was given.
        known: what there is.
        what: the word for all of them, such as "options".
    """
    names = tuple(known)
    near = nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    return f"the {what} are {', '.join(names)}" if names else f"there are no {what}"
