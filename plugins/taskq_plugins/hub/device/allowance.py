"""What may go over a line now: nothing, what a day's volume leaves, or all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from taskq.conditions import on_power, online, unmetered
from taskq.conditions.network import metered_line
from taskq_plugins.hub.wire import HubError

if TYPE_CHECKING:
    from taskq.conditions import Condition
    from taskq.hooks import HubSettings

#: Probing takes a process; it is not done more often than that.
LOOK_SECONDS: Final = 60.0
#: How long the question takes whether the network is metered, at most.
_PROBE_SECONDS: Final = 10.0
_DAY_SECONDS: Final = 86_400.0
_MIB: Final = 2**20
#: How it went last, for ``taskq sync --status``, and what was sent on a metered line.
_NOTE: Final = "readers/hub.json"


class HubWaits(HubError):
    """Nothing is sent just now, and nobody has to do anything about it."""

    def __init__(self, why: str, seconds: float = LOOK_SECONDS) -> None:
        super().__init__(why)
        self.seconds = seconds


class Allowance:
    """What of a log may go over one line; a metered day begins with its first byte.

    Args:
        hub: the settings.
        url: of the hub.
        now: seconds since the epoch.

    Attributes:
        metered: what of the network is metered, and bears no more than a day's volume; "" if
            nothing is, or all may go nevertheless.
        part_bytes: what the hub, or a proxy before it, takes at a time.
    """

    def __init__(self, hub: HubSettings, url: str, now: Callable[[], float] = time.time) -> None:
        self._hub, self._url = hub, url
        self._now = now
        self.part_bytes = sys.maxsize
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        made: dict[str, Callable[[], Condition]] = {
            "on_power": on_power,
            "unmetered": unmetered,
            "online": partial(online, f"{host}:{port}"),
        }
        self._requires = [made[name]() for name in hub.requires]
        self._looked = -LOOK_SECONDS
        self._path = ""
        self._since = self._used = 0.0
        self.metered = ""

    async def look(self) -> None:
        """Look whether anything may be sent, unless that was done just now.

        Raises:
            HubWaits: nothing may.
        """
        if monotonic() - self._looked < LOOK_SECONDS:
            return
        for required in self._requires:
            if problem := await _told(required.name, required.problem(), required.timeout_seconds):
                raise HubWaits(f"nothing is sent while {required.name} does not hold: {problem}")
        # Who asked for nothing is not told that there is no telling.
        metered = "" if self._hub.metered == "all" else await _told("metered", metered_line())
        if metered and self._hub.metered == "never":
            raise HubWaits(f"nothing is sent, as metered = 'never' has it: {metered}")
        self.metered, self._looked = metered, monotonic()

    def take_up(self, path: str) -> None:
        self._path, known = path, last_note(path)
        self._since, self._used = known.get("since", 0.0), known.get("used", 0.0)
        self.part_bytes = known.get("part_bytes", {}).get(self._url, sys.maxsize)

    def check(self, need: int) -> None:
        """Have so many bytes left on a metered line.

        Raises:
            HubWaits: they are not.
        """
        left, most = self.left(), self._hub.metered_bytes_per_day
        if left is None or need <= left:
            return
        if need > most:
            raise HubWaits(
                f"{self.metered}: what comes next takes {need / _MIB:.1f} MiB, more than "
                f"metered_bytes_per_day ({most / _MIB:.3g} MiB), so it waits for another line"
            )
        again = self._since + _DAY_SECONDS
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(again))
        wait = min(again - self._now(), LOOK_SECONDS)
        raise HubWaits(
            f"{self.metered}: {most / _MIB:.3g} MiB a day used up; goes on at {at}", max(wait, 1.0)
        )

    def left(self) -> int | None:
        if not self.metered:
            return None
        if not 0 <= self._now() - self._since < _DAY_SECONDS:
            self._since, self._used = self._now(), 0.0
        return max(int(self._hub.metered_bytes_per_day - self._used), 0)

    def spend(self, size: int) -> None:
        if self.metered and self._path:
            self._used += size
            note(self._path, since=self._since, used=self._used)

    def limit_parts(self, size: int) -> None:
        """Note that the hub, or a proxy before it, takes so many bytes at a time and no more."""
        self.part_bytes = size
        if self._path:
            note(self._path, part_bytes={self._url: size})


def note(path: str, **values: Any) -> None:
    noted = last_note(path)
    if noted != noted | values:
        with contextlib.suppress(OSError):
            temporary = Path(path, f"{_NOTE}.tmp")
            temporary.write_text(json.dumps(noted | values), encoding="utf-8")
            temporary.replace(Path(path, _NOTE))


def last_note(path: str) -> dict[str, Any]:
    """Return what was noted of a log: ``synced_ns``, ``lsn``, ``error``, …; {}: nothing."""
    try:
        return dict(json.loads(Path(path, _NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


async def _told(name: str, probed: Awaitable[str], timeout_seconds: float = _PROBE_SECONDS) -> str:
    try:
        async with asyncio.timeout(timeout_seconds):
            return await probed
    except Exception as error:  # noqa: BLE001 - whatever a probe meets
        return f"{name} cannot be told ({type(error).__name__}: {error})"
