"""Run plain jobs in C, for who asks for it when taskq is installed and when it runs.

Python is the truth. What the extension does its callers do without it, and but for the time nobody
can tell. It keeps nothing between two calls, and leaves to Python all that is not plain.
``TASKQ_NATIVE=1`` turns it on; what was compiled from other sources than these is not used.

- ``Encoder`` and ``Decoder`` are what ``ArgumentCodec`` is called by
- ``submit`` puts a job into the line of ``LoopPort``, ``answer_all`` answers those of a ``Run``
- ``new_handle`` makes the ``JobHandle`` of an answer
- ``run_jobs`` runs the jobs of a ``Slot`` up to the first that suspends, fails or returns a value
- ``take``, ``born_records``, ``plain_records``, ``whole_records``, ``claimed`` and ``unclaimed`` do
  for runs of jobs what the functions of these names do: on the storage thread, a column at a time
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, Final

#: Of the sources in C beside this, which say the same; raised whenever they change.
VERSION: Final = 8
#: What ``run_jobs`` returns in place of a job: none is left, the loop is to turn, the slot is over.
EMPTY, TURN, SPOILT = 0, 1, 2


def _load() -> ModuleType | None:
    """Return the extension; None where there is none, or nobody asks for it."""
    if os.environ.get("TASKQ_NATIVE") != "1":
        return None
    try:
        from taskq._native import _plain as extension  # noqa: PLC0415 - it may be missing
    except ImportError:
        return None
    return extension if getattr(extension, "VERSION", None) == VERSION else None


if TYPE_CHECKING:
    from taskq._native import _plain as plain
else:
    plain = _load()

#: Whether it is used; else ``plain`` is None.
is_on: bool = plain is not None


def language() -> str:
    """Return what runs plain jobs, in a word for people."""
    return "C" if is_on else "Python"
