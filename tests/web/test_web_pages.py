"""People see on the pages what a log holds, and change it by forms where they may."""

import asyncio
import contextlib
import html
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anyio
import httpx
import pytest
from click.testing import CliRunner

from taskq import Put, TaskLog, TaskQ, chord
from taskq.cli.main import main
from taskq.conditions import condition
from taskq.core.errors import command
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq_plugins.web.pages import _inside
from tests.web.browser import ORIGIN, browser, program
from tests.web.test_web_api import get, made
from tests.workers.fakes import Held

NAME = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"
EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\u202e\x1b[31m"
PAGES = (
    *("/", "/jobs", "/tasks", "/history", "/workers", "/failures", "/schedules", "/limits", "/log"),
    "/audit",
)


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    return await made(tmp_path)


class Elements(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def forms(page: str) -> list[dict[str, str]]:
    seen = []
    whole = r'<form method="post" action="([^"]+)">(.*?)</form>'
    for action, inside in re.findall(whole, page, re.DOTALL):
        fields = re.findall(r'name="([^"]*)" value="([^"]*)"', inside)
        seen.append({"action": action, **{name: html.unescape(value) for name, value in fields}})
    return seen


async def send_form(client: httpx.AsyncClient, form: dict[str, str]) -> httpx.Response:
    fields = {name: value for name, value in form.items() if name != "action"}
    return await client.post(form["action"], data=fields)


async def shown(client: httpx.AsyncClient, path: str, **query: Any) -> str:
    answer = await client.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_each_page_shows_what_it_is_for(data: Path) -> None:
    async with browser(data) as client:
        now = await shown(client, "/")
        assert "mail</a> <b" in now
        assert now.count('<td><span class="state dead">dead</span>') == 2
        jobs = await shown(client, "/jobs", q="state:dead 7002")
        (job,) = set(re.findall(r"/jobs/[0-9a-f]{8}-\d+", jobs))
        page = await shown(client, job)
        assert "ValueError: no address 7002" in page
        assert "in send" in page
        assert re.search(r"<dt>took</dt><dd>[\d.]+m?s</dd>", page)
        assert command(str(data), "show", job[6:]) in html.unescape(page)
        assert page.count("<title>waited") == page.count("<title>attempt") == 1
        assert "<b>ValueError</b> no address" in await shown(client, "/failures")
        assert "every 1:00:00" in await shown(client, "/schedules")
        log = await shown(client, "/log")
        assert "paused</td>" in log
        assert '<input type="hidden"' not in now + page + log


async def test_history_shows_counts_and_audit_shows_users(data: Path) -> None:
    async with browser(data, allow_actions=True) as client:
        for span in ("day", "week", "month"):
            page = await shown(client, "/history", span=span)
            assert "2</span>" in page.replace("dead 2", "2")
            assert f'aria-current="page">{span}</a>' in page
            assert page.count("data-heat=") == 168
            assert "ValueError" in page
            own = await shown(client, "/history", span=span, task="mail.send")
            assert "How long attempts took" in own
            assert "data-heat=" not in own
        assert (await client.get("/history?span=year")).status_code == 422
        assert "Nothing happened" in await shown(client, "/history", task="nobody")
        assert "Nobody has done anything" in await shown(client, "/audit")
        pause = next(form for form in forms(await shown(client, "/")) if "resume" in form["action"])
        await send_form(client, pause)
        assert "resume queue mail" in await shown(client, "/audit")


async def test_a_page_is_fit_for_keyboards_readers_and_narrow_screens(data: Path) -> None:
    async with browser(data, allow_actions=True) as client:
        job = re.findall(r"/jobs/[0-9a-f]{8}-\d+", await shown(client, "/jobs"))[0]
        for path in (*PAGES, job):
            page = Elements(await shown(client, path))
            (language,) = page.named("html")
            assert language["lang"] == "en"
            assert len(page.named("h1")) == len(page.named("main")) == 1
            assert page.named("a")[0]["href"] == "#main"
            assert all("scope" in head for head in page.named("th"))
            labelled = {label["for"] for label in page.named("label")}
            fields = [item for item in page.named("input") if item.get("type") != "hidden"]
            assert {field["id"] for field in fields if "aria-label" not in field} == labelled
            named = {"aria-label", "aria-hidden"}
            assert all(named & set(picture) for picture in page.named("svg"))
            assert "viewport" in {item.get("name") for item in page.named("meta")}


def ids(page: str) -> list[str]:
    return re.findall(r'<a class="id" href="/jobs/([^"]+)"', page)


async def test_what_was_written_by_others_is_inert_on_every_page(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, durability="os", name=NAME)

    @app.task(name=NAME, queue=NAME, retry=1)
    async def fail(text: str) -> None:
        raise ValueError(EVIL)

    async with app:
        await fail.options(headers={NAME: EVIL}, key=EVIL).enqueue(EVIL)
        await app.worker(burst=True).run()
        await app.pause(NAME)
        async with browser(tmp_path) as client:
            job = re.findall(r"/jobs/[0-9a-f]{8}-\d+", await shown(client, "/jobs"))[0]
            for path in (*PAGES, job, "/jobs?q=%3Cscript%3E%22onload=%27"):
                page = await shown(client, path)
                elements = Elements(page)
                assert elements.named("img") == []
                assert [item.get("src") for item in elements.named("script")] == ["/static/page.js"]
                for _, attributes in elements.found:
                    assert not any(name.startswith("on") or name == "style" for name in attributes)
                assert "\x1b" not in page
                assert "\u202e" not in page
    async with browser(tmp_path, allow_actions=True) as client:
        resumed = forms(await shown(client, "/"))[0]
        assert resumed["name"] == NAME
        answer = await send_form(client, resumed)
        assert answer.status_code == 303, answer.text


async def test_forms_change_the_log_and_lead_back(data: Path) -> None:
    async with browser(data, allow_actions=True) as client:
        (resume,) = [form for form in forms(await shown(client, "/")) if form["name"] == "mail"]
        answer = await send_form(client, resume)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        (kind,) = forms(await shown(client, "/failures"))
        answer = await send_form(client, kind)
        assert "Requeued 2 jobs." in await shown(client, answer.headers["location"])
        assert "No dead letters" in await shown(client, "/failures")
        assert kind["q"].startswith("state:dead fingerprint:")
        assert (await send_form(client, kind)).status_code == 303  # none is left
        for q, action in (("7001", "cancel"), ("7002", "cancel")):
            (job,) = set(
                re.findall(r"/jobs/[0-9a-f]{8}-\d+", await shown(client, "/jobs", q=f'"{q}"'))
            )
            form = forms(await shown(client, job))[0]
            assert form["action"] == f"/act/{action}"
            assert (await send_form(client, form)).headers["location"] == job
            assert forms(await shown(client, job)) == []


async def test_a_form_without_its_token_or_from_elsewhere_changes_nothing(data: Path) -> None:
    async with browser(data, allow_actions=True) as client:
        (kind,) = forms(await shown(client, "/failures"))
        for changed in ("", "x" * 43, kind["taskq.token"][:-1]):
            assert (await send_form(client, {**kind, "taskq.token": changed})).status_code == 403
        client.headers["Origin"] = "https://evil.example"
        assert (await send_form(client, kind)).status_code == 403
        client.headers["Origin"] = ORIGIN
        assert (await client.get(kind["action"])).status_code == 405
        many = "&".join(f"a{number}=1" for number in range(1_000))
        assert (await client.post(kind["action"], content=many)).status_code == 400
        assert (await client.post(kind["action"], content=b"\xff")).status_code == 400
        assert forms(await shown(client, "/failures")) == [kind]
    async with program(data) as client:
        assert (await send_form(client, kind)).status_code == 403


async def test_every_page_shows_a_past_state_of_the_log(data: Path) -> None:
    async with browser(data, allow_actions=True) as client:
        job = re.findall(r"/jobs/[0-9a-f]{8}-\d+", await shown(client, "/jobs", q="7002"))[0]
        page = await shown(client, job, at="1")
        assert "as it was" in page.casefold()
        assert '<small class="state ready">ready</small>' in page
        assert "Attempts" not in page
        for path in PAGES:
            page = await shown(client, path, at="1")
            assert forms(page) == []
            assert "data-live" not in page
            links = re.findall(r'<a href="(/[^"]*)"', page)
            assert links
            assert all("at=" in link for link in links if not page.count(f'"{link}">Back'))
        assert "No dead letters" in await shown(client, "/failures", at="1")
        assert "7002" not in await shown(client, "/", at="1")
        (moment,) = set(re.findall(r"/jobs\?at=([^&\"]+)", await shown(client, "/", at="0s")))
        assert "ValueError" in await shown(client, "/failures", at=unquote(moment))
        for at, status in (("1d", 200), ("99999", 422), ("soon", 422), ("2999-01-01", 422)):
            answer = await client.get("/jobs", params={"at": at})
            assert answer.status_code == status, answer.text


async def test_limits_and_what_workers_wait_for_are_shown(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, upkeep=False)
    resize = Held(
        app, name="resize", concurrency=1, rate="5/min", concurrency_key=lambda given: given
    )

    @app.task(name="sync", requires=[condition(lambda: False, name="the VPN is up")])
    async def sync() -> None: ...

    async with app, app.worker(), browser(tmp_path) as client, program(tmp_path) as other:
        await resize.task.enqueue_many([("ada",), ("ada",)])
        await sync.enqueue()
        await resize.runs.wait()
        page = ""
        with anyio.fail_after(30):
            while "the VPN is up" not in page:
                page = await shown(client, "/limits")
        assert "it waits for the VPN is up, which does not hold" in page
        (limit,) = (await get(other, "limits"))["limits"]
        facts = {"task": "resize", "key": "ada", "concurrency": 1, "running": 1, "waiting": 1}
        assert facts.items() <= limit.items()
        assert (limit["rate"], limit["room"]) == ("5/min", 0), "one of one runs"
        assert re.search(r'class="number paused"[^>]*>1</td>', page)
        resize.end.set()


async def test_a_flow_is_drawn(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, durability="os")

    @app.task(name="fetch")
    async def fetch(url: str) -> str:
        return url

    @app.task(name="count")
    async def count(pages: list[str]) -> int:
        return len(pages)

    async with app:
        flow = await chord([fetch.call("a"), fetch.call("b")], count.step()).enqueue()
        async with browser(tmp_path) as client:
            page = await shown(client, f"/jobs/{flow.id}")
            assert (page.count("<text"), page.count("<path")) == (6, 2)
            assert page.count(' aria-current="true"') == 1
            assert "<code>count.step()</code>" in page
            for job in set(re.findall(r'<a href="(/jobs/[^"]+)"', page)):
                assert (await shown(client, job)).count("<path") == 2


@pytest.mark.parametrize("back", [
    "//evil.example", "https://evil.example", "/\\evil.example", "", "x", "/\n/evil", "/\t",
])  # fmt: skip
def test_a_form_leads_back_to_no_other_page(back: str) -> None:
    assert (_inside(back), _inside("/jobs?q=a//b")) == ("/", "/jobs?q=a//b")


@pytest.mark.parametrize("path", [
    "/jobs/none", "/jobs/1-1", "/jobs?limit=0", "/jobs?q=state:x", "/jobs?before=x", "/jobs?x=1",
])  # fmt: skip
async def test_a_wrong_address_shows_an_error_page(data: Path, path: str) -> None:
    async with browser(data) as client:
        answer = await client.get(path)
    assert answer.status_code in {404, 422}
    assert 'role="alert">' in answer.text


async def _compact(path: Path) -> None:
    async with TaskLog.open(
        path, durability="os", segment_bytes=SEGMENT_BYTES_MIN, upkeep=False
    ) as log:
        for _ in range(3):
            await log.put_many([Put(payload=bytes(4_000), queue="old")] * 8)
            for delivery in await log.claim(8, queues=["old"]):
                await log.ack(delivery)
    words = ["compact", "-d", str(path), "--keep", "0s"]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert "gone" in result.output, result.output


async def _log_of(path: Path, parts: frozenset[str]) -> None:
    app = TaskQ(path, durability="os")

    @app.task(name="mail.send", queue="mail", retry=1)
    async def send(number: int) -> None:
        raise ValueError(f"no address {number}")

    async def report() -> None: ...

    if "schedules" in parts:
        app.every("1h", name="hourly")(app.task(name="report", queue="mail")(report))
    async with app:
        if "dead" in parts:
            await send.enqueue(7)
        await app.worker(burst=True).run()
    if "compacted" in parts:
        await _compact(path)
    async with app:
        if "waiting" in parts:
            await send.options(delay="1h").enqueue(1)
            await app.enqueue_by_name("nobody.knows", number=1)
        for queue in ("mail", "never used") if "paused" in parts else ():
            await app.pause(queue)


_PARTS = ("schedules", "dead", "compacted", "waiting", "paused")


@pytest.mark.parametrize(
    # All 32 states take half a minute; by default none, one, and all of them.
    "count",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in {2, 3, 4})) for n in range(len(_PARTS) + 1)],
)
async def test_every_page_answers_in_every_state_of_the_log(tmp_path: Path, count: int) -> None:
    for number, parts in enumerate(itertools.combinations(_PARTS, count)):
        path = tmp_path / str(number)
        await _log_of(path, frozenset(parts))
        async with browser(path, allow_actions=True) as person, program(path) as client:
            described = (await client.get("/api/openapi.json")).json()["paths"]
            jobs = (await client.get("/api/jobs")).json()["jobs"]
            asked = [
                each.replace("{id}", jobs[0]["id"] if jobs else "")
                for each, does in described.items()
                if "get" in does and (jobs or "{" not in each)
            ]
            pages: tuple[str, ...] = (
                *PAGES, "/go", "/enqueue", "/jobs?q=queue:mail", "/many?act=purge&q=mail",
            )  # fmt: skip
            app = TaskQ(path, durability="os")
            for working in (contextlib.nullcontext(), app.worker(queues=["elsewhere"])):
                async with app, working:
                    for page in pages:
                        assert (await person.get(page)).status_code == 200, (parts, page)
                    for question in asked:
                        assert (await client.get(question)).status_code == 200, (parts, question)
                pages, asked = ("/", "/workers"), ["/api/workers"]


