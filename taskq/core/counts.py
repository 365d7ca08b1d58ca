"""Whole numbers as callers give them."""

from __future__ import annotations

import operator
from typing import Any

from taskq.core.errors import UsageError


def whole(value: Any, what: str) -> int:
    """The number as an int, of whichever library it is; no other kind of number will do.

    Args:
        value: what was given.
        what: how an error names it.

    Raises:
        UsageError: it is no whole number; True and False are none either.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise UsageError(f"{what} is {value!r:.60}, it must be a whole number")
