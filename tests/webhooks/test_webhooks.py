"""Webhooks: signed messages about jobs, each with its success, each until it was taken."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from pydantic import AfterValidator

from taskq import DeadLetter, TaskQ, retry
from taskq.errors import UsageError
from taskq.log.machine.inside import inside
from taskq.shards import Shards
from taskq_plugins import webhooks
from taskq_plugins.webhooks import TOLERANCE_SECONDS, Webhooks, is_genuine, key_of, signed
from tests.programs import run_forked

SECRET = "whsec_" + "QUJD" * 8
NO_USE = 'no "use" of 3 €'
URL = "https://example.invalid/hook"


class Receiver:
    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.posted: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.posted.append(request)
        return self.answers.pop(0) if self.answers else httpx.Response(204)

    def told(self) -> list[tuple[str, str]]:
        bodies = [json.loads(request.content) for request in self.posted]
        return [(body["type"], body["data"]["task"]) for body in bodies]


def tasks_of(app: TaskQ) -> tuple[Any, Any]:
    @app.task(name="fine")
    async def fine() -> int:
        return 1

    @app.task(name="broken", retry=retry.fixed(2, 0))
    async def broken() -> None:
        raise ValueError(NO_USE)

    return fine, broken


async def burst(app: TaskQ, *calls: Any) -> list[Any]:
    async with app:
        jobs = [await app.enqueue(call) for call in calls]
        for _ in range(2):
            await app.worker(burst=True).run()
        stats = await app.stats()
    assert sum(queue.ready + queue.running for queue in stats.queues) == 0
    return jobs


async def test_each_webhook_gets_its_events_and_tasks_once_and_signed(app: TaskQ) -> None:
    receiver, deaths, successes = Receiver(), Receiver(), Receiver()
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    Webhooks(app, f"{URL}/1", SECRET, events=["dead"], transport=deaths.transport)
    Webhooks(app, f"{URL}/2", SECRET, tasks={"fine"}, transport=successes.transport)
    fine, broken = tasks_of(app)
    jobs = await burst(app, fine.call(), broken.call())
    assert deaths.told() == [("job.dead", "broken")]
    assert successes.told() == [("job.succeeded", "fine")]
    assert sorted(receiver.told()) == [("job.dead", "broken"), ("job.succeeded", "fine")]
    for request in receiver.posted:
        assert is_genuine(key_of(SECRET), request.headers, request.content, time.time())
    by_type = {
        json.loads(item.content)["type"]: json.loads(item.content) for item in receiver.posted
    }
    dead = by_type["job.dead"]["data"]
    assert (dead["job_id"], dead["attempt"]) == (jobs[1].id, 2)
    assert (dead["reason"], dead["cause"]) == (f"ValueError: {NO_USE}", "exhausted")
    assert by_type["job.succeeded"]["data"].keys() == {
        "job_id", "task", "queue", "attempt", "ended_at"
    }  # fmt: skip


@pytest.mark.parametrize(("answers", "posts", "reason"), [
    pytest.param(
        [(503, "retry-after: 0"), (429, "retry-after: Mon, 01 Jan 2001 00:00:00 GMT")], 3, "",
        id="tried until it is taken",
    ),
    pytest.param(
        [(410, "")], 1, "answered 410 Gone: it wants no more of these", id="kept, not sent anew"
    ),
    pytest.param([(302, "location: https://elsewhere.invalid")], 1, "", id="not followed"),
])  # fmt: skip
async def test_a_message_is_sent_as_often_as_its_receiver_asks_with_one_id(
    app: TaskQ, answers: list[tuple[int, str]], posts: int, reason: str
) -> None:
    receiver = Receiver(
        *(
            httpx.Response(status, headers=dict([head.split(": ", 1)]) if head else {})
            for status, head in answers
        )
    )
    Webhooks(app, URL, SECRET, events=["succeeded"], transport=receiver.transport)
    fine, _ = tasks_of(app)
    async with app:
        await fine.enqueue()
        for _ in range(2):
            await app.worker(burst=True).run()
        letters = [letter.reason for letter in await app.dead.list()]
    assert len(receiver.posted) == posts
    sent = {(request.url.host, request.headers["webhook-id"]) for request in receiver.posted}
    assert [host for host, _ in sent] == ["example.invalid"]
    assert [reason in letter for letter in letters] == [True] * bool(reason)


class Endless(httpx.AsyncByteStream):
    def __init__(self, piece: bytes) -> None:
        self._piece = piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._piece:
            yield self._piece
        await asyncio.Event().wait()


async def test_an_answer_that_comes_while_the_loop_stands_still_is_in_time(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    time = loop.time

    async def answer(_: httpx.Request) -> httpx.Response:
        monkeypatch.setattr(loop, "time", lambda: time() + 2 * webhooks.TIMEOUT_SECONDS)
        for _turn in range(10):
            await asyncio.sleep(0)
        return httpx.Response(200)

    Webhooks(app, URL, SECRET, events=["succeeded"], transport=httpx.MockTransport(answer))
    fine, _ = tasks_of(app)
    async with app:
        await fine.enqueue()
        await app.worker(burst=True).run()
        queues = {queue.queue: queue for queue in (await app.stats()).queues}
    assert queues["webhooks"].succeeded == 1


@pytest.mark.parametrize("piece", [b"x" * 65_536, b"", None], ids=["long", "slow", "no head"])
async def test_a_receiver_that_never_ends_its_answer_holds_no_slot(
    app: TaskQ, monkeypatch: pytest.MonkeyPatch, piece: bytes | None
) -> None:
    """The message is sent once the head of the answer is there, and again if none came."""

    async def answer(_: httpx.Request) -> httpx.Response:
        if piece is None:
            await asyncio.Event().wait()
        return httpx.Response(200, stream=Endless(piece or b""))

    if not piece:
        monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.01)
    Webhooks(app, URL, SECRET, events=["succeeded"], transport=httpx.MockTransport(answer))
    fine, _ = tasks_of(app)
    async with app:
        await fine.enqueue()
        for _ in range(2):
            await app.worker(burst=True).run()
        queues = {queue.queue: queue for queue in (await app.stats()).queues}
    messages = queues["webhooks"]
    assert (messages.succeeded, messages.scheduled) == ((0, 1) if piece is None else (1, 0))


@pytest.mark.parametrize("changed", [
    {"webhook-id": "another"},
    {"webhook-timestamp": "1"},
    {"webhook-timestamp": "\u0661"},
    {"webhook-timestamp": "9" * 400},
    {"webhook-signature": "v1,"},
    {"webhook-signature": "\ud83d"},
])  # fmt: skip
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
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


#: A worker that is killed by the first hook that hears of a death, before any other is called.
KILLED = """
import os, signal, sys
from taskq import TaskQ
from taskq_plugins.webhooks import Webhooks
app = TaskQ(sys.argv[1], durability="os")
app.on_dead(lambda letter: os.kill(os.getpid(), signal.SIGKILL))
Webhooks(app, sys.argv[2], sys.argv[3])

