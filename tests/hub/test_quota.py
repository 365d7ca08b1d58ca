"""All bytes that a hub writes for a device count for that device, and are bounded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from taskq.engine import Border, DurableLog, LocalDisk
from taskq_plugins.hub.models import (
    NOWHERE,
    Append,
    CopyEnd,
    Seal,
    Sync,
    adapter,
)
from taskq_plugins.hub.server import used_bytes
from tests.hub.place import DEVICE

if TYPE_CHECKING:
    from tests.hub.place import Place

_BLOCK: Final = 4_096
_LOG: Final = UUID(int=7)


async def _session(place: Place, log_id: UUID = _LOG) -> CopyEnd:
    answer = await place.sent(Sync(log_id, 5, frozenset(), NOWHERE))
    answer_of: CopyEnd = adapter(CopyEnd).validate_json(answer.content)
    return answer_of


def _used(place: Place) -> int:
    return used_bytes(place.hub / "devices" / DEVICE)


async def test_features_that_a_log_says_it_has_come_to_an_end(place: Place) -> None:
    answers = [
        (await place.sent(Sync(_LOG, 5, frozenset({f"new-{number}"}), NOWHERE))).status_code
        for number in range(60)
    ]
    assert set(answers) == {200, 507}
    (identity,) = place.hub.rglob("taskq.json")
    assert identity.stat().st_size < _BLOCK
    assert len(json.loads(identity.read_text())["features"]["incompat"]) == 32


@pytest.mark.parametrize("data", [b"", b"x", bytes(10_000)])
async def test_segments_that_nobody_asked_for_again_are_not_kept(place: Place, data: bytes) -> None:
    await place.write()
    await place.sync()
    log_id = UUID(place.copy.name)
    session, before = (await _session(place, log_id)).session, place.tree()
    for held in (0, 5, 10_000):
        answer = await place.sent(Append(session, log_id, Border(1), data, held))
        assert (answer.status_code, answer.json()["type"]) == (409, "mismatching-upload-offset")
    assert place.tree() == before


async def test_what_is_thrown_out_since_its_hash_is_wrong_counts(place: Place) -> None:
    await place.write(2, 50_000)
    await place.sync()
    log = DurableLog(LocalDisk(), str(place.log))
    log_id, at = log.identity.log_id, log.borders(log.segments[0])[-1]
    log.close()
    account = place.server._account(DEVICE)
    for _ in range(3):
        session = (await _session(place, log_id)).session
        await place.sent(Seal(session, log_id, at, "00" * 32))
        await place.sync()
    assert len(list(place.hub.rglob("torn/*"))) == 3
    assert _used(place) <= account.used
