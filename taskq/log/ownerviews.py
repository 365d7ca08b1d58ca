"""The processes that have a log open, as others see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskq.core.model import OwnerView
from taskq.core.parsing import parse_json
from taskq.log.peers import describe_owner, known_owners, owner_alive
from taskq.log.serving import read_servings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def owner_views(directory: Path, running: Mapping[int, int]) -> list[OwnerView]:
    """Every owner with a file here or a job in hand, the oldest first.

    Args:
        directory: where the owners' files are.
        running: how many jobs each owner holds.
    """
    owners = {*known_owners(directory), *running}
    views = [owner_view(directory, owner, running.get(owner, 0)) for owner in owners]
    return sorted(views, key=lambda view: (view.started_ns, view.owner))


def owner_view(directory: Path, owner: int, running: int = 0) -> OwnerView:
    """One owner, as far as its file still tells."""
    told = decode_description(describe_owner(directory, owner))
    return OwnerView(
        owner=owner,
        pid=told["pid"],
        host=told["host"],
        name=told["name"],
        started_ns=told["started_ns"],
        alive=owner_alive(directory, owner),
        running=running,
        serves=read_servings(directory, owner),
    )


def decode_description(description: bytes) -> dict[str, Any]:
    """Pid, host, name and ``started_ns`` of an owner; 0 and "" where it does not say."""
    try:
        told = parse_json(description)
    except ValueError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    return {
        "pid": _number(told.get("pid")),
        "host": str(told.get("host", "")),
        "name": str(told.get("name", "")),
        "started_ns": _number(told.get("started_ns")),
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
