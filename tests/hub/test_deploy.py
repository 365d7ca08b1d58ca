"""A hub on a server: after nginx and Caddy, with TLS, under systemd, watched."""

import asyncio
import contextlib
import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import Mock, call

import httpx
import pytest
from anyio import fail_after, to_thread

from examples.hub.line import free_port
from taskq.connection.settings import HubSettings
from taskq_plugins.hub import server
from taskq_plugins.hub.line import HubReply, Line, last_note
from taskq_plugins.hub.models import HubError
from taskq_plugins.hub.server import Listener, Server
from taskq_plugins.hub.sync import Verdict, sync
from tests.effort import at_most, grows, some
from tests.hub.place import Direct, Place, is_copy, running, served
from tests.processes.harness import eventually
from tests.programs import run_taskq

_DEPLOY: Final = Path(__file__).parents[2] / "examples" / "hub" / "deploy"
_MIB: Final = 2**20


def _program(name: str) -> str:
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip(f"there is no {name} here")
    return program


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-keyout", str(key), "-out", str(cert), "-days", "2"]
    subprocess.run([_program("openssl"), *words], check=True, capture_output=True)
    return cert, key


_NGINX: Final = """
user root; daemon off; error_log stderr; pid {path}/pid;
events {{}}
http {{
  access_log off; client_body_temp_path {path}/1; proxy_temp_path {path}/2;
  fastcgi_temp_path {path}/3; uwsgi_temp_path {path}/4; scgi_temp_path {path}/5;
  {server}
}}
"""
_AS_IT_COMES: Final = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }}"


@contextmanager
def _nginx(path: Path, server: str, port: int) -> Iterator[None]:
    program, file = _program("nginx"), path / "nginx.conf"
    file.write_text(_NGINX.format(path=path, server=server))
    with running(port, program, "-p", path, "-c", file):
        yield


async def _arrives(place: Place, url: str, ca: Path | None = None) -> None:
    await place.sync_over(Line(url, place.token, None, HubSettings(ca=ca)))
    assert is_copy(place.copies(), place.segments())


@grows
async def test_a_backlog_and_a_job_pass_nginx_within_five_seconds(place: Place, url: str) -> None:
    await place.write(some(200, 3_400), 60_000)
    await place.write(1, 5 * _MIB)
    port = free_port()
    with _nginx(place.path, _AS_IT_COMES.format(port=port, url=url), port):
        await _arrives(place, f"http://127.0.0.1:{port}")
        await place.order(f"http://127.0.0.1:{port}", 2, seconds=at_most(5))


async def test_the_file_for_nginx_brings_tls_and_takes_large_parts(
    place: Place, url: str, certificate: tuple[Path, Path]
) -> None:
    await place.write(200, 60_000)
    port, server = free_port(), (_DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/hub.pem", str(certificate[0])),
        ("/etc/ssl/hub.key", str(certificate[1])),
        ("http://127.0.0.1:8470", url),
    ):
        assert old in server
        server = server.replace(old, new)
    with _nginx(place.path, server, port):
        await _arrives(place, f"https://localhost:{port}", certificate[0])
        line = Line(f"https://localhost:{port}", place.token, None, HubSettings(ca=certificate[0]))
        answer = await line.request("POST", "/sync", {}, bytes(2 * _MIB))
        await line.close()
        assert b"this takes at most" in answer.content  # the hub's own word, not nginx's


async def test_the_caddyfile_is_valid(tmp_path: Path) -> None:
    caddy = _program("caddy")
    shutil.copy(_DEPLOY / "Caddyfile", tmp_path)
    file = str(tmp_path / "Caddyfile")
    command = [caddy, "validate", "--adapter", "caddyfile", "--config", file]
    await to_thread.run_sync(lambda: subprocess.run(command, check=True, capture_output=True))


def test_the_file_for_systemd_runs_a_command_that_there_is(tmp_path: Path) -> None:
    unit = (_DEPLOY / "taskq-hub.service").read_text()
    (words,) = re.findall(r"^ExecStart=\S+/taskq (.*)$", unit, re.MULTILINE)
    assert "Usage:" in run_taskq(*words.split(), "--help", check=True).stdout
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        file = tmp_path / "taskq-hub.service"
        file.write_text(unit.replace("/opt/taskq/bin/taskq", sys.executable))
        done = subprocess.run(
            [analyze, "verify", file], capture_output=True, text=True, check=False
        )
        assert "taskq-hub.service:" not in done.stderr


