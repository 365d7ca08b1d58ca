"""A proxy before the hub that takes less at a time than the hub does."""

from __future__ import annotations

from typing import Final

import pytest

from taskq.connection.settings import HubSettings
from taskq_plugins.hub.line import HubReply, Line, last_note
from taskq_plugins.hub.models import HubError
from taskq_plugins.hub.sync import sync
from tests.hub.place import Direct, Place, is_copy

_MIB: Final = 2**20
_URL: Final = "http://localhost"
_PAGE: Final = b"<html><head><title>413 Request Entity Too Large</title></head></html>"


class Narrow(Direct):
    """A line with a proxy that limits the size of a request."""

    def __init__(self, place: Place, most: int) -> None:
        super().__init__(place.server)
        self.most, self.refused, self.largest = most, 0, 0

    async def __call__(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> HubReply:
        if len(body) > self.most:
            self.refused += 1
            return HubReply(413, _PAGE)
        self.largest = max(self.largest, len(body))
        return await super().__call__(method, path, headers, body)


async def _sent(place: Place, carrier: Narrow) -> None:
    line = Line(_URL, place.token, carrier, HubSettings())
    try:
        await sync(str(place.path / "edge-7"), line)
    finally:
        await line.close()


@pytest.mark.parametrize("most", [500_000, 200_000, 64 * 1024])
async def test_a_part_that_is_too_large_is_halved_and_that_is_remembered(
    place: Place, most: int
) -> None:
    await place.write(100, 60_000)
    await place.write(1, 3 * _MIB)  # it goes in pieces
    carrier = Narrow(place, most)
    await _sent(place, carrier)
    assert is_copy(place.copies(), place.segments())
    assert 1 <= carrier.refused <= 5
    assert carrier.largest > most // 4
    await place.write(50, 60_000)
    again = Narrow(place, most)
    await _sent(place, again)
    assert again.refused == 0
    assert is_copy(place.copies(), place.segments())
    kept = last_note(str(place.path / "edge-7"))["part_bytes"]
    assert list(kept) == [_URL]


async def test_one_commit_that_no_proxy_takes_is_told_with_what_helps(place: Place) -> None:
    await place.write(1, 90_000)
    with pytest.raises(HubError, match=r"413: .*client_max_body_size"):
        await _sent(place, Narrow(place, 60_000))
