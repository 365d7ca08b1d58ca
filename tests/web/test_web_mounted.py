"""An app's own page: within a web app of its program, and beside a worker in development."""

import gc
import logging
import os
import re
import sys
import urllib.request
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from taskq import TaskQ
from taskq.engine import Identity, LogReader
from taskq_plugins.hub.registry import Registry
from taskq_plugins.web.door import ENTRY, AccessKeys, SiteAddress
from taskq_plugins.web.mount import make_hub, taskq_web
from tests.hub.place import DEVICE
from tests.hub.place import Place as HubPlace
from tests.processes.harness import Child
from tests.web.browser import HOST, ORIGIN, running
from tests.web.test_web_pages import forms, send_form

SHOP: Final = "http://shop.example"
APP: Final = """
from taskq import TaskQ

app = TaskQ("data")


@app.task(name="greet")
async def greet(name: str) -> str:
    return name
"""


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TaskQ]:
    app = TaskQ(tmp_path, durability="os")

    @app.task(name="report", queue="reports")
    async def report(day: date, title: str, pages: int = 3, parts: list[str] | None = None) -> None:
        """It is only enqueued."""

    async with app:
        yield app


def outside(app: TaskQ, **how: bool) -> httpx.AsyncClient:
    web = Starlette(routes=[Mount("/taskq", taskq_web(app, allows=lambda _: True, **how))])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url=SHOP)


async def test_the_logged_address_opens_a_mounted_page(
    app: TaskQ, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "taskq"):
        web = Starlette(routes=[Mount("/taskq", taskq_web(app))])
    entry = re.search(r"/enter\?token=\S+(?=,)", caplog.text)
    assert entry is not None
    transport = httpx.ASGITransport(app=web)
    async with httpx.AsyncClient(transport=transport, base_url=SHOP) as client:
        assert (await client.get("/taskq/")).status_code == 401
        assert (await client.get("/taskq/api/stats")).status_code == 401
        assert (await client.get(f"/taskq{entry[0]}")).status_code == 200
        page = (await client.get("/taskq/")).text
        links = set(re.findall(r'(?:href|src)="([^"]+)"', page)) - {"#main"}
        assert links
        for link in links:
            assert (await client.get(link)).status_code == 200, link
        assert (await client.get("/taskq/api/stats")).status_code == 200
        assert (await client.get("/taskq/nowhere")).status_code == 404


async def test_a_mounted_page_leaves_it_to_the_apps_own_login(app: TaskQ) -> None:
    def knows(request: Request) -> bool:
        return request.cookies.get("user") == "ada"

    web = Starlette(routes=[Mount("/taskq", taskq_web(app, allow_actions=True, allows=knows))])
    transport = httpx.ASGITransport(app=web)
    async with httpx.AsyncClient(transport=transport, base_url=SHOP) as client:
        assert (await client.get("/taskq/")).status_code == 403
        client.cookies.set("user", "ada")
        await app.enqueue_by_name("a")
        (pause,) = forms((await client.get("/taskq/")).text)
        assert (await send_form(client, pause)).status_code == 403  # of no known origin
        client.headers["Origin"] = "http://evil.example"
        assert (await send_form(client, pause)).status_code == 403
        client.headers["Origin"] = SHOP
        answer = await send_form(client, pause)
        assert (answer.status_code, answer.headers["location"]) == (303, "/taskq/")
        assert (await app.stats()).queues[0].paused


async def test_a_call_is_enqueued_by_a_form_that_is_made_from_its_annotations(app: TaskQ) -> None:
    async with outside(app, allow_actions=True) as client:
        client.headers["Origin"] = SHOP
        page = (await client.get("/taskq/enqueue", params={"task": "report"})).text
        kinds = dict(re.findall(r'id="field-(\w+)" name="\w+" (?:type="(\w+)")?', page))
        assert kinds == {"day": "", "title": "text", "pages": "number", "parts": ""}
        (form,) = forms(page)
        form |= {"day": "2026-11-23", "title": "5", "pages": "", "parts": '["a"]'}
        answer = await send_form(client, form)
        assert answer.status_code == 303, answer.text
        job = await app.job(answer.headers["location"].removeprefix("/taskq/jobs/")).view()
        assert job.queue == "reports"
        expected = {"day": "2026-11-23", "title": "5", "parts": ["a"]}
        assert job.arguments is not None
        assert expected.items() <= job.arguments.items()
        wrong = await send_form(client, form | {"day": "someday"})
        assert wrong.status_code == 422
        assert "day" in wrong.text
        assert (await client.get("/taskq/enqueue?task=none")).status_code == 404
        assert 'task=report">report</a>' in (await client.get("/taskq/enqueue")).text
        assert ">Enqueue</a>" in page
    async with outside(app) as client:
        assert "nqueue</a>" not in (await client.get("/taskq/")).text
        assert "Nothing may be changed here" in (await client.get("/taskq/enqueue")).text


async def test_a_page_is_there_before_the_first_job(tmp_path: Path) -> None:
    """A web app starts before anybody asks it for anything; its worker perhaps never here."""
    app = TaskQ(tmp_path / "data", durability="os")
    async with outside(app) as client:
        for path in ("/", "/jobs", "/failures", "/schedules", "/limits", "/log", "/api/stats"):
            assert (await client.get(f"/taskq{path}")).status_code == 200, path
    await app.close()


async def test_a_page_that_is_gone_has_no_file_open_though_no_lifespan_ran(app: TaskQ) -> None:
    open_files = []
    for _ in range(3):
        async with outside(app) as client:
            assert (await client.get("/taskq/api/stats")).status_code == 200
        del client
        gc.collect()
        open_files.append(len(os.listdir("/dev/fd")))  # noqa: PTH208
    assert open_files[1] >= open_files[2]  # of other tests, some may be closed meanwhile


