"""One gate for every request: what does not fit is refused, written nowhere, and stops nobody."""

from __future__ import annotations

import json
import logging
import random
import zlib
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from taskq.engine import Border, PatientDisk
from taskq_plugins.hub.copies import Copies, faults
from taskq_plugins.hub.models import (
    NOWHERE,
    PACKED,
    Append,
    Ask,
    Declare,
    Leave,
    Question,
    Seal,
    Sync,
    as_json,
    carried,
)
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import used_bytes
from tests.effort import grows, some
from tests.programs import run_taskq

if TYPE_CHECKING:
    from taskq_plugins.hub.models import Request
    from tests.hub.place import Place

_ID: Final = UUID("12345678-1234-5678-1234-567812345678")
_LOG: Final = f"/logs/{_ID}"
_SYNC: Final = Sync(_ID, 5, frozenset(), NOWHERE)
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


async def test_a_content_type_lifts_no_limit(place: Place) -> None:
    *_, body = carried(_SYNC)
    packed = zlib.compress(body + b" " * 9_000_000, 9)
    headers = {"Content-Type": PACKED}
    answer = await place.ask("POST", "/sync", content=packed, headers=headers)
    assert answer.status_code == 400
    answer = await place.ask("POST", "/sync", content=body + b" " * 300_000, headers=headers)
    assert answer.status_code == 413
    assert not place.copies()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created_ns", "9" * 400),
        ("created_ns", "-1"),
        ("created_ns", "NaN"),
        ("created_ns", "true"),
        ("clock_ns", "9" * 4_000),
        ("clock_ns", '"now"'),
        ("grace_seconds", "1e400"),
        ("incompat", json.dumps(["x" * 41])),
        ("incompat", json.dumps([f"x{number}" for number in range(33)])),
        ("machine", json.dumps("a" * 36)),
        ("machine", json.dumps("ab" * 32 + "\n")),
        ("end", "[1, 64, 0, null]"),
        ("end", json.dumps([10**400, 0, 0, ""])),
        ("parents", json.dumps([[str(_ID), 7], [str(_ID), 7]])),
        ("parents", json.dumps([[str(_ID), 1]])),
        ("parents", json.dumps([["../x", 7]])),
        ("log_id", json.dumps("-" * 36)),
        ("log_id", "[" * 50_000),
    ],
)
async def test_what_is_not_of_its_fields_type_is_told_so_and_written_nowhere(
    place: Place, field: str, value: str
) -> None:
    assert place.token
    before = place.tree()
    values = json.loads(as_json(_SYNC)) | {field: "HERE"}
    body = json.dumps(values).replace('"HERE"', value)
    assert (await place.ask("POST", "/sync", content=body)).status_code == 400
    assert place.tree() == before


async def test_a_device_that_lies_about_everything_stops_nobody(place: Place) -> None:
    await place.write()
    await place.sync()
    most = Sync(
        _ID, 2**63 - 1, frozenset(f"{number:040}" for number in range(32)),
        NOWHERE, tuple((UUID(int=n), n + 2) for n in range(1_000)), 2**53 - 1, "", 2**63 - 1,
    )  # fmt: skip
    session = (await place.sent(most)).json()["session"]
    cause = "\x1b[2J\n" * 1_000
    declared = Declare(session, _ID, NOWHERE, Border(2**62 - 1), 2**62 - 1, cause)
    assert (await place.sent(declared)).status_code == 200
    for words in (
        ("devices",),
        ("devices", "--json"),
        ("devices", "edge-7"),
        ("check",),
    ):
        done = run_taskq("hub", words[0], str(place.hub), *words[1:])
        assert (done.returncode, done.stderr) == (0, ""), words
        assert "\x1b" not in done.stdout
    (fault,) = faults(place.hub, deep=True)
    assert str(_ID) in fault.copy.path
    assert "use a newer taskq" in fault.what
    copies = Copies(PatientDisk, str(place.hub))
    assert [copies.keep(copy, 2**62, dry_run=True) for copy in copies.all()] == [[], []]
    await place.write()
    await place.sync()


def _requests(session: int, log_id: UUID, at: Border, data: bytes) -> list[Request | Question]:
    return [
        Sync(log_id, 5, frozenset({"records-4"}), at, ((UUID(int=9), 7),), 60, "", 10**18),
        Ask(session, log_id, (at, Border(7))),
        Append(session, log_id, at, data),
        Append(session, log_id, Border(at.segment + 1), data),
        Seal(session, log_id, at, bytes(range(32)).hex()),
        Declare(session, log_id, at, Border(at.segment + 9), 11, "why"),
        Leave(session, log_id, at),
        Question(session, log_id, {"12345678": 5}),
    ]


class _Fuzz:
    """Odd requests of a device."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.chance = place, random.Random(seed)

    async def run(self, count: int) -> set[int]:
        statuses = set()
        for _ in range(count):
            with Registry(self.place.hub)._changed("edge-7") as facts:
                facts.update(left=[], state="active")  # a person lets it go on
            begun = await self.place.sent(_SYNC)
            asked = self.chance.choice(
                _requests(begun.json()["session"], _ID, NOWHERE, self.chance.randbytes(200))
            )
            method, path, headers, body = self._spoilt(*carried(asked))
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
        if method == "POST" and what > 3:
            body = self._spoilt_json(json.loads(body))
        return method, path, headers, body

    def _spoilt_json(self, values: dict[str, Any]) -> bytes:
        field = self.chance.choice(list(values))
        if self.chance.random() < 0.5:
            return json.dumps(values | {field: self.chance.choice(_ODD)}).encode()
        text = json.dumps(values | {field: "HERE"})
        return text.replace('"HERE"', self.chance.choice(_RAW)).encode()


@grows
async def test_no_request_is_answered_with_an_error_of_the_hubs(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
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
