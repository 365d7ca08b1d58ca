"""Bulk enqueue: files of jobs that any process may write, published in one step.

Begin with ``writer``: producers use ``PartWriter``, ``publish`` and ``discard``, on any machine
that has the directory. The ``adopter`` makes jobs of published files, slice by slice. May import
commit and the folders below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq._lazy import lazily

if TYPE_CHECKING:
    from taskq.log.inbox.directory import Part
    from taskq.log.inbox.parts import Job, encode_tail
    from taskq.log.inbox.writer import PartWriter, discard, publish

__all__ = ["Job", "Part", "PartWriter", "discard", "encode_tail", "publish"]

_HOMES: Final = {
    "taskq.log.inbox.directory": "Part",
    "taskq.log.inbox.parts": "Job encode_tail",
    "taskq.log.inbox.writer": "PartWriter discard publish",
}

# Imported on demand: an open log needs nothing that producers use.
__getattr__ = lazily(__name__, _HOMES)
