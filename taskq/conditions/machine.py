"""Conditions of the machine itself: room on its disk, and power from the wall."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from taskq.conditions.base import Condition, aside, say_once
from taskq.core.errors import UsageError
from taskq.core.parsing import Size, size_bytes

_SUPPLIES: Final = Path("/sys/class/power_supply")


@dataclass(frozen=True)
class DiskFree(Condition):
    """So many bytes are free on the disk that holds a path; "" for the data directory's."""

    free_bytes: int
    path: str = ""

    @property
    def name(self) -> str:
        where = f", {self.path}" if self.path else ""
        return f"disk_free({_spoken(self.free_bytes)}{where})"

    def bound(self, data_dir: Path) -> Condition:
        return self if self.path else replace(self, path=str(data_dir))

    async def problem(self) -> str:
        """Look; on a thread, since a network drive may hang."""
        free = (await aside(lambda: shutil.disk_usage(self.path or "."))).free
        return "" if free >= self.free_bytes else f"{_spoken(free)} are free"


@dataclass(frozen=True)
class OnPower(Condition):
    """The machine is not running from its battery, as Linux sees it."""

    @property
    def name(self) -> str:
        return "on_power()"

    async def problem(self) -> str:
        supplies = await aside(lambda: read_supplies(_SUPPLIES))
        if supplies is None:
            say_once(
                f"on_power() cannot tell here, since there is no {_SUPPLIES}: it counts as holding"
            )
            return ""
        return "" if is_on_power(supplies) else "the machine runs from its battery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """An of the kernel's power supplies."""

    #: "Mains", "USB", "Battery", …
    kind: str
    #: 1 if it gives power now
    online: str
    #: of a battery: "Charging", "Discharging", "Full", …
    status: str
    #: "Device" for one of a mouse or a headset
    scope: str


def disk_free(size: Size, path: str | os.PathLike[str] | None = None) -> Condition:
    """Require that so much is free: ``disk_free("1GB")``, on the data directory's disk.

    Args:
        size: bytes, or text such as "500MB" or "2GiB".
        path: a file or folder on the disk that is meant.

    Raises:
        UsageError: that is no size.
    """
    if path is not None and not isinstance(path, str | os.PathLike):
        raise UsageError(f"disk_free: path is {path!r:.60}: give a path")
    where = "" if path is None else str(Path(os.fspath(path)).absolute())
    return DiskFree(size_bytes(size, "disk_free: size"), where)


def on_power() -> Condition:
    """Require that the machine is not known to run from its battery; see ``OnPower``."""
    return OnPower()


def read_supplies(directory: Path) -> list[Supply] | None:
    """Read the power supplies that the kernel shows in a directory; None if it shows none there."""
    if not directory.is_dir():
        return None
    return [
        Supply(
            kind=_word(path / "type"),
            online=_word(path / "online"),
            status=_word(path / "status"),
            scope=_word(path / "scope"),
        )
        for path in sorted(directory.iterdir())
    ]


def is_on_power(supplies: Iterable[Supply]) -> bool:
    own = [supply for supply in supplies if supply.scope != "Device"]
    if any(supply.kind != "Battery" and supply.online == "1" for supply in own):
        return True
    return not any(supply.kind == "Battery" and supply.status == "Discharging" for supply in own)


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _spoken(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