async def test_tasks_slots_and_schedules_are_steered_by_forms(data: Path) -> None:
    acts = {
        "/act/pause_task": {"name": "mail.send"},
        "/act/limit_task": {"name": "mail.send", "concurrency": "2", "rate": "5/min"},
        "/act/set_slots": {"count": "3"},
        "/act/add_schedule": {"name": "eu", "task": "mail.send", "arguments": '{"to": "a"}',
                              "every": "10m"},
    }  # fmt: skip
    async with browser(data, allow_actions=True) as client:
        before = await shown(client, "/limits")
        token = forms(before)[0]["taskq.token"]
        for act, fields in acts.items():
            form = {"action": act, "taskq.token": token, "taskq.back": "/tasks", **fields}
            assert (await send_form(client, form)).status_code == 303, act
        form = {"action": "/act/add_schedule", "taskq.token": token, "arguments": "{", "name": "x"}
        assert (await send_form(client, form)).status_code == 422
        assert '<b class="state paused">paused</b>' in await shown(client, "/tasks")
        limits = await shown(client, "/limits")
        assert "5/min" in limits
        assert "As the code says" in limits
        ends = {"/schedules": ("remove_schedule", "eu"), "/tasks": ("resume_task", "mail.send"),
                "/limits": ("limit_task", "mail.send")}  # fmt: skip
        for page, (act, name) in ends.items():
            on_page = forms(await shown(client, page))
            wanted = {"action": f"/act/{act}", "name": name}
            form = next(form for form in on_page if wanted.items() <= form.items())
            assert (await send_form(client, form)).status_code == 303
        assert "every 0:10:00" not in await shown(client, "/schedules")
    async with TaskQ(data, upkeep=False) as app:
        assert await app.controls() == {"slots": {"": 3}}
