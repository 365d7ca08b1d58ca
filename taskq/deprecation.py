"""Deprecate a public name: it works for one more minor version, with a warning."""

from __future__ import annotations

import sys
import warnings


def _deprecated(since: str, instead: str) -> None:
    """Warn the caller of the deprecated function that calls this one, at the line of the call.

    A name deprecated since 1.4 goes with 1.5; a test fails if it is still there then.

    Args:
        since: the version that deprecates it, such as "1.4".
        instead: what to write, such as "task.options(delay=…)".
    """
    name = sys._getframe(1).f_code.co_qualname
    text = f"{name} is deprecated since taskq {since} and goes with {goes_with(since)}"
    warnings.warn(f"{text}: write {instead}", DeprecationWarning, stacklevel=3)


def goes_with(since: str) -> str:
    """Return the version that no longer has what is deprecated since another."""
    major, minor = map(int, since.split("."))
    return f"{major}.{minor + 1}"
