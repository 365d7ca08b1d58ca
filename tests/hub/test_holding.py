"""Questions that wait at a hub are in nobody's way, and take no more room than there are logs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from anyio import fail_after, to_thread

from taskq.connection.settings import HubSettings
from taskq_plugins.hub import Hub, server
from taskq_plugins.hub.line import HubWaits, Line
from taskq_plugins.hub.models import (
    NOWHERE,
    CopyEnd,
    Given,
    HubError,
    Question,
    Refused,
    Sync,
    Trouble,
    understood,
)
from taskq_plugins.hub.outbox import LongPoll
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.server import Listener
from tests.hub.place import served
from tests.processes.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq_plugins.hub.models import Answer
    from tests.hub.place import Place

_COUNT = 6
_ANEW = Refused(Trouble.SUPERSEDED, NOWHERE)


@pytest.fixture
def url(place: Place) -> Iterator[str]:
    with served(Listener(place.server, (None, None))) as address:
        yield address


async def _synced(line: Line, log_id: UUID) -> CopyEnd:
    answer = await line.ask(Sync(log_id, 5, frozenset(), NOWHERE))
    assert isinstance(answer, CopyEnd)
    return answer


async def _held(place: Place, line: Line, log_id: UUID) -> asyncio.Task[Answer | None]:
    session, asking = (await _synced(line, log_id)).session, place.server._outbox.asking
    key, question = (line.device, log_id), Question(session, log_id, {}, 50.0)
    before = asking.get(key)
    held = asyncio.create_task(line.hold(question))
    await to_thread.run_sync(eventually, lambda: asking.get(key) is not before)
    return held


async def _end(place: Place, held: list[asyncio.Task[Answer | None]], lines: list[Line]) -> None:
    place.server.end()
    await asyncio.wait(held)
    for line in lines:
        await line.close()


async def test_a_herd_that_one_job_wakes_shuts_no_other_device_out(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REQUESTS_MAX", _COUNT // 2)
    lines = [Line(url, Registry(place.hub).enroll(f"edge-{number}")) for number in range(_COUNT)]
    async with Hub(place.hub) as hub:
        await hub.device("edge-0").enqueue(hub.call_by_name("update"))
        held = [await _held(place, line, uuid4()) for line in lines[1:]]
        log_id = uuid4()
        await hub.device("edge-1").enqueue(hub.call_by_name("update"))
        while not held[0].done():  # from when they are woken until the last has looked
            await _synced(lines[0], log_id)
    assert isinstance(await held[0], Given)
    await _end(place, held, lines)


async def test_many_logs_of_one_device_wait_and_sync_side_by_side(place: Place, url: str) -> None:
    lines = [Line(url, place.token) for _ in range(_COUNT)]
    held = [await _held(place, line, uuid4()) for line in lines]
    assert not any(task.done() for task in held)
    await _end(place, held, lines)


@pytest.mark.parametrize("has_outbox", [False, True])
async def test_a_question_takes_the_place_of_the_one_before(
    place: Place, url: str, has_outbox: bool
) -> None:
    lines = [Line(url, place.token) for _ in range(_COUNT)]
    Registry(place.hub).enroll("other")
    async with Hub(place.hub) as hub:
        if has_outbox:
            await hub.device("other").enqueue(hub.call_by_name("update"))
        log_id = uuid4()
        held = [await _held(place, line, log_id) for line in lines]
        with fail_after(10):
            assert all([await task in (None, _ANEW) for task in held[:-1]])
    assert not held[-1].done()
    await _end(place, held, lines)


async def test_of_logs_that_a_device_may_not_have_nothing_is_remembered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq_plugins.hub.copies._LOGS_MAX", 5)
    token, answers = place.token, dict[int, str]()
    for _ in range(8):
        asked = {"protocol": 1, "log_id": str(uuid4()), "created_ns": 5, "incompat": []}
        end = {"end": [0, 0, 0, ""]}
        answer = await place.ask("POST", "/sync", token, json=asked | end)
        answers[answer.status_code] = answer.text
    copies = place.server._copies
    assert answers.keys() == {200, 507}
    assert "has sent 5 logs, as many as it may: give it another name" in answers[507]
    assert len(copies._sessions) == len(copies.all()) == 5


async def test_a_question_of_no_session_waits_for_nothing(place: Place, url: str) -> None:
    line = Line(url, place.token)
    log_id = uuid4()
    with fail_after(10):
        answer = await line.hold(Question(7, log_id, {}, 50.0))
    assert answer == _ANEW
    await line.close()


class _Deaf:
    """A line over which nobody answers well; it notes what was asked."""

    hub = HubSettings()

    def __init__(self, status: int) -> None:
        self.status, self.asked = status, list[Question]()

    async def hold(self, asked: Question) -> Answer | None:
        self.asked.append(asked)
        if not self.status:
            raise HubError("nobody answers")
        return understood(asked, self.status, b"")


def _question(session: int) -> Question:
    return Question(session, UUID(int=7), {}, 50.0)


@pytest.mark.parametrize("status", [0, 401, 403, 429, 503])
async def test_who_is_not_answered_asks_ever_more_rarely_until_a_session_succeeds(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    line = _Deaf(status)
    holding = LongPoll(line)  # type: ignore[arg-type]
    pause = holding._pause

    async def noted(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 20:
            holding.ask(_question(2))
        return await pause(0 if len(pauses) <= 20 else seconds)

    monkeypatch.setattr(holding, "_pause", noted)
    holding.ask(_question(1))
    running = asyncio.create_task(holding.run())
    await to_thread.run_sync(eventually, lambda: len(pauses) > 20)
    running.cancel()
    await asyncio.wait([running])
    assert all(pauses)
    assert sum(pauses[10:20]) > 600
    assert max(pauses) <= 600
    assert line.asked[20] == _question(2)
    assert pauses[20] <= 2 * line.hub.every


async def test_on_a_line_that_has_become_metered_no_question_waits(place: Place, url: str) -> None:
    line = Line(url, place.token)
    session = (await _synced(line, UUID(int=7))).session
    line.allowance.metered = "the phone"
    with pytest.raises(HubWaits, match="the phone"):
        await line.hold(_question(session))
    await line.close()
