"""Reading JSON that anybody may have written: whatever it is, it is a value or a ValueError."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Lists and objects within one another: as many as pydantic reads, and far from what a stack holds.
DEPTH_MAX: Final = 200


def parse_json(
    data: bytes | str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """The value, which may be walked and written again without a look at its depth.

    Args:
        data: of a size that the caller has bounded.
        parse_constant: as of ``json.loads``.
        parse_float: as of ``json.loads``.

    Raises:
        ValueError: it is no JSON, or nested deeper than DEPTH_MAX.
    """
    try:
        value = json.loads(data, parse_constant=parse_constant, parse_float=parse_float)
    except RecursionError:
        raise too_deep() from None
    opening = ("[", "{") if isinstance(data, str) else (b"[", b"{")
    if sum(map(data.count, opening)) > DEPTH_MAX and _is_deep(value):  # type: ignore[arg-type]
        raise too_deep()
    return value


def too_deep() -> ValueError:
    """What to raise for a document that is nested too deeply."""
    return ValueError(f"nested more than {DEPTH_MAX} deep")


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand within one another deeper than DEPTH_MAX."""
    level = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        if not below:
            return False
        level = below
    return any(isinstance(one, dict | list) for one in level)
