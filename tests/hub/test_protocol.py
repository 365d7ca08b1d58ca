"""The protocol as PROTOCOL.md has it: held by a second device that knows nothing of ours."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from taskq import TaskLog
from taskq_plugins.hub import Hub, models
from taskq_plugins.hub.models import Trouble
from taskq_plugins.hub.sync import Verdict
from tests.hub.place import is_copy, served

if TYPE_CHECKING:
    from tests.hub.place import Place

_DEVICE: Final = Path(__file__).with_name("device.mjs")
_NODE: Final = shutil.which("node")
needs_node: Final = pytest.mark.skipif(_NODE is None, reason="there is no node")


async def _send(place: Place, url: str, *words: str, **environment: str) -> str:
    command = [str(_NODE), str(_DEVICE), str(place.path / "edge-7"), url, place.token, *words]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    done = await to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_node
async def test_the_second_device_is_at_most_150_lines_and_imports_nothing_of_ours() -> None:
    lines = _DEVICE.read_text().splitlines()
    assert len(lines) <= 150
    imports = [line for line in lines if line.startswith("import ")]
    assert imports
    assert all("'node:" in line for line in imports)
    assert not re.search(r"\brequire\(|\bimport\(", "\n".join(lines))


@needs_node
async def test_a_second_device_brings_a_log_of_many_segments_and_what_follows(
    place: Place, url: str
) -> None:
    for _ in range(3):
        async with TaskLog.open(place.path / "edge-7", segment_bytes=64 * 1024) as log:
            for number in range(40):
                await log.put(bytes(5_000) + b"%d" % number)
            await log.put(bytes(3_000_000))
        await _send(place, url)
        assert is_copy(place.copies(), place.segments())
    assert len(place.segments()) > 5
    assert await place.sync() == [Verdict.BEHIND]


@needs_node
async def test_a_second_device_is_told_what_is_there_for_it(place: Place, url: str) -> None:
    await place.write()
    await _send(place, url)
    hub = Hub(place.hub)
    await hub.device("edge-7").enqueue(hub.call_by_name("update", version="7.2"))
    await hub.close()
    assert "update\n" in await _send(place, url, "--down")


# -- the document ----------------------------------------------------------------------------------

_PAGE: Final = (Path(models.__file__).with_name("PROTOCOL.md")).read_text()
_MESSAGES: Final = [
    *models.PATHS, models.Append, models.Enrolled, models.CopyEnd,
    models.PlacesKnown, models.Stored, models.Given, models.HubJob,
]  # fmt: skip


@pytest.mark.parametrize("kind", _MESSAGES, ids=lambda kind: kind.__name__)
def test_the_document_has_each_field_of_each_message_in_one_table(kind: type) -> None:
    section = re.split(r"^#+ ", _PAGE.split(f"\n### {kind.__name__}\n")[1], flags=re.MULTILINE)[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert named == [field.name for field in dataclasses.fields(kind)]
    for field in dataclasses.fields(kind):
        has_default = field.default is not dataclasses.MISSING
        (row,) = re.findall(rf"^\| `{field.name}` \|.*$", section, re.MULTILINE)
        assert ("default" in row) is has_default, row


async def test_the_document_has_each_request_and_each_refusal_as_the_hub_has(
    place: Place,
) -> None:
    document = (await place.ask("GET", "/openapi.json", "")).json()
    paths = {
        f"{method.upper()} {path}" for path, each in document["paths"].items() for method in each
    }
    named = re.findall(r"`([A-Z]+ /[a-z/.{}_]+)`", _PAGE)
    short = {"GET /logs/{log_id}/segments/{segment}"}
    assert paths == {*named, *short} - {"GET /openapi.json"}
    for trouble in Trouble:
        assert f"| `{trouble.value}`" in _PAGE
    for path, method in (item.split(" ")[::-1] for item in paths):
        operation = document["paths"][path][method.lower()]
        is_open = path in ("/healthz", "/enroll")
        assert ("security" in operation) is not is_open, path
        assert "default" in operation["responses"], path
        assert ("requestBody" in operation) is (method != "GET"), path


async def test_programs_get_the_same_fields(place: Place) -> None:
    schemas = (await place.ask("GET", "/openapi.json", "")).json()["components"]["schemas"]
    for kind in _MESSAGES:
        if kind is not models.Append:  # bytes, and headers
            fields = dataclasses.fields(kind)
            assert list(schemas[kind.__name__]["properties"]) == [field.name for field in fields]


# -- the vectors -----------------------------------------------------------------------------------

_VECTORS: Final = json.loads(Path(models.__file__).with_name("vectors.json").read_text())


def _body(request: dict[str, Any]) -> bytes:
    return request["json"].encode() if "json" in request else bytes.fromhex(request["hex"])


def _log_of_the_vectors(path: Path) -> None:
    (path / "log").mkdir(parents=True)
    (path / "taskq.json").write_text(_VECTORS["taskq.json"])
    for name, data in _VECTORS["segments"].items():
        (path / "log" / name).write_bytes(bytes.fromhex(data))


async def test_a_hub_answers_the_vectors_as_they_are(place: Place) -> None:
    place.server._copies._first_session = 0
    for exchange in _VECTORS["session"]:
        asked, wanted = exchange["request"], exchange["answer"]
        answer = await place.ask(
            asked["method"], asked["path"], headers=asked["headers"], content=_body(asked)
        )
        assert (answer.status_code, answer.text) == (wanted["status"], wanted["body"])
    copies = {name: data.hex() for name, data in place.copies().items()}
    segments = _VECTORS["segments"]
    assert copies.keys() == segments.keys()
    assert all(segments[name].startswith(copy) for name, copy in copies.items())


@needs_node
async def test_the_second_device_asks_the_vectors_as_they_are(place: Place) -> None:
    _log_of_the_vectors(place.path / "edge-7")
    left = list(_VECTORS["session"])
    wrong: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        exchange = left.pop(0)
        wanted, answer = exchange["request"], exchange["answer"]
        headers = {name: request.headers.get(name) for name in wanted["headers"]}
        asked = request.method, request.url.path, headers, await request.body()
        if asked != (wanted["method"], wanted["path"], wanted["headers"], _body(wanted)):
            wrong.append(asked)
        kind = "application/json" if answer["body"] else None
        await Response(answer["body"], answer["status"], media_type=kind)(scope, receive, send)

    with served(app) as url:
        await _send(place, url, CLOCK_NS=_VECTORS["clock_ns"])
        await _send(place, url, "--down", CLOCK_NS=_VECTORS["clock_ns"])
    assert not wrong
    assert not left
