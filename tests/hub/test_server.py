"""The hub's HTTP, and the session of a device over it."""

import json
import logging
import random
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from click.testing import CliRunner

from examples.hub.line import free_port
from taskq import TaskLog
from taskq.cli.main import main
from taskq.engine import Border, PatientDisk
from taskq.errors import LogDamaged, UsageError
from taskq.log.upkeep.backup import repair_directory
from taskq_plugins.hub import models
from taskq_plugins.hub.commands import hub as group
from taskq_plugins.hub.copies import Copies
from taskq_plugins.hub.line import Line, check_url
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import used_bytes
from taskq_plugins.hub.sync import Verdict
from tests.cli.helpers import taskq
from tests.effort import grows, some
from tests.hub.place import Place, faults, is_copy, running
from tests.programs import run_taskq

_LOG_ID: Final = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize("token", [
    "", "x", "tq1.edge-7." + "A" * 43, "tq1.edge-9." + "A" * 43, "tq1...." + "A" * 43, "é" * 20,
])  # fmt: skip
async def test_every_invalid_token_gets_the_same_answer(place: Place, token: str) -> None:
    Registry(place.hub).enroll("edge-7")
    before = place.tree()
    headers = {"Authorization": f"Bearer {token}".encode()}
    bodies = {
        (await place.ask(method, path, "", headers=headers)).content
        for method, path in (("POST", "/sync"), ("GET", "/"), ("PATCH", f"/logs/{_LOG_ID}"))
    }
    assert bodies == {b'{"type":"about:blank","title":"the token is not known here"}'}
    assert place.tree() == before


@pytest.mark.parametrize("spoken", ["2, 3", "", "one", "11"])
async def test_two_sides_without_a_common_version_both_say_so_and_what_helps(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spoken: str
) -> None:
    await place.write()
    assert place.token
    before = place.tree()
    monkeypatch.setattr(Line, "spoken", spoken)
    said = f"this hub speaks protocol 1, and the device {spoken or 'none'}"
    with pytest.raises(models.HubStops, match=f"426: {said}: bring the older one up to date"):
        await place.sync()
    assert f"edge-7 was refused: {said}" in caplog.text
    assert place.tree() == before
    monkeypatch.setattr(Line, "spoken", "3, 1")
    assert await place.sync() == [Verdict.NEW]


async def test_a_body_is_bounded_before_it_is_read(place: Place) -> None:
    frames = {"Content-Type": models.FRAMES, "Content-Length": str(models.PART_BYTES_MAX + 1)}
    assert (await place.ask("POST", "/append", headers=frames)).status_code == 413
    large = b" " * (128 * 1024 + 1)
    assert (await place.ask("POST", "/sync", content=large)).status_code == 413
    endless = {"Content-Length": "9" * 30}
    assert (await place.ask("POST", "/sync", headers=endless)).status_code == 411
    assert (await place.ask("POST", "/sync", content=b"[]")).status_code == 400
    *_, body = models.carried(_SYNC)
    packed = {"Content-Type": models.PACKED}
    for content, status in ((zlib.compress(body + b" " * 9_000_000, 9), 400), (body + large, 413)):
        answer = await place.ask("POST", "/sync", content=content, headers=packed)
        assert answer.status_code == status
    assert not place.copies()


