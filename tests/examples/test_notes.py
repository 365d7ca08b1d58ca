"""The app for notes is offline first: what was written arrives, once, as it is then."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx
import pytest

from examples.hub.line import HubProcess, free_port
from taskq.engine import LogReader
from taskq_plugins.hub import Hub
from taskq_plugins.hub.registry import Registry
from tests.programs import run_forked

ROOT: Final = Path(__file__).parents[2]


class Device:
    """A device with the app, and the server that it sends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.environment = os.environ | {
            "NOTES_HOME": str(path / "home"),
            "NOTES_SERVER": f"http://127.0.0.1:{self.port}",
            "PYTHONPATH": str(ROOT),
        }
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, **environment: str) -> str:
        done = run_forked("-m", *words, env=self.environment | environment, cwd=self.path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def serve(self) -> None:
        command = [sys.executable, "-m", "examples.notes", "serve", "--port", str(self.port)]
        self._server = subprocess.Popen(command, env=self.environment, cwd=self.path)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/", trust_env=False)
            except httpx.HTTPError:
                continue
            return
        raise AssertionError("the server does not answer")

    def work(self) -> None:
        self.run("taskq", "worker", "examples.notes.app:app", "--burst")

    def received(self, folder: str) -> dict[str, bytes]:
        result = (self.path / "home" / "SERVER" / folder).iterdir()
        return {item.name: item.read_bytes() for item in result}

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


@pytest.mark.timeout(120)
def test_what_was_written_offline_arrives_once_and_a_hub_can_have_it_sent_anew(
    tmp_path: Path,
) -> None:
    device, photo = Device(tmp_path), tmp_path / "list.jpg"
    photo.write_bytes(b"a photo" * 1_000)
    digest = hashlib.sha256(photo.read_bytes()).hexdigest()
    note = device.run("examples.notes", "add", "bread", "--photo", str(photo)).strip()
    device.run("examples.notes", "edit", note, "bread, milk")
    queue = str(tmp_path / "home" / "queue")
    with LogReader.open(queue) as reader:
        counts = {item.queue: (item.ready, item.cancelled) for item in reader.stats().queues}
    assert counts == {"notes": (1, 1), "photos": (1, 0)}
    device.serve()
    hub = HubProcess(tmp_path / "hub")
    try:
        device.work()
        arrived = json.loads(device.received("notes")[f"{note}.json"])
        assert (arrived["text"], arrived["revision"]) == ("bread, milk", 2)
        assert device.received("photos") == {digest: photo.read_bytes()}
        for folder in ("notes", "photos"):
            shutil.rmtree(tmp_path / "home" / "SERVER" / folder)
            (tmp_path / "home" / "SERVER" / folder).mkdir()
        _order_all(device, hub, queue)
        assert json.loads(device.received("notes")[f"{note}.json"]) == arrived
        assert device.received("photos") == {digest: photo.read_bytes()}
    finally:
        device.stop()
        hub.stop()


def _order_all(device: Device, hub: HubProcess, queue: str) -> None:
    token = Registry(hub.path).enroll("edge-7")
    asyncio.run(hub.start())
    programs = Hub(hub.path)
    job = programs.device("edge-7").enqueue_sync(programs.call_by_name("notes.resend"))
    settings = {
        "TASKQ_HUB_URL": f"http://127.0.0.1:{hub.port}", "TASKQ_HUB_TOKEN": token,
        "TASKQ_HUB_ACCEPT": '["notes.*"]',
    }  # fmt: skip
    assert "1 job came" in device.run("taskq", "sync", queue, **settings)
    device.work()
    device.run("taskq", "sync", queue, **settings)
    assert job.result_sync(timeout=5) == 1
    programs.close_sync()
