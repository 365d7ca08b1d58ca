"""Record the protocol's test vectors anew: ``python -m tests.hub.vectors``; it needs node.

The second device sends a log of two segments, of which one is its parent's, to a hub, and asks for
jobs in a second session.
"""

import asyncio
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskq import TaskLog
from taskq_plugins.hub import models
from tests.hub.place import Place, served

FILE: Final = Path(models.__file__).with_name("vectors.json")
DEVICE: Final = Path(__file__).with_name("device.mjs")
CLOCK_NS: Final = "1763942400000000000"
_HEADERS: Final = frozenset({
    "content-type", "content-length", "taskq-versions", "taskq-append",
})  # fmt: skip


class Recorder:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.session: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, answer, status = b"", b"", 0

        async def received() -> Message:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            return message

        async def sent(message: Message) -> None:
            nonlocal answer, status
            answer += message.get("body", b"")
            status = message.get("status", status)
            await send(message)

        await self._app(scope, received, sent)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        is_json = headers["content-type"] == models.JSON
        asked = {"method": scope["method"], "path": scope["path"]}
        asked |= {"headers": {name: headers[name] for name in headers if name in _HEADERS}}
        asked |= {"json": body.decode()} if is_json else {"hex": body.hex()}
        self.session.append({
            "request": asked, "answer": {"status": status, "body": answer.decode()},
        })  # fmt: skip


def run_device(node: str, log: Path, url: str, token: str, *words: str) -> None:
    command = [node, str(DEVICE), str(log), url, token, *words]
    subprocess.run(command, check=True, env={"CLOCK_NS": CLOCK_NS}, stdout=subprocess.DEVNULL)


async def _record(folder: Path, node: str) -> dict[str, Any]:
    place = Place(folder)
    async with TaskLog.open(place.log) as log:
        await log.put(b"one")
        await log.put(b"two")
    shutil.copytree(place.log, folder / "copy")
    shutil.rmtree(place.log)
    (folder / "copy").rename(place.log)  # the log goes on as another one
    async with TaskLog.open(place.log) as log:
        await log.put(b"three")
    place.server._copies._first_session = 0
    recorder, run = Recorder(place.server.app), asyncio.to_thread
    with served(recorder) as url:
        await run(run_device, node, place.log, url, place.token)
        await run(run_device, node, place.log, url, place.token, "--down")
    await place.close()
    segments = {name: data.hex() for name, data in place.segments().items()}
    identity = (place.log / "taskq.json").read_text()
    values = {"taskq.json": identity, "segments": segments, "clock_ns": CLOCK_NS}
    return values | {"session": recorder.session}


def main() -> None:
    node = shutil.which("node")
    assert node is not None
    with tempfile.TemporaryDirectory() as folder:
        values = asyncio.run(_record(Path(folder), node))
    assert len(values["segments"]) > 1
    FILE.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
