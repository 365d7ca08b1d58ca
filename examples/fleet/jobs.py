"""The devices' app: five tasks, some of which fail."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from taskq import Discard, Snooze, TaskQ, retry
from taskq.testing.sandbox import TravelClock, use_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskq import Call
    from taskq.app.tasks import AsyncTask

#: Shares of uploads without a network, photos without pixels, and snoozed maps.
OFFLINE_SHARE: Final = 0.12
BROKEN_SHARE: Final = 0.05
SNOOZE_SHARE: Final = 0.05
PHOTOS: Final = 10_000
TILES: Final = 40


class Device:
    """One device: its app, its simulated clock, and random events from a seed.

    Time is simulated: a job of 20 seconds moves the device's clock by 20 seconds at once.

    Args:
        name: name of the device, which is the seed of its random events.
        path: directory of its task log.
        start_seconds: start of its clock, in seconds since 1970.
        sick: whether firmware updates fail here.
    """

    def __init__(self, name: str, path: Path, start_seconds: float, *, sick: bool) -> None:
        self.name = name
        self.clock = TravelClock(start_seconds)
        self.draw = random.Random(name)
        self.app = TaskQ(path, durability="os", name=name)
        use_clock(self.app, self.clock)
        self._sick = sick
        self.firmware = self._firmware()
        photos = self._photos()
        self._kinds: tuple[tuple[int, Callable[[int], Call[Any]]], ...] = (*photos, *self._others())

    def call(self, hour: int) -> Call[Any]:
        kinds = list(self._kinds)
        weights = [weight for weight, _ in kinds]
        return self.draw.choices(kinds, weights)[0][1](hour)

    def _took(self, low: float, high: float) -> None:
        self.clock.advance(self.draw.uniform(low, high))

    def _photos(self) -> tuple[tuple[int, Callable[[int], Call[Any]]], ...]:
        app, draw = self.app, self.draw

        @app.task(
            name="photos.upload",
            queue="uploads",
            retry=retry.exponential(attempts=4, base=30, cap=600, jitter="none"),
        )
        async def upload(photo: int) -> None:
            del photo
            self._took(2, 40)
            if draw.random() < OFFLINE_SHARE:
                raise ConnectionError(
                    f"cannot reach 10.20.{draw.randrange(9)}.{draw.randrange(99)}:443"
                )

        @app.task(
            name="photos.resize",
            queue="photos",
            priority=7,
            retry=retry.exponential(attempts=2, base=10, cap=60, jitter="none"),
        )
        async def resize(photo: int) -> int:
            self._took(0.2, 3)
            if draw.random() < BROKEN_SHARE:
                raise ValueError(f"photo {photo} has no pixels at {draw.randrange(2**40):#x}")
            return photo * 2

        return (
            (45, lambda _hour: upload.call(draw.randrange(PHOTOS))),
            (30, lambda _hour: resize.call(draw.randrange(PHOTOS))),
        )

    def _others(self) -> tuple[tuple[int, Callable[[int], Call[Any]]], ...]:
        app, draw = self.app, self.draw

        @app.task(name="reports.send", queue="reports", key=lambda hour: f"report {hour}")
        async def report(hour: int) -> str:
            self._took(1, 5)
            return f"{self.name} at {hour}"

        @app.task(name="maps.refresh", queue="maps", priority=3, expires="30m")
        async def refresh(tile: int) -> None:
            self._took(5, 90)
            if draw.random() < SNOOZE_SHARE:
                raise Snooze("10m")
            if tile == 0:
                raise Discard("tile 0 is not on this map")

        return (
            (17, lambda _hour: refresh.call(draw.randrange(TILES))),
            (8, report.call),
        )

    def _firmware(self) -> AsyncTask[[str], None]:
        @self.app.task(
            name="firmware.update",
            queue="firmware",
            key=lambda version: f"firmware {version}",
            retry=retry.exponential(attempts=3, base=60, cap=600, jitter="none"),
        )
        async def update(version: str) -> None:
            self._took(20, 60)
            if self._sick:
                raise RuntimeError(f"image {version} does not verify: signature is of 2031")

        return update
