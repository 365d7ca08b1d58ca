"""The logs of many machines in one place, byte for byte: a hub's side, and a device's.

A device pushes its task log over an unreliable line. The hub keeps a directory for each device and
log, an ordinary task log with one writer. The hub's file is the position: each session begins with
its end *and the bytes there*, and one pure function (``compare``) gives the verdict.

A log that was set back goes on as another log of the device, which names its parent. What is gone
for good is declared as a gap and what came before it set aside, never skipped; PROTOCOL.md
describes the comparison. A segment follows by the link in its header, which names the end before
it by place and CRC, since a recovery changes times. After a gap the hub's position is the place
that it waits for, so a device that has lost that place meanwhile declares again.

Requests and answers are values (``models``). Their transport is separate, so that a simulation
can lose, cut, double and delay every one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskq_plugins.hub.client import Device, DeviceGroup, Hub

__all__ = ["Device", "DeviceGroup", "Hub"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.client"), name)
