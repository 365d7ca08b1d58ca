"""Webhooks: signed messages about jobs, each with its success, each until it was taken."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from taskq import TaskQ, retry
from taskq.errors import UsageError
from taskq_plugins.webhooks import TOLERANCE_SECONDS, Webhooks, is_genuine, key_of, signed

SECRET = "whsec_" + "QUJD" * 8
URL = "https://example.invalid/hook"


class Receiver:
    """Answers as it is told, and keeps what was posted."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.posted: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.posted.append(request)
        return self.answers.pop(0) if self.answers else httpx.Response(204)

    def told(self) -> list[tuple[str, str]]:
        """(type, task) of each message."""
        bodies = [json.loads(request.content) for request in self.posted]
        return [(body["type"], body["data"]["task"]) for body in bodies]


def tasks_of(app: TaskQ) -> tuple[Any, Any]:
    @app.task(name="fine")
    async def fine() -> int:
        return 1

    @app.task(name="broken", retry=retry.fixed(2, 0))
    async def broken() -> None:
        raise ValueError("no use")

    return fine, broken


async def burst(app: TaskQ, *calls: Any) -> list[Any]:
    """Run the calls, then what was left to tell of their deaths."""
    async with app:
        jobs = [await app.enqueue(call) for call in calls]
        for _ in range(2):
            await app.worker(burst=True).run()
        stats = await app.stats()
    assert sum(queue.ready + queue.running for queue in stats.queues) == 0
    return jobs


async def test_each_success_and_each_death_is_told_once_and_signed(app: TaskQ) -> None:
    receiver = Receiver()
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    fine, broken = tasks_of(app)
    jobs = await burst(app, fine.call(), broken.call())
    assert sorted(receiver.told()) == [("job.dead", "broken"), ("job.succeeded", "fine")]
    for request in receiver.posted:
        assert is_genuine(key_of(SECRET), request.headers, request.content, time.time())
    by_type = {
        json.loads(item.content)["type"]: json.loads(item.content) for item in receiver.posted
    }
    dead = by_type["job.dead"]["data"]
    assert (dead["job_id"], dead["attempt"]) == (jobs[1].id, 2)
    assert (dead["reason"], dead["cause"]) == ("ValueError: no use", "exhausted")
    assert by_type["job.succeeded"]["data"].keys() == {
        "job_id", "task", "queue", "attempt", "ended_at"
    }  # fmt: skip


async def test_the_workers_of_a_loop_share_a_client_for_all_messages(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[httpx.AsyncClient] = []

    class Counted(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            clients.append(self)

    monkeypatch.setattr(httpx, "AsyncClient", Counted)
    receiver = Receiver()
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    fine, _ = tasks_of(app)
    async with app:
        async with app.worker():
            async with app.worker():
                await fine.enqueue()
                while not receiver.posted:
                    await app.stats()
            await fine.enqueue()
            while len(receiver.posted) < 2:
                await app.stats()
            assert not clients[0].is_closed
        assert len(clients) == 1
        assert clients[0].is_closed


async def test_a_message_is_tried_until_it_is_taken_with_the_same_id(app: TaskQ) -> None:
    receiver = Receiver(
        httpx.Response(503, headers={"retry-after": "0"}),
        httpx.Response(429, headers={"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}),
    )
    Webhooks(app, URL, SECRET, events=["succeeded"], transport=receiver.transport)
    fine, _ = tasks_of(app)
    await burst(app, fine.call())
    ids = [request.headers["webhook-id"] for request in receiver.posted]
    assert len(ids) == 3
    assert len(set(ids)) == 1


async def test_a_receiver_that_is_gone_gets_no_more_and_the_message_is_kept(app: TaskQ) -> None:
    receiver = Receiver(httpx.Response(410))
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    fine, _ = tasks_of(app)
    async with app:
        await fine.enqueue()
        await app.worker(burst=True).run()
        (letter,) = await app.dead.list()
    assert "answered 410 Gone: it wants no more of these" in letter.reason
    assert len(receiver.posted) == 1


async def test_only_what_was_asked_for_is_told_and_two_receivers_each_get_theirs(
    app: TaskQ,
) -> None:
    first, second = Receiver(), Receiver()
    Webhooks(app, URL, SECRET, events=["dead"], transport=first.transport)
    Webhooks(app, f"{URL}/2", SECRET, tasks={"fine"}, transport=second.transport)
    fine, broken = tasks_of(app)
    await burst(app, fine.call(), broken.call())
    assert first.told() == [("job.dead", "broken")]
    assert second.told() == [("job.succeeded", "fine")]


async def test_a_redirect_is_not_followed(app: TaskQ) -> None:
    """It could lead what is signed to anybody."""
    receiver = Receiver(httpx.Response(302, headers={"location": "https://elsewhere.invalid"}))
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    fine, _ = tasks_of(app)
    async with app, app.worker():
        await (await fine.enqueue()).result(timeout=20)
        while not receiver.posted:
            await app.stats()
    assert [request.url.host for request in receiver.posted] == ["example.invalid"]


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "another"},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "\u0661"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "\ud83d"},
    ],
)
def test_what_was_changed_on_the_way_is_not_genuine(changed: dict[str, str]) -> None:
    key, body, now = key_of(SECRET), b'{"type": "job.dead"}', 1_800_000_000
    headers = signed(key, "id-1", now, body)
    both = {"webhook-signature": f"v1,old {headers['webhook-signature']}"}
    assert is_genuine(key, headers, body, now)
    assert is_genuine(key, headers | both, body, now)
    assert not is_genuine(key, headers | changed, body, now)
    assert not is_genuine(key, headers, body + b" ", now)
    assert not is_genuine(key, {}, body, now)
    assert not is_genuine(key, headers, body, now + TOLERANCE_SECONDS + 1)
    assert not is_genuine(key_of("whsec_" + "REVG" * 8), headers, body, now)


def test_the_signature_is_that_of_the_standard() -> None:
    """The example that the standard's own libraries are tested with."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "http://example.invalid/hook"}, "https:// address"),
        ({"url": "nowhere"}, "not 'nowhere'"),
        ({"secret": "QUJD" * 8}, "a webhook's secret is whsec_"),
        ({"secret": "whsec_c2hvcnQ="}, "at least 24 random bytes"),
        ({"secret": "whsec_ü"}, "in base64"),
        ({"events": ["started"]}, "not of 'started'"),
    ],
)
def test_what_is_wrong_is_named_at_once(
    app: TaskQ, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Webhooks(app, **{"url": URL, "secret": SECRET, **arguments})
