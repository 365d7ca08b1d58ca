"""A proxy before the hub that takes less at a time than the hub does."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from taskq import TaskLog
from taskq.connection.settings import HubSettings
from taskq_plugins.hub.device.allowance import last_note
from taskq_plugins.hub.device.line import Line, Told
from taskq_plugins.hub.sync import sync
from taskq_plugins.hub.wire import HubError
from tests.hub.place import Direct, Place, is_copy
from tests.processes.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MIB: Final = 2**20
_URL: Final = "http://localhost"
_PAGE: Final = b"<html><head><title>413 Request Entity Too Large</title></head></html>"


class Narrow(Direct):
    """A line with a proxy that takes so much at a time."""

    def __init__(self, place: Place, most: int) -> None:
        super().__init__(place.server)
        self.most, self.refused, self.largest = most, 0, 0

    async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Told:
        """Send a request, if it is not too large."""
        if len(body) > self.most:
            self.refused += 1
            return Told(413, _PAGE)
        self.largest = max(self.largest, len(body))
        return await super().__call__(method, path, headers, body)


async def _sent(place: Place, carrier: Narrow) -> None:
    line = Line(_URL, place.token, carrier, HubSettings())
    try:
        await sync(str(place.path / "edge-7"), line)
    finally:
        await line.close()


@pytest.mark.parametrize("most", [_MIB, 200_000, 64 * 1024])
async def test_a_part_that_is_too_large_is_halved_and_that_is_remembered(
    place: Place, most: int
) -> None:
    await place.write(100, 60_000)
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


async def test_a_large_file_beside_the_log_goes_in_smaller_parts_too(place: Place) -> None:
    async with TaskLog.open(place.path / "edge-7", spill=True) as log:
        await log.put(bytes(5 * _MIB))
    await _sent(place, Narrow(place, 300_000))
    (body,) = (place.hub / "devices").rglob("spill/*")
    assert body.stat().st_size >= 5 * _MIB


async def test_one_commit_that_no_proxy_takes_is_told_with_what_helps(place: Place) -> None:
    await place.write(1, 90_000)
    with pytest.raises(HubError, match=r"413: .*client_max_body_size"):
        await _sent(place, Narrow(place, 60_000))


_NGINX: Final = """
user root; daemon off; error_log stderr; pid {path}/pid;
events {{}}
http {{
  access_log off; client_body_temp_path {path}/1; proxy_temp_path {path}/2;
  fastcgi_temp_path {path}/3; uwsgi_temp_path {path}/4; scgi_temp_path {path}/5;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }}
}}
"""


@pytest.fixture
def nginx(url: str, tmp_path: Path) -> Iterator[str]:
    """Yield a hub behind nginx as it comes."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("there is no nginx here")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    file = tmp_path / "nginx.conf"
    file.write_text(_NGINX.format(path=tmp_path, port=port, url=url))
    process = subprocess.Popen([program, "-p", str(tmp_path), "-c", str(file)])
    try:
        eventually(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


async def test_a_backlog_arrives_behind_nginx_as_it_comes(place: Place, nginx: str) -> None:
    await place.write(200, 60_000)
    line = Line(nginx, place.token, None, HubSettings())
    await sync(str(place.path / "edge-7"), line)
    await line.close()
    assert is_copy(place.copies(), place.segments())
