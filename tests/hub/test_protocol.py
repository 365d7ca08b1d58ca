"""The protocol as PROTOCOL.md has it: held by a second device that knows nothing of ours."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st
from starlette import requests
from starlette.responses import Response

from taskq import TaskLog
from taskq.engine import Border
from taskq.log.format import codec
from taskq_plugins.hub import Hub, models
from taskq_plugins.hub.models import (
    STATUS,
    Answer,
    Append,
    Ask,
    CopyEnd,
    HubError,
    PlacesKnown,
    Refused,
    Request,
    Stored,
    Sync,
    Trouble,
    as_json,
    understood,
)
from taskq_plugins.hub.sync import Verdict
from tests.hub.place import Place, is_copy, served

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
async def test_a_second_device_brings_a_log_of_many_segments(place: Place, url: str) -> None:
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
async def test_a_second_device_gets_its_jobs(place: Place, url: str) -> None:
    await place.write()
    await _send(place, url)
    hub = Hub(place.hub)
    await hub.device("edge-7").enqueue(hub.call_by_name("update", version="7.2"))
    await hub.close()
    assert "update\n" in await _send(place, url, "--down")


# -- the document ----------------------------------------------------------------------------------

_PAGE: Final = (Path(models.__file__).with_name("PROTOCOL.md")).read_text()
_MESSAGES: Final = [
    *models.PATHS, models.Enrolled, models.CopyEnd,
    models.PlacesKnown, models.Stored, models.Given, models.HubJob,
]  # fmt: skip


@pytest.mark.parametrize("kind", _MESSAGES, ids=lambda kind: kind.__name__)
def test_the_document_has_each_field_of_each_message_in_one_table(kind: type) -> None:
    section = _PAGE.split(f"\n| **{kind.__name__}** ")[1].split("\n| **")[0].split("\n\n")[0]
    rows = dict(re.findall(r"^\|(?:  \|)? `(\w+)` \| (.*)$", section, re.MULTILINE))
    assert list(rows) == [field.name for field in dataclasses.fields(kind)]
    for field in dataclasses.fields(kind):
        assert ("default" in rows[field.name]) is (field.default is not dataclasses.MISSING)


async def test_the_document_has_each_request_and_each_refusal_as_the_hub_has(place: Place) -> None:
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
    schemas = document["components"]["schemas"]
    for kind in {*_MESSAGES} - {models.Append}:  # bytes, and headers
        fields = [field.name for field in dataclasses.fields(kind)]
        assert list(schemas[kind.__name__]["properties"]) == fields


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
        request = requests.Request(scope, receive)
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


_LOG: Final = UUID("12345678-1234-5678-1234-567812345678")
_STEM: Final = codec.encode_frame(b"body", 1, 7, 5, 10**18, 0, 3, 64)[: codec.FRAME_HEADER_SIZE]
_AT: Final = Border(7, 64 + codec.frame_size(4), 64, _STEM)
_SYNC: Final = Sync(_LOG, 5, frozenset({"records-4"}), _AT)
_ASK: Final = Ask(3, _LOG, (_AT, Border(7)))
_APPEND: Final = Append(3, _LOG, Border(7), b"bytes")
#: A device cannot go on from these.
_ENDS: Final = (Trouble.CLONED, Trouble.HELD)
_ANSWERS: Final[list[tuple[Request, Answer]]] = [
    (_SYNC, CopyEnd(3, _AT, has_end=False, begins=1)),
    (_ASK, PlacesKnown((True, False))),
    (_APPEND, Stored(_AT)),
    (_SYNC, CopyEnd(3, _AT, True, 1, 7, ((7, 900),), _AT)),
    (_APPEND, Stored(_AT, 7)),
    *((_APPEND, Refused(trouble, _AT)) for trouble in Trouble if trouble not in _ENDS),
]


@pytest.mark.parametrize(("asked", "answer"), _ANSWERS, ids=str)
def test_an_answer_comes_out_as_it_went_in(asked: Request, answer: Answer) -> None:
    assert understood(asked, *_answered(answer)) == answer


def _answered(answer: Answer) -> tuple[int, bytes]:
    return STATUS[answer.trouble] if isinstance(answer, Refused) else 200, as_json(answer)


@given(
    st.sampled_from([item for item, _ in _ANSWERS]), st.integers(100, 599), st.binary(max_size=80)
)
def test_wrong_answers_are_errors_that_say_so(asked: Request, status: int, body: bytes) -> None:
    with pytest.raises(HubError, match=f"the hub answers {status}: "):
        understood(asked, status, body)


@pytest.mark.parametrize("status", [200, 302, 407, 511, 500])
def test_the_answer_of_a_login_page_is_no_hubs(status: int) -> None:
    with pytest.raises(HubError) as raised:
        understood(_SYNC, status, b"<html>Log in</html>")
    assert ("login page" in str(raised.value)) == (status != 500)


def test_a_hub_cannot_bring_a_device_to_the_end_of_its_lsns() -> None:
    answer = CopyEnd(3, _AT, has_end=False, begins=2**62)
    with pytest.raises(HubError):
        understood(_SYNC, *_answered(answer))
