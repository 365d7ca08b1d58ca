"""Programs get the data of all pages as JSON, and may act where they are allowed to."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskq import TaskQ, retry
from taskq_plugins.web import api
from tests.web.browser import browser, program, stranger


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that change nothing."""
    return asyncio.run(made(tmp_path_factory.mktemp("api")))


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    return await made(tmp_path)


async def made(folder: Path) -> Path:
    app = TaskQ(folder / "data", durability="os")

    @app.task(name="mail.send", queue="mail", retry=retry.fixed(1, 0))
    async def send(number: int) -> int:
        if number:
            raise ValueError(f"no address {number}")
        return number

    @app.every("1h", name="hourly")
    @app.task(name="report")
    async def report() -> None: ...

    async with app:
        await send.enqueue_many([(number,) for number in (0, 7001, 7002)])
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
        await app.enqueue(app.call_by_name("nobody.knows", to="Ada"))
        async with app.worker():
            """It tells the log of its schedules."""
        await app.pause("mail")
    return app.data_dir


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await client.get(f"/api/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = await client.post(f"/api/{path}", json=body)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
    return answer.json()


async def test_the_api_returns_what_the_pages_show(whole: Path) -> None:
    async with program(whole) as client:
        queues = {row["queue"]: row for row in await get(client, "queues")}
        assert (queues["mail"]["dead"], queues["mail"]["paused"]) == (2, True)
        stats = await get(client, "stats")
        assert [queue["queue"] for queue in stats["queues"]] == list(queues)
        assert [row["name"] for row in await get(client, "schedules")] == ["hourly"]
        assert await get(client, "workers") == []
        (failure,) = await get(client, "failures")
        assert (failure["count"], failure["error"]) == (2, "ValueError")
        job = await get(client, f"jobs/{failure['jobs'][0]}")
        assert (job["state"], job["why"]["code"], job["attempts"][0]["outcome"]) == (
            ("dead", "dead", "dead")
        )
        assert job["attempts"][0]["fingerprint"] == failure["fingerprint"]
        assert [event["kind"] for event in job["timeline"]] == ["enqueued", "claimed", "dead"]


async def test_jobs_are_found_and_paged(whole: Path) -> None:
    async with program(whole) as client:
        every = (await get(client, "jobs"))["jobs"]
        page = await get(client, "jobs", limit=1)
        paged = page["jobs"]
        while page["next"]:
            page = await get(client, "jobs", limit=1, before=page["next"])
            paged += page["jobs"]
        assert paged == every
        assert len(every) >= 4
        dead = await get(client, "jobs", q="state:dead queue:mail task:mail.send since:1h ADDRESS")
        assert {letter["state"] for letter in dead["jobs"]} == {"dead"}
        assert len(dead["jobs"]) == 2
        assert len((await get(client, "jobs", q="address 7002"))["jobs"]) == 1
        assert len((await get(client, "jobs", q="ada"))["jobs"]) == 1
        assert (await get(client, "jobs", q="since:0s"))["jobs"] == []


async def test_a_result_is_waited_for(whole: Path) -> None:
    async with program(whole, allow_actions=True) as client:
        (done,) = (await get(client, "jobs", q="state:succeeded task:mail.send"))["jobs"]
        ended = await get(client, f"jobs/{done['id']}/result")
        assert (ended["ended"], ended["result"]) == (True, {"encoding": "json", "data": 0})
        (waits,) = (await get(client, "jobs", q="task:nobody.knows"))["jobs"]
        still = await get(client, f"jobs/{waits['id']}/result", wait=0.01)
        assert (still["ended"], still["state"]) == (False, "ready")


async def test_a_worker_in_another_language_runs_jobs(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_HELD_MAX", 9)
    async with program(data, allow_actions=True) as client:
        made = [
            (await post(client, "jobs", task="js.run", arguments={"n": n}, queue="js"))["id"]
            for n in range(4)
        ]
        claims = await post(client, "claims", queues=["js"], count=9, wait=5, lease=30)
        assert [claim["id"] for claim in claims] == made
        refused = await post(client, "claims", 429, queues=["js"], count=6)
        assert "4 jobs are claimed and 9 may be" in refused["detail"]
        assert claims[3]["payload"]["data"] == {"n": 3}
        tokens = [f"claims/{claim['token']}" for claim in claims]
        await post(client, f"{tokens[0]}/extend", seconds=60)
        await post(client, f"{tokens[0]}/ack", result={"encoding": "json", "data": [1, "ü"]})
        await post(client, f"{tokens[1]}/nack", reason="Error: no", delay="1h")
        await post(client, f"{tokens[2]}/release", delay=3600)
        assert (await post(client, f"jobs/{made[3]}/cancel"))["cancelled"] is True
        answer = await post(client, f"{tokens[3]}/extend", 409)
        assert answer["error"] == "JobCancelled"
        await post(client, f"{tokens[3]}/release")
        for token in tokens:
            answer = await post(client, f"{token}/ack", 409)
            assert "claim again" in answer["detail"]
        states = [(await get(client, f"jobs/{job}/result"))["state"] for job in made]
        assert states == ["succeeded", "scheduled", "scheduled", "cancelled"]
        result = (await get(client, f"jobs/{made[0]}/result"))["result"]
        assert result["data"] == [1, "ü"]


async def test_claims_go_back_when_the_page_stops(data: Path) -> None:
    for attempt in (1, 2):
        async with program(data, allow_actions=True) as client:
            if attempt == 1:
                await post(
                    client, "jobs", payload={"encoding": "base64", "data": "AP8="}, queue="b"
                )
            (claim,) = await post(client, "claims", queues=["b"])
            assert claim["attempt"] == attempt
            assert claim["payload"] == {"encoding": "base64", "data": "AP8="}


async def test_claims_go_back_when_their_client_hangs_up_before_the_answer(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = asyncio.Event()

    async def answer_never() -> None:
        claimed.set()
        await asyncio.Event().wait()

    async with program(data, allow_actions=True) as client:
        await post(client, "jobs", task="js.run", queue="js")
        with monkeypatch.context() as patch:
            patch.setattr(api, "checkpoint", answer_never)
            first = asyncio.create_task(post(client, "claims", queues=["js"]))
            await claimed.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        assert len(await post(client, "claims", queues=["js"])) == 1


async def test_dead_letters_are_requeued_and_purged_and_queues_paused(data: Path) -> None:
    async with program(data, allow_actions=True) as client:
        (failure,) = await get(client, "failures")
        first, other = failure["jobs"]
        await post(client, f"jobs/{first}/requeue")
        await post(client, f"jobs/{other}/purge")
        assert (await post(client, f"jobs/{first}/requeue", 409))["error"] == "NotDead"
        await post(client, f"jobs/{other}/purge", 404)
        assert await get(client, "failures") == []
        for name in ("a/b", "mail"):
            assert (await post(client, f"queues/{name}/pause"))["changed"] is (name != "mail")
            assert (await post(client, f"queues/{name}/resume"))["changed"] is True


async def test_the_api_answers_for_a_past_position(whole: Path) -> None:
    async with program(whole) as client:
        assert await get(client, "failures", at="1") == []
        assert (await get(client, "stats", at="1"))["queues"][0]["dead"] == 0
        (job,) = (await get(client, "jobs", q="7001", at="1"))["jobs"]
        then = await get(client, f"jobs/{job['id']}", at="1")
        assert (then["state"], then["attempts"], then["why"]) == ("ready", [], None)
        assert len(then["timeline"]) == 1
        assert (await get(client, f"jobs/{job['id']}"))["state"] == "dead"
        assert await get(client, "workers", at="1") == []
        assert (await get(client, "segments"))[0]["size_bytes"] > 0


async def test_many_are_counted_then_done(data: Path) -> None:
    async with program(data, allow_actions=True) as client:
        (failure,) = await get(client, "failures")
        asked: dict[str, Any] = {
            "act": "purge",
            "q": f"state:dead fingerprint:{failure['fingerprint']}",
        }
        assert (await post(client, "many", **asked, dry_run=True))["count"] == 2
        assert len(await get(client, "failures")) == 1
        assert (await post(client, "many", **asked))["done"] == 2
        assert await get(client, "failures") == []
        answer = await post(client, "many", act="cancel", q="state:ready")
        assert (answer["count"], answer["done"]) == (1, 1)
        assert (await post(client, "schedules/hourly/pause"))["changed"] is True
        assert (await post(client, "schedules/hourly/resume"))["changed"] is True
        await post(client, "schedules/none/pause", 422)


async def test_a_second_job_with_a_key_is_reported_as_a_duplicate(data: Path) -> None:
    async with program(data, allow_actions=True) as client:
        first = await post(client, "jobs", task="a", key="k")
        assert await post(client, "jobs", task="a", key="k") == {**first, "duplicate": True}
        answer = await post(client, "jobs", 409, task="a", key="k", on_conflict="raise")
        assert first["id"] in answer["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("jobs", {}, 422, "give a task with its arguments, or a payload"),
        ("jobs", {"task": "a", "priority": 99}, 422, "priority"),
        ("jobs", {"task": "a", "priority": "high"}, 422, "priority"),
        ("jobs", {"task": "a", "queue": "x" * 9_000}, 422, "queue"),
        ("jobs", {"task": "a", "queue": "a\x00b"}, 422, "queue"),
        ("jobs", {"task": "a", "arguments": [1]}, 422, "arguments"),
        ("jobs", {"task": "a", "delay": "soon"}, 422, "delay"),
        ("jobs", {"task": "a", "delay": -1}, 422, "delay"),
        ("jobs", {"task": "a", "delay": 1e300}, 422, "delay"),
        ("jobs", {"task": "a", "color": "red"}, 422, "color"),
        ("jobs", {"payload": {"encoding": "base64", "data": "?"}}, 422, "base64"),
        ("jobs", {"payload": {"encoding": "text", "data": 1}}, 422, "must be a string"),
        ("jobs", {"payload": {"encoding": "text", "data": "x" * 2_100_000}}, 413, "2097152"),
        ("claims", {"count": 0}, 422, "count"),
        ("claims", {"lease": 1e9}, 422, "lease"),
        ("claims", {"queues": ["\x00"]}, 422, "queue"),
        ("claims/none/ack", {}, 409, "claim again"),
        ("jobs/x/cancel", {}, 404, "x"),
        ("jobs/1-1/requeue", {}, 404, "1-1"),
        ("jobs/" + "9" * 400 + "/purge", {}, 404, "999"),
        ("queues/%00/pause", {}, 422, "queue name"),
        ("nothing", {}, 404, "nothing at this address"),
        ("jobs?limit=0", None, 422, "limit"),
        ("jobs?limit=1000", None, 422, "limit"),
        ("jobs?before=-1", None, 422, "before"),
        ("jobs?before=99999999999999999999999", None, 422, "before"),
        ("jobs?q=state:asleep", None, 422, "state:asleep is no state"),
        ("jobs?q=since:never", None, 422, "since"),
        ("jobs?q=" + "x" * 600, None, 422, "q"),
        ("jobs?color=red", None, 422, "color"),
        ("jobs/no-such", None, 404, "no-such"),
        ("jobs/%F0%9F", None, 404, ""),
        ("jobs/1/result?wait=1e9", None, 422, "wait"),
        ("jobs/1/result?wait=nan", None, 422, "wait"),
    ],
)
async def test_a_wrong_order_or_question_is_a_problem_that_names_it(
    whole: Path, path: str, body: dict[str, Any] | None, status: int, message: str
) -> None:
    async with program(whole, allow_actions=True) as client:
        before = (await get(client, "stats"))["next_lsn"]
        if body is None:
            answer = await client.get(f"/api/{path}")
            assert (answer.status_code, message in answer.json()["detail"]) == (status, True)
        else:
            assert message in (await post(client, path, status, **body))["detail"]
        assert (await get(client, "stats"))["next_lsn"] == before


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[]", b'"x"', b"\xff", b'{"task": NaN}', b'{"task": "\\ud800"}', b"[" * 100_000],
)
async def test_a_body_that_is_no_object_is_refused(whole: Path, raw: bytes) -> None:
    async with program(whole, allow_actions=True) as client:
        assert (await client.post("/api/jobs", content=raw)).status_code == 400


async def test_a_payload_outside_strict_json_is_returned(
    tmp_path: Path,
) -> None:
    async with TaskQ(tmp_path, durability="os"):
        """There is a log now."""
    async with program(tmp_path, allow_actions=True) as client:
        body = {"encoding": "text", "data": '{"x": NaN, "y": "\\ud800", "z": 1e999}'}
        job = (await post(client, "jobs", payload=body))["id"]
        answer = await client.get(f"/api/jobs/{job}")
        payload = json.loads(answer.text, parse_constant=pytest.fail)["payload"]
        assert payload == {"encoding": "text", "data": body["data"]}


async def test_openapi_describes_every_endpoint_and_its_limits(whole: Path) -> None:
    async with browser(whole) as client:
        document = await get(client, "openapi.json")
    assert document["openapi"] == "3.1.0"
    operations = [item for path in document["paths"].values() for item in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) == 32
    (wait,) = [
        row
        for row in document["paths"]["/api/jobs/{id}/result"]["get"]["parameters"]
        if row["name"] == "wait"
    ]
    assert (wait["in"], wait["schema"]["maximum"]) == ("query", 60)
    enqueue = document["paths"]["/api/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert enqueue["schema"]["additionalProperties"] is False
    refs = {part for part in json.dumps(document).split('"') if part.startswith("#/")}
    assert {ref.rpartition("/")[2] for ref in refs} <= document["components"]["schemas"].keys()


async def test_the_log_shows_what_is_written_meanwhile_and_after_it_was_replaced(
    data: Path, tmp_path: Path
) -> None:
    async with stranger(data) as (client, _):
        client.headers["Authorization"] = f"Bearer {'s' * 43}"
        app = TaskQ(data, durability="os")
        job = await app.enqueue(app.call_by_name("later"))
        assert (await get(client, "jobs", limit=1))["jobs"][0]["id"] == job.id
        await app.close()
        os.rename(data, tmp_path / "away")  # noqa: PTH104 - within a test that awaits
        assert (await client.get("/api/stats")).status_code == 503
        os.rename(tmp_path / "away", data)  # noqa: PTH104 - likewise
        assert (await get(client, "jobs", limit=1))["jobs"][0]["id"] == job.id


async def test_a_program_signals_a_job(data: Path) -> None:
    async with program(data, allow_actions=True) as client:
        job = (await post(client, "jobs", task="nobody.knows"))["id"]
        path = f"jobs/{job}/signals/paid"
        assert (await post(client, path, value={"sum": 5}, once="evt"))["new"]
        assert not (await post(client, path, value={"sum": 5}, once="evt"))["new"]
        (ended,) = (await get(client, "jobs", q="state:succeeded task:mail.send"))["jobs"]
        await post(client, f"jobs/{ended['id']}/signals/paid", 409)
