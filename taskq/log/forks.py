"""What a forked child must do before anything else: close what it inherited and forget it.

A lock that lives on in a child outlives its owner; a storage thread does not exist in a child at
all.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_actions: list[Callable[[], object]] = []


def on_fork(action: Callable[[], object]) -> None:
    """Run ``action`` in every forked child, for as long as this process lives."""
    _actions.append(action)


def _in_child() -> None:
    for action in _actions:
        action()


os.register_at_fork(after_in_child=_in_child)
