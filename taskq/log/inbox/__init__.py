"""Bulk enqueue: files of jobs that anybody may write, published in one step.

Begin with ``writer``: ``PartWriter``, ``publish`` and ``discard`` are what producers use, from
wherever they run. The ``adopter`` makes jobs of what was published, slice by slice. May import
commit and what stands below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskq.log.inbox.manifest import Part
    from taskq.log.inbox.parts import Job, encode_tail
    from taskq.log.inbox.writer import PartWriter, discard, publish

__all__ = ["Job", "Part", "PartWriter", "discard", "encode_tail", "publish"]

_HOMES = {"Job": "parts", "Part": "manifest", "encode_tail": "parts"}


def __getattr__(name: str) -> object:
    """Import what producers use when they ask for it: a log that is open needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'writer')}"), name)
