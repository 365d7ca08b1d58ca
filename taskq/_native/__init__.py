"""Run plain jobs in C if the extension was compiled; with ``TASKQ_NATIVE=0`` Python runs them.

Python is the reference: each function in C has a twin in Python with the same results. The
extension keeps no state between calls and passes every special case to Python. A binary of another
``VERSION`` is not used.

- ``Encoder`` and ``Decoder`` encode and decode for ``ArgumentCodec``
- ``submit`` puts a job into the queue of ``LoopPort``, ``answer_all`` answers the jobs of a ``Run``
- ``new_handle`` makes the ``JobHandle`` of an answer
- ``run_jobs`` runs the jobs of a ``Slot`` up to the first that suspends, fails or returns a value
- ``take``, ``born_records``, ``plain_records``, ``whole_records``, ``claimed`` and ``unclaimed``
  are twins of the Python functions of these names, for runs of jobs: on the storage thread, a
  column at a time
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

#: Version of the C sources in this folder, equal to the number in ``native.h``; raise it with them.
VERSION: Final = 12
#: Results of ``run_jobs`` without a job: no job is left, the loop must turn, the slot has ended.
EMPTY, TURN, SPOILT = 0, 1, 2


def _load() -> ModuleType | None:
    """Return the extension; None if it is missing, built from other sources or turned off."""
    if os.environ.get("TASKQ_NATIVE") == "0":
        return None
    try:
        from taskq._native import _plain as extension  # noqa: PLC0415 - it may be missing
    except ImportError:
        return None
    return (
        extension if getattr(extension, "VERSION", None) == VERSION and _fits(extension) else None
    )


def _fits(extension: Any) -> bool:
    """Return whether C writes attributes where this Python keeps them, even after a class changed.

    C caches the offset of a slot until the version of the class changes.
    """

    class Probe:
        __slots__ = ("_app", "_tag", "_task", "duplicate", "lsn")

    def made() -> tuple[object, ...]:
        probe: Any = extension.new_handle(Probe, *values)
        return probe._app, probe._task, probe._tag, probe.lsn, probe.duplicate

    values = ("app", "task", "tag", 1)
    if made() != (*values, False) or made() != (*values, False):
        return False
    seen: list[object] = []
    Probe._tag = property(lambda _: "changed", lambda _, value: seen.append(value))  # type: ignore[attr-defined]
    return made() == ("app", "task", "changed", 1, False) and seen == ["tag"]


if TYPE_CHECKING:
    from taskq._native import _plain as plain
else:
    plain = _load()

#: True if the extension is used; otherwise ``plain`` is None.
is_on: bool = plain is not None


def language() -> str:
    """Return the language that runs plain jobs: C or Python."""
    return "C" if is_on else "Python"


def build_id() -> str:
    """Return version, digest of the sources and compiler of the extension; "" without it."""
    return str(plain.BUILD) if is_on else ""


def label() -> str:
    """Return the language and build that run plain jobs: ``C (build 9-db3b0b53, 12.2.0)``."""
    return f"C (build {build_id()})" if is_on else "Python"
