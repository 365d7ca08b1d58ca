"""What ``taskq show`` says of a job that is part of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from taskq.log.format.flows import Takes

_NAMED_MAX: Final = 5


def flow_facts(ties: Takes | None, tag: str) -> list[tuple[str, str]]:
    """Whom it takes in, and who waits for it, for people; nothing of a job that stands alone."""
    if ties is None:
        return []
    return [("inputs", _names(ties.inputs, tag)), ("waited for by", _names(ties.unlocks, tag))]


def flow_json(ties: Takes | None, tag: str) -> dict[str, Any]:
    """The same for programs, with all ids."""
    inputs, unlocks = (ties.inputs, ties.unlocks) if ties is not None else ((), ())
    return {
        "inputs": [f"{tag}-{job}" for job in inputs],
        "waited_for_by": [f"{tag}-{job}" for job in unlocks],
    }


def _names(jobs: tuple[int, ...], tag: str) -> str:
    named = ", ".join(f"{tag}-{job}" for job in jobs[:_NAMED_MAX])
    more = len(jobs) - _NAMED_MAX
    return named + (f" and {more} more" if more > 0 else "")