async def test_a_hub_brings_tls_itself(place: Place, certificate: tuple[Path, Path]) -> None:
    await place.write(5)
    with served(Listener(Server(place.hub), (str(certificate[0]), str(certificate[1])))) as address:
        url = address.replace("http://127.0.0.1", "https://localhost")
        await _arrives(place, url, certificate[0])


async def test_hub_metrics_cover_devices_and_refusals(place: Place) -> None:
    await place.write()
    await place.sync()
    port, figures = free_port(), free_port()
    hub = (sys.executable, "-m", "taskq", "hub", "serve", place.hub)
    words = ("--bind", f"127.0.0.1:{port}", "--metrics-port", str(figures))
    with running(port, *hub, *words):
        async with httpx.AsyncClient(trust_env=False) as client:
            url, headers = f"http://127.0.0.1:{port}/sync", {"Authorization": "Bearer x"}
            assert (await client.post(url, content=b"x", headers=headers)).status_code == 401
            headers = {"Authorization": f"Bearer {place.token}", "Taskq-Versions": "1"}
            assert (await client.post(url, content=b"x", headers=headers)).status_code == 400
            text = (await client.get(f"http://127.0.0.1:{figures}/metrics")).text
    assert 'taskq_hub_devices{state="active"} 1.0' in text
    assert 'taskq_hub_refusals_total{status="401"} 1.0' in text
    assert 'taskq_hub_refusals_total{status="400"} 1.0' in text
    assert "taskq_hub_received_bytes_total 1.0" in text
    assert "taskq_hub_behind_records 0.0" in text
    assert re.search(r"taskq_hub_silent_seconds [0-9.e-]+", text)


_URL: Final = "http://localhost"
_PAGE: Final = b"<html><head><title>413 Request Entity Too Large</title></head></html>"


class Narrow(Direct):
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


@pytest.mark.parametrize("most", [500_000, 200_000, 64 * 1024])
async def test_a_part_too_large_is_halved_and_remembered(place: Place, most: int) -> None:
    await place.write(100, 60_000)
    await place.write(1, 3 * _MIB)  # it goes in pieces
    carrier = Narrow(place, most)
    await place.sync_over(Line(_URL, place.token, carrier))
    assert is_copy(place.copies(), place.segments())
    assert 1 <= carrier.refused <= 5
    assert carrier.largest > most // 4
    await place.write(50, 60_000)
    again = Narrow(place, most)
    await place.sync_over(Line(_URL, place.token, again))
    assert again.refused == 0
    assert is_copy(place.copies(), place.segments())
    kept = last_note(str(place.path / "edge-7"))["part_bytes"]
    assert list(kept) == [_URL]


async def test_a_commit_too_large_for_the_proxy_raises_with_advice(place: Place) -> None:
    await place.write(1, 90_000)
    with pytest.raises(HubError, match=r"413: .*client_max_body_size"):
        await place.sync_over(Line(_URL, place.token, Narrow(place, 60_000)))


_HEAD = b"POST /enroll HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"
_LINES = 540


@contextlib.asynccontextmanager
async def _slow(url: str, data: bytes) -> AsyncIterator[None]:
    port = int(url.rpartition(":")[2])
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_LINES)]
    for _, writer in lines:
        writer.write(data)
    try:
        yield
    finally:
        for _, writer in lines:
            writer.close()


def test_a_hub_has_a_file_for_each_line_that_may_be_there(place: Place) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with served(Listener(Server(place.hub))):
            eventually(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(4_000, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("chosen", [False, True])
def test_memory_of_bodies_is_kept_unless_chosen_otherwise(
    monkeypatch: pytest.MonkeyPatch, *, chosen: bool
) -> None:
    library, monkey = Mock(), monkeypatch
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkey.delenv(name)
    if chosen:
        monkey.setenv("MALLOC_ARENA_MAX", "2")
    monkey.setattr(ctypes, "CDLL", lambda _name: library)
    server.keep_memory()
    one_arena, mapped, given_back = call(-8, 1), call(-3, 2**24), call(-1, 2**26)
    assert library.mallopt.mock_calls == ([] if chosen else [one_arena, mapped, given_back])


@pytest.mark.parametrize("data", [b"", b"POST /sync HTT", _HEAD], ids=["none", "head", "body"])
async def test_slow_lines_shut_no_device_out(place: Place, url: str, data: bytes) -> None:
    await place.write()
    line = Line(url, place.token)
    async with _slow(url, data):
        with fail_after(5):
            done = await sync(str(place.path / "edge-7"), line)
        assert done.verdicts == [Verdict.NEW]
        await asyncio.sleep(0)
        await place.write()
        with fail_after(5):
            done = await sync(str(place.path / "edge-7"), line)
        assert done.verdicts == [Verdict.BEHIND]
    await line.close()