async def test_a_form_of_one_process_is_accepted_by_another_at_the_same_address(app: TaskQ) -> None:
    await app.enqueue_by_name("a")
    async with (
        outside(app, allow_actions=True) as client,
        outside(app, allow_actions=True) as other,
    ):
        client.headers["Origin"] = other.headers["Origin"] = SHOP
        (pause,) = forms((await client.get("/taskq/")).text)
        assert (await send_form(other, pause)).status_code == 303
        forged = {**pause, "taskq.token": "x" * 64}
        assert (await send_form(other, forged)).status_code == 403


async def test_a_task_may_call_its_parameters_as_it_likes_and_have_many(app: TaskQ) -> None:
    parameters = ["token", "back", "task", "id", *(f"p{number}" for number in range(40))]
    made: dict[str, Any] = {}
    exec(f"async def many({', '.join(f'{parameter}: str' for parameter in parameters)}): ...", made)  # noqa: S102
    app.task(name="many")(made["many"])
    async with outside(app, allow_actions=True) as client:
        client.headers["Origin"] = SHOP
        (form,) = forms((await client.get("/taskq/enqueue", params={"task": "many"})).text)
        answer = await send_form(
            client, form | {parameter: f"of {parameter}" for parameter in parameters}
        )
        assert answer.status_code == 303, answer.text
        job = await app.job(answer.headers["location"].removeprefix("/taskq/jobs/")).view()
    assert job.arguments == {parameter: f"of {parameter}" for parameter in parameters}


async def test_what_waits_is_changed_on_its_page(app: TaskQ) -> None:
    later = await app.enqueue(app.call_by_name("a").options(delay="1h"))
    async with outside(app, allow_actions=True) as client:
        client.headers["Origin"] = SHOP
        page = (await client.get(f"/taskq/jobs/{later.id}")).text
        run_now, change = [form for form in forms(page) if form["action"] == "/taskq/act/edit"]
        change |= {"priority": "9", "queue": "other", "delay": ""}
        assert (await send_form(client, change)).status_code == 303
        view = await later.view()
        assert (view.priority, view.queue, str(view.state)) == (9, "other", "scheduled")
        assert (await send_form(client, run_now)).status_code == 303
        assert str(await later.status()) == "ready"
        assert (await client.get(f"/taskq/jobs/{later.id}")).text.count("Run now") == 0


def test_the_option_of_a_worker_says_where_its_page_is(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    command = (sys.executable, "-m", "taskq", "worker", "shop:app", "--web")
    with Child(*command, cwd=tmp_path) as worker:
        address = worker.expect("page at")
        with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        home = address.partition("/enter")[0]
        asked = urllib.request.Request(f"{home}/enqueue", headers={"Cookie": cookie})  # noqa: S310
        with urllib.request.urlopen(asked) as answer:  # noqa: S310 - likewise
            assert "greet" in answer.read().decode()


async def test_devices_are_shown_with_lag_holds_and_last_contact(tmp_path: Path) -> None:
    place = HubPlace(tmp_path)
    await place.write(3)
    await place.sync()
    registry = Registry(place.hub)
    registry.enroll("edge-8")
    registry.leave("edge-8", UUID(int=1))
    assert registry.holds("edge-8", UUID(int=1))
    registry.note_end("edge-8", Identity(UUID(int=2), 0), (40, 90, 0), clock_ns=-5 * 10**9)
    keys = AccessKeys("s" * 43)
    hub = make_hub(
        str(place.hub), SiteAddress(scheme="http", hosts=(HOST,), allow_actions=True), keys,
        registry.all_standing,
    )  # fmt: skip
    transport = httpx.ASGITransport(app=hub)
    async with running(hub), httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        assert (await client.get("/")).status_code == 401
        await client.get(ENTRY, params={"token": keys.entry()})
        page = (await client.get("/")).text
        assert "2 devices, 1 held: 50 records are still to come" in page
        rows = dict(re.findall(r'row">([\w-]+)</th>(.*?)</tr>', page, re.DOTALL))
        assert set(rows) == {DEVICE, "edge-8"}
        assert ">held</span>" in rows["edge-8"]
        assert "-5.0s" in rows["edge-8"]
        assert ">active</span>" in rows[DEVICE]
        link = re.search(rf'href="(/logs/{DEVICE}/[^"]+)"', rows[DEVICE])
        assert link is not None
        for path in ("", "jobs", "tasks", "workers", "log"):
            answer = await client.get(link[1] + path)
            assert answer.status_code == 200, answer.text
            assert f'href="{link[1]}jobs"' in answer.text
            assert 'method="post"' not in answer.text
            assert '<a href="/">All devices</a>' in answer.text
            assert "taskq worker" not in answer.text
        with LogReader.open(str(place.copy)) as reader:
            job = reader.jobs(None, None, None, 1)[0].job_id
        assert 'action="/find"' in page
        shown = await client.get("/find", params={"q": job}, follow_redirects=True)
        assert (shown.status_code, f"jobs/{job}" in str(shown.url)) == (200, True)
        assert (await client.get(f"{link[1]}api/jobs/{job}")).status_code == 200
        for lost in ("", "00000000-1", f"{job}9", "../x"):
            assert (await client.get("/find", params={"q": lost})).status_code == 404
        for path in (f"/logs/{DEVICE}/x/", "/logs/..%2f../x/", "/logs/edge-9/x/"):
            assert (await client.get(path)).status_code == 404
