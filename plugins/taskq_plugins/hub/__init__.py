"""The logs of many machines in one place, byte for byte: a hub's side, and a device's.

A device pushes its task log over a bad line; the hub keeps a directory for each device and log, an
ordinary task log that nobody else writes to. The hub's file is the position: each session begins
with where it ends *and what stands there*, and one pure function (``compare``) draws the verdict.

Each break is declared and set aside, never passed over; PROTOCOL.md says how the two compare. A
segment follows by the link in its header, which names the end before it by place and CRC; a time
alone says less, and a recovery changes it. After a break the hub's position is the place that it
waits for, so that a device which has lost that place meanwhile declares again.

What a device asks and a hub answers are values (``messages``); who carries them is not this
package's concern, so that a simulation can lose, cut, double and delay every one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskq_plugins.hub.client import Device, Group, Hub

__all__ = ["Device", "Group", "Hub"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.client"), name)
