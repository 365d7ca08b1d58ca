"""Copies of the logs of many machines in one place, byte for byte: the hub's and the device's side.

A device pushes its task log over an unreliable line. The hub keeps a directory for each device and
log: an ordinary task log with one writer. The end of the hub's file is the position of the upload.
Each session compares this end, *with the bytes there*, with the device's log (``compare``, pure).

A log that was set back continues as a new log of the device with the old one as its parent. Records
lost for good are declared as a gap, never skipped; the hub sets the records before a gap aside.
PROTOCOL.md describes the comparison. A segment's header links to the end before it by place and
CRC, not by time, since a recovery changes times. After a gap the hub waits for the next segment at
a declared place. If the device loses this place meanwhile, it declares another gap.

Requests and answers are values (``models``), separate from their transport, so that a simulation
can lose, cut, double and delay each of them.
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