async def test_a_full_disk_takes_no_write(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.write()
    with monkeypatch.context() as patch:
        patch.setattr(PatientDisk, "free_bytes", lambda _disk, _path: 1_000)
        with pytest.raises(models.HubError, match=r"507.*free some space"):
            await place.sync()
    assert not place.copies()
    assert await place.sync() == [Verdict.NEW]


async def test_the_two_latest_tokens_of_a_device_hold(place: Place) -> None:
    tokens = [Registry(place.hub).enroll("edge-7") for _ in range(3)]
    assert [Registry(place.hub).device_of(token) for token in tokens] == [None, "edge-7", "edge-7"]
    await place.write()
    with pytest.raises(models.HubError, match=r"401.*enrol"):
        await place.sync(tokens[0])
    kept = b"".join(file.read_bytes() for file in place.hub.glob("registry.db*"))
    assert not any(token.rpartition(".")[2].encode() in kept for token in tokens)


@pytest.mark.parametrize("name", ["", "..", "Edge", "a/b", "-a", "a" * 64, "a\n", "ü"])
def test_a_device_name_that_could_escape_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no name of a device"):
        Registry(tmp_path).enroll(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["", "hub", "ftp://hub", "http://hub.example", "http://10.0.0.1"])
def test_a_token_goes_over_tls_or_not_at_all(url: str) -> None:
    with pytest.raises(UsageError):
        check_url(url)
    assert check_url("https://hub.example/x/") == "https://hub.example/x"


def _turn_a_bit(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)


@pytest.mark.parametrize(("harm", "what"), [
    (_turn_a_bit, "a frame is not as it was"), (Path.unlink, "a segment before it is missing"),
])  # fmt: skip
async def test_damage_of_a_log_is_reported_and_the_rest_goes_after_a_repair(
    place: Place, harm: Callable[[Path], None], what: str
) -> None:
    async with TaskLog.open(place.log, segment_bytes=64 * 1024) as log:
        for _ in range(60):
            await log.put(bytes(4_000))
    harm(sorted((place.log / "log").glob("*.log"))[1])
    identity = (place.log / "taskq.json").read_bytes()
    for _ in range(2):
        with pytest.raises(LogDamaged, match=f"{what}.* taskq verify"):
            await place.sync()
    assert place.copies()
    assert (place.log / "taskq.json").read_bytes() == identity, "it is the same log"
    repaired = place.path / "repaired"
    assert repair_directory(str(place.log), str(repaired)).damage
    place.remove()
    repaired.rename(place.log)
    await place.write()
    assert await place.sync() == [Verdict.NEW], "what was repaired is another log"
    assert is_copy(place.copies(), place.segments())


def test_a_killed_hub_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, hub, port = tmp_path / "log", tmp_path / "hub", free_port()
    monkeypatch.setenv("TASKQ_HUB_URL", f"http://127.0.0.1:{port}")
    monkeypatch.chdir(tmp_path)
    taskq("put", "one", "-d", log)
    (hub / "devices").mkdir(parents=True)
    (tmp_path / "token").write_text(taskq("hub", "enroll", hub, "edge-7").stdout)
    send = ("sync", log, "--token-file", "token")
    done = taskq(*send)
    assert (done.exit_code, "cannot be reached" in done.stderr) == (1, True)
    command = (sys.executable, "-m", "taskq", "hub", "serve", hub, "--bind", f"127.0.0.1:{port}")
    with running(port, *command) as server:
        assert "152 B sent" in taskq(*send).stdout  # it answers, so it holds the lock
        assert taskq("hub", "serve", hub).exit_code == 1
        refused = taskq("hub", "serve", tmp_path / "other", *command[-2:])
        assert (refused.exit_code, "serving" in refused.stderr) == (1, False)
        taskq("put", "two", "-d", log)
        server.kill()
    with running(port, *command):
        assert re.search(r"up to lsn 2; .* B sent", taskq(*send).stdout)
        assert "up to lsn 2; nothing to send" in taskq(*send).stdout
        (copy,) = (hub / "devices" / "edge-7").glob("*-*")
        assert "no damage" in taskq("verify", "-d", copy).stdout
        refused = taskq("put", "three", "-d", copy)
        assert (refused.exit_code, "edge-7" in refused.stderr) == (1, True)
    assert taskq("sync", log).exit_code == 2


_COMMANDS: Final = (
    ("enroll", "edge-7"), ("retire", "edge-7"), ("devices",), ("check",), ("backup", "x"),
    ("erase", "edge-7"), ("take", "edge-7", "x"), ("put", "edge-7", "t"), ("jobs",),
)  # fmt: skip


@pytest.mark.parametrize("words", _COMMANDS, ids=lambda words: words[0])
def test_a_mistyped_path_creates_no_hub(tmp_path: Path, words: tuple[str, ...]) -> None:
    hub = str(tmp_path / "hob")
    done = CliRunner().invoke(main, ["hub", words[0], hub, *words[1:]])
    assert done.exit_code == 2
    assert "hob is no hub" in done.output
    assert not list(tmp_path.iterdir())


def test_every_verb_but_serve_asks_for_a_hub_that_is_there() -> None:
    assert {words[0] for words in _COMMANDS} | {"serve"} == group.commands.keys()


def test_a_directory_with_something_else_in_it_becomes_no_hub(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = CliRunner().invoke(main, ["hub", "serve", str(tmp_path)])
    assert (done.exit_code, "is no hub, and not empty" in done.output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


async def test_ten_wrong_tokens_a_minute_are_answered_and_then_no_more(place: Place) -> None:
    answers = [(await place.ask("GET", "/logs", "wrong")).status_code for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2
    assert (await place.ask("GET", "/logs")).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="lists the files of a process in /proc")
async def test_a_hub_that_ended_has_no_file_open(place: Place) -> None:
    await place.write()
    async with place.server.site.router.lifespan_context(place.server.site):
        await place.sync()
        assert _open_files(place.hub)
    assert _open_files(place.hub) == []


def _open_files(folder: Path) -> list[str]:
    links = Path("/proc/self/fd").iterdir()
    files = [str(link.readlink()) for link in links if link.is_symlink()]
    return [file for file in files if file.startswith(str(folder))]


_ID: Final = UUID("12345678-1234-5678-1234-567812345678")
_SYNC: Final = models.Sync(_ID, 5, frozenset(), models.NOWHERE)
#: Fields of no message.
_ODD: Final[tuple[Any, ...]] = (
    None, True, -1, 1.5, 2**64, 10**400, "", "1", "\x00", "é" * 36, "a" * 36, "-" * 36, "x" * 5_000,
    [], [[]], {}, {"a": 1}, [1] * 2_000, [0, 0, 0, "zz"], [1, 64, 0, ""], [-1, 0, 0, ""],
)  # fmt: skip
#: The same as JSON.
_RAW: Final = ("NaN", "Infinity", "-Infinity", "9" * 4_000, "1" * 9_000, "1e999", '"\\ud800"',
               "[" * 5_000 + "]" * 5_000, "{", "")  # fmt: skip
_ODD_HEADERS: Final = ("", "-1", "+1", "1_0", " 1", "²", "9" * 400, "9" * 8_000, "none", "NaN",
                       "zz" * 56, "00" * 56, "ff" * 56, "?2", "sha-256=::", "é", "1" * 36,
                       "bytes=0-0,2-2", "bytes=9-1", "bytes=-9999999999999999999999",
                       "bytes=" + "0-0," * 1_000)  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [
    ("created_ns", "-1"),
    ("created_ns", "true"),
    ("clock_ns", '"now"'),
    ("grace_seconds", "1e400"),
    ("incompat", json.dumps(["x" * 41])),
    ("incompat", json.dumps([f"x{number}" for number in range(33)])),
    ("machine", json.dumps("a" * 36)),
    ("machine", json.dumps("ab" * 32 + "\n")),
    ("end", "[1, 64, 0, null]"),
    ("parents", json.dumps([[str(_ID), 7], [str(_ID), 7]])),
    ("parents", json.dumps([["../x", 7]])),
    ("log_id", json.dumps("-" * 36)),
])  # fmt: skip
async def test_a_field_of_a_wrong_type_writes_nothing(place: Place, field: str, value: str) -> None:
    assert place.token
    before = place.tree()
    values = json.loads(models.as_json(_SYNC)) | {field: "HERE"}
    body = json.dumps(values).replace('"HERE"', value)
    assert (await place.ask("POST", "/sync", content=body)).status_code == 400
    assert place.tree() == before


async def test_a_device_that_lies_about_everything_stops_nobody(place: Place) -> None:
    await place.write()
    await place.sync()
    most = models.Sync(
        _ID, 2**63 - 1, frozenset(f"{number:040}" for number in range(32)),
        models.NOWHERE, tuple((UUID(int=n), n + 2) for n in range(1_000)), 2**53 - 1, "", 2**63 - 1,
    )  # fmt: skip
    session = (await place.sent(most)).json()["session"]
    cause = "\x1b[2J\n" * 1_000
    declared = models.Declare(session, _ID, models.NOWHERE, Border(2**62 - 1), 2**62 - 1, cause)
    assert (await place.sent(declared)).status_code == 200
    for words in (("devices",), ("devices", "--json"), ("devices", "edge-7"), ("check",)):
        done = run_taskq("hub", words[0], str(place.hub), *words[1:])
        assert (done.returncode, done.stderr) == (0, ""), words
        assert "\x1b" not in done.stdout
    (fault,) = faults(place.hub, deep=True)
    assert str(_ID) in fault.copy.path
    assert "use a newer taskq" in fault.what
    copies = Copies(PatientDisk, str(place.hub))
    assert [copies.keep(copy, 2**62) for copy in copies.all()] == [[], []]
    await place.write()
    await place.sync()


def _requests(
    session: int, log_id: UUID, at: Border, data: bytes
) -> list[models.Request | models.Question]:
    return [
        models.Sync(log_id, 5, frozenset({"records-4"}), at, ((UUID(int=9), 7),), 60, "", 10**18),
        models.Ask(session, log_id, (at, Border(7))),
        models.Append(session, log_id, at, data),
        models.Append(session, log_id, Border(at.segment + 1), data, 0, at.stem.hex()),
        models.Declare(session, log_id, at, Border(at.segment + 9), 11, "why"),
        models.Leave(session, log_id, at),
        models.Question(session, log_id, {"12345678": 5}),
    ]


class _Fuzz:
    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.chance = place, random.Random(seed)

    async def run(self, count: int) -> set[int]:
        statuses = set()
        for _ in range(count):
            with Registry(self.place.hub)._changed("edge-7") as facts:
                facts.update(left=[], state="active")  # a person lets it go on
            begun = await self.place.sent(_SYNC)
            asked = self.chance.choice(
                _requests(begun.json()["session"], _ID, models.NOWHERE, self.chance.randbytes(200))
            )
            method, path, headers, body = self._spoilt(*models.carried(asked))
            sent = {name: value.encode() for name, value in headers.items()}
            answer = await self.place.ask(method, path, headers=sent, content=body)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (method, path[:200], headers, body[:200])
        return statuses

    def _spoilt(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[str, str, dict[str, str], bytes]:
        chance = self.chance
        what = chance.randrange(6)
        if what == 0:
            path = path.replace(str(_ID), chance.choice(["..", "%00", "a" * 36, "-" * 36, "é", ""]))
        elif what == 1:
            method = chance.choice(["GET", "HEAD", "POST", "PATCH", "PUT", "OPTIONS"])
        elif what == 2:
            names = [*headers, "Range", "If-Range", "If-None-Match", "Content-Type"]
            headers = headers | {chance.choice(names): chance.choice(_ODD_HEADERS)}
        elif what == 3:
            body = chance.choice([body[: len(body) // 2], zlib.compress(body), b"\xff" + body, b""])
        if what > 3 and models.APPEND in headers:
            fields = self._spoilt_json(json.loads(headers[models.APPEND]))
            headers = headers | {models.APPEND: fields.decode()}
        elif what > 3:
            body = self._spoilt_json(json.loads(body))
        return method, path, headers, body

    def _spoilt_json(self, values: dict[str, Any]) -> bytes:
        field = self.chance.choice(list(values))
        if self.chance.random() < 0.5:
            return json.dumps(values | {field: self.chance.choice(_ODD)}).encode()
        text = json.dumps(values | {field: "HERE"})
        return text.replace('"HERE"', self.chance.choice(_RAW)).encode()


@grows
async def test_no_request_breaks_the_hub(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    await place.write()
    await place.sync()
    before = place.copies()
    statuses = await _Fuzz(place, 7).run(some(400, 20_000))
    assert statuses >= {200, 400, 404, 409}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert before.items() <= place.copies().items()
    # All its bytes are counted.
    account = place.server._account("edge-7")
    assert used_bytes(place.hub / "devices" / "edge-7") <= account.used
    assert not list(faults(place.hub, deep=True))
    await place.write()
    await place.sync()
