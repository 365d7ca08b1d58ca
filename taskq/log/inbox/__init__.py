"""Bulk enqueue: files of jobs that anybody may write, published in one step.

Begin with ``writer``: ``PartWriter``, ``publish`` and ``discard`` are what producers use, from
wherever they run. The ``adopter`` makes jobs of what was published, slice by slice. May import
commit and what stands below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.log.inbox.manifest import Part
    from taskq.log.inbox.parts import Job, encode_tail
    from taskq.log.inbox.writer import PartWriter, discard, publish

__all__ = ["Job", "Part", "PartWriter", "discard", "encode_tail", "publish"]

_HOMES: Final = {
    "taskq.log.inbox.manifest": "Part",
    "taskq.log.inbox.parts": "Job encode_tail",
    "taskq.log.inbox.writer": "PartWriter discard publish",
}

# What producers use is imported when they ask for it: a log that is open needs none of it.
__getattr__ = lazily(__name__, _HOMES)