@app.task(name="broken", retry=1)
async def broken():
    raise ValueError(NO_USE)

@app.task(name="kills", retry=1)
async def kills():
    os.kill(os.getpid(), signal.SIGKILL)

app.run_worker(burst=True)
"""


def run_killed(path: Path) -> None:
    assert run_forked("-c", KILLED, path, URL, SECRET).returncode == -signal.SIGKILL


@pytest.mark.parametrize(("task", "workers"), [
    pytest.param("broken", 1, id="a worker's own death letter"),
    pytest.param("kills", 2, id="that of a job taken back from a killed worker"),
])  # fmt: skip
async def test_a_kill_before_hooks_loses_no_message(
    tmp_path: Path, task: str, workers: int
) -> None:
    receiver, app = Receiver(), TaskQ(tmp_path, durability="os")
    Webhooks(app, URL, SECRET, transport=receiver.transport)
    tasks_of(app)
    async with app:
        job = await app.enqueue(app.call_by_name(task).options(attempts=1))
    for _ in range(workers):
        await asyncio.to_thread(run_killed, tmp_path)
    async with app:
        assert (await job.view()).state.name == "DEAD"
        await app.worker(burst=True).run()
    assert receiver.told() == [("job.dead", task)]


@pytest.mark.parametrize("kind", ["logs", "shards"])
async def test_webhooks_post_dead_letters_of_several_logs(tmp_path: Path, kind: str) -> None:
    logs = [tmp_path / "a", tmp_path / "b"]
    receiver = Receiver()
    if kind == "shards":
        app = TaskQ(shards=Shards(tmp_path / "root", bits=1), durability="os")
        options: dict[str, Any] = {}
    else:
        app, options = TaskQ(tmp_path / "own", durability="os"), {"logs": logs}
    Webhooks(app, URL, SECRET, events=["dead"], transport=receiver.transport)
    tasks_of(app)
    async with app:
        others = [TaskQ(path, durability="os") for path in logs]
        for log in app.logs() if kind == "shards" else others:
            async with log:
                await log.enqueue_by_name("broken")
        for _ in range(2):
            await app.worker(burst=True, **options).run()
    assert receiver.told() == [("job.dead", "broken")] * 2


async def test_what_a_hook_enqueues_goes_into_the_log_of_the_death(tmp_path: Path) -> None:
    app, there = TaskQ(tmp_path / "own", durability="os"), tmp_path / "there"
    heard = asyncio.Event()

    @app.task(name="page")
    async def page(job: str) -> None:
        heard.set()

    @app.on_dead
    async def hook(letter: DeadLetter) -> None:
        assert (await app.job(letter.job_id).status()).name == "DEAD"
        await page.enqueue(letter.job_id)

    tasks_of(app)
    other = TaskQ(there, durability="os")
    async with app, other:
        await other.enqueue_by_name("broken")
        async with app.worker(logs=[there]):
            await asyncio.wait_for(heard.wait(), 20)


# -- a task that hears of deaths -------------------------------------------------------------------


async def test_an_on_dead_task_gets_every_dead_letter_except_its_own(tmp_path: Path) -> None:
    app, heard = TaskQ(tmp_path, durability="os"), list[object]()

    @app.on_dead
    @app.task(name="tell", retry=1)
    async def tell(letter: DeadLetter) -> None:
        heard.append((letter.task, letter.attempt, letter.cause, letter.reason.partition("\n")[0]))
        raise ValueError("the pager is away")

    @app.task(name="of_one")
    async def of_one(letter: DeadLetter) -> None:
        heard.append(("of_one", letter.task))

    tasks_of(app)

    @app.task(name="other", retry=1, on_dead=of_one)
    async def other() -> None:
        raise KeyError("x")

    await burst(app, other.call(), app.call_by_name("broken"))
    assert sorted(map(str, heard)) == sorted(map(str, [
        ("other", 1, "exhausted", "KeyError: 'x'"),
        ("broken", 2, "exhausted", f"ValueError: {NO_USE}"),
        ("of_one", "other"),
    ]))  # fmt: skip


checked_inside: list[bool] = []


def check(letter: DeadLetter) -> DeadLetter:
    checked_inside.append(threading.get_ident() in inside)
    return letter


async def test_a_death_is_written_without_code_of_the_task_that_hears_of_it(tmp_path: Path) -> None:
    """The storage thread, which writes it, runs none; a task may be declared at any time."""
    app, heard = TaskQ(tmp_path, durability="os"), list[object]()

    @app.on_dead
    @app.task(name="early")
    async def early(letter: Annotated[DeadLetter, AfterValidator(check)], first: int = 1) -> None:
        heard.append((first, letter.reason.partition("\n")[0]))

    _, broken = tasks_of(app)
    async with app, app.worker() as worker:

        @app.on_dead
        @app.task(name="late")
        async def late(letter: Annotated[DeadLetter, AfterValidator(check)]) -> None:
            heard.append(("late", letter.task))
            worker.request_stop()

        await broken.enqueue()
        await worker.stopped.wait()
    await burst(app)
    assert sorted(map(str, heard)) == sorted(map(str, [
        (1, f"ValueError: {NO_USE}"), ("late", "broken"),
    ]))  # fmt: skip
    assert checked_inside
    assert not any(checked_inside)


@pytest.mark.parametrize(("options", "parameter", "message"), [
    ({}, int, "tell is to hear of deaths: let it take one letter: DeadLetter"),
    ({"key": lambda letter: letter.job_id}, DeadLetter, "leave key and concurrency_key out"),
    (
        {"key": lambda letter: letter.queue if letter.queue != "q" else None},
        DeadLetter,
        "leave key and concurrency_key out",
    ),
    (
        {"concurrency_key": lambda _: "x", "rate": "1/s"},
        DeadLetter,
        "leave key and concurrency_key out",
    ),
])  # fmt: skip
async def test_a_task_that_cannot_hear_of_deaths_is_refused_at_the_start(
    tmp_path: Path, options: dict[str, Any], parameter: type, message: str
) -> None:
    app = TaskQ(tmp_path, durability="os")

    async def tell(letter: Any) -> None: ...

    tell.__annotations__["letter"] = parameter
    app.on_dead(app.task(name="tell", **options)(tell))
    async with app:
        with pytest.raises(UsageError, match=message):
            await app.worker().start()
    with pytest.raises(UsageError, match="a task of another app"):
        TaskQ(tmp_path / "other").on_dead(next(iter(app.tasks.values())))
