"""Programs get the data of all pages as JSON, and may act where they are allowed to."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from taskq import TaskQ, retry
from taskq.log.read.reader import LogReader
from taskq_plugins.web import api
from tests.cli.logs import LOGS, TAGS
from tests.terminal import matches, steps
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
        await app.worker(burst=True).run()
        await app.enqueue(app.call_by_name("nobody.knows", to="Ada"))
        async with app.worker():
            """It writes its schedules into the log."""
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


DOCUMENT: Final = Path(__file__).with_name("api.md").read_text().split("\n## ")[1:]


@pytest.mark.parametrize("section", DOCUMENT, ids=lambda text: text.partition(":")[0])
async def test_a_program_gets_what_the_document_shows(section: str, tmp_path: Path) -> None:
    path, is_refused = tmp_path / "data", list[bool]()
    await LOGS[section.split("`")[1]](path)
    with LogReader.open(str(path)) as reader:
        own, before = str(reader.tag), reader.stats().next_lsn
        async with program(path, allow_actions=True) as client:
            for step in steps(section):
                method, address, *body = step.typed.replace(TAGS[0], own).split(" ", 2)
                answer = await client.request(method, f"/api/{address}", content="".join(body))
                shown = answer.text
                is_refused.append(answer.is_error)
                if answer.is_error:
                    problem = answer.json()
                    assert problem["status"] == answer.status_code
                    assert answer.headers["content-type"] == "application/problem+json"
                    shown = ": ".join(filter(None, (problem.get("error"), problem["detail"])))
                shown = shown.replace(own, TAGS[0]).replace(str(path), "data")
                assert matches(f"{answer.status_code} {shown}", step.shown), (
                    f"{step.typed}\n{shown}"
                )
        reader.refresh()
        assert not all(is_refused) or reader.stats().next_lsn == before


async def test_a_worker_without_python_runs_jobs(
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


async def test_claims_go_back_without_a_client(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_is_too_long_or_deep_is_a_problem_that_names_it(whole: Path) -> None:
    rows: list[tuple[str, Any, int, str]] = [
        ("jobs", {"task": "a", "queue": "x" * 9_000}, 422, "queue"),
        ("jobs", {"payload": {"encoding": "text", "data": "x" * 2_100_000}}, 413, "2097152"),
        ("jobs/" + "9" * 400 + "/purge", {}, 404, "999"),
        ("jobs?q=" + "x" * 600, None, 422, "q"),
        ("jobs", b"\xff", 400, "no JSON"),
        ("jobs", b"[" * 100_000, 400, "no JSON"),
    ]
    async with program(whole, allow_actions=True) as client:
        for path, body, status, message in rows:
            asked: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
            method = "GET" if body is None else "POST"
            answer = await client.request(method, f"/api/{path}", **({} if body is None else asked))
            assert (answer.status_code, message in answer.json()["detail"]) == (status, True), path


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


async def test_the_log_is_shown_as_it_grows_or_is_replaced(data: Path, tmp_path: Path) -> None:
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
